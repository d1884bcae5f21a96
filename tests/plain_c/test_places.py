"""Indices as texts of C: evaluated for every element of random views, they are NumPy's."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.plain_c.places import broadcast, offset, plus, spread, times, viewed


def number(text: str, **names: int) -> int:
    """A text of C's, whose / is a whole number's."""
    return int(eval(re.sub(r" / ", " // ", text), {}, names))


def test_what_is_known_is_a_number() -> None:
    assert plus("2", 3) == "5" and plus("0", "i") == "i" and plus("i", 0) == "i" and times("3", 4) == "12"
    assert times("i + 1", 4) == "(i + 1) * 4" and times("i", 1) == "i"
    assert offset(("1", "i", "0"), (2, 5, 1)) == "5 + i" and offset((), ()) == "0"


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("reshape", (4, 1, 6), {"rank": 3, "to": (4, 6)}),
        ("reshape", (4, 6), {"rank": 2, "to": (3, 8)}),
        ("reshape", (2, 3, 4), {"rank": 3, "to": (24,)}),
        ("transpose", (2, 3, 4), {"axes": (2, 0, 1)}),
        ("slice", (5, 4), {"axis": -2, "start": 1, "stop": 4}),
        ("index", (5, 4), {"axis": -2, "at": 3}),
        ("flip", (5, 4), {"axis": -1}),
        ("broadcast", (5, 1, 2), {"to": (5, 3, 2)}),
        ("windows", (2, 7, 5), {"taps": (3, 2), "dilation": (2, 1)}),
    ],
)
def test_a_view_reads_the_element_that_numpy_reads(op: str, shape: tuple[int, ...], attrs: dict[str, object]) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    node = make(op, Node("input", shape=shape), **attrs)
    expected = TABLE[op].numpy(x, **attrs)
    assert expected.shape == node.shape
    place = viewed(node, tuple("0" if size == 1 else f"i{axis}" for axis, size in enumerate(node.shape)))
    for at in itertools.product(*map(range, node.shape)):
        names = {f"i{axis}": index for axis, index in enumerate(at)}
        assert x[tuple(number(index, **names) for index in place)] == expected[at]
        assert number(offset(tuple(f"i{i}" for i in range(len(at))), node.shape), **names) == np.ravel_multi_index(
            at, node.shape
        )


def test_the_element_of_a_number_and_of_a_repeated_axis() -> None:
    for n in range(24):
        assert tuple(number(text, n=n) for text in spread("n", (2, 1, 3, 4))) == np.unravel_index(n, (2, 1, 3, 4))
    assert broadcast(("i", "j"), (3, 1)) == ("i", "0")


def test_what_is_no_view_is_refused() -> None:
    x = Node("input", shape=(2,))
    with pytest.raises(ValueError, match="tanh is no view"):
        viewed(make("tanh", x), ("i",))
