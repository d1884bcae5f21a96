"""The regime of matrix states: all steps in one launch, the states of each batch row and head in a block's registers.

In: a layer's layout. Out: `OnChip`, a Regime for any batch size, or none, and `explain` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.one_head import Coupled, of_heads
from tvm_rnn.cuda.layer.regime import AnyBatch, LayerSteps, launch_either
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.decisions import tell
from tvm_rnn.graph.graph import Node, stepped
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import Target

from .block import RESERVED, TENSOR, SharedPlan
from .element_index import NotOnChip
from .kernel import dense_weights, kernel, packed_by_column
from .matrix_axes import matrix_shape
from .matrix_step import matrix_step
from .parameter_gradients import part_bytes

WHAT = "matrix states on the chip"
ACROSS = (1, 2, 4, 8)  # warps that share the columns of a row: as few as will do, for sums over columns wait for all


@dataclass(frozen=True, eq=False)
class OnChip(AnyBatch):
    """One layer's steps. layout: of the layer."""

    layout: Layout
    plan: SharedPlan
    name: str
    initial: Mapping[str, float] = field(default_factory=dict)

    @property
    def blocks(self) -> HostExpr:
        return f"(B * {self.plan.step.layout.heads})"

    @property
    def fact(self) -> dict[str, Any]:
        tile, heads = self.plan.step.tile, self.plan.step.layout.heads
        return {
            "unit": f"step, all of T in one kernel, {heads} heads of {tile.rows}x{tile.columns}, any B",
            "template": "matrix_on_chip",
            "knobs": {},
            "record": DEFAULT,
            "most": self.most,
            "phases": len(self.plan.step.phases),
            **({"accumulated": len(self.accumulated)} if self.accumulated else {}),
        }

    @property
    def accumulated(self) -> tuple[Node, ...]:
        """Sums over all rows of which a launch leaves a part for each batch row."""
        return tuple(own.node for own in self.plan.step.accumulated)

    @property
    def unstored(self) -> frozenset[int]:
        """The numbers of kept values that have no rows."""
        return self.plan.step.unstored

    def parts(self, work: Pointer, node: Node) -> Pointer:
        """Where those of a sum begin in the regime's memory: [B, *shape]."""
        before = self.accumulated[: self.accumulated.index(node)]
        return work.at(f"B * {sum(map(part_bytes, before))}").cast("float32")

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return kernel(self.name, self.plan), kernel(f"{self.name}_masked", self.plan, self.initial)

    def launch(self, host: Host, layer_steps: LayerSteps) -> None:
        """One launch of one of the two kernels."""
        step = self.plan.step

        def read(node: Node) -> Pointer:
            node = step.layout.of_layer(node)
            if node.op == "input":
                return layer_steps.inputs[self.layout.graph.inputs.index(node)]
            return layer_steps.hoisted[node]

        pointers = [layer_steps.weights[step.layout.of_layer(node)] for node in step.param_nodes]
        pointers += [layer_steps.weights[pack.key] for pack in self.packs]
        pointers += [read(node) for node in step.read_nodes]
        pointers += [*layer_steps.before, *layer_steps.after, layer_steps.output]
        pointers += [layer_steps.kept[own.number] for own in step.layout.taped if own.number not in step.unstored]
        pointers += [self.parts(layer_steps.work, own.node) for own in step.accumulated]
        scalars = [layer_steps.count, int(layer_steps.reverse), "B"]
        launch_either(host, self.kernels, pointers, scalars, layer_steps)


def on_chip(layout: Layout, target: Target, initial: Mapping[str, float]) -> list[OnChip]:
    """The regime, where it is one for this layer. initial: as `choose_regime.choose` has it."""
    if all(len(state.shape) < 2 for state in _states(layout)):
        return []
    try:
        plan = _plan(layout, target)
    except (NotOnChip, Coupled) as reason:
        tell(False, WHAT, str(reason))
        return []
    step, tile = plan.step, plan.step.tile
    facts = {"heads": step.layout.heads, "rows": tile.rows, "columns": tile.columns, "threads": plan.threads}
    facts |= {"phases": len(step.phases), "shared_bytes": 4 * plan.words, "registers_estimated": plan.values + RESERVED}
    why = "a block for each batch row and head keeps its states in registers; all of T in one launch"
    if step.accumulated:
        why += "; gradients of products' parameters are accumulated there"
    tell(True, WHAT, why, **facts)
    packs = [packed_by_column(step.layout, weight) for weight in dense_weights(step)]
    name = f"matrix_{layout.weights.number}_d{layout.directions}"
    parts = sum(part_bytes(own.node) for own in step.accumulated)
    return [OnChip(layout, plan, name, initial, packs=packs, work_bytes=f"(B * {parts})")]


def _states(layout: Layout) -> Sequence[Node]:
    """Those whose matrices a step reads: backward also those that recurrences over all time have made."""
    return stepped(layout.graph).states if layout.emits else layout.graph.states


def _plan(layout: Layout, target: Target) -> SharedPlan:
    """Raises NotOnChip, Coupled."""
    if layout.precision not in (*TENSOR, "float32", "tf32"):
        raise NotOnChip(f"there is no such kernel in {layout.precision}")
    states = _states(layout)
    if any(len(state.shape) > 3 for state in states):
        raise NotOnChip("a state has more than two axes beside that of heads")
    heads = {state.shape[0] for state in states if len(state.shape) == 3}
    if len(heads) > 1:
        raise NotOnChip(f"states have {' and '.join(map(str, sorted(heads)))} heads")
    own = of_heads(layout, *heads) if heads else layout
    shape = matrix_shape(s.shape[1:] if heads else s.shape for s in states if len(s.shape) > len(heads))
    accumulate = layout.precision in TENSOR and bool(layout.sums.nodes)
    reasons = list[str]()
    for sums, across in ((True, 1), *((False, n) for n in ACROSS)) if accumulate else ((False, n) for n in ACROSS):
        step = matrix_step(own, shape, sums, across)
        plan = SharedPlan(step, layout.precision, target.registers)
        reasons.append(_lack(plan, target))
        if not reasons[-1]:
            return plan
        if (step.products and not sums) or 8 * across >= step.tile.columns:
            break  # products read whole rows of a warp's registers
    raise NotOnChip(reasons[0])


def _lack(plan: SharedPlan, target: Target) -> str:
    """What a block would need more than there is."""
    if 4 * plan.words > target.shared_bytes:
        return f"a block would need {4 * plan.words} bytes of shared memory"
    needs, most = plan.values + RESERVED, plan.lane_registers
    if needs > most:
        return f"a thread would need {needs} registers, and has {most}: too large a matrix"
    return ""
