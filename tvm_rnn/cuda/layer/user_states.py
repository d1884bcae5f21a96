"""How a layer lies in memory in a call of one step: its states are read and written where the user has them.

In: a layer's layout. Out: that of such calls, or None where a step must have copies of its states. Two launches less
for a call of one step, as streams and decoders make them: a copy in and a copy out cost as much as the step itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.graph.graph import Node

from .pointers import TENSOR, Place, rows_of_users
from .value_layout import ROW_BYTES, Layout, Target

# Bytes of a row from which on a copy pays, where the hardware brings it 4 bytes at a time. H200: LSTM 502 bf16, 244
# rows, 12.1 us and, with copies, 9.1 and 1.2; Elman 507 of 1014 inputs tf32, 10 rows, 21.6; 18.5 and 1.3.
COPIED_BYTES = 512
PIECE_BYTES = 4  # that the hardware copies to shared memory at a time, at least


@dataclass(frozen=True)
class UserStates(Layout):
    """States in the network's dtype, dense; products read them there, or copies of their rows."""

    def state(self, number: int) -> Place:
        """Without tensor cores the step's own copies lie like this: the kernels are the same."""
        return self._dense(self.graph.states[number]) if self.precision in TENSOR else super().state(number)

    def _dense(self, node: Node) -> Place:
        return rows_of_users(self.dtype, prod(node.shape))

    def shadow(self, number: int) -> Place | None:
        return None

    def _serves(self, state: int) -> bool:
        return True

    @cached_property
    def copied_rows(self) -> dict[Node, Place]:
        """Of what products of the step read of the user's arrays, how copies lie of what the hardware does not bring to
        shared memory 16 bytes at a time: of long rows, and of those that it does not bring at all."""
        read = [n for n in (*self.graph.states, *self.graph.inputs) if n in self.operands["step"]]
        return {n: self._padded(n, self.storage) for n in read if self.precision in TENSOR and self._copies(n)}

    def _copies(self, node: Node) -> bool:
        place = self._dense(node)
        long = place.row_stride * ITEM_BYTES[place.dtype] >= COPIED_BYTES
        return place.align < ROW_BYTES and (long or place.align < PIECE_BYTES)

    def source(self, node: Node, product: bool = False, region: str = "step") -> Target | None:
        if product and region == "step" and node in self.copied_rows:
            return Target("copied row", self.copied_rows[node], list(self.copied_rows).index(node))
        return super().source(node, product, region)


def user_states(layout: Layout) -> UserStates | None:
    """The layout of a call of one step. None: nothing is left for steps, training keeps values, products read another
    dtype than the user's, or a group reads a new state of another one, which would be rounded."""
    if not layout.emits or layout.kept or layout.solved or not layout.has_steps or layout.dtype != layout.storage:
        return None
    results = [node for node in layout.graph.results if node in layout.home]
    rounded = layout.dtype != layout.arithmetic
    if rounded and any("step" in layout.read_by.get(node, ()) for node in results):
        return None
    return UserStates(**{own.name: getattr(layout, own.name) for own in fields(Layout)})
