"""The masks of one call of training, in NumPy: what the oracle runs a network's graphs of training with.

In: a seed, the step at which a sequence begins, a network. Out: the values of mask nodes, and weights with weight drop.
Compiled code makes the same masks bit for bit (`cpu/dropout_masks.py`, `cuda/rowwise/dropout_masks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.runtime import runtime_random

Array = np.ndarray


@dataclass(frozen=True)
class Draws:
    """seed: a 64-bit integer. first_step: the number, in its whole sequence, of the first step that is given."""

    seed: int
    first_step: int = 0

    def masks(self, nodes: Sequence[Node], place: tuple[int, int], batch: int, t: int) -> dict[Node, Array]:
        """The values [B, *shape] of the mask nodes among `nodes` at step t of what is given. place: (layer,
        direction)."""
        found = {}
        for node in nodes:
            if node.random:
                words = runtime_random.key(self.seed, node.attrs["stream"], *place)
                found[node] = TABLE[node.op].numpy(words, batch, self.first_step + t, **node.attrs)
        return found

    def factors(self, net: RNN) -> dict[str, Array]:
        """What weight drop multiplies weights with, by name: 0 and 1 / keep."""
        found = {}
        for layer in net.layers:
            for direction in range(net.num_directions):
                for param in layer.graph.params:
                    p = net.regularisers.weight_drop.get(param.name)
                    if p is None:
                        continue
                    words = runtime_random.key(self.seed, runtime_random.ONCE + param.name, layer.index, direction)
                    own = runtime_random.mask(words, 1.0 - p, 1, prod(param.shape), 0)
                    found[weight_name(param.name, layer.index, direction)] = own.reshape(param.shape) / (1.0 - p)
        return found

    def weights(self, net: RNN) -> dict[str, Array]:
        """All weights of this call, in float64 where they are not the network's own."""
        factors = self.factors(net)
        return {name: value * factors[name] if name in factors else value for name, value in net.weights.items()}
