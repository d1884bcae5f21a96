"""A layer's graph run by torch, in any dtype and on any device: the GPU's oracle, and a peer that a compiler may fuse.

In: an RNN with weights. Out: `TorchModel`, called as a Module is with torch tensors. A graph becomes the text of three
Python functions, plain enough for torch.compile: what depends on weights alone, what runs once over all of T, and one
step. As in `NumpyModel`, products of the input leave the loop and products of one operand are one: the best that a
careful user writes by hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.passes.combine_gemms import CombineGemms
from tvm_rnn.passes.hoist_gemms import HoistGemms
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.target import TABLE as TARGETS

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
    "mod": "torch.remainder({all})",
    "stop_gradient": "{0}.detach()",
    "surrogate": "{0}.detach() + ({1} - {1}.detach())",
    "sum": "{0}.sum(dim={axis}, keepdim={keepdims})",
    "max": "{0}.amax(dim={axis}, keepdim={keepdims})",
    "concat": "concat({axis}, {all})",
    "gemm": "gemm({all})",
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
    space = {"torch": torch, "inf": math.inf, "nan": math.nan, "concat": concat, "gemm": gemm}
    space |= {"transpose": transpose, "windows": windows}
    exec(compile("\n".join(lines), f"<{name}>", "exec"), space)
    made: Function = space[name]
    return made


class Program:
    """A graph as three functions, shared by layers and directions: `fixed`, `early` and `step`."""

    def __init__(self, graph: Graph, wrap: Wrap | None) -> None:
        wrap = wrap or (lambda function: function)
        self.graph = graph
        nodes = graph.nodes()
        leaves = depends(nodes)
        self.constants = [node for node in nodes if node.op == "const"]
        alone = [n for n in nodes if not leaves[n] and not n.leaf]
        early = [n for n in nodes if leaves[n] == {"input"} and not n.leaf]
        late = [n for n in nodes if "state" in leaves[n] and not n.leaf]
        read = {a for n in (*early, *late) for a in n.args} | set(graph.roots)
        later = {a for n in late for a in n.args} | set(graph.roots)
        self.kept = [n for n in nodes if not leaves[n] and n in read]
        self.handed = [n for n in nodes if leaves[n] == {"input"} and n in later]
        self.fixed = function("fixed", [[*graph.params, *self.constants]], alone, self.kept)
        self.early = wrap(function("early", [self.kept, graph.inputs], early, self.handed))
        results = [*graph.results, graph.output]
        self.step = wrap(function("step", [self.kept, self.handed, graph.states], late, results))


class TorchModel:
    """An RNN evaluated by torch: inputs [T, B, *shape] -> (y [T, B, D*H], {state: as a Module gives it}).

    dtype: of all arithmetic; inputs must have it. wrap: torch.compile or the like, applied to what runs before the loop
    and to one step of it.
    """

    def __init__(self, net: RNN, dtype: TorchDtype, device: device | str, wrap: Wrap | None = None) -> None:
        target = TARGETS["x86-64"]  # the two passes used here look at no machine
        programs: dict[int, Program] = {}
        for layer in net.layers:
            if id(layer.graph) not in programs:
                graph = HoistGemms().apply(normalise(layer.graph, expand=False), net, target)
                programs[id(layer.graph)] = Program(CombineGemms().apply(graph, net, target), wrap)
        self.net = net
        self.layers = [
            [
                TorchLayer(programs[id(layer.graph)], net, (layer.index, direction), dtype, device)
                for direction in range(net.num_directions)
            ]
            for layer in net.layers
        ]

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        import torch

        first, *others = inputs
        x = first.flatten(2)
        states: dict[str, list[Tensor]] = {state.name: [] for state in self.net.cell.states}
        for directions in self.layers:
            outputs = [layer([x, *others]) for layer in directions]
            x = torch.cat([y for y, _ in outputs], dim=-1) if len(outputs) > 1 else outputs[0][0]
            for _, after in outputs:
                for name, value in after.items():
                    states[name].append(value)
        y = x.reshape(*x.shape[:2], *self.net.output_shape)
        return y, {name: self._joined(parts) for name, parts in states.items()}

    def _joined(self, parts: list[Tensor]) -> Tensor | list[Tensor]:
        import torch

        if len({part.shape for part in parts}) == 1:
            return torch.stack(parts)
        count = self.net.num_directions
        return [torch.stack(parts[i : i + count]) for i in range(0, len(parts), count)]


class TorchLayer:
    """One layer in one direction: what reads inputs alone over all of T at once, the rest step by step."""

    def __init__(
        self, program: Program, net: RNN, place: tuple[int, int], dtype: TorchDtype, device: device | str
    ) -> None:
        import torch

        layer, direction = place
        self.backward = bool(direction) or net.reverse
        self.program, self.initial, self.options = program, net.cell.initial, {"dtype": dtype, "device": device}
        params = [net.weights[weight_name(p.name, layer, direction)] for p in program.graph.params]
        leaves = [*params, *(n.value for n in program.constants)]
        self.kept = program.fixed([torch.tensor(array, **self.options) for array in leaves])

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """inputs: [T, B, *shape] each, in the graph's order. Returns y [T, B, width] and the last state by name."""
        import torch

        graph, (steps, batch) = self.program.graph, inputs[0].shape[:2]
        shapes = [(batch, *s.shape) for s in graph.states]
        state = [
            torch.full(shape, self.initial.get(s.name, 0.0), **self.options)
            for s, shape in zip(graph.states, shapes, strict=True)
        ]
        handed = self.program.early(self.kept, inputs)
        y: list[Tensor] = [None] * steps
        for t in range(steps)[:: -1 if self.backward else 1]:
            *after, y[t] = self.program.step(self.kept, [value[t] for value in handed], state)
            state = [value.expand(shape) for value, shape in zip(after, shapes, strict=True)]
        shape = (batch, *graph.output.shape)
        joined = torch.stack([out.expand(shape) for out in y]) if y else torch.empty((0, *shape), **self.options)
        return joined, {s.name: value for s, value in zip(graph.states, state, strict=True)}
