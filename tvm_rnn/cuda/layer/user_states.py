"""How a layer lies in memory in a call of one step: its states are read and written where the user has them.

In: a layer's layout. Out: that of such calls, or None where a step must have copies of its states. Two launches less
for a call of one step, as streams and decoders make them: a copy in and a copy out cost as much as the step itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES

from .pointers import Place
from .value_layout import Layout

PIECE_BYTES = 4  # that the hardware copies to shared memory at a time, at least


@dataclass(frozen=True)
class UserStates(Layout):
    """States in the network's dtype, dense; products read them there."""

    def state(self, number: int) -> Place:
        return Place(self.dtype, prod(self.graph.states[number].shape))

    def shadow(self, number: int) -> Place | None:
        return None

    def _serves(self, state: int) -> bool:
        return True


def user_states(layout: Layout) -> UserStates | None:
    """The layout of a call of one step. None: nothing is left for steps, training keeps values, products read another
    dtype than the user's or rows that do not begin at multiples of 4 bytes, or a group reads a new state of another
    one, which would be rounded."""
    if not layout.emits or layout.kept or layout.solved or not layout.has_steps or layout.dtype != layout.storage:
        return None
    # One element after the other, LSTM 1001 bf16 took 66 us for B = 100 on an H200, 19 for a step of copies.
    read = [n for n in (*layout.graph.states, *layout.graph.inputs) if n in layout.operands["step"]]
    if any(prod(node.shape) * ITEM_BYTES[layout.dtype] % PIECE_BYTES for node in read):
        return None
    results = [node for node in layout.graph.results if node in layout.home]
    rounded = layout.dtype != layout.arithmetic
    if rounded and any("step" in layout.read_by.get(node, ()) for node in results):
        return None
    return UserStates(**{own.name: getattr(layout, own.name) for own in fields(Layout)})
