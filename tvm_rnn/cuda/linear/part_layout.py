"""What kernels that make a matrix and its gradient again have in common: operands of a part in shared memory, and which
vectors are multiplied with which.

In: a `Pair`. Out: `PartLayout`, of which `BlocksLayout` and `PartsLayout` are kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Expr

from .chunk_tile import BLOCK
from .pair import BOTH, EVERY, GRADIENT, STATE, Pair
from .recurrence import Rows

PAD = 16  # bytes behind a row: the next row begins in other banks
ALL_SHARED = 228 * 1024  # bytes of a multiprocessor
SIDE = EVERY // BLOCK  # blocks of 16 steps
UNITS = SIDE * (SIDE + 1) // 2  # pairs of these that are one, or of which the first is later


@dataclass(frozen=True)
class PartLayout:
    """name: of the kernel."""

    name: str
    pair: Pair
    alignment: ClassVar[int] = 128  # of shared memory

    @property
    def warps(self) -> int:
        """Of a block."""
        raise NotImplementedError

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        raise NotImplementedError

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor, for which the compiler leaves registers."""
        raise NotImplementedError

    @property
    def keys(self) -> int:
        """Of a block: 16 to a warp."""
        return self.warps * BLOCK

    @property
    def deep(self) -> int:
        """Tiles of 16 values that are in shared memory at a time."""
        return ceil_div(self.pair.values, BLOCK)

    @property
    def tiles(self) -> int:
        """Of keys."""
        return ceil_div(self.pair.keys, self.keys)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    def blocks(self, batch: int, steps: int) -> int:
        """Of a launch."""
        return self.tiles * self.pair.heads * batch * ceil_div(steps, EVERY)

    # --- operands of all steps -------------------------------------------------------------------------------------

    def first(self, name: str) -> str:
        """The operand that is where this one is."""
        return dict(self.pair.same).get(name, name)

    @cached_property
    def held(self) -> dict[str, Rows]:
        """Vectors in shared memory, of which each is there once."""
        return self._once(False)

    @cached_property
    def decays(self) -> dict[str, Rows]:
        """Decays, of which each is there once."""
        return self._once(True)

    def _once(self, decays: bool) -> dict[str, Rows]:
        found = {n: rows for n, rows in self.pair.operands.items() if n.endswith("_decay") == decays}
        return {name: rows for name, rows in found.items() if self.first(name) == name}

    def scale(self, name: str) -> float:
        """The constant that a vector of the values is multiplied with."""
        return self.pair.operands[self.first(name)].scale

    def row_bytes(self, name: str) -> int:
        """Of a step's vector."""
        return 2 * (self.keys if is_column(name) else self.deep * BLOCK)

    def pitch(self, name: str) -> int:
        """Bytes from a step's vector to the next."""
        return self.row_bytes(name) + PAD

    def at(self, name: str) -> int:
        """Where an operand's first step is."""
        names = list(self.held)
        return sum(EVERY * self.pitch(other) for other in names[: names.index(self.first(name))])

    def place(self, name: str, step: Expr, byte: Expr) -> Expr:
        """Where a byte of a step's vector is."""
        return step * self.pitch(name) + byte + self.at(name)

    @property
    def operand_bytes(self) -> int:
        return sum(EVERY * self.pitch(name) for name in self.held)

    # --- what is multiplied with what ------------------------------------------------------------------------------

    @property
    def sums(self) -> bool:
        """Whether the product of both is wanted."""
        return any(read.of == BOTH for read in self.pair.reads)

    @cached_property
    def rows(self) -> dict[str, list[str]]:
        """Of each matrix the rows of what is written to it."""
        made = self.pair.made.items()
        return {name: [self.first(f"{name}_row_{i}") for i in range(len(own.writes))] for name, own in made}

    @cached_property
    def vectors(self) -> dict[str, list[str]]:
        """Of each matrix what it is multiplied with: vectors that read it, and for the product of both, rows of what is
        written to the other one."""
        found = {}
        for name, other in ((STATE, GRADIENT), (GRADIENT, STATE)):
            own = [self.first(f"vector_{i}") for i, read in enumerate(self.pair.reads) if read.of == name]
            found[name] = list(dict.fromkeys([*own, *(self.rows[other] if self.sums else [])]))
        return found

    @cached_property
    def scores(self) -> list[tuple[str, str]]:
        """Pairs of vectors that are multiplied with each other: of a later step, which reads the matrix or is written
        to the gradient, and of an earlier one, which is written to the matrix or reads the gradient."""
        found = [(vector, row) for vector in self.vectors[STATE] for row in self.rows.get(STATE, [])]
        found += [(row, vector) for vector in self.vectors[GRADIENT] for row in self.rows.get(GRADIENT, [])]
        return list(dict.fromkeys(found))


def is_column(name: str) -> bool:
    """Whether an operand's vectors run along keys."""
    return "_column_" in name
