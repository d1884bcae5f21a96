"""Where an element lies: indices as texts of C, and what views of a value make of them.

In: a view's node and the indices of one of its elements. Out: the indices of the same element in what it is a view of.
An index that is known now is written as its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import Shape

Place = tuple[str, ...]


def plus(a: str, b: str | int) -> str:
    """a + b."""
    b = str(b)
    if "0" in (a, b):
        return b if a == "0" else a
    return str(int(a) + int(b)) if a.isdigit() and b.isdigit() else f"{a} + {b}"


def times(a: str, b: int) -> str:
    """a b."""
    if a == "0" or b == 1:
        return a
    return str(int(a) * b) if a.isdigit() else f"{_held(a)} * {b}"


def _held(a: str) -> str:
    return f"({a})" if " " in a else a


def offset(at: Sequence[str], shape: Shape) -> str:
    """The element's number among all of an array in C order."""
    total = "0"
    for index, size in zip(at, shape, strict=True):
        total = index if total == "0" and size != 1 else plus(times(total, size), index if size != 1 else "0")
    return total


def spread(number: str, shape: Shape) -> Place:
    """The indices of the element of that number."""
    found, below = [], prod(shape)
    for i, size in enumerate(shape):
        below //= size
        index = "0" if size == 1 else number if below == 1 else f"{_held(number)} / {below}"
        outermost = all(s == 1 for s in shape[:i])
        found.append(index if size == 1 or outermost else f"{_held(index)} % {size}")
    return tuple(found)


def broadcast(at: Place, shape: Shape) -> Place:
    """The place in an operand whose axes of size 1 are repeated."""
    return tuple("0" if size == 1 else index for index, size in zip(at, shape, strict=True))


def viewed(node: Node, at: Place) -> Place:
    """The place in a view's argument of the view's element at `at`. Raises ValueError for an operation that is none."""
    shape, attrs = node.args[0].shape, node.attrs
    if node.op == "reshape":
        return _reshaped(at, node.shape, shape)
    if node.op == "broadcast":
        return broadcast(at, shape)
    if node.op == "transpose":
        back = dict(zip(attrs["axes"], at, strict=True))
        return tuple(back[axis] for axis in range(len(shape)))
    if node.op == "windows":
        return windows(at, attrs["dilation"])
    axis = len(shape) + attrs["axis"] if "axis" in attrs else 0
    if node.op == "index":
        return (*at[:axis], str(attrs["at"]), *at[axis:])
    if node.op == "slice":
        return (*at[:axis], plus(at[axis], attrs["start"]), *at[axis + 1 :])
    if node.op == "flip":
        return (*at[:axis], f"{shape[axis] - 1} - {_held(at[axis])}", *at[axis + 1 :])
    raise ValueError(f"{node.op} is no view")


def windows(at: Place, dilation: Sequence[int]) -> Place:
    """The place that a convolution's tap reads: [C, *taps, *places] to [C, *S]."""
    rank = len(dilation)
    taps, places = at[1 : 1 + rank], at[1 + rank :]
    return (at[0], *(plus(p, times(t, step)) for p, t, step in zip(places, taps, dilation, strict=True)))


def _reshaped(at: Place, shape: Shape, to: Shape) -> Place:
    """Indices of the same element in another shape: the same ones where only axes of size 1 differ."""
    own = [index for index, size in zip(at, shape, strict=True) if size != 1]
    if [size for size in shape if size != 1] == [size for size in to if size != 1]:
        left = iter(own)
        return tuple(next(left) if size != 1 else "0" for size in to)
    return spread(offset(at, shape), to)
