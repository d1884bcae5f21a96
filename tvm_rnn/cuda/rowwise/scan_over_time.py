"""The scan regime: steps without products, all of T in one launch, one thread per batch row and unit.

In: a layer's layout whose step is pointwise, of a forward graph or of a backward one. Out: `Scan`, a Regime for any
batch size and precision. States, or their gradients, stay in registers; hoisted values, inputs and the tape are
prefetched into registers, each `ahead` steps before its use; y, or the gradient of x, and what is kept are written side
by side by the threads of a warp. Where backward makes values of forward again (`layer/made_again.py`), forward keeps
states before some steps, and backward goes from one of these to the next one first, then back.

Rewrite: for t: pointwise  -->  one launch: for t in thread: pointwise
         with values made again  -->  for part from the last: for t: values[t] = pointwise;  for t back: pointwise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.made_again import MadeAgain
from tvm_rnn.cuda.layer.phases import (
    NotPersistent,
    Phase,
    Step,
    check_kept,
    component,
    components,
    phases,
    place,
)
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS, AnyBatch, LayerSteps, launch_either
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.decisions import tell
from tvm_rnn.graph.graph import Node, stepped
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.schedule.schedule_template import DEFAULT, Config, Unit, best
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr

SCALARS = (("steps", "int32"), ("reverse", "int32"), ("batch", "int32"))


@dataclass(frozen=True, eq=False)
class Scan(AnyBatch):
    """One layer's steps."""

    layout: Layout
    step: Step
    name: str
    template: str
    knobs: Config
    initial: Mapping[str, float] = field(default_factory=dict)
    record: str = DEFAULT  # where the knobs are from

    @property
    def writes_output(self) -> bool:
        """A backward graph's output may be made of what is kept, after the steps."""
        return self.layout.emits or self.layout.walked

    @property
    def width(self) -> int:
        return self.step.phases[0].width

    @property
    def blocks(self) -> HostExpr:
        return f"((B * {self.width} + {self.knobs['threads'] - 1}) / {self.knobs['threads']})"

    @property
    def fact(self) -> dict[str, Any]:
        return {
            "unit": f"step, all of T, pointwise N={self.width}, any B",
            "template": self.template,
            "knobs": dict(self.knobs),
            "record": self.record,
            "most": self.most,
        }

    @property
    def keeps(self) -> MadeAgain | None:
        """Forward: for what it keeps states."""
        return self.layout.again if self.layout.emits else None

    @property
    def makes(self) -> MadeAgain | None:
        """Backward: what it makes of them."""
        return None if self.layout.emits else self.layout.again

    @cached_property
    def keys(self) -> list[tuple[Node, int]]:
        """What is read of each step, where it is not made again."""
        found, again = [key for reads in self.step.reads for key in reads], self.makes
        if again is not None:
            found += [(again.inputs[node], slot) for reads in again.step.reads for node, slot in reads]
            found = [(node, slot) for node, slot in found if node not in again.values]
        return list(dict.fromkeys(found))

    @property
    def read_nodes(self) -> list[Node]:
        """The same, in the order of a kernel's pointers."""
        return list(dict.fromkeys(node for node, _ in self.keys))

    @property
    def borders(self) -> tuple[Node, ...]:
        """The states that are kept before some steps, as both graphs' kernels know them."""
        if self.makes is not None:
            return self.makes.states
        return () if self.keeps is None else self.layout.graph.states

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        numbers, float_ = range(len(self.step.graph.states)), self.layout.arithmetic
        pointers = [(f"param_{n}", float_) for n in range(len(self.step.param_nodes))]
        pointers += [(f"read_{n}", self.layout.rows(node).dtype) for n, node in enumerate(self.read_nodes)]
        pointers += [(f"old_{n}", float_) for n in numbers] + [(f"new_{n}", float_) for n in numbers]
        pointers += [("y", self.layout.output.dtype)] if self.writes_output else []
        pointers += [(f"kept_{own.number}", own.place.dtype) for own in self.layout.taped]
        pointers += [(f"border_{n}", float_) for n in range(len(self.borders))]
        pointers += MASK_POINTERS if masked else ()
        scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
        with flavour(self.layout.precision):
            name = f"{self.name}_masked" if masked else self.name
            body = Body if self.makes is None else TwiceBody
            return write(name, pointers, scalars, lambda k: body(k, self, masked).emit(), threads=self.knobs["threads"])

    def launch(self, host: Host, layer_steps: LayerSteps) -> None:
        """One launch of one of the two kernels."""

        def read(node: Node) -> Pointer:
            if node.op == "input":
                return layer_steps.inputs[self.layout.graph.inputs.index(node)]
            return layer_steps.hoisted[node]

        pointers = [layer_steps.weights[node] for node in self.step.param_nodes]
        pointers += [read(node) for node in self.read_nodes]
        pointers += [*layer_steps.before, *layer_steps.after]
        pointers += [layer_steps.output] if self.writes_output else []
        pointers += [layer_steps.kept[own.number] for own in self.layout.taped]
        pointers += [layer_steps.borders[state] for state in self.borders]
        scalars = [layer_steps.count, int(layer_steps.reverse), "B"]
        launch_either(host, self.kernels, pointers, scalars, layer_steps)


class Values:
    """What one thread computes in a step: registers for the states, and, of the step that ran last, all values."""

    def __init__(self, k: Writer, step: Step, dtype: str) -> None:
        self.k, self.step, self.dtype = k, step, dtype
        self.states = [k.local(1, dtype) for _ in step.graph.states]
        self.params: dict[tuple[Node, int], Expr] = {}
        self.held: dict[tuple[Node, int], Expr] = {}

    def begin_anew(self, where: Expr, initial: Mapping[str, float]) -> None:
        """The initial states, where that is not 0."""
        for register, state in zip(self.states, self.step.graph.states, strict=True):
            first = tirx.const(initial.get(state.name, 0.0), self.dtype)
            self.k.store(register, _where(where, first, register[0]), 0)

    def run(self, now: Mapping[tuple[Node, int], Expr]) -> None:
        """The values of a step, of which `now` was read."""
        self.held = {}
        for phase in self.step.phases:
            self._phase(phase, now)

    def go_on(self, active: Expr | None) -> None:
        """The states after the step, where `active` is not 0."""
        for register, result in zip(self.states, self.step.graph.results, strict=True):
            self.k.store(register, _where(active, self.held[(result, 0)], register[0]), 0)

    def of(self, node: Node, number: int) -> Expr:
        """A component of a value of this step, or of a state as it was before."""
        if node.op == "state":
            return self.states[self.step.graph.states.index(node)][0]
        return self.held[(node, number)]

    def _phase(self, phase: Phase, now: Mapping[tuple[Node, int], Expr]) -> None:
        def read(node: Node, index: Index) -> Expr | None:
            if node in self.step.domain:
                if node.op == "state":
                    return self.states[self.step.graph.states.index(node)][0]
                number, _ = place(node, index, self.step.domain[node])
                return self.held.get((node, number))
            if node.leaf and node.scalar is not None:
                return None
            key = (node, component(node, index, phase.width))
            return self.params.get(key, now.get(key))

        for node in phase.nodes:
            if not node.pointwise or node.boolean:
                continue
            for number, index in components(node, self.step.domain[node]):
                self.held[(node, number)] = self.k.keep(element(node, index, read, self.dtype))


def _where(condition: Expr | None, value: Expr, instead: Expr) -> Expr:
    """The value where the condition, if there is one, is not 0."""
    return value if condition is None else tirx.Select(tirx.NE(condition, tirx.const(0, "int32")), value, instead)


class Body:
    """Emits one kernel. `prefetched[s]`: the registers that a step whose number is s (modulo `ahead`) reads."""

    def __init__(self, k: Writer, scan: Scan, masked: bool) -> None:
        self.k, self.scan, self.masked = k, scan, masked
        self.step, self.width, self.ahead = scan.step, scan.width, scan.knobs["ahead"]
        self.dtype = scan.layout.arithmetic
        self.prefetched: list[dict[tuple[Node, int], Buffer]] = []
        self.flags: list[Buffer] = []

    def emit(self) -> None:
        k, width, threads = self.k, self.width, self.scan.knobs["threads"]
        blocks = tirx.truncdiv(tirx.Cast("int64", k["batch"]) * width + (threads - 1), threads)
        block = I.cta_id([tirx.Cast("int32", blocks)])
        flat = k.keep(tirx.Cast("int64", block) * threads + I.thread_id([threads]))
        with k.when(flat < tirx.Cast("int64", k["batch"]) * width):
            self.row = k.keep(tirx.Cast("int32", tirx.truncdiv(flat, width)))
            self.unit = k.keep(tirx.Cast("int32", tirx.truncmod(flat, width)))
            self.flat = flat
            self._prepare()
            self._walk()
            for n, register in enumerate(self.values.states):
                k.store(k[f"new_{n}"], register[0], flat)

    def _prepare(self) -> None:
        """Parameters, states, how long the row is, and registers for what steps read."""
        k = self.k
        self.values = Values(k, self.step, self.dtype)
        for node, slot, _ in self.step.params:
            at = tirx.const(~slot, "int64") if slot < 0 else tirx.Cast("int64", slot * self.width + self.unit)
            self.values.params[(node, slot)] = k.keep(k[f"param_{self.step.param_nodes.index(node)}"][at])
        for n, register in enumerate(self.values.states):
            k.store(register, k[f"old_{n}"][self.flat], 0)
        self.ends = k.local(1, "int32")
        if self.masked:
            k.store(self.ends, tirx.const(FOREVER, "int32"), 0)
            with k.when(tirx.NE(k["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(k["lengths"][tirx.Cast("int64", self.row)], tirx.const(FOREVER, "int64"))
                k.store(self.ends, tirx.Cast("int32", most), 0)

    def _registers(self, count: int) -> None:
        """For what so many steps read, and whether they begin anew."""
        k, rows = self.k, self.scan.layout.rows
        self.prefetched = [{key: k.local(1, rows(key[0]).dtype) for key in self.scan.keys} for _ in range(count)]
        self.flags = [k.local(1, "int32") for _ in range(count)]

    def _walk(self) -> None:
        """All steps, each of whose values are asked for `ahead` steps before."""
        k, ahead = self.k, self.ahead
        self._registers(ahead)
        for s in range(ahead):
            self._ask(s, tirx.const(s, "int32"))
        with k.loop(tirx.truncdiv(k["steps"], ahead)) as i:
            for s in range(ahead):
                self._step(s, i * ahead + s)
        done = k.keep(tirx.truncdiv(k["steps"], ahead) * ahead)
        for s in range(ahead - 1):
            with k.when(done + s < k["steps"]):
                self._step(s, done + s)

    def _local(self, t: Expr) -> Expr:
        """The t-th step's place in time, within the arrays."""
        return tirx.Select(tirx.NE(self.k["reverse"], tirx.const(0, "int32")), self.k["steps"] - 1 - t, t)

    def _ask(self, s: int, t: Expr) -> None:
        """Load what step t reads; the last one's values where a short call has no such step."""
        k = self.k
        local = k.keep(self._local(tirx.Min(t, k["steps"] - 1)))
        self._load(s, local)
        if self.masked:
            # Backwards, a flag at t + 1 separates t from what was just processed.
            self._flag(self.flags[s], k.keep(k["start"] + local + k["reverse"]))

    def _load(self, s: int, local: Expr) -> None:
        k = self.k
        row = k.keep(tirx.Cast("int64", local) * k["batch"] + self.row)
        for (node, slot), register in self.prefetched[s].items():
            offset: Expr = ~slot if slot < 0 else slot * self.width + self.unit
            source = k[f"read_{self.scan.read_nodes.index(node)}"]
            k.store(register, source[row * self.scan.layout.rows(node).row_stride + offset], 0)

    def _flag(self, into: Buffer, step: Expr) -> None:
        """Whether the row begins anew at a step of the whole call. Flags past a row's end mean nothing."""
        k = self.k
        k.store(into, tirx.const(0, "int32"), 0)
        known = tirx.And(step < k["total"], step < self.ends[0])
        with k.when(tirx.And(tirx.NE(k["has_reset"], tirx.const(0, "int32")), known)):
            at = tirx.Cast("int64", step) * k["batch"] + self.row
            k.store(into, tirx.Cast("int32", k["reset"][at]), 0)

    def _now(self, s: int) -> dict[tuple[Node, int], Expr]:
        """What was read of the step that has those registers."""
        return {key: self.k.keep(converted(own[0], self.dtype)) for key, own in self.prefetched[s].items()}

    def _active(self, local: Expr) -> Expr | None:
        """Whether the row has not ended; None where rows do not end."""
        return self.k.keep(tirx.Cast("int32", self.k["start"] + local < self.ends[0])) if self.masked else None

    def _step(self, s: int, t: Expr) -> None:
        k = self.k
        local, now = k.keep(self._local(t)), self._now(s)
        restart = k.keep(self.flags[s][0]) if self.masked else None
        with k.when(t + self.ahead < k["steps"]):
            self._ask(s, t + self.ahead)
        if restart is not None:
            self.values.begin_anew(restart, self.scan.initial)
        self._border(s, t)
        self._one(local, now)

    def _border(self, s: int, t: Expr) -> None:
        """Keep the states from which backward goes forward again."""
        again, k = self.scan.keeps, self.k
        if again is None or s % gcd(self.ahead, again.every):
            return
        with k.when(tirx.EQ(tirx.truncmod(t, tirx.const(again.every, "int32")), 0)):
            at = k.keep(self._border_at(tirx.truncdiv(t, tirx.const(again.every, "int32"))))
            for n, register in enumerate(self.values.states):
                k.store(k[f"border_{n}"], register[0], at)

    def _border_at(self, part: Expr) -> Expr:
        return tirx.Cast("int64", part) * self.k["batch"] * self.width + self.flat

    def _one(self, local: Expr, now: Mapping[tuple[Node, int], Expr]) -> None:
        """One step."""
        k, values = self.k, self.values
        values.run(now)
        active = self._active(local)
        row = k.keep(tirx.Cast("int64", local) * k["batch"] + self.row)
        if self.scan.writes_output:
            place = self.scan.layout.output
            y = _where(active, values.held[(self.step.graph.output, 0)], tirx.const(0.0, self.dtype))
            k.store(k["y"], converted(y, place.dtype), row * place.row_stride + self.unit)
        self._keep(row)
        values.go_on(active)

    def _keep(self, row: Expr) -> None:
        """What training reads later. In rows that have ended, and before a reset, other kernels write it again."""
        for own in self.scan.layout.taped:
            width = self.step.domain[own.node]
            for number, _ in components(own.node, width):
                value = converted(self.values.of(own.node, number), own.place.dtype)
                at = row * own.place.row_stride + (number * width + self.unit if width > 1 else number)
                with self.k.when(tirx.EQ(self.unit, 0)) if width == 1 else nullcontext():
                    self.k.store(self.k[f"kept_{own.number}"], value, at)


class TwiceBody(Body):
    """Emits a kernel that goes back through parts of the time, each of which it goes through forward before: from the
    states that forward kept there, in registers, with the values that the steps back read."""

    def _walk(self) -> None:
        again, k = self.scan.makes, self.k
        assert again is not None
        every = again.every
        self._registers(every + 1)
        made = [{leaf: k.local(1, self.dtype) for leaf in again.values} for _ in range(every)]
        before = Values(k, again.step, self.dtype)
        parts = k.keep(tirx.truncdiv(k["steps"] + (every - 1), tirx.const(every, "int32")))
        with k.loop(parts) as i:
            part = k.keep(parts - 1 - i)
            first = k.keep(part * every)
            for s in range(every):
                self._load(s, k.keep(tirx.Min(first + s, k["steps"] - 1)))
            for s in range(1, every + 1 if self.masked else 0):
                self._flag(self.flags[s], k.keep(k["start"] + first + s))
            at = k.keep(self._border_at(part))
            for n, register in enumerate(before.states):
                k.store(register, k[f"border_{n}"][at], 0)
            for s in range(every):
                self._forward(before, s, first + s, made[s])
            for s in reversed(range(every)):
                with k.when(first + s < k["steps"]):
                    now = self._now(s) | {(leaf, 0): k.keep(own[0]) for leaf, own in made[s].items()}
                    if self.masked:
                        self.values.begin_anew(k.keep(self.flags[s + 1][0]), self.scan.initial)
                    self._one(k.keep(first + s), now)

    def _forward(self, before: Values, s: int, local: Expr, made: Mapping[Node, Buffer]) -> None:
        """A step forward, whose values go to registers. Behind the last step of a call they are nobody's."""
        again, k = self.scan.makes, self.k
        assert again is not None
        if self.masked and s:  # what was kept has begun anew
            before.begin_anew(k.keep(self.flags[s][0]), again.initial)
        given = {leaf: node for node, leaf in again.inputs.items()}
        before.run({(given[leaf], slot): own for (leaf, slot), own in self._now(s).items() if leaf in given})
        for leaf, node in again.values.items():
            k.store(made[leaf], before.of(node, 0), 0)
        before.go_on(self._active(local))


def scan(layout: Layout, target: Target, batches: Sequence[int], initial: Mapping[str, float]) -> list[Scan]:
    """The regime, where it is one for this layer."""
    hoisted = set(layout.hoisted_nodes)
    try:
        step = phases(
            stepped(layout.graph), lambda n: layout.weights.place(n) is not None, lambda n: n in hoisted, False
        )
        check_kept(step, (own.node for own in layout.taped))
        if layout.walked and layout.graph.output.shape != (step.phases[0].width,):
            raise NotPersistent("the gradient of x has not as many elements as the state")
        if (layout.kept or not layout.emits) and any(node.mask for node in step.read_nodes):
            raise NotPersistent("masks of training are drawn step by step")
    except NotPersistent as reason:
        tell(False, "scan_cuda", str(reason))
        return []
    reads = len({key for found in step.reads for key in found})
    width = step.phases[0].width
    unit = Unit("scan", "step", layout.precision, width=width, stages=reads, batches=tuple(batches))
    template, knobs, record = best(unit, target)
    tell(True, "scan_cuda", "the step has no product: all of T in one launch, a thread per row and unit")
    name = f"scan_{layout.weights.number}_d{layout.directions}"
    return [Scan(layout, step, name, template.name, knobs, initial, record)]
