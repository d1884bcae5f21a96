"""What kernels of a recurrence of vectors know: the group, where its values lie, and what a block is made of.

In: a group of kind "scan" whose rows are `scan`, `scan_max` or `delay`, and knobs. Out: a `VectorGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.vector_access import DTYPES
from tvm_rnn.cuda.layer.pointers import Argument, Place
from tvm_rnn.cuda.layer.row_kernels import WARP, Job
from tvm_rnn.graph.graph import Node


@dataclass(frozen=True, eq=False)
class VectorGroup:
    """A group and the tile of a block.

    job: the group and its places. replaced: of each row the state whose new value it is. initial: of states that do not
    begin at 0. zeroed: values that are 0 at the steps of rows that have ended. warps: of a block; ahead: steps of a
    warp in a round; resident: blocks that all chunks together have on each multiprocessor; side: elements of a thread;
    kept: bytes of shared memory that a block has for operands.
    """

    job: Job
    replaced: Mapping[Node, Node]
    initial: Mapping[str, float] = field(default_factory=dict)
    zeroed: frozenset[Node] = frozenset()
    warps: int = 8
    ahead: int = 8
    resident: int = 3
    side: int = 1
    kept: int = 0

    @cached_property
    def rows(self) -> list[Node]:
        """The new values of the states."""
        return [n for n in self.job.group.nodes if n.op in ("scan", "scan_max", "delay")]

    @cached_property
    def states(self) -> list[Node]:
        """The states, in the order of their rows."""
        return [self.replaced[row] for row in self.rows]

    @property
    def stored(self) -> tuple[Node, ...]:
        return self.job.group.stored

    @property
    def width(self) -> int:
        return prod(self.rows[0].shape)

    @property
    def is_max(self) -> bool:
        return self.rows[0].op == "scan_max"

    @property
    def tile(self) -> int:
        """Elements of a block that has all steps."""
        return WARP * self.side

    @property
    def words(self) -> int:
        """Numbers that say what a chunk does to the states of an element: whether it was cut, matrix, vector."""
        return 1 + len(self.rows) * (len(self.rows) + 1)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What `apply` reads and writes of the group's values; `ends` reads all, and writes none."""
        return tuple(a for a in self.job.arguments(self.job.group.nodes) if a.node.op != "state")

    @property
    def round(self) -> int:
        """Steps of a block in a round."""
        return self.warps * self.ahead

    def place(self, argument: Argument) -> Place:
        """Where the value of a pointer lies."""
        job, node = self.job, argument.node
        place = job.writes(node)[argument.number] if argument.role == "write" else job.reads(node)
        assert place is not None
        return place

    def is_aligned(self, place: Place) -> bool:
        """Whether a thread's elements lie there at a multiple of their bytes, or are not accessed at once."""
        each = self.side * ITEM_BYTES[place.dtype]
        return not self.in_words(place) or place.align % each == 0

    def in_words(self, place: Place) -> bool:
        """Whether a thread's elements may be accessed at once there, in every row."""
        return self.side > 1 and place.dtype in DTYPES and place.row_stride % self.side == 0
