"""Where a chunk scan has its operands, scores and results in shared memory, and how many blocks there are.

In: a `Recurrence` and a `ChunkTile`. Out: `ChunkLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_rnn.cuda.layer.packed_layout import ceil_div

from .chunk_tile import BLOCK, HALVES_PITCH, TRIANGLE_PITCH, ChunkTile
from .recurrence import Recurrence

PAD = 16  # bytes behind a row of shared memory: the next row begins in other banks
MOST_SHARED = 227 * 1024  # bytes of a block
NUMBERS = 7  # of a step, at most, beside one for each read-out


@dataclass(frozen=True)
class ChunkLayout:
    """A recurrence in chunks of a tile. reverse: from the last step to the first."""

    name: str
    recurrence: Recurrence
    tile: ChunkTile
    reverse: bool = False

    @property
    def keys(self) -> int:
        """With the zeros that fill the last block of 16."""
        return ceil_div(self.recurrence.keys, BLOCK) * BLOCK

    @property
    def tiles(self) -> int:
        """Of values."""
        return ceil_div(self.recurrence.values, self.tile.values)

    def blocks(self, batch: int, segments: int = 1) -> int:
        """Of a launch."""
        return self.tiles * self.recurrence.heads * batch * segments

    @property
    def part(self) -> int:
        """Steps that states are taken through at once; where each key decays by itself, an instruction's."""
        return BLOCK if self.recurrence.decays_by_key else self.tile.chunk

    @property
    def possible(self) -> bool:
        """Whether shared memory holds it."""
        numbers = 4 * 3 * self.tile.chunk * (NUMBERS + len(self.recurrence.reads))
        beside = numbers + 4 * self.tile.chunk * TRIANGLE_PITCH  # what is not in `shared_bytes`
        beside += self.tile.chunk * HALVES_PITCH if self.recurrence.decays_by_key else 0
        return self.shared_bytes + beside <= MOST_SHARED

    # --- shared memory: stages of operands, then two sets of scores, then results on their way out -----------------

    @property
    def key_pitch(self) -> int:
        return 2 * self.keys + PAD

    @property
    def value_pitch(self) -> int:
        return 2 * self.tile.values + PAD

    @property
    def score_pitch(self) -> int:
        return 2 * self.tile.chunk + PAD

    def vector_at(self, name: str) -> int:
        """Where in a stage a tile of vectors begins."""
        held = list(self.recurrence.held)
        own = name if name in held else dict(self.recurrence.same)[name]
        return held.index(own) * self.tile.chunk * self.key_pitch

    @property
    def value_at(self) -> int:
        return len(self.recurrence.held) * self.tile.chunk * self.key_pitch

    @property
    def decay_at(self) -> int:
        """Where decays begin, of every step and key."""
        return self.value_at + self.tile.chunk * self.value_pitch

    @property
    def decay_pitch(self) -> int:
        return 4 * self.keys + PAD

    @property
    def stage_bytes(self) -> int:
        return self.decay_at + (self.tile.chunk * self.decay_pitch if self.recurrence.decays_by_key else 0)

    @property
    def score_sets(self) -> int:
        return len(self.recurrence.scores)

    @property
    def scores_at(self) -> int:
        return self.tile.stages * self.stage_bytes

    @property
    def score_bytes(self) -> int:
        """Of one read-out or erasure of a chunk."""
        return self.tile.chunk * self.score_pitch

    @property
    def results_at(self) -> int:
        return self.scores_at + 2 * self.score_sets * self.score_bytes

    @property
    def result_pitch(self) -> int:
        return 2 * BLOCK + PAD

    @property
    def shared_bytes(self) -> int:
        return self.results_at + self.tile.warps * self.tile.chunk * self.result_pitch
