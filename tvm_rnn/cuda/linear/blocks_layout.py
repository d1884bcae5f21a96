"""Where blocks that make a matrix and its gradient again have what in shared memory.

In: a `Pair`. Out: `BlocksLayout`: operands of all steps of a part, decays and what steps keep; then, of each warp,
products as keys read them, a row for each, or columns scaled; and scores of two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm_rnn.cuda.layer.packed_layout import ceil_div

from .chunk_tile import BLOCK, TRIANGLE_PITCH
from .pair import EVERY, Pair
from .recurrence import Rows

PAD = 16  # bytes behind a row: the next row begins in other banks
WIDE = 64  # values of which registers hold two times 16 keys
MOST_VALUES = 128  # of which registers hold 16 keys
MOST_SHARED = 96 * 1024  # bytes: all GPUs' blocks may have them
ALL_SHARED, MOST_RESIDENT = 228 * 1024, 3  # of a multiprocessor: bytes, and blocks that registers allow
WARPS = EVERY // BLOCK  # of a block: each has 16 steps of the part


@dataclass(frozen=True)
class BlocksLayout:
    """name: of the kernel."""

    name: str
    pair: Pair

    @property
    def why_not(self) -> str:
        """Why it is made again step by step; "" where blocks of steps do."""
        own = self.pair
        if own.precision not in ("bfloat16", "float16"):
            return f"products of blocks take bfloat16 or float16, not {own.precision}"
        if any(rows.dtype != own.precision for rows in self.held.values()):
            return "what steps read has several dtypes"
        if own.values > MOST_VALUES:
            return f"registers hold {MOST_VALUES} values, not {own.values}"
        return "" if self.shared_bytes <= MOST_SHARED else "shared memory does not hold a block of steps"

    @property
    def keys(self) -> int:
        """Of a warp."""
        return 2 * BLOCK if self.pair.values <= WIDE and self.pair.keys > BLOCK else BLOCK

    @property
    def high(self) -> int:
        """Tiles of 16 keys."""
        return self.keys // BLOCK

    @property
    def deep(self) -> int:
        """Tiles of 16 values."""
        return ceil_div(self.pair.values, BLOCK)

    @property
    def tiles(self) -> int:
        """Of keys."""
        return ceil_div(self.pair.keys, self.keys)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * WARPS

    def blocks(self, batch: int, steps: int) -> int:
        """Of a launch."""
        return self.tiles * self.pair.heads * batch * ceil_div(steps, EVERY)

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor: as many as shared memory, or few registers, allow."""
        return max(1, min(MOST_RESIDENT, ALL_SHARED // (self.shared_bytes + 1024)))

    # --- operands of all steps -------------------------------------------------------------------------------------

    def first(self, name: str) -> str:
        """The operand that is where this one is."""
        return dict(self.pair.same).get(name, name)

    @cached_property
    def held(self) -> dict[str, Rows]:
        """Vectors, of which each is there once."""
        return self._once(False)

    @cached_property
    def decays(self) -> dict[str, Rows]:
        """The same of decays."""
        return self._once(True)

    def _once(self, decays: bool) -> dict[str, Rows]:
        found = {n: rows for n, rows in self.pair.operands.items() if n.endswith("_decay") == decays}
        return {name: rows for name, rows in found.items() if self.first(name) == name}

    def pitch(self, name: str) -> int:
        """Bytes from a step's vector to the next."""
        return 2 * (self.keys if is_column(name) else self.deep * BLOCK) + PAD

    def at(self, name: str) -> int:
        """Where an operand's first step is."""
        names = list(self.held)
        return sum(EVERY * self.pitch(other) for other in names[: names.index(self.first(name))])

    @property
    def operand_bytes(self) -> int:
        return sum(EVERY * self.pitch(name) for name in self.held)

    def decay_width(self, name: str) -> int:
        """Decays of a step: one, or one of each key of a warp."""
        return self.keys if self.decays[self.first(name)].width > 1 else 1

    def decay_at(self, name: str) -> int:
        """Where decays begin, float32."""
        names = list(self.decays)
        before = names[: names.index(self.first(name))]
        return self.operand_bytes + sum(4 * EVERY * self.decay_width(other) for other in before)

    @property
    def keeps_at(self) -> int:
        """0 where a step begins with nothing, else 1; of the step behind the part too."""
        return self.operand_bytes + sum(4 * EVERY * self.decay_width(name) for name in self.decays)

    # --- of each warp ----------------------------------------------------------------------------------------------

    @property
    def warps_at(self) -> int:
        return self.keeps_at + 4 * EVERY + PAD

    @property
    def scaled_pitch(self) -> int:
        """Bytes from a key's scaled columns to the next's. They lie where products do: there is one or the other."""
        return 2 * BLOCK + PAD

    @property
    def scores_at(self) -> int:
        """Of a warp, behind its products: of each pair of writes, or of a read-out and a write, that are there at a
        time."""
        return self.keys * TRIANGLE_PITCH * 4

    @property
    def score_sets(self) -> int:
        writes = [len(made.writes) for made in self.pair.made.values()]
        both = any(read.vector is None for read in self.pair.reads)
        return max([1, *writes, prod(writes) if both else 0])

    @property
    def warp_bytes(self) -> int:
        return self.scores_at + self.score_sets * BLOCK * BLOCK * 4

    @property
    def shared_bytes(self) -> int:
        return self.warps_at + WARPS * self.warp_bytes


def is_column(name: str) -> bool:
    """Whether an operand's vectors run along keys."""
    return "_column_" in name
