"""The scan regime: steps without products, all of T in one launch, one thread per batch row and unit.

In: a layer's layout whose step is pointwise, of a forward graph or of a backward one. Out: `Scan`, a Regime for any
batch size and precision. States, or their gradients, stay in registers; hoisted values, inputs and the tape are
prefetched into registers, each `ahead` steps before its use; y, or the gradient of x, and what is kept are written side
by side by the threads of a warp.

Rewrite: for t: pointwise  -->  one launch: for t in thread: pointwise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
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

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        numbers, float_ = range(len(self.step.graph.states)), self.layout.arithmetic
        pointers = [(f"param_{n}", float_) for n in range(len(self.step.param_nodes))]
        pointers += [(f"read_{n}", self.layout.rows(node).dtype) for n, node in enumerate(self.step.read_nodes)]
        pointers += [(f"old_{n}", float_) for n in numbers] + [(f"new_{n}", float_) for n in numbers]
        pointers += [("y", self.layout.output.dtype)] if self.writes_output else []
        pointers += [(f"kept_{own.number}", own.place.dtype) for own in self.layout.taped]
        pointers += MASK_POINTERS if masked else ()
        scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
        with flavour(self.layout.precision):
            name = f"{self.name}_masked" if masked else self.name
            return write(name, pointers, scalars, lambda k: Body(k, self, masked).emit(), threads=self.knobs["threads"])

    def launch(self, host: Host, layer_steps: LayerSteps) -> None:
        """One launch of one of the two kernels."""

        def read(node: Node) -> Pointer:
            if node.op == "input":
                return layer_steps.inputs[self.layout.graph.inputs.index(node)]
            return layer_steps.hoisted[node]

        pointers = [layer_steps.weights[node] for node in self.step.param_nodes]
        pointers += [read(node) for node in self.step.read_nodes]
        pointers += [*layer_steps.before, *layer_steps.after]
        pointers += [layer_steps.output] if self.writes_output else []
        pointers += [layer_steps.kept[own.number] for own in self.layout.taped]
        scalars = [layer_steps.count, int(layer_steps.reverse), "B"]
        launch_either(host, self.kernels, pointers, scalars, layer_steps)


class Body:
    """Emits one kernel. `prefetched[s]`: the registers that a step whose number is s (modulo `ahead`) reads."""

    def __init__(self, k: Writer, scan: Scan, masked: bool) -> None:
        self.k, self.scan, self.masked = k, scan, masked
        self.step, self.width, self.ahead = scan.step, scan.width, scan.knobs["ahead"]
        self.dtype = scan.layout.arithmetic
        self.held: dict[tuple[Node, int], Expr] = {}
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
            ahead = self.ahead
            with k.loop(tirx.truncdiv(k["steps"], ahead)) as i:
                for s in range(ahead):
                    self._step(s, i * ahead + s)
            done = k.keep(tirx.truncdiv(k["steps"], ahead) * ahead)
            for s in range(ahead - 1):
                with k.when(done + s < k["steps"]):
                    self._step(s, done + s)
            for n in range(len(self.states)):
                k.store(k[f"new_{n}"], self.states[n][0], flat)

    def _prepare(self) -> None:
        """Parameters, states, how long the row is, and the values of the first steps."""
        k = self.k
        self.params = {}
        for node, slot, _ in self.step.params:
            at = tirx.const(~slot, "int64") if slot < 0 else tirx.Cast("int64", slot * self.width + self.unit)
            self.params[(node, slot)] = k.keep(k[f"param_{self.step.param_nodes.index(node)}"][at])
        self.states = [k.local(1, self.dtype) for _ in self.step.graph.states]
        for n, register in enumerate(self.states):
            k.store(register, k[f"old_{n}"][self.flat], 0)
        self.ends = k.local(1, "int32")
        if self.masked:
            k.store(self.ends, tirx.const(FOREVER, "int32"), 0)
            with k.when(tirx.NE(k["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(k["lengths"][tirx.Cast("int64", self.row)], tirx.const(FOREVER, "int64"))
                k.store(self.ends, tirx.Cast("int32", most), 0)
        keys = list(dict.fromkeys(key for reads in self.step.reads for key in reads))
        for s in range(self.ahead):
            self.prefetched.append({key: k.local(1, self.scan.layout.rows(key[0]).dtype) for key in keys})
            self.flags.append(k.local(1, "int32"))
            self._ask(s, tirx.const(s, "int32"))

    def _local(self, t: Expr) -> Expr:
        """The t-th step's place in time, within the arrays."""
        return tirx.Select(tirx.NE(self.k["reverse"], tirx.const(0, "int32")), self.k["steps"] - 1 - t, t)

    def _ask(self, s: int, t: Expr) -> None:
        """Load what step t reads; the last one's values where a short call has no such step."""
        k = self.k
        local = k.keep(self._local(tirx.Min(t, k["steps"] - 1)))
        row = k.keep(tirx.Cast("int64", local) * k["batch"] + self.row)
        for (node, slot), register in self.prefetched[s].items():
            offset: Expr = ~slot if slot < 0 else slot * self.width + self.unit
            source = k[f"read_{self.step.read_nodes.index(node)}"]
            k.store(register, source[row * self.scan.layout.rows(node).row_stride + offset], 0)
        if not self.masked:
            return
        k.store(self.flags[s], tirx.const(0, "int32"), 0)
        # Backwards, a flag at t + 1 separates t from what was just processed; flags past a row's end mean nothing.
        flag = k.keep(k["start"] + local + k["reverse"])
        known = tirx.And(flag < k["total"], flag < self.ends[0])
        with k.when(tirx.And(tirx.NE(k["has_reset"], tirx.const(0, "int32")), known)):
            at = tirx.Cast("int64", flag) * k["batch"] + self.row
            k.store(self.flags[s], tirx.Cast("int32", k["reset"][at]), 0)

    def _step(self, s: int, t: Expr) -> None:
        k, step = self.k, self.step
        local = k.keep(self._local(t))
        now: dict[tuple[Node, int], Expr] = {}
        for key, register in self.prefetched[s].items():
            now[key] = k.keep(converted(register[0], self.dtype))
        restart = k.keep(self.flags[s][0]) if self.masked else None
        with k.when(t + self.ahead < k["steps"]):
            self._ask(s, t + self.ahead)
        if restart is not None:
            for register, state in zip(self.states, step.graph.states, strict=True):
                first = tirx.const(self.scan.initial.get(state.name, 0.0), self.dtype)
                k.store(register, tirx.Select(tirx.NE(restart, tirx.const(0, "int32")), first, register[0]), 0)
        self.held = {}
        for phase in step.phases:
            self._phase(phase, now)
        active = k.keep(tirx.Cast("int32", k["start"] + local < self.ends[0])) if self.masked else None

        def kept(value: Expr, instead: Expr) -> Expr:
            if active is None:
                return value
            return tirx.Select(tirx.NE(active, tirx.const(0, "int32")), value, instead)

        row = k.keep(tirx.Cast("int64", local) * k["batch"] + self.row)
        if self.scan.writes_output:
            place = self.scan.layout.output
            y = kept(self.held[(step.graph.output, 0)], tirx.const(0.0, self.dtype))
            k.store(k["y"], converted(y, place.dtype), row * place.row_stride + self.unit)
        self._keep(row)
        for register, result in zip(self.states, step.graph.results, strict=True):
            k.store(register, kept(self.held[(result, 0)], register[0]), 0)

    def _keep(self, row: Expr) -> None:
        """What training reads later. In rows that have ended, and before a reset, other kernels write it again."""
        for own in self.scan.layout.taped:
            width = self.step.domain[own.node]
            for number, _ in components(own.node, width):
                value = converted(self._now(own.node, number), own.place.dtype)
                at = row * own.place.row_stride + (number * width + self.unit if width > 1 else number)
                with self.k.when(tirx.EQ(self.unit, 0)) if width == 1 else nullcontext():
                    self.k.store(self.k[f"kept_{own.number}"], value, at)

    def _now(self, node: Node, number: int) -> Expr:
        """A component of a value of this step, or of a state as it was before."""
        if node.op == "state":
            return self.states[self.step.graph.states.index(node)][0]
        return self.held[(node, number)]

    def _phase(self, phase: Phase, now: dict[tuple[Node, int], Expr]) -> None:
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
