"""Cells made of a description: what a user's @cell would be."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.frontends.built_cells import Values, build_cell, build_recurrent
from tvm_rnn.language.trace import Value


def make(scale: float, output: str | None = None) -> rnn.Cell:
    def equations(v: Values) -> tuple[Value, ...]:
        c = scale * (v["W"] @ v["x"]) + v["a"] * v["c"]
        return rnn.tanh(c), c

    states = {"h": "H", "c": "H"}
    return build_cell("made", "What it does.", {"x": "I", "a": ""}, states, {"W": "H I"}, equations, output=output)


def test_it_is_a_cell_like_any_other() -> None:
    @rnn.cell(states="h c")
    def written(x: "I", a: "", h: "H", c: "H", *, W: "H I"):
        c = 0.5 * (W @ x) + a * c
        return rnn.tanh(c), c

    made = make(0.5)
    assert repr(made).replace("made", "written") == repr(written) and made.doc == "What it does."
    x = {"x": np.ones((4, 2, 3)), "a": np.full((4, 2), 0.5)}
    ours, theirs = (rnn.reference(rnn.RNN(cell, 3, 5).init(1))(x) for cell in (made, written))
    np.testing.assert_array_equal(ours[0], theirs[0])


def test_each_has_equations_and_options_of_its_own() -> None:
    x = {"x": np.ones((1, 1, 3)), "a": np.ones((1, 1))}
    ys = [rnn.reference(rnn.RNN(make(s, output="c"), 3, 2).init(1))(x)[0] for s in (0.0, 1.0)]
    assert not ys[0].any() and ys[1].all()


@pytest.mark.parametrize(("reset_after", "cell"), [(True, rnn.cells.gru), (False, rnn.cells.gru_reset_before)])
def test_a_gru_of_the_usual_functions_is_that_of_the_zoo(reset_after: bool, cell: rnn.Cell) -> None:
    made = build_recurrent(
        "made", "A GRU.", "GRU", lambda n, x, v: [rnn.sigmoid, rnn.tanh][n](x), reset_after=reset_after
    )
    x = np.random.default_rng(0).normal(size=(4, 2, 3))
    ours, theirs = (rnn.reference(rnn.RNN(one, 3, 5).init(1))(x)[0] for one in (made, cell))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
