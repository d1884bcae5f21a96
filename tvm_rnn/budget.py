"""What reading one file may take, in bytes, nodes and depth: counted, so that every machine refuses the same files.

In: what readers of files say that they are about to make. Out: nothing, or an error of theirs that names the limit and
how to raise it. No clock is read: what takes long is bounded by what it is made of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError, TvmRnnError, message

MOST_AXES = 32  # of an array in NumPy 1; 64 in NumPy 2
MOST_ELEMENTS = 1 << 59  # of an array with items of 8 bytes, which NumPy counts as a number of C
BYTES_PER_BYTE = 64  # that may be made of each byte of a file: weights are copied a few times on their way


@dataclass(frozen=True)
class Budget:
    """What reading one file may take. As a context it holds for all files that are read in it:

        with rnn.Budget(nodes=1 << 24):
            net = rnn.from_onnx("large.onnx")

    Args:
        bytes: that may be unpacked or made of the file, and 64 more for each byte that it has.
        nodes: values of a config, messages of a graph, arrays of an archive.
        depth: of what is nested.
    """

    bytes: int = 128 << 20
    nodes: int = 1 << 20
    depth: int = 100

    def __enter__(self) -> Budget:
        _IN_USE.set((*_IN_USE.get(), self))
        return self

    def __exit__(self, *reason: object) -> None:
        _IN_USE.set(_IN_USE.get()[:-1])


_IN_USE: ContextVar[tuple[Budget, ...]] = ContextVar("budgets", default=(Budget(),))


def is_shape(sizes: Sequence[int]) -> bool:
    """Whether NumPy can have an array of this shape: it wants the other axes of an empty one to be small, too."""
    return len(sizes) <= MOST_AXES and min(sizes, default=0) >= 0 and math.prod(n or 1 for n in sizes) <= MOST_ELEMENTS


class Spending:
    """What reading one file has left. where: the file; size: its bytes; error: the class that its reader raises."""

    def __init__(self, where: str | None = None, size: int = 0, error: type[TvmRnnError] = ConfigError) -> None:
        self.budget, self.where, self.error = _IN_USE.get()[-1], where, error
        self.bytes, self.nodes = self.budget.bytes + BYTES_PER_BYTE * size, self.budget.nodes

    def take(self, what: str, *, bytes: int = 0, nodes: int = 0, depth: int = 0) -> None:
        """Say what is about to be made, before it is. Raises this reader's error where that is too much."""
        self.bytes, self.nodes = self.bytes - bytes, self.nodes - nodes
        if self.bytes < 0:
            self._refuse(what, "bytes", self.budget.bytes - self.bytes)
        if self.nodes < 0:
            self._refuse(what, "nodes", self.budget.nodes - self.nodes)
        if depth > self.budget.depth:
            self._refuse(what, "depth", depth)

    def _refuse(self, what: str, limit: Literal["bytes", "nodes", "depth"], needed: int) -> None:
        more = f" and {BYTES_PER_BYTE} for each byte of the file" * (limit == "bytes")
        expected = f"{limit} of at most {getattr(self.budget, limit)}{more}"
        do = f"if you trust the file, read it in `with tvm_rnn.Budget({limit}={2 * needed}):`"
        text = message("a file asks for more than its budget", where=self.where, got=what, expected=expected, do=do)
        raise self.error(text)

    def json(self, text: bytes, what: str) -> object:
        """The value of a JSON text; its nodes and depth are counted before anything is made of it."""
        self.take(f"{what} of {len(text)} bytes", nodes=1 + sum(text.count(mark) for mark in (b",", b"[", b"{")))
        try:
            found: object = json.loads(text)
        except RecursionError:
            self._refuse(f"{what}, which Python cannot nest", "depth", self.budget.depth)
        stack = [(found, 1)]
        while stack:
            value, depth = stack.pop()
            if isinstance(value, (Mapping, list)):
                self.take(what, depth=depth)
                stack += [(own, depth + 1) for own in (value.values() if isinstance(value, Mapping) else value)]
        return found
