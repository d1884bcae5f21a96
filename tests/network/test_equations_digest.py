"""equations_digest: equations are known by what they compute."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.network.equations_digest import equations_digest


def test_a_digest_knows_equations_by_what_they_compute() -> None:
    def digest(size: int = 4, factor: float = 0.5, array: tuple[float, ...] = (1.0, 2.0, 3.0)) -> str:
        @rnn.cell(states="h")
        def own(x: "I", h: "H", *, W: "H I"):
            return rnn.tanh(W @ x) * factor + h * np.array(array, "f4")

        return equations_digest(rnn.RNN(own, size, 3))

    assert digest() == digest() and len(digest()) == 64
    assert len({digest(), digest(5), digest(factor=0.25), digest(array=(1.0, 2.0, 4.0)), digest(factor=0.5000001)}) == 5
    sizes = {"P": 4, "H": 5}
    assert equations_digest(rnn.RNN(rnn.cells.lstm_projection, 3, **sizes)) == equations_digest(
        rnn.RNN(rnn.cells.lstm_projection, 3, 5, P=4)
    )
