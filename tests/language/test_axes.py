"""Names of axes: carried through operations, compared where two meet, and changed by `rename` alone.

In: traced values of equal sizes, so that nothing but names can tell axes apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import CellError, cell, cells
from tvm_rnn.graph.graph import Node
from tvm_rnn.language.axes import AxesDiffer, merged, same
from tvm_rnn.language.dims import parse_dims
from tvm_rnn.language.trace import Value

SIZE = 4


def value(dims: str) -> Any:
    """A value with these dims; every plain axis has the same size."""
    axes = parse_dims(dims)
    return Value(Node("input", shape=axes.shape(dict.fromkeys(axes.names, SIZE)), name="v"), axes.labels)


def test_what_two_names_make() -> None:
    assert same([None, "H", None, "H"]) == "H" and same([None]) is None
    assert merged([("H", None), (None, "I"), ("H", "I")]) == ("H", "I")
    with pytest.raises(AxesDiffer, match="H and I"):
        same(["H", None, "I"])


CARRIED: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str | None, ...]]] = {
    "number": (lambda v: 2.0 * v, ("4 H",), (None, "H")),
    "expression": (lambda v: v, ("2*H H+I I",), (None, None, "I")),
    "lower rank": (lambda a, b: a + b, ("4 H", "H"), (None, "H")),
    "size 1": (lambda a, b: a * b, ("H", "1"), ("H",)),
    "array": (lambda v: v + np.ones((2, SIZE)), ("H",), (None, "H")),
    "function": (lambda v: rnn.where(v > 0.0, rnn.elu(v), rnn.layer_norm(v)), ("H",), ("H",)),
    "unknown and known": (lambda a, b: a + b, ("4", "H"), ("H",)),
    "product": (lambda a, b: a @ b, ("3 H I", "I"), (None, "H")),
    "matrices": (lambda a, b: a @ b, ("H I", "I K"), ("H", "K")),
    "outer": (rnn.outer, ("H", "I"), ("H", "I")),
    "outer, swapped": (lambda a, b: rnn.einsum("i,j->ji", a, b), ("H", "I"), ("I", "H")),
    "einsum": (lambda a, b, c: rnn.einsum("hi,i,hk->k", a, b, c), ("H I", "I", "H K"), ("K",)),
    "transpose": (lambda v: v.T, ("H I",), ("I", "H")),
    "index": (lambda v: v[1], ("4 H",), ("H",)),
    "unpacked": (lambda v: [*v][3], ("4 H",), ("H",)),
    "slice": (lambda v: v[1:], ("H I",), (None, "I")),
    "whole slice": (lambda v: v[:, None, ...], ("H I",), ("H", None, "I")),
    "split": (lambda v: rnn.split(v, 2)[0], ("H I",), ("H", None)),
    "expand and squeeze": (lambda v: rnn.squeeze(rnn.expand(v, 1), 1), ("H I",), ("H", "I")),
    "reshape": (lambda v: v.reshape(-1), ("H",), (None,)),
    "sum": (lambda v: rnn.sum(v, 0), ("H I",), ("I",)),
    "softmax": (rnn.softmax, ("H I",), ("H", "I")),
    "max": (lambda v: rnn.max(v, -1, keepdims=True), ("H I",), ("H", None)),
    "concat": (lambda a, b: rnn.concat([a, b]), ("H I", "H K"), ("H", None)),
    "stack": (lambda a, b: rnn.stack([a, b]), ("H", "H"), (None, "H")),
    "rename": (lambda v: rnn.rename(v, "K H 4 2*I"), ("H 4 4 8",), ("K", "H", None, None)),
    "rename without heads": (lambda v: rnn.rename(v, "N? K"), ("H",), ("K",)),
    "rename with heads": (lambda v: rnn.rename(v, "N? K"), ("4 H",), ("N", "K")),
    "matvec": (rnn.matvec, ("N H K", "N K"), ("N", "H")),
    "vecmat": (rnn.vecmat, ("N H", "N H K"), ("N", "K")),
    "vecdot of shared heads": (rnn.vecdot, ("N M H", "N 1 H"), ("N", "M")),
    "outer of heads": (rnn.outer, ("N H", "N K"), ("N", "H", "K")),
    "new axes": (lambda v: v[..., None, None], ("N",), ("N", None, None)),
}


@pytest.mark.parametrize("name", CARRIED)
def test_names_are_carried(name: str) -> None:
    function, dims, expected = CARRIED[name]
    assert function(*map(value, dims)).axes == expected


REFUSED: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "sum": (lambda a, b: a + b, ("H", "I")),
    "broadcast sum": (lambda a, b: a + b, ("2 H", "I")),
    "where": (lambda a, b: rnn.where(a > 0.0, b, 0.0), ("H", "I")),
    "product": (lambda a, b: a @ b, ("I H", "I")),
    "product of an unpacked": (lambda a, b: a[0] @ b, ("3 I H", "I")),
    "einsum": (lambda a, b: rnn.einsum("ij,i->j", a, b), ("H I", "I")),
    "rows of matrices": (lambda a, b: a @ b + b, ("H I", "I K")),
    "concat": (lambda a, b: rnn.concat([a, b]), ("H I", "I I")),
    "stack": (lambda a, b: rnn.stack([a, b]), ("H", "I")),
    "gain": (rnn.layer_norm, ("H", "I")),
    "after rename": (lambda a, b: rnn.rename(a, "K") * b, ("H", "H")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_differ_are_refused(name: str) -> None:
    function, dims = REFUSED[name]
    with pytest.raises(CellError, match=r"axes of different names meet(.|\n)*test_axes.py(.|\n)*rnn.rename"):
        function(*map(value, dims))


def test_names_are_compared_inside_cells_that_are_called() -> None:
    @cell
    def outer(x: "I", h: "H", *, W: "H I", R: "H H", b: "H"):
        return cells.elman(x, h, W=W, R=R, b=b)

    @cell
    def swapped(x: "I", h: "H", *, W: "I H", R: "H H", b: "H"):
        return cells.elman(x, h, W=W, R=R, b=b)

    assert rnn.RNN(outer, 4, 4).output_size == 4
    with pytest.raises(CellError, match="H and I"):
        rnn.RNN(swapped, 4, 4)


def test_an_array_stays_as_it_is() -> None:
    x = np.ones(3)
    assert rnn.rename(x, "H") is x


@pytest.mark.parametrize("name", cells.names())
def test_no_cell_of_the_zoo_needs_equal_sizes_to_be_right(name: str) -> None:
    """Names are compared after sizes: with all sizes equal only names can refuse."""
    made = cells.get(name)
    made.trace(dict.fromkeys(made.size_names, SIZE))
