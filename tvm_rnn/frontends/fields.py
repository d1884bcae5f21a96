"""Fields of a foreign record, read as the type that they must have: attributes of ONNX nodes, configs of Keras layers.

In: a mapping whose values may be anything, because a file says them. Out: a number, a text, a list or a mapping; or
Unreadable, which names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

Fields = Mapping[str, object]


class Unreadable(Exception):
    """Why a part of a model cannot be used; a frontend collects these and says all of them at once."""


class Wrong(list[str]):
    """All that is wrong with a part of a model, to be said at once."""

    @contextmanager
    def noting(self, where: str = "") -> Iterator[None]:
        """What cannot be used in this block is noted, with `where` before it; the block ends there."""
        try:
            yield
        except Unreadable as reason:
            self.append(f"{where}{reason}")

    def check(self, more: Callable[[], Iterable[str]] = tuple) -> None:
        """Raise Unreadable where anything is wrong, then with what else is to be said."""
        if self:
            raise Unreadable("; ".join([*self, *more()]))


def integer(fields: Fields, name: str, default: int | None = None) -> int:
    """A whole number; `default` where the field is not given. Truth values are none."""
    value = fields.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unreadable(f"{name} is {value!r:.60}, expected a whole number")


def number(fields: Fields, name: str, default: float | None = None) -> float:
    """A number; `default` where the field is not given."""
    value = fields.get(name, default)
    if isinstance(value, (int, float)):
        return float(value)
    raise Unreadable(f"{name} is {value!r:.60}, expected a number")


def text(fields: Fields, name: str, default: str | None = None) -> str:
    """A text; `default` where the field is not given."""
    value = fields.get(name, default)
    if isinstance(value, str):
        return value
    raise Unreadable(f"{name} is {value!r:.60}, expected a text")


def integers(fields: Fields, name: str) -> list[int]:
    """A list of whole numbers."""
    values = fields.get(name)
    if isinstance(values, (list, tuple)) and all(isinstance(n, int) and not isinstance(n, bool) for n in values):
        return list(values)
    raise Unreadable(f"{name} is {values!r:.60}, expected a list of whole numbers")


def floats(fields: Fields, name: str) -> list[float]:
    """A list of numbers; an empty one where the field is not given."""
    return [number({name: value}, name) for value in items(fields.get(name))]


def strings(fields: Fields, name: str) -> list[str]:
    """A list of texts; an empty one where the field is not given."""
    return [text({name: value}, name) for value in items(fields.get(name))]


def mapping(value: object) -> Fields:
    """A mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[object]:
    """A list as it is; an empty one for anything else."""
    return value if isinstance(value, list) else []
