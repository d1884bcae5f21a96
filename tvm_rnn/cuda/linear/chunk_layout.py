"""Where a chunk scan has its operands, scores and results in shared memory, and how many blocks there are.

In: a `Recurrence` and a `ChunkTile`. Out: `ChunkLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Expr

from .chunk_tile import BLOCK, FEW, HALVES_PITCH, PAD, TRIANGLE_PITCH, ChunkTile, row_pitch
from .recurrence import Recurrence

MOST_SHARED = 227 * 1024  # bytes of a block
MOST_APART = 2  # warps of states beside which others read: with four, each tensor core has one
NUMBERS = 7  # of a step, at most, beside one for each read-out


@dataclass(frozen=True)
class ChunkLayout:
    """A recurrence in chunks of a tile. reverse: from the last step to the first; dtype: of the user's states."""

    name: str
    recurrence: Recurrence
    tile: ChunkTile
    reverse: bool = False
    dtype: str = "float32"

    @property
    def converts(self) -> bool:
        """Whether the user's states are of another dtype than those of kernels."""
        return self.dtype != "float32"

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
        return self.handed_at + self._beside <= MOST_SHARED

    @property
    def _beside(self) -> int:
        """Shared memory that is not in `shared_bytes`."""
        numbers = 4 * 3 * self.tile.chunk * (NUMBERS + len(self.recurrence.reads))
        halves = self.tile.chunk * HALVES_PITCH if self.recurrence.decays_by_key else 0
        return numbers + 4 * self.tile.chunk * TRIANGLE_PITCH + halves

    # --- warps -----------------------------------------------------------------------------------------------------

    @cached_property
    def readers(self) -> int:
        """Warps that make read-outs, one for each of states; 0: these do it themselves, as they do where each tensor
        core has one of them, or nothing is read but what they solve."""
        own = self.recurrence
        most = MOST_SHARED - self._beside - self._handed_at(len(own.scores) * self.tile.chunk * self.score_pitch)
        alone = own.erased if own.erase is None else None
        reads = not all(own.solved(i) or i == alone for i in range(len(own.reads)))
        apart = reads and self.part == self.tile.chunk and self.tile.warps <= MOST_APART
        return self.tile.warps if apart and self.tile.warps * self.written_at(len(own.columns)) <= most else 0

    @property
    def hands(self) -> bool:
        """Whether warps of states hand them to others before a chunk."""
        return self.readers > 0

    @property
    def unscaled(self) -> int | None:
        """A read-out that warps of states solve for: what is erased, before it is scaled. Where others read, these wait
        less if the others make it."""
        return None if self.readers else self.recurrence.erased

    def read_scale(self, read: int) -> float:
        """What the sums of a read-out are multiplied with as they are made: of what is erased they are wanted as they
        are."""
        return 1.0 if read == self.unscaled else self.recurrence.reads[read].vector.scale

    def solved(self, read: int) -> bool:
        """Whether a result is what warps of states solve."""
        return read == self.unscaled or self.recurrence.solved(read)

    @property
    def loaders(self) -> int:
        """Warps that bring operands: what is left of eight, or four."""
        if self.tile.registers is not None:
            return 4
        least, others = (2, self.tile.warps + self.readers) if self.readers else (1, self.tile.warps)
        return min(4, max(least, FEW - self.tile.scorers - others))

    @property
    def threads(self) -> int:
        return 32 * (self.tile.scorers + self.tile.warps + self.readers + self.loaders)

    # --- shared memory: stages of operands, then two sets of scores, then results on their way out -----------------

    @property
    def key_pitch(self) -> int:
        """Where each key decays by itself, rows are written again, element by element."""
        return 2 * self.keys + PAD if self.recurrence.decays_by_key else row_pitch(2 * self.keys)

    @property
    def value_pitch(self) -> int:
        return row_pitch(2 * self.tile.values)

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

    @cached_property
    def scores(self) -> list[tuple[str, str, str]]:
        """Those of the recurrence that are wanted. What is erased, before it is scaled, and written along a column of
        its own, is no sum of what was written."""
        own = self.recurrence
        without = f"read_{self.unscaled}" if own.erase is None and self.unscaled is not None else ""
        return [one for one in own.scores if one[0] != without]

    def alone(self, which: int) -> bool:
        """Whether of these scores nothing is wanted but the blocks on the diagonal, which lie side by side."""
        return self.scores[which][0] == f"read_{self.unscaled}"

    def score_at(self, which: int) -> int:
        """Where these scores of a chunk begin, from its first ones on."""
        return sum((BLOCK if self.alone(i) else self.tile.chunk) * self.score_pitch for i in range(which))

    @property
    def scores_at(self) -> int:
        return self.tile.stages * self.stage_bytes

    @property
    def score_bytes(self) -> int:
        """Of a chunk."""
        return self.score_at(len(self.scores))

    @property
    def results_at(self) -> int:
        return self.scores_at + 2 * self.score_bytes

    @property
    def result_pitch(self) -> int:
        return 2 * BLOCK + PAD

    @property
    def handed_at(self) -> int:
        """Where what warps of states hand to those that read begins."""
        return self._handed_at(self.score_bytes)

    def _handed_at(self, score_bytes: int) -> int:
        return self.scores_at + 2 * score_bytes + self.tile.warps * self.tile.chunk * self.result_pitch

    @property
    def handed_bytes(self) -> int:
        """Of a warp: S before the chunk, then, for those that read, what was written along each column."""
        return self.written_at(len(self.recurrence.columns) if self.readers else 0)

    def barrier(self, warp: Expr, what: int) -> Expr:
        """The number of that at which a warp of states and its reader meet; all warps meet at 0."""
        return warp * 2 + (1 + what)

    def meeting(self, what: int) -> int:
        """Warps that meet there."""
        return 1 + int(self.readers > 0)

    def written_at(self, column: int) -> int:
        return 32 * (self.keys + column * self.tile.chunk)

    @property
    def shared_bytes(self) -> int:
        return self.handed_at + (self.tile.warps * self.handed_bytes if self.hands else 0)
