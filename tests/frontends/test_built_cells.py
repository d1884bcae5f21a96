"""Cells made of a description: what a user's @cell would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import CellError
from tvm_rnn.frontends.built_cells import build_cell


def make(scale: float, **options: Any) -> rnn.Cell:
    def equations(v: Any) -> tuple[Any, ...]:
        c = scale * (v["W"] @ v["x"]) + v["a"] * v["c"]
        return rnn.tanh(c), c

    states = {"h": "H", "c": "H"}
    return build_cell("made", "What it does.", {"x": "I", "a": ""}, states, {"W": "H I"}, equations, **options)


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
    ys = [rnn.reference(rnn.RNN(make(s, initial={"c": 1.0}, output="c"), 3, 2).init(1))(x)[0] for s in (0.0, 1.0)]
    assert (ys[0] == 1.0).all() and not (ys[1] == 1.0).any()
    with pytest.raises(CellError, match="initial"):
        make(1.0, initial={"z": 1.0})
