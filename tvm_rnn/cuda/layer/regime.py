"""The interface of regimes to the plan: kernels that run all steps of a tile of one layer in place of step by step.

In: from the regimes' own files, objects that are a `Regime`. Out: `cuda/plan/network.py` has their weights packed,
reserves their memory, and puts `launch` where they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.graph.graph import Node

from .packed_layout import Pack
from .value_layout import Layout

FOREVER = (1 << 31) - 1  # steps of a row that does not end
# Of kernels that know lengths and resets: [B], and [T, B] of the whole call; the first step of a launch in order of
# time, T, and whether there are any.
MASK_POINTERS = (("lengths", "int64"), ("reset", "uint8"))
MASK_SCALARS = (("start", "int32"), ("total", "int32"), ("has_lengths", "int32"), ("has_reset", "int32"))


@dataclass(frozen=True)
class LayerSteps:
    """What a regime works on: `count` steps of one layer and direction, whose first in order of time is `start`.

    Pointers are those of that first step. inputs[i]: rows as layout.input(i) says. hoisted[node]: as layout.hoisted
    says. weights: a kept node's values (dense, in the dtype of arithmetic), or, by Pack.key, a packed parameter.
    states before and after, [B, width] in the dtype of arithmetic; in that of the network where `users`, a C++
    condition, holds: then they are the user's. output: as layout.output says. reverse: the steps run from the last one
    to the first.
    """

    layout: Layout
    start: HostExpr
    count: HostExpr
    reverse: bool
    inputs: Sequence[Pointer]
    hoisted: Mapping[Node, Pointer]
    weights: Mapping[object, Pointer]
    before: Sequence[Pointer]
    after: Sequence[Pointer]
    output: Pointer
    work: Pointer  # the regime's own memory, `work_bytes` of it
    lean: bool = False  # there are never lengths or resets
    kept: Sequence[Pointer] = ()  # rows of what training reads later, as layout.kept_place says
    words: Mapping[Node, Pointer] = field(default_factory=dict)  # masks as words (`cuda/rowwise/dropout_masks.py`)
    borders: Mapping[Node, Pointer] = field(default_factory=dict)  # states that are kept before some steps
    first: HostExpr = 0  # of the batch rows that are worked on
    rows: HostExpr = "B"  # how many these are
    users: str = "false"


class Regime(Protocol):
    """One way to run a layer's steps.

    applies(rows): a C++ condition in that expression, T, has_lengths, has_reset; of several regimes the first that
    applies runs. packs: parameters it wants packed. work_bytes: a C++ expression in B. most: the largest B that it
    applies to (None: any). at_once: so many rows take no longer than one; what is more takes as long again (None: one
    launch is for all rows). least_steps: in calls of fewer, one launch per group and step is quicker. blocks: a C++
    expression in B: how many blocks run at once; multiprocessors: on how many multiprocessors they have room. room: a
    C++ condition in B and sms: two launches have room on the GPU at the same time. words: the masks that it reads as
    words, not as rows. fact: a row for the manifest's templates, with `most`, and `phases` where a step has some.
    """

    def applies(self, rows: HostExpr = "B") -> str: ...

    @property
    def packs(self) -> Sequence[Pack]: ...

    @property
    def work_bytes(self) -> HostExpr: ...

    @property
    def most(self) -> int | None: ...

    @property
    def at_once(self) -> int | None: ...

    @property
    def least_steps(self) -> int: ...

    @property
    def blocks(self) -> HostExpr: ...

    @property
    def multiprocessors(self) -> HostExpr: ...

    @property
    def room(self) -> str: ...

    @property
    def words(self) -> Sequence[Node]: ...

    @property
    def fact(self) -> dict[str, Any]: ...

    def launch(self, host: Host, layer_steps: LayerSteps) -> None: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class AnyBatch:
    """What regimes share that take any number of rows in one launch and want no parameter packed."""

    most: int | None = None
    at_once: int | None = None
    least_steps: int = 1
    packs: Sequence[Pack] = ()
    work_bytes: HostExpr = 0

    def applies(self, rows: HostExpr = "B") -> str:
        return "true"

    @property
    def words(self) -> Sequence[Node]:
        return []

    @property
    def blocks(self) -> HostExpr:
        raise NotImplementedError

    @property
    def multiprocessors(self) -> HostExpr:
        return self.blocks

    @property
    def room(self) -> str:
        return f"(2 * {self.blocks} <= sms)"


def by_batch(regimes: Sequence[Regime], say: Callable[[Regime], HostExpr], otherwise: HostExpr) -> HostExpr:
    """A C++ expression in B: what is said of the first regime for so large a batch."""
    for regime in reversed(regimes):
        found = say(regime)
        otherwise = found if regime.most is None else f"(B <= {regime.most} ? {found} : {otherwise})"
    return otherwise


def launch_either(
    host: Host,
    kernels: tuple[Kernel, Kernel],
    pointers: Sequence[Pointer],
    scalars: Sequence[HostExpr],
    layer_steps: LayerSteps,
) -> None:
    """The plain kernel, or, where there are lengths or resets, the one that knows them: it takes these and the step
    of the sequence with which the launch begins."""
    plain, masked = kernels
    if layer_steps.lean:
        host.launch(plain, [*pointers], [*scalars])
        return
    with host.when("!has_lengths && !has_reset"):
        host.launch(plain, [*pointers], [*scalars])
    with host.when("has_lengths || has_reset"):
        more = [layer_steps.start, "T", "has_lengths ? 1 : 0", "has_reset ? 1 : 0"]
        host.launch(masked, [*pointers, host.program.lengths, host.program.reset], [*scalars, *more])
