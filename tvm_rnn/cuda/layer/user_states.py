"""How a layer lies in memory in a call of one step: its states are read and written where the user has them.

In: a layer's layout. Out: those of such calls; none where a step must have copies of its states. Two launches less for
a call of one step, as streams and decoders make them: a copy in and a copy out cost as much as the step itself.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from math import gcd, prod

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.graph.graph import Node

from .pointers import TENSOR, Place
from .value_layout import ROW_BYTES, Layout, Target

PIECE_BYTES = 4  # that the hardware copies to shared memory at a time, at least


@dataclass(frozen=True)
class UserStates(Layout):
    """States in the network's dtype, dense; products read them there. aligned: but for rows that do not begin at
    multiples of 16 bytes, of which they read copies that do."""

    _: KW_ONLY
    aligned: bool = False

    def state(self, number: int) -> Place:
        """Without tensor cores the step's own copies lie like this: the kernels are the same."""
        return self._dense(self.graph.states[number]) if self.precision in TENSOR else super().state(number)

    def _dense(self, node: Node) -> Place:
        width = prod(node.shape)
        return Place(self.dtype, width, gcd(ROW_BYTES, width * ITEM_BYTES[self.dtype]))

    def shadow(self, number: int) -> Place | None:
        return None

    def _serves(self, state: int) -> bool:
        return True

    @cached_property
    def read_rows(self) -> list[Node]:
        """What products of the step read of the user's arrays."""
        return [n for n in (*self.graph.states, *self.graph.inputs) if n in self.operands["step"]]

    @cached_property
    def copied_rows(self) -> dict[Node, Place]:
        """The copies."""
        return {
            n: self._padded(n, self.storage)
            for n in (self.read_rows if self.aligned else [])
            if self._dense(n).align < ROW_BYTES
        }

    def source(self, node: Node, product: bool = False, region: str = "step") -> Target | None:
        if product and region == "step" and node in self.copied_rows:
            return Target("copied row", self.copied_rows[node], list(self.copied_rows).index(node))
        return super().source(node, product, region)


def user_states(layout: Layout) -> list[UserStates]:
    """The layouts of a call of one step: with copies of what products read, if there is anything to copy and they run
    on tensor cores; and without, if its rows begin at multiples of 4 bytes. There is none where nothing is left for
    steps, training keeps values, products read another dtype than the user's, or a group reads a new state of another
    one, which would be rounded."""
    if not layout.emits or layout.kept or layout.solved or not layout.has_steps or layout.dtype != layout.storage:
        return []
    results = [node for node in layout.graph.results if node in layout.home]
    rounded = layout.dtype != layout.arithmetic
    if rounded and any("step" in layout.read_by.get(node, ()) for node in results):
        return []
    dense, copying = (
        UserStates(**{own.name: getattr(layout, own.name) for own in fields(Layout)}, aligned=aligned)
        for aligned in (False, True)
    )
    # One element after the other, LSTM 1001 bf16 took 66 us for B = 100 on an H200, 19 for a step of copies.
    able = all(prod(node.shape) * ITEM_BYTES[layout.dtype] % PIECE_BYTES == 0 for node in dense.read_rows)
    copies = bool(copying.copied_rows) and layout.precision in TENSOR
    return [*([copying] if copies else []), *([dense] if able else [])]
