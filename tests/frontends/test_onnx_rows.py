"""Values with and without the batch: how they meet, and what a node's axes and numbers mean for them."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.onnx_rows import (
    BATCH,
    Item,
    aligned,
    axis_of,
    first_of,
    has_batch_size,
    numbers_of,
    shape_of,
    sizes_text,
)
from tvm_rnn.graph.graph import Node
from tvm_rnn.language.trace import Value

TRACED = Item(Value(Node("input", shape=(2, 3), name="x")), True)


@pytest.mark.parametrize("other", [(), (3,), (1,), (2, 1), (1, 1, 3), (1, 2, 3)])
def test_what_broadcasts_with_a_batch_does_without_it(other: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows, array = rng.normal(size=(5, 2, 3)), rng.normal(size=other)
    whole = rows * array
    for at in range(5):
        batched, (x, y) = aligned([Item(rows[at], True), Item(array)])
        assert batched
        np.testing.assert_array_equal(x * y, whole[at])


def test_what_does_not_meet() -> None:
    row = Item(np.zeros((2, 3)), True)
    for other, reason in (
        (Item(np.zeros((5, 2, 3))), r"shape \[5, 2, 3\] meets a value of one step"),
        (Item(np.zeros((1, 1, 2, 3))), "meets a value of one step"),
        (Item(np.zeros(3), True), "the batch in different places"),
    ):
        with pytest.raises(Unreadable, match=reason):
            aligned([row, other])
    assert aligned([Item(np.zeros(2)), Item(np.zeros((4, 2)))])[0] is False


def test_axes() -> None:
    """Counted from the end; the batch's is none of ours."""
    assert [axis_of(TRACED, n) for n in (1, 2, -1, -2)] == [-2, -1, -1, -2]
    assert [axis_of(Item(np.zeros((2, 3))), n) for n in (0, 1, -2)] == [-2, -1, -2]
    for n in (0, 3, -3, -4):
        with pytest.raises(Unreadable, match=f"axis {n} of a value of rank 3"):
            axis_of(TRACED, n)


def test_sizes() -> None:
    found = shape_of(TRACED, {})
    assert list(found.data) == [BATCH, 2, 3] and has_batch_size(found) and sizes_text(found.data) == "[B, 2, 3]"
    assert list(shape_of(TRACED, {"start": -2, "end": 2}).data) == [2]
    assert list(shape_of(Item(np.zeros((4, 1))), {}).data) == [4, 1]
    assert not any(map(has_batch_size, (None, TRACED, Item(np.array([1.0, BATCH])), Item(np.array([1])))))


def test_numbers_are_inputs_or_attributes() -> None:
    axes = Item(np.array([1, -1]))
    assert numbers_of([TRACED, axes], 1, {"axes": [0]}, "axes") == [1, -1]
    assert numbers_of([TRACED, None], 1, {"axes": (0, 2)}, "axes") == [0, 2]
    assert numbers_of([TRACED], 1, {}, "axes") is None
    with pytest.raises(Unreadable, match="axes depends on the step"):
        numbers_of([TRACED, TRACED], 1, {}, "axes")
    assert first_of([TRACED, None]) is TRACED
    with pytest.raises(Unreadable, match="first input is not given"):
        first_of([None])
