"""zero_padding: what is inside of joined zeros, and where it begins."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.cpu.zero_padding import Padded, padded
from tvm_rnn.graph.graph import Node
from tvm_rnn.language.functions import pad
from tvm_rnn.language.functions import padded as with_zeros
from tvm_rnn.language.trace import Value

IMAGE = Node("input", shape=(2, 4, 5))


@pytest.mark.parametrize("amounts", [((1, 2), (3, 0)), ((0, 1), (2, 2)), ((0, 0), (1, 0)), ((2, 0), (0, 0))], ids=str)
def test_zeros_around_an_image(amounts: tuple[tuple[int, int], tuple[int, int]]) -> None:
    found = padded(with_zeros(Value(IMAGE), amounts).node, "float32")
    (above, below), (left, right) = amounts
    assert found == Padded(IMAGE, above, left, (2, 4 + above + below, 5 + left + right), "float32")
    assert not found.is_plain


def test_zeros_twice_along_one_axis() -> None:
    assert padded(pad(pad(Value(IMAGE), -1, 1, 1), -1, 2, 0).node, "float32").left == 3


def test_what_is_not_zeros_around_an_image_is_the_array_itself() -> None:
    joined = rnn.concat([Value(IMAGE), Value(IMAGE)], -1).node
    channels = pad(Value(IMAGE), -3, 1, 0).node
    for node in (IMAGE, joined, channels):
        found = padded(node, "float32")
        assert found.image is node and found.is_plain
