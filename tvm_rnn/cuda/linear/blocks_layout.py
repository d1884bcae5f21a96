"""Where a warp that makes a matrix and its gradient again in blocks of steps has what in shared memory.

In: a `Pair`. Out: `BlocksLayout`: two stages of operands of a block; the matrix before each block, as the left operand
of products; products as keys read them, a row for each; scores of two steps; columns scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm_rnn.cuda.layer.packed_layout import ceil_div

from .chunk_tile import BLOCK, TRIANGLE_PITCH
from .recurrence import Rows
from .steps_again import EVERY, Pair

PAD = 16  # bytes behind a row: the next row begins in other banks
WIDE = 64  # values of which registers hold two times 16 keys
MOST_VALUES = 128  # of which registers hold 16 keys
MOST_SHARED = 96 * 1024  # bytes: all GPUs' blocks may have them
STAGES = 2


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

    def blocks(self, batch: int, steps: int) -> int:
        """Of a launch: each is a warp."""
        return self.tiles * self.pair.heads * batch * ceil_div(steps, EVERY)

    # --- operands of a block ---------------------------------------------------------------------------------------

    def first(self, name: str) -> str:
        """The operand that is where this one is."""
        return dict(self.pair.same).get(name, name)

    @cached_property
    def held(self) -> dict[str, Rows]:
        """Vectors, of which each is there once."""
        vectors = {name: rows for name, rows in self.pair.operands.items() if not name.endswith("_decay")}
        return {name: rows for name, rows in vectors.items() if self.first(name) == name}

    def of_state(self) -> list[str]:
        """What the matrix alone is made of."""
        made = self.pair.state
        names = [] if made is None else [n for n in made.operands("state") if not n.endswith("_decay")]
        return list(dict.fromkeys(self.first(name) for name in names))

    def pitch(self, name: str) -> int:
        """Bytes from a step's vector to the next."""
        return 2 * (self.keys if is_column(name) else self.deep * BLOCK) + PAD

    def at(self, name: str) -> int:
        """Where in a stage an operand is."""
        own = self.first(name)
        before = list(self.held)[: list(self.held).index(own)]
        return sum(BLOCK * self.pitch(other) for other in before)

    @property
    def stage_bytes(self) -> int:
        return sum(BLOCK * self.pitch(name) for name in self.held)

    # --- behind the stages -----------------------------------------------------------------------------------------

    @property
    def kept_at(self) -> int:
        """The matrix before each block: a lane's words of a tile of 16 x 16 side by side."""
        return STAGES * self.stage_bytes

    @property
    def kept_bytes(self) -> int:
        """Of a block."""
        return self.high * self.deep * 32 * 16

    @property
    def products_at(self) -> int:
        return self.kept_at + (EVERY // BLOCK * self.kept_bytes if self.pair.state is not None else 0)

    @property
    def scores_at(self) -> int:
        """Of each pair of writes, or of a read-out and a write, that are there at a time."""
        return self.products_at + self.keys * TRIANGLE_PITCH * 4

    @property
    def score_sets(self) -> int:
        writes = {name: len(made.writes) for name, made in self.pair.made.items()}
        both = any(read.vector is None for read in self.pair.reads)
        product = 1
        for count in writes.values():
            product *= count
        return max([*writes.values(), product if both else 0, 1])

    @property
    def scaled_at(self) -> int:
        return self.scores_at + self.score_sets * BLOCK * BLOCK * 4

    @property
    def scaled_pitch(self) -> int:
        return 2 * BLOCK + PAD

    @property
    def shared_bytes(self) -> int:
        return self.scaled_at + self.keys * self.scaled_pitch


def is_column(name: str) -> bool:
    """Whether an operand's vectors run along keys."""
    return "_column_" in name
