"""What sizes with names have to be for a graph's operators, in words; and sizes that nothing makes equal."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, tirx, topi

from tvm_rnn.surroundings.demands import Unequal, demands_of

NAMES = {name: tirx.Var(name, "int64") for name in "abt"}


def texts(make: Any, *shapes: tuple[str | int, ...]) -> list[str]:
    """What make(arrays of these shapes) needs."""
    kinds = [relax.TensorType([NAMES.get(str(n), n) for n in shape], "float32") for shape in shapes]
    given = [relax.Var(f"x{i}", kind) for i, kind in enumerate(kinds)]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            found = builder.emit_output(make(builder, *given))
        builder.emit_func_output(found)
    return [own.text for own in demands_of(builder.get())]


def op(function: Any, *more: Any, **attributes: Any) -> Any:
    return lambda builder, *given: builder.normalize(function(*given, *more, **attributes))


@pytest.mark.parametrize(
    ("make", "shapes", "expected"),
    [
        (op(relax.op.matmul), [(2, "a"), ("b", 3)], ["a = b"]),
        (op(relax.op.matmul), [("a",), (5,)], ["a = 5"]),
        (op(relax.op.matmul), [("t", "a"), ("a", "t")], []),
        (op(relax.op.nn.conv1d, groups=2), [(1, "a", "t"), (4, "b", 3)], ["a = b * 2", "t - 2 >= 0"]),
        (op(relax.op.nn.conv1d, padding=1), [(1, "a", "t"), (4, "a", 3)], []),
        (op(relax.op.nn.conv1d_transpose), [(1, "a", "t"), ("b", 4, 3)], ["a = b"]),
        (op(relax.op.reshape, (6, -1)), [("t", 12)], []),
        (op(relax.op.reshape, (NAMES["a"], 1)), [("b",)], ["b = a"]),
        (op(relax.op.add), [("a", 3), (1, 3)], []),
    ],
)
def test_operators(make: Any, shapes: Any, expected: list[str]) -> None:
    assert texts(make, *shapes) == expected


def test_groups_are_of_one_size() -> None:
    found = texts(op(relax.op.nn.group_norm, 2, 1, [2]), (1, "a", "t"), ("a",), ("a",))
    assert found == ["a // 2 * 2 = a"]


def test_loops_that_come_with_a_module() -> None:
    def einsum(builder: Any, one: Any, two: Any) -> Any:
        return builder.emit_te(topi.einsum, "ij,jk->ik", one, two)

    def joined(builder: Any, one: Any, two: Any) -> Any:
        return builder.emit_te(lambda x, y: topi.concatenate([x, y], 0), one, two)

    assert texts(einsum, (2, "a"), ("a", 3)) == []
    assert texts(einsum, (2, "a"), ("b", 3)) == ["max(a, b) = a", "max(a, b) = b"]
    assert texts(einsum, (2, "a"), (5, 3)) == ["a = 5"]
    assert texts(joined, ("a", 3), ("b", 3)) == []  # reads each under a condition of its own


def test_sizes_that_no_input_makes_equal() -> None:
    def einsum(builder: Any, one: Any, two: Any) -> Any:
        return builder.call_te(topi.einsum, "ij,kl->ij", one, two)

    def longer(builder: Any, one: Any, two: Any) -> Any:
        return builder.emit_te(lambda x, y: tvm.te.compute((4,), lambda i: x[i] + y[i]), one, two)

    assert texts(einsum, (2, 4), (5, 3)) == []
    with pytest.raises(Unequal, match="call_tir: sizes 4 and 3 differ"):
        texts(longer, (4,), (3,))
