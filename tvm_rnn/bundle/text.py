"""Values as they are written in C.

In: Python's text and numbers. Out: words of C source.
"""

from __future__ import annotations

from collections.abc import Iterable


def c_text(value: str) -> str:
    """A C string, with whatever is not plain as octal bytes."""
    return '"' + "".join(map(_letter, value.encode())) + '"'


def _letter(byte: int) -> str:
    plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"


def initialiser(values: Iterable[object]) -> str:
    """Items of an array, with one more: in C it may not be empty."""
    return ", ".join([*map(str, values), "0"])
