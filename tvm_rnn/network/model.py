"""A model of several recurrent networks, and what is around them.

In: networks, and the program that a frontend read. Out: `Model`, which `compile` takes as it takes an RNN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .origin import Origin
from .program import Program
from .rnn import RNN


class Model:
    """Several recurrent networks and what is around them: what `from_onnx` gives where one RNN does not say it all.

    networks: RNNs with weights; `rnn.compile(model)` puts all of them into one file, whose `run` is how it is called.
    """

    def __init__(self, networks: Sequence[RNN], program: Program, origin: Origin) -> None:
        self.networks, self.program, self.origin = list(networks), program, origin

    def __repr__(self) -> str:
        return f"<Model of {', '.join(map(repr, self.networks))}>"

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Every network's, after the number of the network: "0.W_l0"."""
        return {f"{i}.{name}": value for i, net in enumerate(self.networks) for name, value in net.weights.items()}
