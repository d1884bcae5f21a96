"""Which persistent regimes run a layer's steps, the best first.

In: a layer's layout, a target, a precision, batch sizes to expect. Out: regimes, each a kernel for a range of batch
sizes, none where the layer can only run step by step. `choose_geometry.py` says in which geometry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.one_head import Coupled, one_head
from tvm_rnn.cuda.layer.one_vector import NoVector, one_vector
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.phases import NotPersistent, Step, check_kept, phases
from tvm_rnn.cuda.layer.regime import LayerSteps, Regime, launch_either
from tvm_rnn.cuda.layer.value_layout import Layout, PackIndex
from tvm_rnn.cuda.layer.weight_packing import scales_of
from tvm_rnn.cuda.matrix.on_chip import on_chip
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.cell_reads import prefetched
from tvm_rnn.cuda.persistent.geometry import COUNTER_WORDS, MMA, Geometry
from tvm_rnn.cuda.persistent.lengths_and_resets import resettable
from tvm_rnn.cuda.persistent.phase_clocks import clocks
from tvm_rnn.cuda.rowwise.scan_over_time import scan
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.decisions import Figures, about, listening, tell
from tvm_rnn.graph.graph import Node, stepped
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import HOPPER, Target

from .batch_ladder import Rung, ladder
from .choose_backward_lanes import geometry_beside
from .choose_geometry import ANY, ChosenGeometry, RecurrentUnit, unit_of
from .launched_step_time import STATE_COPIES_US, hidden_us, predict_steps
from .persistent_step_time import StepTime, exchange_us, phase_times, predict
from .start_time import least_steps, start_us

MOST_TURNS = 16  # of slices of a batch, beyond which a comparison with step by step says nothing new
EXPECTED_BATCHES = (1, 16, 64, 128)  # where the caller names none


@dataclass(frozen=True, eq=False)
class Persistent:
    """One geometry, for B up to `most` (None: any)."""

    layout: Layout
    geometry: Geometry
    template: str
    name: str
    most: int | None
    time: StepTime
    predicted_us: float
    initial: Mapping[str, float]
    record: str = DEFAULT  # where the geometry is from
    knobs: Mapping[str, int] = field(default_factory=dict)  # as a record names them
    least_steps: int = 1  # of a call: fewer are quicker as one launch per group and step

    @property
    def words(self) -> Sequence[Node]:
        return [node for node in self.geometry.step.read_nodes if node.mask]

    def applies(self, rows: HostExpr = "B") -> str:
        able = [] if resettable(self.geometry.step) else ["!has_reset"]
        able += [f"{rows} <= {self.most}"] if self.most is not None else []
        # Of what the caller gives: a backward graph reads the gradient of y, all else is on the tape.
        users = [*self._inputs, *([0] if self._copies_first else [])]
        able += [f"reinterpret_cast<uintptr_t>(input[{n}]) % 16 == 0" for n in users]
        return " && ".join(able) or "true"

    @property
    def _copies_first(self) -> bool:
        """Whether the layer's first input is copied to shared memory, 16 bytes at a time."""
        return any(self.layout.is_first_input(node) for _, node, _ in prefetched(self.geometry))

    @property
    def _inputs(self) -> list[int]:
        """Numbers of the inputs that products read, 16 bytes at a time."""
        inputs = self.layout.of_all.graph.inputs
        return [inputs.index(self.layout.of_layer(node)) for node in self.geometry.step.given]

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        plain = persistent.kernel(self.name, self.geometry, self.layout)
        return plain, persistent.kernel(f"{self.name}_masked", self.geometry, self.layout, self.initial)

    @cached_property
    def packs(self) -> Sequence[Pack]:
        found, geometry = list[Pack](), self.geometry
        for phase, share in geometry.weights:
            node, elements = share.operand.weight, geometry.weight_elements(phase, share)
            index: PackIndex = partial(geometry.weight_index, phase, share)
            key = (node, geometry.stored or geometry.storage, "fragments", *geometry.packing(phase, share))
            node, elements, index = self.layout.packed(node, elements, index)
            if geometry.stored:
                found.append(Pack(node, "uint32", elements // 4, index, key, coded=geometry.precision))
            else:
                found.append(Pack(node, geometry.storage, elements, index, key, tf32=geometry.precision == "tf32"))
        return found

    def groups_of(self, rows: HostExpr) -> str:
        """Of blocks, for so many rows: a C++ expression."""
        slices = f"(({rows} + {self.geometry.rows - 1}) / {self.geometry.rows})"
        return slices if self.layout.heads == 1 else f"({slices} * {self.layout.heads})"

    @property
    def groups(self) -> str:
        """Of blocks, for all rows: a C++ expression."""
        return self.groups_of("B")

    @property
    def at_once(self) -> int | None:
        whole = self.geometry.exchange.in_memory
        return self.resident // self.layout.heads * self.geometry.rows if whole else None

    @property
    def blocks(self) -> HostExpr:
        return f"({self.groups} * {self.geometry.ctas})"

    @property
    def resident(self) -> int:
        """Groups of blocks that run at once."""
        return self.time.resident

    @property
    def multiprocessors(self) -> HostExpr:
        together = self.time.together
        return f"(({self.blocks} + {together - 1}) / {together})"

    @property
    def room(self) -> str:
        """Clusters may leave multiprocessors free that no other cluster fits on."""
        return f"(2 * {self.groups} <= {self.resident})"

    def counter_bytes(self, rows: HostExpr) -> HostExpr:
        """Of the counters of the groups of so many rows of a wave."""
        return f"{self.groups_of(rows)} * {COUNTER_WORDS * 4}"

    def values_in(self, rows: HostExpr, steps: HostExpr) -> HostExpr:
        """Of what the groups of so many rows of a wave exchange in so many steps."""
        return self.geometry.exchange.value_bytes(self.groups_of(rows), self.geometry.exchange_words, steps)

    @property
    def work_bytes(self) -> HostExpr:
        at_once = f"std::min<int64_t>({self.resident}, {self.groups})"  # groups of blocks in one launch, at most
        return self.geometry.exchange.work_bytes(self.groups, at_once, self.geometry.exchange_words)

    @property
    def fact(self) -> dict[str, Any]:
        rows = f"B <= {self.most}" if self.most is not None else "any B"
        least = {"least_steps": self.least_steps} if self.least_steps > 1 else {}
        steps = f", T >= {self.least_steps}" if least else ""
        return {
            "unit": f"step, all of T in one kernel, {rows}{steps}",
            "template": self.template,
            "knobs": dict(self.knobs),
            "record": self.record,
            "predicted_us": round(self.predicted_us, 3),
            "phases": len(self.geometry.step.phases),
            "most": self.most,
            **least,
        }

    def launch(self, host: Host, layer_steps: LayerSteps) -> None:
        """All groups, in as many launches as it takes to have them on the GPU at once."""
        exchange, groups, first = self.geometry.exchange, self.groups_of(layer_steps.rows), layer_steps.first
        set_bytes(host, layer_steps.work, exchange.zero_bytes(groups))
        for row0, count, extra in exchange.launches(
            host, self.geometry, groups, self.resident, layer_steps.work, layer_steps.count
        ):
            row0 = row0 if first == 0 else f"{first} + {row0}"
            scalars: list[HostExpr] = [layer_steps.count, -1 if layer_steps.reverse else 1, "B", row0, count, 0]
            scalars += self.told(layer_steps)
            launch_either(host, self.kernels, [*self._pointers(layer_steps), *extra], scalars, layer_steps)

    def told(self, layer_steps: LayerSteps) -> list[HostExpr]:
        """What a kernel is told of the dtype of its states."""
        return [f"({layer_steps.users} ? 1 : 0)"] if persistent.converts_states(self.geometry, self.layout) else []

    @property
    def takes_users_states(self) -> bool:
        """Whether it reads and writes states where the user has them: all first ones before it writes any last one."""
        return not self.layout.narrow_states or persistent.converts_states(self.geometry, self.layout)

    def in_wave(self, layer_steps: LayerSteps, counters: Pointer, below: Pointer) -> list[Pointer]:
        """The pointers of a layer of a wave. below: the counters of the layer below, of which the first one reads
        nothing."""
        extra = [layer_steps.work.cast("uint32"), counters.cast("uint32"), below.cast("uint32")]
        return [*self._pointers(layer_steps), *(extra if self.geometry.exchange.in_memory else [])]

    def _pointers(self, layer_steps: LayerSteps) -> list[Pointer]:
        def read(node: Node) -> Pointer:
            node = self.layout.of_layer(node)
            if node.op == "input":
                return layer_steps.inputs[layer_steps.layout.graph.inputs.index(node)]
            return layer_steps.words[node] if node.mask else layer_steps.hoisted[node]

        pointers = [layer_steps.weights[pack.key] for pack in self.packs]
        pointers += [layer_steps.weights[scales_of(pack.node)] for pack in self.packs if pack.coded]
        pointers += [layer_steps.weights[self.layout.of_layer(node)] for node in self.geometry.step.param_nodes]
        pointers += [read(node) for node in self.geometry.step.read_nodes]
        pointers += [layer_steps.inputs[number] for number in self._inputs]
        kept = [layer_steps.kept[own.number] for own in self.layout.taped]
        pointers += [*layer_steps.before, *layer_steps.after, layer_steps.output, *kept]
        found = clocks()
        return pointers if found is None else [*pointers, found.pointer(self.name, len(self.geometry.step.phases))]


def step_of(layout: Layout) -> Step:
    """The phases of a layer. Raises NotPersistent."""
    hoisted = set(layout.hoisted_nodes)
    step = phases(
        stepped(layout.graph), lambda node: layout.weights.place(node) is not None, lambda node: node in hoisted
    )
    check_kept(step, (own.node for own in layout.taped))
    for node in step.given:
        place, own = layout.input(layout.graph.inputs.index(node)), node.shape[0]
        sizes = (place.row_stride,) if layout.heads == 1 else (place.row_stride, own)  # of a row, and of a head in it
        pieces = all(size * ITEM_BYTES[place.dtype] % 16 == 0 for size in sizes)
        if place.dtype != layout.storage or not pieces or layout.side_by_side(node) not in (0, own):
            raise NotPersistent("a product reads an input whose rows are not made of 16-byte pieces")
    # The inputs, not a user's x, whose rows are made of 16-byte pieces of the storage dtype.
    found = [(n, place) for n, place in layout.given.items() if place.dtype == layout.storage and place.align % 16 == 0]
    whole = [layout.graph.inputs[n] for n, p in found if p.row_stride * ITEM_BYTES[p.dtype] % 16 == 0]
    if step.tables and layout.heads > 1:
        raise NotPersistent("heads read rows of a table at computed places")
    wide = frozenset(node for node in hoisted if layout.hoisted(node).dtype != layout.storage)
    return replace(step, whole=frozenset(whole), wide=wide, heads=layout.heads, lined=_lined(layout, step))


def _lined(layout: Layout, step: Step) -> tuple[Node, ...]:
    """Of what is kept, vectors of 16 bits in pieces of 16 bytes, of the last phase that hands something over, or of
    later ones."""
    last = max((n for n, phase in enumerate(step.phases) if phase.published), default=len(step.phases))
    late = {node for phase in step.phases[last:] for node in (*phase.nodes, *phase.roots, phase.root)}
    found = []
    for own in layout.taped:
        place, width = own.place, step.domain[own.node]
        pieces = ITEM_BYTES[place.dtype] == 2 and place.align >= 16
        if pieces and place.row_stride % 8 == own.apart % 8 == width % 8 == 0 and own.node in late:
            found.append(own.node)
    return tuple(found)


def planned(layout: Layout) -> tuple[Layout, Step]:
    """The layer's layout and step; or, where heads read nothing of one another, those of one head; or, where they do,
    those of a layer without heads. Raises NotPersistent."""
    try:
        return layout, step_of(layout)
    except NotPersistent as reason:
        try:
            head = one_head(layout)
        except Coupled as coupled:
            return _as_vectors(layout, f"{reason}, and heads are not apart: {coupled}")
        if head is None:
            raise
        step = step_of(head)
        tell(True, f"{head.heads} heads apart", "a step reads nothing of other heads: each has blocks of its own")
        return head, step


def _as_vectors(layout: Layout, reason: str) -> tuple[Layout, Step]:
    """All heads as one vector, for that reason."""
    try:
        own = one_vector(layout)
        step = step_of(own)
    except (NoVector, NotPersistent) as other:
        raise NotPersistent(f"{reason}; as one vector: {other}") from None
    zeros = "products of heads have 0 between heads; where these are multiplied, infinity times 0 is NaN"
    tell(True, "heads as one vector", f"{reason}: {zeros}")
    return own, step


def choose(
    layout: Layout,
    target: Target,
    precision: str,
    batches: Sequence[int],
    initial: Mapping[str, float],
    layers: int = 1,
) -> list[Regime]:
    """The regimes of one layer, in the order in which they are to be tried: by rising batch size. initial: what states
    are after a reset, by name, where it is not 0. layers: so many may run at the same time."""
    # Compiled for any batch. In training, three kernels of each size would be many.
    training = bool(layout.kept) or not layout.emits
    if any(n.op == "neighbours" and layout.graph.region_of(n) == "step" for n in layout.graph.nodes()):
        tell(False, "persistent kernels", "convolutions read the rows of other pixels, which other blocks make")
        rows = prod(layout.graph.pixels)
        _tell_rest(layout, [], precision, batches or [rows * batch for batch in EXPECTED_BATCHES], target)
        return []
    any_batch = not batches and not training and not target.records.lean
    batches = batches or EXPECTED_BATCHES
    if scans := scan(layout, target, batches, initial):
        return list(scans)
    if precision not in (*MMA, "float32") or (training and target.arch != HOPPER):
        known = precision in (*MMA, "float32")
        wanted = (
            f"in training they are for {HOPPER}, not for {target.arch}" if known else f"there are none in {precision}"
        )
        tell(False, "persistent kernels", wanted)
        return []
    try:
        own, step = planned(layout)
    except NotPersistent as reason:
        tell(False, "persistent kernels", str(reason))
        matrices = on_chip(layout, target, initial)
        if not matrices:
            _tell_rest(layout, [], precision, batches, target)
        return list(matrices)
    found, bounded = _rungs(layout, step, precision, batches, layers, target)
    if any_batch and not bounded:
        found = _ladder(
            layout, found, unit_of(step, target, precision, ANY, stored=layout.weights.stored, beside=layers), target
        )
    regimes = [_persistent(own, rung, initial) for rung in found]
    if not (training or target.records.lean):
        steps = partial(predict_steps, layout, precision, target=target)
        hidden = partial(hidden_us, layout, precision, target=target)
        regimes = [_from_steps(*pair, steps, hidden) for pair in zip(regimes, found, strict=True)]
    _tell_rest(layout, regimes, precision, batches, target)
    return list(regimes)


def _rungs(
    layout: Layout, step: Step, precision: str, batches: Sequence[int], layers: int, target: Target
) -> tuple[list[Rung], bool]:
    """The geometry of each batch size, by rising size, and whether a size goes step by step. What is the same twice is
    there once, for the larger one."""
    found: list[Rung] = []
    bounded = False
    for batch in sorted(set(batches), reverse=True):
        with about("", batch=batch):
            best = geometry_beside(step, target, precision, batch, layers, layout.weights.stored)
            if best is None:
                continue  # a smaller batch's geometry takes such a batch in slices
            if best.geometry is None:
                bounded = True  # step by step for this batch: no smaller one's geometry reaches it
                continue
            most = batch if found or bounded else _reach(layout, best, batch, target)
            same = bool(found) and found[-1].chosen.geometry == best.geometry
            if listening():
                _tell(layout, best, batch, most, target, found[-1].batch if same else batch)
        if most == 0 or same:
            continue
        found.append(Rung(batch, most, best, StepTime(best.geometry, target)))
    return found[::-1], bounded


def _ladder(layout: Layout, rungs: Sequence[Rung], unit: RecurrentUnit, target: Target) -> list[Rung]:
    """With the rungs that are missing for other batch sizes than those to expect."""
    steps = partial(predict_steps, layout, unit.precision, target=target)
    found = ladder(rungs, unit, target, partial(_reach, layout, target=target), steps)
    for rung in found if listening() else ():
        if rung not in rungs:
            with about("", batch=rung.batch):
                _tell(layout, rung.chosen, rung.batch, rung.most, target, rung.batch)
    return found


def _name(layout: Layout, batch: int, heads: int = 1) -> str:
    """Of the kernel for that batch size. heads: that it runs apart, where the layout is that of all."""
    return f"persistent_{layout.weights.number}_d{layout.directions * heads}_b{batch}"


def _persistent(layout: Layout, rung: Rung, initial: Mapping[str, float]) -> Persistent:
    us, template, geometry, record, knobs = rung.chosen
    assert geometry is not None
    name = _name(layout, rung.batch)
    return Persistent(layout, geometry, template, name, rung.most, rung.time, us, initial, record, knobs)


def _from_steps(
    regime: Persistent, rung: Rung, steps: Callable[[int], float], hidden: Callable[[int], float]
) -> Persistent:
    """The regime for calls that are long enough to be worth its start."""
    copies = STATE_COPIES_US if regime.takes_users_states and not regime.layout.solved else 0.0
    least = least_steps(rung.time, rung.batch, steps, hidden(rung.batch), copies)
    if least > 1:
        with about("", batch=rung.batch):
            start = start_us(rung.time, rung.batch)
            why = f"T below {least}: a persistent kernel takes {start:.1f} us before its first step"
            tell(True, "short calls step by step", why, start_us=round(start, 3), least_steps=least)
    return replace(regime, least_steps=least)


def _tell(layout: Layout, best: ChosenGeometry, batch: int, most: int | None, target: Target, largest: int) -> None:
    """The regime of one batch size, beside what step by step would take, and what it keeps on the chip. largest: the
    batch size that its kernel was chosen for."""
    us, template, geometry, record, _ = best
    assert geometry is not None
    other = predict_steps(layout, geometry.precision, batch, target)
    facts = {"predicted_us": round(us, 3), "step_by_step_us": round(other, 3)}
    if most == 0:
        tell(False, template, f"{us:.2f} us per step predicted, one launch per step {other:.2f}", **facts)
        return
    reach = "any B" if most is None else f"B up to {most}"
    why = f"{us:.2f} us per step predicted, one launch per step {other:.2f}; {reach}; by {record}"
    name = _name(layout, largest, geometry.step.heads)
    tell(True, template, why, **facts, kernel=name, **geometry_facts(geometry))


def geometry_facts(geometry: Geometry) -> Figures:
    """What a report says of a persistent kernel: blocks, what they keep on the chip, where a step's time goes."""
    kept = {"registers": 0, "shared": geometry.weight_words * 4 * geometry.ctas}
    for phase, parts in geometry.shares.items():
        for share in parts:
            each = geometry.block_words(phase) * geometry.k_parts * geometry.part_lanes * 4 * geometry.ctas
            kept["registers"] += share.registers * each
    return {
        "blocks": geometry.ctas,
        "rows": geometry.rows,
        "threads": geometry.block_threads,
        **({"heads": geometry.step.heads} if geometry.step.heads > 1 else {}),
        "shared_bytes": geometry.shared_bytes,
        "exchanges": len(geometry.events),
        "exchange_us": round(exchange_us(geometry), 3),
        "registers_estimated": geometry.registers,
        **{f"weights_in_{place}_bytes": size for place, size in kept.items()},
        "phase_times": phase_facts(geometry),
    }


def phase_facts(geometry: Geometry) -> list[Figures]:
    """The phases of a step with their times, microseconds."""
    return [
        {"kind": phase.kind, "units": phase.units}
        | {name: round(getattr(phase, name) * geometry.slowdown, 4) for name in ("exchange", "product", "cells")}
        for phase in phase_times(geometry)
    ]


def _tell_rest(
    layout: Layout, found: Sequence[Persistent], precision: str, batches: Sequence[int], target: Target
) -> None:
    for batch in sorted(set(batches)) if listening() else ():
        if not any(regime.most is None or batch <= regime.most for regime in found):
            us = predict_steps(layout, precision, batch, target)
            with about("", batch=batch // prod(layout.graph.pixels)):
                facts = {"predicted_us": round(us, 3), "step_by_step_us": round(us, 3)}
                tell(True, "step by step", f"{us:.2f} us per step predicted, one launch per group and step", **facts)


def _reach(layout: Layout, chosen: ChosenGeometry, batch: int, target: Target) -> int | None:
    """The largest B for which no step by step is quicker: slices of the batch take turns. 0: quicker already at
    `batch`, where no record was measured; None: never quicker.

    Measured: 2048 units, bf16, B = 128: LSTM 23.7 us in two slices, 19.6 step by step; GRU 27.0 and 15.5.
    """

    geometry, recorded = chosen.geometry, chosen.recorded
    assert geometry is not None

    def quicker(rows: int) -> bool:
        return predict(geometry, rows, target) > predict_steps(layout, geometry.precision, rows, target)

    if quicker(batch) and recorded:
        return batch
    if quicker(batch):  # float32 LSTM 512, B = 64: 56 rows at once, then 8: 12.6 us, step by step 11.6
        return 0
    at_once = max(1, StepTime(geometry, target).at_once)
    for reach in range(0, MOST_TURNS * at_once, at_once):
        if quicker(reach + at_once):
            if reach < batch <= reach + at_once and not quicker(batch):
                return batch
            return reach if reach >= batch else 0
    return None
