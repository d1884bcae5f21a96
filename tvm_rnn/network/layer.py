"""One layer of a network: what `RNN` has a list of, and regularisers change.

In: sizes and traced graphs. Out: `Layer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_rnn.graph.graph import Graph
from tvm_rnn.graph.ops import Shape


@dataclass(frozen=True)
class Layer:
    """One layer: its index, the sizes of its axes, and its graphs (shared by layers of equal sizes): that of inference,
    and that of training, which is another one where there are regularisers."""

    index: int
    sizes: Mapping[str, int]
    graph: Graph
    training: Graph

    @property
    def width(self) -> int:
        """Features that one direction emits."""
        return self.graph.output.shape[0]

    @property
    def output_shape(self) -> Shape:
        """The axes of what one direction emits at a step."""
        return self.graph.output_shape or self.graph.output.shape


def weight_name(parameter: str, layer: int, direction: int) -> str:
    """The name of a layer's parameter among the weights of a network, as torch names its own."""
    return f"{parameter}_l{layer}" + ("_reverse" if direction else "")
