"""The names of a traced value's axes: those of its annotation, carried through operations and compared where two meet.

In: operations and the names of their operands. Out: the names of the result, or `AxesDiffer`. A name is a plain axis of
an annotation ("H"). Numbers and expressions ("4", "2*H"), reshapes, parts of an axis and joined axes have none: there,
sizes alone are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_rnn.graph.ops import TABLE

Axes = tuple[str | None, ...]


class AxesDiffer(ValueError):
    """Two axes of different names meet."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(" and ".join(names))


def same(names: Sequence[str | None]) -> str | None:
    """The one name of axes that meet; None where none has one."""
    found = list(dict.fromkeys(name for name in names if name is not None))
    if len(found) > 1:
        raise AxesDiffer(found)
    return found[0] if found else None


def merged(operands: Sequence[Axes]) -> Axes:
    """The names of a pointwise result, of operands of equal rank."""
    return tuple(map(same, zip(*operands, strict=True)))


def _without(axes: Axes, axis: int) -> Axes:
    at = len(axes) + axis
    return axes[:at] + axes[at + 1 :]


def _unnamed(axes: Axes, axis: int) -> Axes:
    at = len(axes) + axis
    return (*axes[:at], None, *axes[at + 1 :])


def _contracted(operands: Sequence[Axes], attrs: Mapping[str, Any]) -> Axes:
    inputs, out = attrs["spec"].split("->")
    found: dict[str, list[str | None]] = {}
    for letters, axes in zip(inputs.split(","), operands, strict=True):
        for letter, name in zip(letters, axes, strict=True):
            found.setdefault(letter, []).append(name)
    names = {letter: same(given) for letter, given in found.items()}
    return tuple(names[letter] for letter in out)


def _windowed(axes: Axes, attrs: Mapping[str, Any]) -> Axes:
    return (axes[0], *[None] * (2 * len(attrs["taps"])))


def _reduced(operands: Sequence[Axes], attrs: Mapping[str, Any]) -> Axes:
    return (_unnamed if attrs["keepdims"] else _without)(operands[0], attrs["axis"])


_RULES: Mapping[str, Callable[[Sequence[Axes], Mapping[str, Any]], Axes]] = {
    "reshape": lambda operands, attrs: (None,) * len(attrs["to"]),
    "transpose": lambda operands, attrs: tuple(operands[0][a] for a in attrs["axes"]),
    "slice": lambda operands, attrs: _unnamed(operands[0], attrs["axis"]),
    "index": lambda operands, attrs: _without(operands[0], attrs["axis"]),
    "flip": lambda operands, attrs: _unnamed(operands[0], attrs["axis"]),
    "concat": lambda operands, attrs: merged([_unnamed(axes, attrs["axis"]) for axes in operands]),
    "broadcast": lambda operands, attrs: operands[0],
    "take": lambda operands, attrs: (*operands[1][: len(operands[1]) - attrs["rank"] + 1], *operands[0][1:]),
    "sum": _reduced,
    "max": _reduced,
    "einsum": _contracted,
    "windows": lambda operands, attrs: _windowed(operands[0], attrs),
    "conv": lambda operands, attrs: _contracted([operands[0], _windowed(operands[1], attrs)], attrs),
}


def axes_after(op: str, operands: Sequence[Axes], attrs: Mapping[str, Any]) -> Axes:
    """The names of an operation's result. Raises AxesDiffer."""
    return _RULES[op](operands, attrs) if op in _RULES or TABLE[op].kind != "pointwise" else merged(operands)
