"""Where blocks that make a matrix and its gradient again have what in shared memory.

In: a `Pair`. Out: `BlocksLayout`: rows and vectors of all steps of a part, or so many of their values at a time; what
steps keep; scores of each two steps; then, of each key, columns scaled to the border of their block of 16 steps, what
is left of a matrix behind each block, the product of both at each block's borders, and what steps read of a matrix at
their block's border.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tvm_rnn.cuda.layer.packed_layout import ceil_div

from .chunk_tile import BLOCK, TRIANGLE_PITCH
from .pair import EVERY, GRADIENT, STATE
from .part_layout import ALL_SHARED, PAD, SIDE, UNITS, PartLayout, is_column
from .recurrence import Rows

WIDE = 8  # tiles of 16 values of which registers hold a warp's keys
WARPS = (4, 2, 1)
THREADS = 256  # of a multiprocessor, each with all registers that one can have
TWICE = (ALL_SHARED - 2048) // 2  # bytes of which a multiprocessor has room for two
SCALED_PITCH = 2 * EVERY + PAD  # bytes from a key's scaled columns to the next's
PRODUCT_PITCH = 4 * EVERY + PAD  # and from its products
LINE_BYTES = 4 * TRIANGLE_PITCH  # of scores of a step
UNIT_BYTES = BLOCK * LINE_BYTES


@dataclass(frozen=True)
class BlocksLayout(PartLayout):
    """most: bytes that a block may have."""

    most: int = TWICE

    @property
    def why_not(self) -> str:
        """Why it is made again step by step; "" where blocks of steps do."""
        own = self.pair
        if own.precision not in ("bfloat16", "float16"):
            return f"products of blocks take bfloat16 or float16, not {own.precision}"
        if any(rows.dtype != own.precision for rows in self.held.values()):
            return "what steps read has several dtypes"
        return "" if self.shared_bytes <= self.most else "shared memory does not hold a block of steps"

    @cached_property
    def held(self) -> dict[str, Rows]:
        """Rows and vectors; columns are read by the lanes that have their keys."""
        return {name: rows for name, rows in self._once(False).items() if not is_column(name)}

    @property
    def deep(self) -> int:
        return min(WIDE, ceil_div(self.pair.values, BLOCK))

    @property
    def pieces(self) -> int:
        """Of the values, one after the other in shared memory."""
        return ceil_div(self.pair.values, self.deep * BLOCK)

    @cached_property
    def warps(self) -> int:
        """As many as two blocks of a multiprocessor can have, or one; none of which half has no keys."""
        counts = [n for n in WARPS if n == 1 or n * BLOCK < 2 * self.pair.keys]
        for most in (min(TWICE, self.most), self.most):
            for count in counts:
                if self.operand_bytes + sum(self._sizes(count).values()) <= most:
                    return count
        return 1

    @property
    def resident(self) -> int:
        return max(1, min(THREADS // self.threads, ALL_SHARED // (self.shared_bytes + 1024)))

    # --- shared memory ---------------------------------------------------------------------------------------------

    def pitch(self, name: str) -> int:
        return 2 * self.deep * BLOCK + PAD

    def _sizes(self, warps: int) -> dict[str, int]:
        """Bytes of each kind, behind the operands."""
        keys, made = warps * BLOCK, self.pair.made.values()
        return {
            "keeps": 4 * EVERY + PAD,
            "scores": len(self.scores) * UNITS * UNIT_BYTES,
            "scaled": sum(len(own.writes) for own in made) * keys * SCALED_PITCH,
            "left": len(made) * SIDE * keys * 4,
            "begins": SIDE * keys * 4 * self.sums,
            "products": max(
                sum(len(self.vectors[name]) for name in self.pair.made) * keys * PRODUCT_PITCH,
                len(made) * self._border_bytes(keys),
            ),
        }

    def _border_bytes(self, keys: int) -> int:
        values = self.deep * BLOCK
        return values * (2 * keys + PAD) if self.pair.keys_last else keys * (2 * values + PAD)

    @cached_property
    def _places(self) -> dict[str, int]:
        sizes = self._sizes(self.warps)
        return dict(zip(sizes, accumulate(sizes.values(), initial=self.operand_bytes), strict=False))

    @property
    def shared_bytes(self) -> int:
        return self.operand_bytes + sum(self._sizes(self.warps).values())

    @property
    def keeps_at(self) -> int:
        """0 where a step begins with nothing, else 1; of the step behind the part too."""
        return self._places["keeps"]

    @property
    def begins_at(self) -> int:
        """The product of both at the borders of each block, [block][key]."""
        return self._places["begins"]

    def score_at(self, later: str, earlier: str) -> int:
        """Of two vectors: units of 16 x 16, [earlier step][later step], first those of a block with itself."""
        return self._places["scores"] + self.scores.index((later, earlier)) * UNITS * UNIT_BYTES

    def scaled_at(self, name: str, write: int) -> int:
        """A write's columns, [key][step]."""
        before = len(self.pair.made[STATE].writes) if name == GRADIENT and STATE in self.pair.made else 0
        return self._places["scaled"] + (before + write) * self.keys * SCALED_PITCH

    def left_at(self, name: str) -> int:
        """What is left of a matrix behind each block, [block][key]."""
        return self._places["left"] + list(self.pair.made).index(name) * SIDE * self.keys * 4

    @property
    def border_width(self) -> int:
        """Elements of a matrix that lie side by side, of a line."""
        return self.keys if self.pair.keys_last else self.deep * BLOCK

    @property
    def border_lines(self) -> int:
        return self.deep * BLOCK if self.pair.keys_last else self.keys

    @property
    def border_pitch(self) -> int:
        """Bytes from a line to the next."""
        return 2 * self.border_width + PAD

    def border_at(self, name: str) -> int:
        """A matrix at the border of the part, where products come later."""
        return self._places["products"] + list(self.pair.made).index(name) * self._border_bytes(self.keys)

    def product_at(self, name: str, vector: str) -> int:
        """What a vector of each step reads of a matrix at its block's border, [key][step]."""
        every = [(own, one) for own in self.pair.made for one in self.vectors[own]]
        return self._places["products"] + every.index((name, self.first(vector))) * self.keys * PRODUCT_PITCH


def unit_of(later: int, earlier: int) -> int:
    """Where the scores of two blocks of steps are among the units."""
    return later if later == earlier else SIDE + later * (later - 1) // 2 + earlier
