"""All layers of a network at the same time: persistent kernels that follow each other step by step.

In: an RNN of one direction, its layers' graphs before anything is hoisted. Out: statements for a tile of time: one
launch for all layers (`cuda/persistent/wave_kernel.py`), each on multiprocessors of its own, each multiplying its own
input ([W R] on the chip) as soon as the layer below has written it. Layer l works on step t while layer l - 1 works on
a later one. Where the first layer's weights for a long input leave no room, its products of inputs run before, over all
steps. Rows that are not made of 16-byte pieces are copied to such ones, and results back. On a GPU that has no
room for all of them, and where a reset cannot be part of a step, layers run one after the other.

Rewrite: for layer: for t: step  -->  for t: for layer: step, layers side by side

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3; Diamos et al. 2016, "Persistent RNNs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import ceil, prod
from typing import Any

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.phases import NotPersistent, Step
from tvm_rnn.cuda.layer.pointers import Place, rows_of_users
from tvm_rnn.cuda.layer.regime import LayerSteps, launch_either
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_geometry import ChosenGeometry, choose_geometry
from tvm_rnn.cuda.model.choose_regime import EXPECTED_BATCHES, Persistent, geometry_facts, phase_facts, step_of
from tvm_rnn.cuda.model.few_steps import least
from tvm_rnn.cuda.model.persistent_step_time import StepTime, able_to_run, resident_groups
from tvm_rnn.cuda.model.wave_time import LEAST_STEPS, LONGEST, OneByOne, following_us, most_steps
from tvm_rnn.cuda.persistent import wave_kernel
from tvm_rnn.cuda.persistent.geometry import MMA
from tvm_rnn.cuda.persistent.lengths_and_resets import resettable
from tvm_rnn.cuda.rowwise.row_copies import RowCopy, row_copies
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.cuda.rowwise.state_moves import Buffers, Tile
from tvm_rnn.decisions import Figures, about, listening, tell
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.network.rnn import RNN, constants
from tvm_rnn.passes.passed import Passed
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import Target

from .layer import Layer, one_of, picked, users_whole, where

WAVE_BYTES = 256 << 20  # for outputs between layers, in one tile of time
WAVES = (*MMA, "float32")  # precisions
BATCHES = (*EXPECTED_BATCHES, 256, 512)  # where the caller names none: small layers have room for as many rows
# In float32 products of inputs are counted: multiply-adds per us of large ones, and the part of all times that a wave
# may take; and of the times of layers side by side, which tiles prolong. LSTM, H200, us per step for T = 100, in a wave
# and without, as measured: 4 x 512 B = 64 33.2, 44.6, B = 16 10.3, 16.5, GRU 26.6, 41.2; 3 x 256 B = 64 9.4, 8.8.
FMA_PER_US, FMA_GAIN, BESIDE_GAIN = 22e6, 0.85, 1.6
TURNS_GAIN = 0.9  # of one launch's time for a batch, what several launches of fewer rows may take


@dataclass
class Member:
    """What layers of the same graph share."""

    layout: Layout
    step: Step


@dataclass
class Wave:
    """The waves of one network: for each range of batch sizes a geometry that all layers have."""

    net: RNN
    of_layer: tuple[int, ...]
    members: list[Member]
    regimes: list[list[Persistent]]  # per wave: one per member
    limits: list[int]  # per wave: the largest B
    at_once: list[int]  # per wave: rows of one launch; a batch of more takes several, one after the other
    floors: list[int]  # per wave: the largest B that layers one by one are left to; 0: none
    longest: list[dict[int, int]]  # per wave: by B, the largest T; of more steps layers one by one are quicker
    lean: bool = False  # there are never lengths or resets
    first: Layer | None = None  # the first layer, where its products of inputs run before the wave
    places: list[dict[Any, Pointer]] = field(default_factory=list)  # per layer: packed weights

    @cached_property
    def kernels(self) -> list[tuple[Kernel, Kernel]]:
        """Per wave, without and with lengths and resets."""
        found = []
        for regimes in self.regimes:
            members = [wave_kernel.Member(regime.geometry, regime.layout) for regime in regimes]
            plain = wave_kernel.wave_kernel(regimes[0].name, members, self.of_layer)
            initial = regimes[0].initial
            masked = wave_kernel.wave_kernel(f"{regimes[0].name}_masked", members, self.of_layer, initial)
            found.append((plain, masked))
        return found

    # --- memory ----------------------------------------------------------------------------------------------------

    @property
    def read(self) -> set[int]:
        """The numbers of the user's inputs that products of the wave read. A later layer's first one is the output of
        the layer below."""
        by_member = [{m.layout.graph.inputs.index(node) for node in m.step.given} for m in self.members]
        first, *later = (by_member[index] for index in self.of_layer)
        return first.union(*later) - ({0} - first)

    @cached_property
    def copied(self) -> dict[int, Kernel]:
        """What copies inputs whose rows the user has otherwise, by number."""
        layout, found = self.members[0].layout, dict[int, Kernel]()
        for number in sorted(self.read):
            node = layout.graph.inputs[number]
            own, place = self._users(node), layout.input(number)
            if own.row_stride != place.row_stride:
                copy = RowCopy(own, place, prod(node.shape))
                found[number] = row_copies(f"wave_{layout.weights.number}_copy{number}", [copy])
        return found

    @cached_property
    def copied_back(self) -> Kernel | None:
        """What copies the last layer's output, where the user has its rows otherwise."""
        layout = self.members[self.of_layer[-1]].layout
        own, place = self._users(layout.graph.output), layout.output
        if own.row_stride == place.row_stride:
            return None
        copy = RowCopy(place, own, prod(layout.graph.output.shape))
        return row_copies(f"wave_{layout.weights.number}_output", [copy])

    @cached_property
    def unwritten(self) -> Kernel | None:
        """What marks rows between layers as not written, where a memset would mark what nobody writes."""
        layout = self.members[0].layout
        width = prod(layout.graph.output.shape)
        if layout.output.row_stride == width:
            return None
        return wave_kernel.unwritten_rows(f"wave_{layout.weights.number}_unwritten", layout.output, width)

    def _users(self, node: Node) -> Place:
        """How the user has rows of it."""
        return rows_of_users(self.net.dtype, prod(node.shape))

    @property
    def kept_outputs(self) -> int:
        """Layers whose outputs lie in memory of ours."""
        return len(self.of_layer) - (self.copied_back is None)

    def reserve(self, program: Program) -> None:
        layers = len(self.of_layer)
        cases = ""
        for number, (floor, limit) in enumerate(zip(self.floors, self.limits, strict=True)):
            bounds = [f"T >= {LEAST_STEPS}", *self._upto(number), *([f"B > {floor}"] if floor else []), f"B <= {limit}"]
            cases += f"{' && '.join(bounds)} ? {number} : "
        self.fits = program.let("wave_fits", f"{cases}-1")
        output = self.members[0].layout.output
        row = output.row_stride * ITEM_BYTES[output.dtype] * max(1, layers - 1)
        row += 0 if self.first is None else self.first.bytes_per_row
        self.steps = program.let("wave_steps", f"min<int64_t>(T, max<int64_t>(1, {WAVE_BYTES // row} / B))")
        on = f"({self.fits} >= 0)"
        self.size = program.let("handed", f"{on} ? {self.steps} * B * {output.row_stride} : 0")
        self.outputs = program.buffer("handed", f"{self.kept_outputs} * {self.size}", output.dtype)

        def rows(name: str, place: Place) -> Pointer:
            return program.buffer(name, f"{on} ? {self.steps} * B * {place.row_stride} : 0", place.dtype)

        self.rows = {n: rows(f"wave_rows{n}", self.members[0].layout.input(n)) for n in self.copied}
        if self.first is not None:
            own = self.first.layout
            nodes = enumerate(own.hoisted_nodes)
            self.hoisted = {node: rows(f"wave_hoisted{i}", own.hoisted(node)) for i, node in nodes}
            self.copies = {n: rows(f"wave_copy{n}", place) for n, place in own.copied.items()}
        work = [regimes[0] for regimes in self.regimes]
        counters = _most([r.counter_bytes("B") for r in work])
        self.counters = program.buffer("counters", f"{on} ? {layers} * {counters} : 0")
        values = _most([r.values_in("B", self.steps) for r in work])
        self.exchange = program.buffer("exchange", f"{on} ? {layers} * {values} : 0")
        for layer, index in enumerate(self.of_layer):
            weights = self.members[index].layout.weights
            for regimes in self.regimes:
                for pack in regimes[index].packs:
                    weights.want(pack)
            self.places.append(dict(weights.pack(program, layer, 0)))

    def _upto(self, number: int) -> list[str]:
        """A C++ condition on T, where there is one."""
        rows = self.longest[number]
        return [f"T <= {least([rows])}"] if min(rows.values()) < LONGEST else []

    # --- statements ------------------------------------------------------------------------------------------------

    def choose(self, host: Host) -> str:
        """Decide, in each call, which wave runs: a variable, below 0 for none. Rows that its whole launches leave are
        for the first wave that takes so few."""
        numbers = sorted(self.read - {*self.copied})
        able = [f"reinterpret_cast<uintptr_t>(input[{n}]) % 16 == 0" for n in numbers]
        able += ["!has_lengths", "!has_reset"] if self.lean else []
        able += [] if all(resettable(member.step) for member in self.members) else ["!has_reset"]
        rooms = []
        for regimes, (plain, masked), most in zip(self.regimes, self.kernels, self.at_once, strict=True):
            groups = regimes[0].groups_of(f"std::min<int64_t>(B, {most})")
            blocks = f"{len(self.of_layer)} * {groups} * {regimes[0].geometry.ctas}"
            resident = host.program.resident(plain)
            if not self.lean:  # a module for calls with lengths alone has no other kernel
                resident = f"(has_lengths || has_reset ? {host.program.resident(masked)} : {resident})"
            rooms.append(f"{blocks} <= {resident}")
        able += [f"({self.fits} != {number} || {room})" for number, room in enumerate(rooms)]
        self.number = host.let("in_waves", f"({' && '.join(able)}) ? {self.fits} : -1")
        self.rows_at_once, self.rest = "B", self.number
        if self.in_turns:
            sizes = "".join(f"{self.number} == {n} ? {most} : " for n, most in enumerate(self.at_once))
            self.rows_at_once = host.let("wave_rows", f"{sizes}B")
            left, cases = f"B % {self.rows_at_once}", ""
            for number, (most, room) in enumerate(zip(self.at_once[:-1], rooms, strict=False)):
                cases += f"{number} < {self.number} && {left} <= {most} && {room} ? {number} : "
            self.rest = host.let("wave_of_rest", f"B < {self.rows_at_once} ? {self.number} : {cases}{self.number}")
        return self.number

    @property
    def in_turns(self) -> bool:
        """Whether a wave is for more rows than one launch takes."""
        return any(limit > most for limit, most in zip(self.limits, self.at_once, strict=True))

    @property
    def tiles(self) -> str:
        return f"((T + {self.steps} - 1) / {self.steps})"

    @property
    def on_users_states(self) -> str:
        """A C++ condition: the waves of this call read and write states where the user has them."""
        able = [n for n, own in enumerate(self.regimes) if all(member.takes_users_states for member in own)]
        each = [one_of(variable, able) for variable in dict.fromkeys((self.number, self.rest))]
        return " && ".join([f"{self.tiles} == 1", *each]) if able else "false"

    def run(self, host: Host, each: Sequence[Buffers]) -> None:
        """All of T. each: of a layer its states, whose copies change places with every tile; of the first one also the
        weights, as it is alone."""
        with host.loop(self.tiles, "tile") as tile:
            done = host.let("done", f"{tile} * {self.steps}")
            count = host.let("count", f"min({self.steps}, T - {done})")
            if self.first is not None:
                self._multiply_inputs(host, self.first, (done, count), each[0].weights)
            self._tile(host, (tile, done, count), each)

    def _multiply_inputs(
        self, host: Host, first: Layer, at: tuple[str, str], weights: Mapping[object, Pointer]
    ) -> None:
        """What the first layer computes before its steps. at: the steps done before the tile, its steps."""
        (done, count), program, layout = at, host.program, first.layout
        inputs = [
            program.input(n).at(f"{done} * B * {layout.input(n).row_stride}") for n in range(len(layout.graph.inputs))
        ]
        buffers = Buffers(weights, [], {}, self.hoisted, {}, copies=self.copies)
        first.before(host, buffers, Tile(inputs, program.output, done, count, False, "0"))

    def _tile(self, host: Host, at: tuple[str, str, str], each: Sequence[Buffers]) -> None:
        """at: the tile's number, the steps done before it, its steps."""
        self._prepare(host, at)
        if not self.in_turns:
            self._launches(host, self.number, at, ("0", "B"), each)
        else:
            with host.loop(f"(B + {self.rows_at_once} - 1) / {self.rows_at_once}", "turn") as turn:
                first = host.let("first_row", f"{turn} * {self.rows_at_once}")
                rows = host.let("rows", f"std::min<int64_t>({self.rows_at_once}, B - {first})")
                number = host.let("wave", f"{rows} == {self.rows_at_once} ? {self.number} : {self.rest}")
                self._launches(host, number, at, (first, rows), each)
        if self.copied_back is not None:
            width = self._users(self.members[-1].layout.graph.output).row_stride
            output = host.program.output.at(f"{at[1]} * B * {width}")
            host.launch(self.copied_back, [self._between(at[2], len(self.of_layer) - 1), output], [f"({at[2]} * B)"])

    def _launches(
        self, host: Host, number: str, at: tuple[str, str, str], part: tuple[str, str], each: Sequence[Buffers]
    ) -> None:
        """One launch, of the wave of that number. part: the first row, and how many."""
        for own in range(len(self.regimes)):
            with host.when(f"{number} == {own}"):
                self._launch(host, own, at, part, each)

    def _launch(
        self, host: Host, number: int, at: tuple[str, str, str], part: tuple[str, str], each: Sequence[Buffers]
    ) -> None:
        regimes, layers, (_, _, count), (row0, rows) = self.regimes[number], len(self.of_layer), at, part
        exchange, counters = regimes[0].geometry.exchange, regimes[0].counter_bytes(rows)
        values = regimes[0].values_in(rows, count)
        exchange.clear_for_wave(host, self.counters, f"{layers} * {counters}", self.exchange, f"{layers} * {values}")
        pointers = list[Pointer]()
        for layer, index in enumerate(self.of_layer):
            steps = self._layer_steps(host, layer, at, self.exchange.skip(f"{layer} * {values}"), each[layer])
            own, below = (self.counters.skip(f"{n} * {counters}") for n in (layer, max(0, layer - 1)))
            pointers += regimes[index].in_wave(steps, own, below)
        scalars: list[HostExpr] = [count, 1, "B", row0, f"{layers} * {regimes[0].groups_of(rows)}"]
        scalars += regimes[0].told(steps)
        launch_either(host, self.kernels[number], pointers, scalars, steps)

    def _prepare(self, host: Host, at: tuple[str, str, str]) -> None:
        """Memory between layers, which says what nobody has written yet, or is 0 where nobody writes; inputs' rows."""
        (_, done, count) = at
        marking = [number for number, own in enumerate(self.regimes) if own[0].geometry.exchange.marks]
        if len(marking) in (0, len(self.regimes)):
            self._between_is_new(host, count, bool(marking))
        else:
            run = dict.fromkeys((self.number, self.rest))
            with host.when(" || ".join(f"{variable} == {number}" for variable in run for number in marking)):
                self._between_is_new(host, count, True)
            with host.otherwise():
                self._between_is_new(host, count, False)
        for number, copy in self.copied.items():
            width = self._users(self.members[0].layout.graph.inputs[number]).row_stride
            source = host.program.input(number).at(f"{done} * B * {width}")
            host.launch(copy, [source, self.rows[number]], [f"({count} * B)"])

    def _between_is_new(self, host: Host, count: str, marks: bool) -> None:
        """marks: what is not written yet is marked; else it is 0, where rows have places that nobody writes."""
        place = self.members[0].layout.output
        if marks and self.unwritten is not None:
            host.launch(self.unwritten, [self.outputs.cast("uint32")], [f"({self.kept_outputs} * {count} * B)"])
        elif marks or self.unwritten is not None:
            each = f"{count} * B * {place.row_stride * ITEM_BYTES[place.dtype]}"
            set_bytes(host, self.outputs, f"{self.kept_outputs} * {each}", 0xFF if marks else 0)

    def _layer_steps(
        self, host: Host, layer: int, at: tuple[str, str, str], values: Pointer, buffers: Buffers
    ) -> LayerSteps:
        """What a layer of a tile works on. values: its place for what its blocks exchange."""
        (tile, done, count), program = at, host.program
        layout = self.members[self.of_layer[layer]].layout
        both = (picked(host, f"{tile} & 1", pair) for pair in buffers.states)
        pairs = [where(host, buffers, number, pair) for number, pair in enumerate(both)]
        old, new = [before for before, _ in pairs], [after for _, after in pairs]
        inputs = [
            self.rows[n] if n in self.copied else program.input(n).at(f"{done} * B * {layout.input(n).row_stride}")
            for n in range(len(layout.graph.inputs))
        ]
        if layer:
            inputs[0] = self._between(count, layer - 1)
        hoisted = self.hoisted if self.first is not None and not layer else {}
        users, stride = layer >= self.kept_outputs, layout.output.row_stride
        output = program.output.at(f"{done} * B * {stride}") if users else self._between(count, layer)
        weights = self.places[layer]
        own = layout, done, count, False, inputs, hoisted, weights, old, new, output, values
        return LayerSteps(*own, lean=self.lean, users=users_whole(buffers))

    def _between(self, count: str, layer: int) -> Pointer:
        """Where a layer leaves its output for the next one: tiles lie dense, so that one memset reaches all."""
        return self.outputs.at(f"{layer} * {count} * B * {self.members[0].layout.output.row_stride}")

    def facts(self) -> list[dict[str, Any]]:
        found = []
        for number, (regimes, floor, limit) in enumerate(zip(self.regimes, self.floors, self.limits, strict=True)):
            fact = replace(regimes[0], most=limit).fact
            bounds = [f"T >= {LEAST_STEPS}", *self._upto(number), *([f"B > {floor}"] if floor else [])]
            unit = f"{len(self.of_layer)} layers in a wave, {fact['unit']}, {', '.join(bounds)}"
            own = {"least_batch": floor + 1, "least_steps": LEAST_STEPS, "most_steps": self.longest[number]}
            found.append({**fact, "unit": unit, **own})
        return found


def _most(values: Sequence[HostExpr]) -> str:
    return reduce(lambda text, value: f"max<int64_t>({text}, {value})", map(str, values))


def wave(passed: Passed, target: Target, first: Layer, others: Sequence[OneByOne]) -> Wave | None:
    """The waves of a network; None where there is none that is worth while.

    first: the first layer, as it is alone. others: for each expected batch size layers one after the other.
    """
    net, precision = passed.net, passed.options.precision
    if net.num_directions > 1 or net.reverse or net.num_layers < 2 or precision not in WAVES or target.arch != "sm_90a":
        tell(False, "layers in a wave", _no_wave(net, target, precision))
        return None
    layers = passed.in_wave
    try:
        members = [_member(passed, graph, n) for n, graph in enumerate(layers.graphs)]
    except NotPersistent as reason:
        tell(False, "layers in a wave", str(reason))
        return None
    found = _chosen(passed, target, members, None, others)
    if found is not None or layers.of_layer.count(layers.of_layer[0]) > 1:
        return found
    try:
        members[0] = _behind_its_inputs(passed, first)
    except NotPersistent as reason:
        tell(False, "layers in a wave, the first one behind its products of inputs", str(reason))
        return None
    return _chosen(passed, target, members, first, others)


def _chosen(
    passed: Passed,
    target: Target,
    members: list[Member],
    first: Layer | None,
    others: Sequence[OneByOne],
) -> Wave | None:
    """The waves of layers; first: see `Wave`."""
    net, precision, batches, layers = passed.net, passed.options.precision, passed.options.batches, passed.in_wave
    part = replace(target, sms=target.sms // len(layers.of_layer))
    found: list[_Chosen] = []
    floor = 0  # the last batch that has no wave
    for batch, other in sorted(zip(batches or BATCHES, others, strict=True), key=lambda own: own[0]):
        with about("", batch=batch):
            best = _best(members, len(layers.of_layer), target, precision, batch)
            steps = 0 if best is None else _longest(members, layers.of_layer, best, batch, other)
            if best is not None:
                _tell(members, layers.of_layer, best, other, steps)
            able = best if steps else None
            in_turns = found and not floor and batch in (batches or EXPECTED_BATCHES)
            turns = _steps_in_turns(members, layers.of_layer, found[-1], batch, able, other) if in_turns else 0
            if turns:
                found[-1] = replace(found[-1], turns=batch, longest={**found[-1].longest, batch: turns})
                continue
        if best is None or not steps:
            floor = batch
        elif found and not floor and found[-1].best.geometry == best.geometry:
            found[-1] = replace(found[-1], batch=batch, best=best, longest={**found[-1].longest, batch: steps})
        else:
            assert best.geometry is not None
            rows = resident_groups(best.geometry, part) * best.geometry.rows
            found.append(_Chosen(batch, best, rows, floor, {batch: steps}))
            floor = 0
    if not found:
        return None
    lean = bool(target.records.lean)
    result = Wave(net, layers.of_layer, members, [], [], [], [], [], lean, first)
    for own, later in zip(found, [*found[1:], None], strict=True):
        most = own.batch if later is not None else None
        result.regimes.append([_regime(m, own.best, most, net, target) for m in members])
        # It takes all rows that it has room for, where the next one, for more, is no quicker.
        whole = later is None or (not later.floor and own.best.us <= later.best.us)
        result.limits.append(max(own.turns, own.rows if whole else min(own.rows, own.batch)))
        result.at_once.append(own.rows)
        result.floors.append(own.floor)
        result.longest.append(own.longest)
    return result


@dataclass(frozen=True)
class _Chosen:
    """A wave of a network. batch: the largest that it is chosen for; rows: of one launch, at most; floor, longest: as
    `Wave` has them; turns: the largest batch that it takes in several launches, 0 for none."""

    batch: int
    best: ChosenGeometry
    rows: int
    floor: int
    longest: dict[int, int]
    turns: int = 0


def _steps_in_turns(
    members: Sequence[Member],
    of_layer: Sequence[int],
    smaller: _Chosen,
    batch: int,
    best: ChosenGeometry | None,
    other: OneByOne,
) -> int:
    """The largest T for which the wave of fewer rows takes the batch in several launches; 0: none. That is where they
    are predicted to take less time than one launch of the best wave for it, if there is one, and than layers one after
    the other."""
    launches, own = ceil(batch / smaller.rows), smaller.best._replace(record=DEFAULT)
    if best is not None and launches * own.us >= TURNS_GAIN * best.us:
        return 0
    steps = _longest(members, of_layer, own, batch, other, launches)
    if steps < min(smaller.longest.values()):
        return 0
    why = f"{launches * own.us:.2f} us per step of {launches} launches of {smaller.rows} rows predicted"
    tell(True, "layers in a wave", why)
    return steps


def _longest(
    members: Sequence[Member],
    of_layer: Sequence[int],
    best: ChosenGeometry,
    batch: int,
    other: OneByOne,
    launches: int = 1,
) -> int:
    """The largest T that is for a wave in so many launches; 0: none."""
    if best.geometry is None:
        return 0
    if best.recorded:
        return LONGEST
    if best.geometry.precision == "float32":
        return LONGEST if launches * best.us < _most_us(members, of_layer, batch, other) else 0
    return most_steps(following_us(best.geometry, best.us), other, launches)


def _tell(members: Sequence[Member], of_layer: Sequence[int], best: ChosenGeometry, other: OneByOne, most: int) -> None:
    why = f"{best.us:.2f} us per step of all layers in one launch predicted, one by one {other.us:.2f}"
    why += f"; by {best.record}" if most else "; with what begins their tiles layers one by one are quicker"
    why += f"; up to {most} steps" if 0 < most < LONGEST else ""
    facts = _told(members, of_layer, best) if most and listening() else {}
    us = {"predicted_us": round(best.us, 3), "one_by_one_us": round(other.us, 3)}
    tell(bool(most), "layers in a wave", why, **us, **facts)


def _told(members: Sequence[Member], of_layer: Sequence[int], best: ChosenGeometry) -> Figures:
    """What a report says of a wave: one layer's blocks, and where the time of each layer's step goes."""
    assert best.geometry is not None
    facts = {name: value for name, value in geometry_facts(best.geometry).items() if name != "phase_times"}
    own = [phase_facts(replace(best.geometry, step=member.step)) for member in members]
    return {**facts, "layer_times": [own[index] for index in of_layer]}


def _no_wave(net: RNN, target: Target, precision: str) -> str:
    if net.num_layers < 2:
        return "there is one layer"
    if net.num_directions > 1 or net.reverse:
        return "a direction that goes backwards needs all of a sequence before its first output"
    return f"waves are for {', '.join(WAVES)} on sm_90a, not for {precision} on {target.arch}"


def _most_us(members: Sequence[Member], of_layer: Sequence[int], batch: int, other: OneByOne) -> float:
    """What a step of a wave in float32 may take."""
    steps = [members[index].step for index in of_layer]
    gates = [(p.gates * p.width, o) for step in steps for p in step.phases for o in p.operands if o.given]
    inputs = sum(rows * operand.depth for rows, operand in gates) * batch / FMA_PER_US
    return min(FMA_GAIN * (other.us + inputs), BESIDE_GAIN * other.us / min(other.beside, other.layers))


def _member(passed: Passed, graph: Graph, number: int) -> Member:
    if constants(graph):
        raise NotPersistent("arrays of constants are known by the hoisted graph's names")
    net, precision = passed.net, passed.options.precision
    weights = Weights(graph, len(net.layers) + number, precision, passed.options.stored)
    layout = Layout(graph, precision, weights, net.dtype, whole_rows=True)
    step = step_of(layout)
    # What layers publish is their output, as the product of the next one reads it.
    if not step.given or any(step.reads) or graph.output not in {n for p in step.phases for n in p.published}:
        raise NotPersistent("a layer cannot follow another one")
    if layout.dtype != layout.storage:
        raise NotPersistent("a layer's output is not what the next one's product reads")
    return Member(layout, step)


def _behind_its_inputs(passed: Passed, first: Layer) -> Member:
    """The first layer where its products of inputs run before the wave."""
    weights = Weights(first.graph, f"{first.number}_wave", first.precision, passed.options.stored)
    layout = Layout(first.graph, first.precision, weights, passed.net.dtype, whole_rows=True)
    step = step_of(layout)
    if step.given or layout.graph.output not in {n for p in step.phases for n in p.published}:
        raise NotPersistent("a layer cannot follow another one")
    return Member(layout, step)


def _best(members: Sequence[Member], layers: int, target: Target, precision: str, batch: int) -> ChosenGeometry | None:
    part = replace(target, sms=target.sms // layers)
    stored = members[-1].layout.weights.stored
    found = choose_geometry(members[-1].step, part, precision, batch, layers, stored)
    if found is None or found.geometry is None:
        return None
    groups, most = ceil(batch / found.geometry.rows), resident_groups(found.geometry, part)
    if groups > most:
        shares = f"{groups} groups of {found.geometry.ctas} blocks with {found.geometry.rows} rows each"
        why = f"{shares}; of each layer's {part.sms} multiprocessors {most} run at once"
        tell(False, "layers in a wave", f"the batch takes {why}")
        return None
    for member in members:  # every layer must have room in this geometry, and follow another one in it
        own = replace(found.geometry, step=member.step)
        if not able_to_run(own, target) or not own.follows:
            tell(False, "layers in a wave", "in this geometry a layer cannot follow another one")
            return None
    return found


def _regime(member: Member, best: ChosenGeometry, most: int | None, net: RNN, target: Target) -> Persistent:
    assert best.geometry is not None
    own = replace(best.geometry, step=member.step)
    weights = member.layout.weights
    name = f"wave_{weights.number}_{own.exchange.name}{own.ctas}x{own.rows}" + (f"_b{most}" if most else "")
    time = StepTime(own, target)
    us, initial, knobs = time.us(own.rows), net.cell.initial, best.knobs
    return Persistent(member.layout, own, best.template, name, most, time, us, initial, best.record, knobs)
