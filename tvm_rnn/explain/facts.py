"""What an explanation says, as JSON has it: the shapes of `Explanation.facts`, of `tvm-rnn explain --json`.

In: nothing. Out: a TypedDict for each part. Times (`_us`) are microseconds, sizes (`_bytes`) bytes.
Fields that are not always there belong to a class with `total=False`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from tvm_rnn.decisions import DecisionFacts, Figures


class PassFacts(TypedDict):
    """What a pass did, and what it did not do."""

    did: list[DecisionFacts]
    did_not: list[DecisionFacts]


class TemplateFacts(TypedDict, total=False):
    """A unit's template, its knob values, and where they are from."""

    unit: str
    template: str
    knobs: Mapping[str, int]
    record: str


class KernelFacts(TypedDict, total=False):
    """What a kernel takes of a GPU. occupancy: the part of a multiprocessor's threads that it can fill."""

    arch: str
    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    threads: int
    blocks_per_sm: int
    occupancy: float
    limited_by: str


class GroupFacts(TypedDict):
    """A group of operations over the whole sequence."""

    name: str
    flops: float
    bytes: float


class WorkFacts(TypedDict, total=False):
    """The work of T = steps at one batch size: `batch` to `kernels`, and `ceilings`, are always there."""

    batch: int
    steps: int
    precision: str
    flops: float
    bytes: float
    step_bytes: float
    kernels: list[GroupFacts]
    ceilings: Mapping[str, float]
    ceilings_from: str
    floor_us: Mapping[str, float]
    predicted_us: float
    measured_us: float
    measured_by: str
    exchanges: int
    in_turn_us: float
    l2_bytes: int
    byte_share: float
    flop_share: float
    share: float


class MemoryFacts(TypedDict, total=False):
    """Bytes that stay for all calls; of a CPU's workspace those that grow with T and B."""

    weight_bytes: int
    parameters: int
    packed_bytes: int
    workspace_bytes: Mapping[str, int]
    rows_per_tile: int


class TrainingFacts(TypedDict, total=False):
    """The tape of T = steps and B = batch. plans: of memory, as `memory_plan.py` has them."""

    tape_bytes: Mapping[str, int]
    steps: int
    batch: int
    bytes: int
    kept_elements: int
    plans: Figures


class NetworkFacts(TypedDict, total=False):
    """All of one network; `training`, `regularisers`, `not_drawn`, `origin` and `around` only where there is something
    to say.

    target: as in a manifest, with `archs` of GPUs. phases: groups that run in one go: graph, runs, with, and figures.
    origin: the layer of another framework that it was. around: operations of a whole model beside its networks.
    """

    cell: str
    layers: int
    directions: int
    dtype: str
    precision: str
    weights: str
    target: Figures
    made_for: list[int]
    graphs: list[list[int]]
    passes: dict[str, PassFacts]
    phases: list[Figures]
    regimes: list[DecisionFacts]
    templates: Sequence[TemplateFacts]
    kernels: list[KernelFacts]
    work: list[WorkFacts]
    memory: MemoryFacts
    training: TrainingFacts
    regularisers: Mapping[str, float | Mapping[str, float]]
    not_drawn: str
    told: bool
    origin: Mapping[str, object]
    around: int


class ExplanationFacts(TypedDict, total=False):
    """Every network, and the versions of what compiled them."""

    networks: list[NetworkFacts]
    versions: dict[str, str]


class _Values(TypedDict):
    """A row of two explanations side by side. values: both, as text; "-" where one has none."""

    name: str
    values: list[str]


class PairFacts(_Values, total=False):
    """ratio: of figures, the second over the first."""

    ratio: float


class SectionFacts(TypedDict):
    """Rows of one kind."""

    title: str
    rows: list[PairFacts]


class BesideFacts(TypedDict):
    """Two explanations side by side: `tvm-rnn explain --beside --json`."""

    names: list[str]
    networks: list[list[SectionFacts]]
