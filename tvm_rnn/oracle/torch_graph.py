"""A layer's graph run by torch, in any dtype and on any device: the GPU's oracle, and a peer that a compiler may fuse.

In: an RNN with weights. Out: `TorchModel`, called as a Module is with torch tensors; `Steps`, where weights, states
and masks are tensors too, which torch differentiates as often as it is asked. A graph becomes the text of three Python
functions, plain enough for torch.compile: what depends on weights alone, what runs once over all of T, and one step. As
in `NumpyModel`, products of the input leave the loop and products of one operand are one: the best that a careful user
writes by hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.passes.combine_gemms import CombineGemms
from tvm_rnn.passes.hoist_gemms import HoistGemms
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.target import TABLE as TARGETS

from .reference import Draws, Place

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as TorchDtype

Function = Callable[..., "tuple[Tensor, ...]"]
Wrap = Callable[[Function], Function]

# Ops as Python operators, whose operands may be plain numbers.
OPERATORS = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
}
# Ops as calls with tensors. Those of one tensor that are missing here are torch's functions of the same name.
CALLS = {
    "power": "torch.pow({0}, {1})",
    "softplus": "torch.logaddexp({0}, torch.zeros_like({0}))",  # torch's softplus is linear beyond 20
    "reshape": "{0}.reshape(*{0}.shape[: {0}.ndim - {rank}], *{to})",
    "broadcast": "{0}.expand(*{0}.shape[: {0}.ndim - len({to})], *{to})",
    "transpose": "transpose({0}, {axes})",
    "slice": "{0}.narrow({axis}, {start}, {stop} - {start})",
    "index": "{0}.select({axis}, {at})",
    "flip": "{0}.flip({axis})",
    "take": "{0}[{1}.reshape({1}.shape[: {1}.ndim - {rank} + 1]).long()]",
    "to_int8": "torch.nan_to_num({0}.round().clamp(-128, 127), nan=0.0)",
    "to_uint8": "torch.nan_to_num({0}.round().clamp(0, 255), nan=0.0)",
    "mod": "torch.remainder({all})",
    "stop_gradient": "{0}.detach()",
    "surrogate": "{0}.detach() + ({1} - {1}.detach())",
    "sum": "{0}.sum(dim={axis}, keepdim={keepdims})",
    "max": "{0}.amax(dim={axis}, keepdim={keepdims})",
    "concat": "concat({axis}, {all})",
    "gemm": "gemm({all})",
    "batched_gemm": "batched_gemm({all})",
    "windows": "windows({0}, {taps}, {dilation})",
}


def expression(node: Node, operand: Callable[[Node], str]) -> str:
    """The Python text of one node, with `operand` to say what its arguments are called."""
    names = [operand(arg) for arg in node.args]
    if node.op in OPERATORS:
        numbers = [repr(arg.scalar) if arg.scalar is not None else None for arg in node.args]
        if None in numbers:  # a number alone has no shape
            names = [number or name for number, name in zip(numbers, names, strict=True)]
        return OPERATORS[node.op].format(*names)
    if node.op == "conv":
        names[1] = CALLS["windows"].format(names[1], **node.attrs)
    if node.op in ("einsum", "conv"):
        inputs, out = node.attrs["spec"].split("->")
        left, right = inputs.split(",")
        return f'torch.einsum("...{left},...{right}->...{out}", {", ".join(names)})'
    known = CALLS.get(node.op, f"torch.{node.op}({{all}})")
    return known.format(*names, all=", ".join(names), **node.attrs)


def concat(axis: int, *args: Tensor) -> Tensor:
    """Joined along a negative axis; leading axes that some operands lack are added."""
    import torch

    own = min(a.ndim for a in args)
    lead = torch.broadcast_shapes(*(a.shape[: a.ndim - own] for a in args))
    return torch.cat([a.expand(*lead, *a.shape[a.ndim - own :]) for a in args], dim=axis)


def gemm(*args: Tensor) -> Tensor:
    """The sum of weight x operand products, as `graph/ops.py` has it."""
    import torch

    total = None
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        flat = torch.nn.functional.linear(operand, weight.reshape(-1, weight.shape[-1]))
        part = flat.reshape(*operand.shape[:-1], *weight.shape[:-1])
        total = part if total is None else total + part
    return total


def batched_gemm(*args: Tensor) -> Tensor:
    """The same for each member, as `graph/ops.py` has it."""
    total = None
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        flat = weight.reshape(weight.shape[0], -1, weight.shape[-1])
        part = (flat @ operand[..., None]).reshape(*operand.shape[:-2], *weight.shape[:-1])
        total = part if total is None else total + part
    return total


def windows(x: Tensor, taps: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """What each tap of a kernel sees at each place, as `graph/ops.py` has it."""
    rank, seen = len(taps), x
    for count, step in zip(taps, dilation, strict=True):
        seen = seen.unfold(-rank, step * (count - 1) + 1, 1)[..., ::step]
    lead = seen.ndim - 2 * rank
    return seen.permute(*range(lead), *range(lead + rank, lead + 2 * rank), *range(lead, lead + rank))


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The trailing axes in another order."""
    lead = x.ndim - len(axes)
    return x.permute(*range(lead), *(lead + a for a in axes))


def function(name: str, given: Sequence[Sequence[Node]], nodes: Sequence[Node], wanted: Sequence[Node]) -> Function:
    """A Python function of one sequence of tensors per part of `given`, that computes `nodes` and returns `wanted`."""
    import torch

    numbers = itertools.count()
    names = {node: f"v{next(numbers)}" for node in (*itertools.chain(*given), *nodes)}
    parts = [f"p{index}" for index in range(len(given))]
    lines = [f"def {name}({', '.join(parts)}):"]
    for part, values in zip(parts, given, strict=True):
        lines += [f"    {names[node]} = {part}[{index}]" for index, node in enumerate(values)]
    lines += [f"    {names[node]} = {expression(node, names.__getitem__)}" for node in nodes]
    lines.append(f"    return ({''.join(f'{names[node]}, ' for node in wanted)})")
    space = {"torch": torch, "inf": math.inf, "nan": math.nan, "concat": concat}
    space |= {"gemm": gemm, "batched_gemm": batched_gemm, "transpose": transpose, "windows": windows}
    exec(compile("\n".join(lines), f"<{name}>", "exec"), space)
    made: Function = space[name]
    return made


class Program:
    """A graph as three functions, shared by layers and directions: `fixed`, `early` and `step`. random: its nodes that
    are drawn, which are given behind the inputs."""

    def __init__(self, graph: Graph, wrap: Wrap | None) -> None:
        wrap = wrap or (lambda function: function)
        self.graph = graph
        nodes = graph.nodes()
        leaves = depends(nodes)
        self.constants = [node for node in nodes if node.op == "const"]
        self.random = [node for node in nodes if node.random]
        alone = [n for n in nodes if not leaves[n] and not n.leaf]
        early = [n for n in nodes if leaves[n] == {"input"} and not n.leaf and not n.random]
        late = [n for n in nodes if "state" in leaves[n] and not n.leaf]
        read = {a for n in (*early, *late) for a in n.args} | set(graph.roots)
        later = {a for n in late for a in n.args} | set(graph.roots)
        self.kept = [n for n in nodes if not leaves[n] and n in read]
        self.handed = [n for n in nodes if leaves[n] == {"input"} and n in later]
        self.fixed = function("fixed", [[*graph.params, *self.constants]], alone, self.kept)
        self.early = wrap(function("early", [self.kept, [*graph.inputs, *self.random]], early, self.handed))
        results = [*graph.results, graph.output]
        self.step = wrap(function("step", [self.kept, self.handed, graph.states], late, results))


def programs(net: RNN, wrap: Wrap | None = None, training: bool = False) -> list[Program]:
    """Of each layer of a network; layers of one graph share theirs. training: where regularisers act."""
    target = TARGETS["x86-64"]  # the two passes used here look at no machine
    found: dict[int, Program] = {}
    graphs = [layer.training if training else layer.graph for layer in net.layers]
    for own in graphs:
        if id(own) not in found:
            graph = HoistGemms().apply(normalise(own, expand=False), net, target)
            found[id(own)] = Program(CombineGemms().apply(graph, net, target), wrap)
    return [found[id(own)] for own in graphs]


@dataclass(frozen=True)
class Rows:
    """What a call has besides tensors with gradients. lengths: [B]. reset: [T, B], of bool. draws: makes the random
    numbers of a network that has any."""

    lengths: Tensor | None = None
    reset: Tensor | None = None
    draws: Draws | None = None


PLAIN = Rows()


def constants_of(made: Sequence[Program], like: Tensor) -> dict[Program, list[Tensor]]:
    """The constants of each program, as `like` is."""
    return {program: [_as(node.value, like) for node in program.constants] for program in made}


def _as(value: object, like: Tensor) -> Tensor:
    import torch

    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


class Steps:
    """All steps of a network in torch's operations, of one set of weights. made: its `programs`. like: a tensor of the
    dtype and the device of all arithmetic. constants: by program, where they are tensors there already: a CUDA graph
    is captured without a copy from a CPU."""

    def __init__(
        self,
        net: RNN,
        made: Sequence[Program],
        weights: Mapping[str, Tensor],
        like: Tensor,
        constants: Mapping[Program, list[Tensor]] | None = None,
    ) -> None:
        self.net, self.made, self.like = net, made, like
        self.kept = {}
        there = constants_of(made, like) if constants is None else constants
        for layer, program in zip(net.layers, made, strict=True):
            for place in ((layer.index, direction) for direction in range(net.num_directions)):
                params = [weights[weight_name(p.name, *place)] for p in program.graph.params]
                self.kept[place] = program.fixed([*params, *there[program]])

    def __call__(
        self, inputs: Sequence[Tensor], state: Mapping[str, Tensor | Sequence[Tensor]] | None = None, rows: Rows = PLAIN
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """inputs: [T, B, *shape] each, in the cell's order. state: as a Module takes it. Returns what a Module does."""
        import torch

        first, *others = inputs
        x = first.flatten(2)
        ends: dict[str, list[Tensor]] = {state.name: [] for state in self.net.cell.states}
        for layer in self.net.layers:
            outputs = []
            for direction in range(self.net.num_directions):
                place = (layer.index, direction)
                y, after = self._layer(place, [x, *others], self._begin(place, state, first.shape[1]), rows)
                outputs.append(y)
                for name, value in zip(ends, after, strict=True):
                    ends[name].append(value)
            x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
        y = x.reshape(*x.shape[:2], *self.net.output_shape)
        return y, {name: self._joined(parts) for name, parts in ends.items()}

    def _begin(self, place: Place, state: Mapping[str, Tensor | Sequence[Tensor]] | None, batch: int) -> list[Tensor]:
        """The states of one layer and direction before the first step."""
        graph, initial = self.made[place[0]].graph, self.net.cell.initial
        if state is None:
            return [self.like.new_full((batch, *s.shape), initial.get(s.name, 0.0)) for s in graph.states]
        at, found = place[0] * self.net.num_directions + place[1], []
        for s in graph.states:
            value = state[s.name]
            found.append(value[place[0]][place[1]] if isinstance(value, list | tuple) else value[at])
        return found

    def _layer(
        self, place: Place, inputs: Sequence[Tensor], state: list[Tensor], rows: Rows
    ) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction: what reads inputs alone over all of T at once, the rest step by step."""
        import torch

        program, kept, way = self.made[place[0]], self.kept[place], place[1] + self.net.reverse
        (steps, batch), states = inputs[0].shape[:2], program.graph.states
        first = [self.like.new_full((), self.net.cell.initial.get(s.name, 0.0)) for s in states]  # made on the device
        early = program.early(kept, [*inputs, *self._drawn(program, place, (steps, batch), rows)])
        handed = [value.unbind() for value in early]  # indexing has gradients as large as all steps, at every step
        shape, zero = (batch, *program.graph.output.shape), self.like.new_zeros(())
        y: list[Tensor] = [zero] * steps
        for t in range(steps)[:: -1 if way else 1]:
            if rows.reset is not None and t + way < steps:  # backwards, a flag is behind what was processed
                flags = rows.reset[t + way]
                again = flags if rows.lengths is None else flags & (t + way < rows.lengths)
                state = [_choose(again, value, old) for value, old in zip(first, state, strict=True)]
            *new, out = program.step(kept, [value[t] for value in handed], state)
            new, y[t] = [value.expand(batch, *s.shape) for value, s in zip(new, states, strict=True)], out.expand(shape)
            if rows.lengths is not None:
                active = t < rows.lengths
                new, y[t] = [*map(partial(_choose, active), new, state)], _choose(active, y[t], zero)
            state = new
        return (torch.stack(y) if y else self.like.new_empty((0, *shape))), state

    def _drawn(self, program: Program, place: Place, lead: tuple[int, int], rows: Rows) -> list[Tensor]:
        """The random numbers of all steps, [T, B, *shape] each."""
        steps, batch = lead
        each = [rows.draws.masks(program.random, place, batch, t) for t in range(steps)] if rows.draws else []
        whole = {n: np.stack([values[n] for values in each] or [np.empty((batch, *n.shape))]) for n in program.random}
        return [_as(value[:steps], self.like) for value in whole.values()]

    def _joined(self, parts: list[Tensor]) -> Tensor | list[Tensor]:
        import torch

        if len({part.shape for part in parts}) == 1:
            return torch.stack(parts)
        count = self.net.num_directions
        return [torch.stack(parts[i : i + count]) for i in range(0, len(parts), count)]


def _choose(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """One or the other, row by row of the batch."""
    import torch

    return torch.where(rows.reshape(-1, *[1] * (max(yes.ndim, no.ndim) - 1)), yes, no)


class TorchModel:
    """An RNN evaluated by torch: inputs [T, B, *shape] -> (y [T, B, D*H], {state: as a Module gives it}).

    dtype: of all arithmetic; inputs must have it. wrap: torch.compile or the like, applied to what runs before the loop
    and to one step of it.
    """

    def __init__(self, net: RNN, dtype: TorchDtype, device: device | str, wrap: Wrap | None = None) -> None:
        import torch

        like = torch.empty((), dtype=dtype, device=device)
        weights = {name: torch.tensor(array, dtype=dtype, device=device) for name, array in net.weights.items()}
        self.steps = Steps(net, programs(net, wrap), weights, like)

    def __call__(
        self, inputs: Sequence[Tensor], lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """lengths: [B], how many steps each row has; reset: [T, B], of bool: where rows begin anew."""
        return self.steps(inputs, rows=Rows(lengths, reset))
