"""Where whole parts that make a matrix and its gradient again have what in shared memory.

In: a `Pair`. Out: `PartsLayout`: operands of all steps of a part, numbers of steps, scores of each two steps, and what
warps add up for decays; in the place of operands, behind all products, results on their way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .blocks_layout import ALL_SHARED, PAD, BlocksLayout
from .chunk_layout import MOST_SHARED
from .chunk_tile import BLOCK
from .pair import BOTH, EVERY, GRADIENT, STATE

MOST = 128  # keys, of which each 16 are a warp's; values, of which registers hold 16 keys of both matrices
THREADS = 512  # of a multiprocessor, each with the registers that this takes
SIDE = EVERY // BLOCK  # blocks of 16 steps
UNITS = SIDE * (SIDE + 1) // 2  # pairs of these that are one, or of which the first is later
KINDS = ("before", "after", "begins", "ends")
NUMBERS = EVERY + 4  # of a kind: of every step, and of the one behind
SCORE_PITCH = 2 * EVERY + PAD


@dataclass(frozen=True)
class PartsLayout(BlocksLayout):
    """name: of the kernel."""

    @property
    def why_not(self) -> str:
        """Why parts are not made again at once; "" where they are."""
        own = self.pair
        if own.precision not in ("bfloat16", "float16"):
            return f"products of parts take bfloat16 or float16, not {own.precision}"
        if any(rows.dtype != own.precision for rows in self.held.values()):
            return "what steps read has several dtypes"
        if any(rows.width > 1 for rows in self.decays.values()):  # two of one number are the same, spelled otherwise
            return "each key decays by itself"
        if any(read.of == BOTH and read.output.width > 1 for read in own.reads):
            return "the product of both is wanted for each key"
        if max(own.keys, own.values) > MOST:
            return f"registers hold {MOST} keys and values, not {own.keys} and {own.values}"
        return "" if self.shared_bytes <= MOST_SHARED else "shared memory does not hold a part"

    @property
    def high(self) -> int:
        return 1

    @property
    def keys(self) -> int:
        """All, with zeros that fill the last warp's."""
        return -(-self.pair.keys // BLOCK) * BLOCK

    @property
    def tiles(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.keys // BLOCK

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def resident(self) -> int:
        return max(1, min(THREADS // self.threads, ALL_SHARED // (self.shared_bytes + 1024)))

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

    # --- shared memory ---------------------------------------------------------------------------------------------

    def number_at(self, kind: str) -> int:
        """Where numbers of a kind begin: sums of log decays before and after a step's own, what is left of the matrix
        before a step, and of the gradient behind the part."""
        return self.operand_bytes + 4 * NUMBERS * KINDS.index(kind)

    @property
    def scores_at(self) -> int:
        return self.operand_bytes + 4 * NUMBERS * len(KINDS)

    def score_at(self, later: str, earlier: str) -> int:
        """Where scores of a pair begin, [later step][earlier step]."""
        return self.scores_at + self.scores.index((later, earlier)) * EVERY * SCORE_PITCH

    @property
    def sums_at(self) -> int:
        """Where sums for the product of both begin: of each warp and step what later steps read of the matrix, what
        earlier ones read of the gradient; of each unit and step; and of each warp, the product at the borders."""
        return self.scores_at + len(self.scores) * EVERY * SCORE_PITCH

    @property
    def shared_bytes(self) -> int:
        sums = 4 * (EVERY * (2 * self.warps + UNITS) + self.warps) if self.sums else 0
        results = len(self.pair.reads) * EVERY * (2 * self.keys + PAD)
        return max(self.sums_at + sums, results)
