"""axes: which axes a reduction reduces, and along which its vectors run."""

from __future__ import annotations

import pytest

from tvm_rnn.graph.axes import reduced_axes, runs_along
from tvm_rnn.graph.graph import Node, make

X, Y = Node("input", shape=(4, 6), name="x"), Node("input", shape=(6, 2), name="y")


def test_reduced_axes() -> None:
    assert reduced_axes(make("sum", X, axis=-2, keepdims=False)) == [("k", 4)]
    assert reduced_axes(make("einsum", X, Y, spec="ab,bc->ac")) == [("b", 6)]


@pytest.mark.parametrize(("axis", "along"), [(-1, True), (-2, False)])
def test_vectors_run_along_the_last_axis(axis: int, along: bool) -> None:
    assert runs_along(make("sum", X, axis=axis, keepdims=False)) is along


def test_vectors_of_a_product_run_along_the_axis_that_lies_dense() -> None:
    assert runs_along(make("einsum", X, Node("input", shape=(6,)), spec="ab,b->a"))
    assert not runs_along(make("einsum", X, Y, spec="ab,bc->ac"))
