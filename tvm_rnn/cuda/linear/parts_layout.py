"""Where whole parts that make a matrix and its gradient again have what in shared memory.

In: a `Pair`. Out: `PartsLayout`: operands of all steps of a part, numbers of steps, scores of each two steps, and what
warps add up for decays; in the place of operands, behind all products, results on their way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm_rnn.cuda.codegen.tile_layout import PIECE_BYTES, SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import ROW_BYTES, ceil_div
from tvm_rnn.tir.expr import Expr

from .chunk_layout import MOST_SHARED
from .chunk_tile import BLOCK
from .pair import BOTH, EVERY
from .part_layout import ALL_SHARED, PAD, UNITS, PartLayout, is_column
from .recurrence import Rows

MOST_KEYS = 256  # of which each 16 are a warp's
WHOLE = 8  # tiles of 16 values of which registers hold 16 keys of both matrices; of more than these, slices in turn
SLICE = 2  # tiles of a slice, of which registers hold two, beside sums of all steps
WARPGROUP = 4  # warps
AT_A_TIME = 2  # vectors of all steps whose sums those are
THREADS = 512  # of a multiprocessor, each with the registers that this takes
KINDS = ("before", "after", "begins", "ends", "decay")
NUMBERS = EVERY + 4  # of a kind: of every step, and of the one behind
SCORE_PITCH = 2 * EVERY + PAD
IN_SQUARE = 4  # tiles of 16 values in 128 bytes


@dataclass(frozen=True)
class PartsLayout(PartLayout):
    """wgmma: whether the GPU has it."""

    wgmma: bool = False
    alignment: ClassVar[int] = 1024  # as swizzled vectors want it

    @property
    def by_wgmma(self) -> bool:
        """Whether it multiplies matrices with vectors: slices, where keys make warpgroups. Whole matrices of 128 x 128
        took a tenth more time than by warps: 2.24 ms against 1.98 on an H200."""
        return self.wgmma and self.slices > 0 and self.warps % WARPGROUP == 0

    def swizzled(self, name: str) -> bool:
        """Whether an operand lies as wgmma reads it."""
        return self.by_wgmma and not is_column(name)

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
        if own.keys > MOST_KEYS:
            return f"a block of threads has {MOST_KEYS} keys, not {own.keys}"
        if self.slices and sum(len(vectors) for vectors in self.vectors.values()) > AT_A_TIME:
            return f"registers hold slices of {WHOLE * BLOCK} values beside sums of {AT_A_TIME} vectors"
        return "" if self.shared_bytes <= MOST_SHARED else "shared memory does not hold a part"

    @property
    def warps(self) -> int:
        """All keys, with zeros that fill the last warp's."""
        return -(-self.pair.keys // BLOCK)

    @property
    def deep(self) -> int:
        whole = ceil_div(self.pair.values, BLOCK)
        return whole if whole <= WHOLE else ceil_div(whole, 2 * SLICE) * (2 * SLICE)

    @property
    def slices(self) -> int:
        """Of the values, an even number of them; 0: registers hold all."""
        return 0 if self.deep <= WHOLE else self.deep // SLICE

    @property
    def resident(self) -> int:
        return max(1, min(THREADS // self.threads, ALL_SHARED // (self.shared_bytes + 1024)))

    @cached_property
    def held(self) -> dict[str, Rows]:
        """Vectors first, and columns behind them."""
        return dict(sorted(self._once(False).items(), key=lambda item: is_column(item[0])))

    def pitch(self, name: str) -> int:
        return self.row_bytes(name) if self.swizzled(name) else super().pitch(name)

    def place(self, name: str, step: Expr, byte: Expr) -> Expr:
        if not self.swizzled(name):
            return super().place(name, step, byte)
        square, piece, rest = byte // ROW_BYTES, byte % ROW_BYTES // PIECE_BYTES, byte % PIECE_BYTES
        return square * (EVERY * ROW_BYTES) + SWIZZLE_128.offset(step, piece) + rest + self.at(name)

    # --- shared memory ---------------------------------------------------------------------------------------------

    def number_at(self, kind: str) -> int:
        """Where numbers of a kind begin: sums of log decays before and after a step's own, what is left of the matrix
        before a step, and of the gradient behind the part, and a step's decay."""
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
