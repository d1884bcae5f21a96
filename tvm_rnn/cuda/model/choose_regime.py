"""Which persistent regimes run a layer's steps, the best first.

In: a layer's layout, a target, a precision, batch sizes to expect. Out: regimes, each a kernel for a range of batch
sizes, none where the layer can only run step by step. `choose_geometry.py` says in which geometry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.phases import NotPersistent, Step, phases
from tvm_rnn.cuda.layer.regime import Regime, Where, launch_either
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import scales_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.cell_reads import hoisted, params
from tvm_rnn.cuda.persistent.exchange import COUNTER_WORDS
from tvm_rnn.cuda.persistent.exchange_by_polling import places as place_count
from tvm_rnn.cuda.persistent.geometry import MMA, Team
from tvm_rnn.cuda.persistent.layer_input_rows import given
from tvm_rnn.cuda.persistent.lengths_and_resets import resettable
from tvm_rnn.cuda.persistent.product.mma_sync import weights
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled
from tvm_rnn.cuda.persistent.tape_stores import check_kept, stores
from tvm_rnn.cuda.rowwise.scan_over_time import scan
from tvm_rnn.decisions import about, listening, tell
from tvm_rnn.graph.graph import Node
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr

from .choose_backward_lanes import geometry_beside
from .choose_geometry import Geometry
from .launched_step_time import predict_steps
from .persistent_step_time import exchange_us, predict, resident_teams

MOST_TURNS = 16  # of slices of a batch, beyond which a comparison with step by step says nothing new
EXPECTED_BATCHES = (1, 16, 64, 128)  # where the caller names none


@dataclass(frozen=True, eq=False)
class Persistent:
    """One geometry, for B up to `most` (None: any)."""

    layout: Layout
    team: Team
    template: str
    name: str
    most: int | None
    resident: int  # teams that run at once
    predicted_us: float
    initial: Mapping[str, float]
    record: str = DEFAULT  # where the geometry is from

    @property
    def words(self) -> Sequence[Node]:
        return [node for node in hoisted(self.team) if node.random]

    @property
    def applies(self) -> str:
        able = [] if resettable(self.team.step) else ["!has_reset"]
        able += [f"B <= {self.most}"] if self.most is not None else []
        # Of what the caller gives: a backward graph reads the gradient of y, all else is on the tape.
        users = [*self._inputs, *([0] if 0 in self.layout.given and self.team.exchange == "grid" else [])]
        able += [f"reinterpret_cast<uintptr_t>(input[{n}]) % 16 == 0" for n in users]
        return " && ".join(able) or "true"

    @property
    def _inputs(self) -> list[int]:
        """Numbers of the inputs that products read, 16 bytes at a time."""
        return [self.layout.graph.inputs.index(node) for node in given(self.team)]

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        plain = persistent.kernel(self.name, self.team, self.layout)
        return plain, persistent.kernel(f"{self.name}_masked", self.team, self.layout, self.initial)

    @cached_property
    def packs(self) -> Sequence[Pack]:
        return [self._pack(number) for number in range(len(weights(self.team)))]

    def _pack(self, number: int) -> Pack:
        team = self.team
        phase, share = weights(team)[number]
        node = share.operand.weight
        shape = (team.ctas, team.warps_u, team.warps_k, share.kblocks, team.blocks(phase.width))
        other = team.ring or team.staged or team.fma
        ring = (team.k_parts, share.registers, team.staged, bool(team.fma)) if other else ()
        ring = (*ring, team.warpgroups) if isinstance(team, Pooled) else ring

        def index(at: Expr) -> tuple[tuple[Expr, ...], Expr]:
            return team.weight_index(phase, share, at)

        elements = team.weight_elements(phase, share)
        if team.stored:
            key = (node, team.stored, "fragments", *shape)
            return Pack(node, "uint32", elements // 4, index, key, coded=team.precision)
        key = (node, team.storage, "fragments", *shape, *ring)
        return Pack(node, team.storage, elements, index, key, tf32=team.precision == "tf32")

    @property
    def _teams(self) -> str:
        return f"((B + {self.team.rows - 1}) / {self.team.rows})"

    @property
    def blocks(self) -> HostExpr:
        return f"({self._teams} * {self.team.ctas})"

    @property
    def room(self) -> str:
        """Clusters may leave multiprocessors free that no other cluster fits on."""
        return f"(2 * {self._teams} <= {self.resident})"

    @property
    def _at_once(self) -> str:
        """Teams of one launch, at most."""
        return f"std::min<int64_t>({self.resident}, {self._teams})"

    def _place_bytes(self, steps: HostExpr) -> str:
        """What one polled team's places take."""
        return f"{place_count(str(steps))} * {self.team.exchange_words * 2}"

    @property
    def counter_bytes(self) -> HostExpr:
        return f"{self._teams} * {COUNTER_WORDS * 4}"

    @property
    def value_bytes(self) -> HostExpr:
        """Of what a grid exchanges with counters."""
        return f"{self._teams} * {self.team.exchange_words * 4}" if self.team.exchange == "grid" else 0

    def values_in(self, steps: HostExpr) -> HostExpr:
        """Of what all teams of a wave exchange in so many steps."""
        return f"{self._teams} * {self._place_bytes(steps)}" if self.team.polled else self.value_bytes

    @property
    def zero_bytes(self) -> HostExpr:
        return self.counter_bytes if self.team.exchange == "grid" and not self.team.polled else 0

    @property
    def work_bytes(self) -> HostExpr:
        if self.team.exchange != "grid":
            return 0
        if self.team.polled:
            return f"{self._at_once} * {self._place_bytes('T')} + 256"
        return f"{self.counter_bytes} + {self.value_bytes}"

    @property
    def fact(self) -> dict[str, Any]:
        team = self.team
        knobs = {
            name: getattr(team, name)
            for name in (
                *("ctas", "rows", "warps_u", "warps_n", "warps_k", "register_words", "shared_words", "ahead"),
                *("passes", "polled", "copied", "ring", "together", "staged", "fma", "pace", "apart"),
            )
            if hasattr(team, name)
            and (name != "shared_words" or team.exchange == "grid")  # a cluster keeps all that is left there
        }
        rows = f"B <= {self.most}" if self.most is not None else "any B"
        return {
            "unit": f"step, all of T in one kernel, {rows}",
            "template": self.template,
            "knobs": knobs,
            "record": self.record,
            "predicted_us": round(self.predicted_us, 3),
            "phases": len(team.step.phases),
            "most": self.most,
        }

    def launch(self, host: Host, where: Where) -> None:
        """One launch per group of teams that fit on the GPU at once."""
        team = self.team
        if team.exchange == "cluster":
            self._launch(host, where, "0", self._teams, [])
            return
        with host.loop(f"({self._teams} + {self.resident - 1}) / {self.resident}", "slice") as part:
            first = host.let("first_team", f"{part} * {self.resident}")
            count = host.let("teams", f"std::min<int64_t>({self.resident}, {self._teams} - {first})")
            if team.polled:
                places = where.work.skip("256")  # one slice uses them after the other
                host.memset(places, f"{count} * {self._place_bytes(where.count)}", 0xFF)
                extra = [places.cast("uint32"), where.work.cast("uint32"), where.work.cast("uint32")]
                self._launch(host, where, f"{first} * {team.rows}", count, extra)
                return
            counters = where.work.skip(f"{first} * {COUNTER_WORDS * 4}").cast("uint32")
            values = f"{self._teams} * {COUNTER_WORDS * 4} + {first} * {team.exchange_words * 4}"
            extra = [where.work.skip(values).cast("uint32"), counters, counters]
            self._launch(host, where, f"{first} * {team.rows}", count, extra)

    def follow(self, host: Host, where: Where, counters: Pointer, below: Pointer | None) -> None:
        """One launch for all teams, which must fit on the GPU at once, beside the layer below (whose counters are
        `below`) as soon as that is there; None: the first layer."""
        extra = [where.work.cast("uint32"), counters.cast("uint32"), (below or counters).cast("uint32")]
        extra = extra if self.team.exchange == "grid" else []
        pointers, scalars = self._arguments(where, "0", self._teams, extra, below is not None)
        host.launch(self.kernels[0], pointers, scalars, behind=below is not None)

    def _launch(self, host: Host, where: Where, row0: HostExpr, teams: HostExpr, extra: list[Any]) -> None:
        launch_either(host, self.kernels, *self._arguments(where, row0, teams, extra, False), where)

    def _arguments(
        self, where: Where, row0: HostExpr, teams: HostExpr, extra: list[Any], follows: bool
    ) -> tuple[list[Any], list[HostExpr]]:
        def read(node: Node) -> Any:
            if node.op == "input":
                return where.inputs[self.layout.graph.inputs.index(node)]
            return where.words[node] if node.random else where.hoisted[node]

        pointers = [where.weights[pack.key] for pack in self.packs]
        pointers += [where.weights[scales_of(pack.node)] for pack in self.packs if pack.coded]
        pointers += [where.weights[node] for node in params(self.team)]
        pointers += [read(node) for node in hoisted(self.team)]
        pointers += [where.inputs[number] for number in self._inputs]
        kept = [where.kept[number] for number, _ in stores(self.layout)]
        pointers += [*where.before, *where.after, where.output, *kept, *extra]
        scalars = [where.count, -1 if where.reverse else 1, "B", row0, teams, int(follows)]
        return pointers, scalars


def step_of(layout: Layout) -> Step:
    """The phases of a layer. Raises NotPersistent."""
    hoisted = set(layout.hoisted_nodes)
    step = phases(layout.graph, lambda node: layout.weights.place(node) is not None, lambda node: node in hoisted)
    check_kept(step, layout)
    for node in step.given:
        place = layout.input(layout.graph.inputs.index(node))
        if place.dtype != layout.storage or place.row_stride * ITEM_BYTES[place.dtype] % 16:
            raise NotPersistent("a product reads an input whose rows are not made of 16-byte pieces")
    return replace(step, whole=frozenset(_whole(layout)))


def _whole(layout: Layout) -> list[Node]:
    """The inputs, not a user's x, whose rows are made of 16-byte pieces of the storage dtype."""
    found = [(n, place) for n, place in layout.given.items() if place.dtype == layout.storage and place.align % 16 == 0]
    return [layout.graph.inputs[n] for n, p in found if p.row_stride * ITEM_BYTES[p.dtype] % 16 == 0]


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
    scans = [] if layout.kept else scan(layout, target, batches or EXPECTED_BATCHES, initial)
    if scans:
        return list(scans)
    if precision not in (*MMA, "float32") or target.arch != "sm_90a":
        wanted = f"{target.arch} is not sm_90a" if target.arch != "sm_90a" else f"there are none in {precision}"
        tell(False, "persistent kernels", wanted)
        return []
    try:
        step = step_of(layout)
    except NotPersistent as reason:
        tell(False, "persistent kernels", str(reason))
        _tell_rest(layout, [], precision, batches or EXPECTED_BATCHES, target)
        return []
    found: list[Persistent] = []
    bounded = False
    for batch in sorted(set(batches or EXPECTED_BATCHES), reverse=True):
        with about("", batch=batch):
            best = geometry_beside(step, target, precision, batch, layers, layout.weights.stored)
        if best is None:
            continue  # a smaller batch's geometry takes such a batch in slices
        us, template, team, record = best
        if team is None:
            bounded = True  # step by step for this batch: no smaller one's geometry reaches it
            continue
        most = batch if found or bounded else _reach(layout, team, batch, target, best.recorded)
        if listening():
            with about("", batch=batch):
                _tell(layout, best, batch, most, target)
        if most == 0 or (found and found[-1].team == team):
            continue
        name = f"persistent_{layout.weights.number}_d{layout.directions}_b{batch}"
        found.append(Persistent(layout, team, template, name, most, resident_teams(team, target), us, initial, record))
    _tell_rest(layout, found, precision, batches or EXPECTED_BATCHES, target)
    return list(reversed(found))


def _tell(layout: Layout, best: Geometry, batch: int, most: int | None, target: Target) -> None:
    """The regime of one batch size, beside what step by step would take, and what it keeps on the chip."""
    us, template, team, record = best
    assert team is not None
    other = predict_steps(layout, team.precision, batch, target)
    facts = {"predicted_us": round(us, 3), "step_by_step_us": round(other, 3)}
    if most == 0:
        tell(False, template, f"{us:.2f} us per step predicted, one launch per step {other:.2f}", **facts)
        return
    kept = {"registers": 0, "shared": team.weight_words * 4 * team.ctas}
    for phase, parts in team.shares.items():
        for share in parts:
            each = team.block_words(phase) * team.k_parts * team.part_lanes * 4 * team.ctas
            kept["registers"] += share.registers * each
    chip: dict[str, float] = {
        "blocks": team.ctas,
        "rows": team.rows,
        "threads": team.threads,
        "shared_bytes": team.shared_bytes,
    }
    chip |= {"exchanges": len(team.events), "exchange_us": round(exchange_us(team), 3)}
    chip |= {"registers_estimated": team.registers(), **{f"weights_in_{k}_bytes": v for k, v in kept.items()}}
    reach = "any B" if most is None else f"B up to {most}"
    why = f"{us:.2f} us per step predicted, one launch per step {other:.2f}; {reach}; by {record}"
    tell(True, template, why, **facts, **chip)


def _tell_rest(
    layout: Layout, found: Sequence[Persistent], precision: str, batches: Sequence[int], target: Target
) -> None:
    """The batch sizes that no persistent kernel runs."""
    for batch in sorted(set(batches)) if listening() else ():
        if not any(regime.most is None or batch <= regime.most for regime in found):
            us = predict_steps(layout, precision, batch, target)
            with about("", batch=batch):
                facts = {"predicted_us": round(us, 3), "step_by_step_us": round(us, 3)}
                tell(True, "step by step", f"{us:.2f} us per step predicted, one launch per group and step", **facts)


def _reach(layout: Layout, team: Team, batch: int, target: Target, recorded: bool) -> int | None:
    """The largest B for which no step by step is quicker: slices of the batch take turns. 0: quicker already at
    `batch`; None: never quicker. recorded: at `batch` it was measured not to be.

    Measured: 2048 units, bf16, B = 128: LSTM 23.7 us in two slices, 19.6 step by step; GRU 27.0 and 15.5.
    """

    def quicker(rows: int) -> bool:
        return predict(team, rows, target) > predict_steps(layout, team.precision, rows, target)

    if quicker(batch) and recorded:
        return batch
    if quicker(batch):  # float32 LSTM 512, B = 64: 56 rows at once, then 8: 12.6 us, step by step 11.6
        return 0
    at_once = resident_teams(team, target) * team.rows
    for reach in range(0, MOST_TURNS * at_once, at_once):
        if quicker(reach + at_once):
            if reach < batch <= reach + at_once and not quicker(batch):
                return batch
            return reach if reach >= batch else 0
    return None
