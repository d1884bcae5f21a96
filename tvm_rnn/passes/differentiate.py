"""Derive back-propagation through time: from a layer's equations a second graph, whose cell runs backwards over time.

In: a graph as normalised before functions are taken apart. Out: the same graph with `emitted`, the values of each step
that are kept for later, and with `backward`, a graph of the same kind: rows of the op table alone, so that every later
pass, the oracle and the code generator take it as they take the forward graph. Its parts:

    inputs      d_output, the gradient of this step's output; x..., the layer's inputs; h..., the states before the
                step; what the forward graph emits
    states      d_h...: the gradients of the states after the step, carried from the step after it in time
    results     the gradients of the states before the step
    output      the gradient of the first input: what the layer below reads as its d_output
    emitted     the gradients of the other inputs
    weight_gradients
                the gradients of the parameters: sums over T and B, in region `after` with what is made of them

A product's parameter gets einsum_rows(dz, x), the contraction over T and B that weight-gradient GEMMs are. A value
that is made of parameters alone is differentiated once, on its sum over rows, after all steps.

What is kept: of all sets of values from which pointwise work can make again what the gradients read, so that no product
or reduction runs twice, the smallest (`cheapest_cut`); of equal ones that which leaves least to be made again. States
before each step are kept in any case, but on GPUs those that no gradient reads; masks never: the backward graph makes
them again, of the same counters. Where GPUs have pointwise work alone, what is kept is the least to write and read, and
may be less still: their kernels can make it again from few states (`cuda/layer/made_again.py`).
With "states" states are all that is kept: what gradients read is made again of them and of inputs, products too. As
all states are known before the backward steps begin, these products leave the loop (`hoist_gemms.py`).
`Differentiate(keep=...)` takes any other choice.

Source: Werbos 1990, "Backpropagation through time: what it does and how to do it".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from tvm_rnn.graph.graph import Graph, Node, constant, depends, downstream, rewrite, topological, with_args
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.language import functions, trace
from tvm_rnn.language.trace import Value

from ..decisions import listening, tell
from ..errors import PassError, message
from . import Pass
from .keep_choice import check_name, split
from .min_cut import cheapest_cut
from .normalise import OWN_GRADIENT, normalise

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target

Choice = Callable[[Graph, Sequence[Node]], Sequence[Node]]


@dataclass(frozen=True)
class Differentiate(Pass):
    """Always applies. keep(graph, read): which values to keep for gradients that read the values `read`."""

    name = "differentiate"
    keep: Choice | None = None

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        return differentiate(graph, self.keep, spares=target.kind == "cuda")

    def ensures(self, graph: Graph) -> None:
        back = graph.backward
        self.check(
            back is not None and len(back.weight_gradients) == len(graph.params), "a parameter has no gradient", graph
        )
        self.check(back is not None and len(back.results) == len(graph.states), "a state has no gradient", graph)


def differentiate(graph: Graph, keep: Choice | None = None, *, spares: bool = False) -> Graph:
    """The graph with what its gradients read emitted, and with its backward graph. spares: the tape has no states that
    they do not read.

    graph: traced, or normalised with expand=False. keep: see `Differentiate`; it names pointwise values, products or
    reductions of the graph, from which the values read can be made again.
    """
    graph = normalise(graph, expand=False)
    d_output = Node("input", shape=graph.output.shape, name="d_output")
    carried = tuple(Node("state", shape=s.shape, name=f"d_{s.name}") for s in graph.states)
    seeds = [*zip(graph.results, carried, strict=True), (graph.output, d_output)]
    found = gradients(graph.nodes(), seeds)
    leaves = (graph.states, graph.inputs, graph.params)
    own = [[found.get(leaf) or zeros(leaf.shape) for leaf in part] for part in leaves]
    graph, own = _without_own_gradients(graph, own)
    d_states, d_inputs, d_params = own
    read = _read([*d_states, *d_inputs, *d_params], graph)
    kept = tuple(dict.fromkeys((keep or cheapest_cut)(graph, read)))
    _check_kept(kept, graph)
    states = {s: Node("input", shape=s.shape, name=s.name) for s in graph.states}
    again = {n: Node("input", shape=n.shape, name=f"kept_{i}") for i, n in enumerate(kept)}
    back = Graph(
        graph.cell,
        graph.dtype,
        (d_output, *graph.inputs, *states.values(), *again.values()),
        carried,
        graph.params,
        tuple(d_states),
        d_inputs[0],
        f"d_{graph.inputs[0].name}",
        graph.sizes,
        kind="backward",
        emitted=tuple(d_inputs[1:]),
        weight_gradients=tuple(d_params),
    )
    back = _substituted(back, {**states, **again})
    if listening():
        wanted = {n.name for n in back.nodes() if n.op == "input"}
        _tell(graph, read, kept, [s for s in graph.states if s.name in wanted or not spares])
    return normalise(replace(graph, emitted=kept, backward=back))


def _without_own_gradients(graph: Graph, derived: Sequence[Sequence[Node]]) -> tuple[Graph, list[list[Node]]]:
    """The graph and its gradients with the value alone of what has a gradient of its own: only that need be kept."""
    new: dict[Node, Node] = {}
    for node in topological([*graph.roots, *(n for part in derived for n in part)]):
        new[node] = new[node.args[0]] if node.op in OWN_GRADIENT else with_args(node, new)
    return rewrite(graph, new), [[new[n] for n in part] for part in derived]


def choice(training: bool | str, *, spares: bool = False) -> Choice:
    """What to keep, by name (`keep_choice.py`); True: "values"; spares: see `differentiate`. Raises ConfigError for a
    name that is none."""
    check_name(training)
    found = KEEP[split(training)[0]]
    return partial(cheapest_cut, leaves_too=True) if found is cheapest_cut and spares else found


def _tell(graph: Graph, read: Sequence[Node], kept: Sequence[Node], states: Sequence[Node]) -> None:
    for state in states:
        why = "gradients begin from it, at each step where parallelise_time does not make it again"
        tell(True, f"keep state {state.name}", why, elements=prod(state.shape))
    pointwise = {*cheapest_cut(graph, read)} <= {*kept}
    again = "what is kept, by pointwise work" if pointwise else "states and inputs, products too"
    for node in (n for n in graph.nodes() if n.random):
        tell(False, f"keep {in_words(node)}", "made again from its counters", elements=prod(node.shape))
    for node in kept:
        why = "gradients read it, or what they read is made of it again without a product"
        tell(True, f"keep {in_words(node)}", why, elements=prod(node.shape))
    for node in read:
        if node not in kept and not node.boolean and TABLE[node.op].kind != "move":
            tell(False, f"keep {in_words(node)}", f"made again from {again}", elements=prod(node.shape))


def _check_kept(kept: Sequence[Node], graph: Graph) -> None:
    leaves = depends(nodes := graph.nodes())
    own = {n for n in nodes if leaves[n] and not n.leaf and not n.boolean and TABLE[n.op].kind != "move"}
    for node in kept:
        if node not in own:
            what = "a number that the graph computes for each row: no leaf, view, truth value or value of parameters"
            raise PassError(message("this value cannot be kept", where=node.source, got=node.op, expected=what))


def zeros(shape: Shape) -> Node:
    """Zeros of that shape, of which one is written down."""
    zero: Value = functions.repeat(Value(constant(0.0, len(shape))), shape)
    return zero.node


def _substituted(graph: Graph, replacements: Mapping[Node, Node]) -> Graph:
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        new[node] = replacements.get(node) or with_args(node, new)
    return rewrite(graph, new)


# --- gradients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Placed:
    """The gradient of a part of a value: of `start` and on along a negative axis."""

    value: Value
    axis: int
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.value.shape[self.axis]


@dataclass(frozen=True)
class _Product:
    """The gradient of an operand of a product, not yet computed: a parameter wants its sum over rows alone."""

    spec: str
    operands: tuple[Value, Value]


_Part = Value | _Placed | _Product


class _Functions:
    """The functions that the gradient column is written with; parts of a value, and products, stay apart at first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functions, name)

    @staticmethod
    def pad(value: Value, axis: int, before: int, after: int) -> _Placed:
        return _Placed(value, axis, before)

    @staticmethod
    def contract(spec: str, a: Value, b: Value) -> _Product:
        return _Product(spec, (a, b))


def gradients(nodes: Sequence[Node], seeds: Iterable[tuple[Node, Node]]) -> dict[Node, Node]:
    """For nodes in order, arguments first: the gradient of each that a seed's node depends on; (node, its gradient from
    above) are the seeds."""
    leaves = depends(nodes)
    varying = downstream(nodes, lambda n: n.op in ("param", "input", "state"))
    own = _Sums({n for n in nodes if not leaves[n]}, varying)
    for node, seed in seeds:
        own.give(node, Value(seed), False)
    found: dict[Node, Node] = {}
    for node in reversed(nodes):
        if node not in own.parts:
            continue
        token = trace.LINE.set(node.source or "the gradient of a leaf")
        try:
            gradient = own.take(node)
            found[node] = gradient.node
            if node.leaf:
                continue
            column = TABLE[node.op].gradient
            assert column is not None
            given = column(_Functions(), gradient, Value(node), [Value(a) for a in node.args], **node.attrs)
            for arg, part in zip(node.args, given, strict=True):
                if part is not None:
                    own.give(arg, part, node in own.free)
        finally:
            trace.LINE.reset(token)
    return found


@dataclass
class _Sums:
    """The gradients that a value gets from each of its users, until they are added. free: made of parameters alone.
    varying: others than constants, and what is made of them, which have no gradients."""

    free: set[Node]
    varying: set[Node]
    parts: dict[Node, list[Value | _Placed]] = field(default_factory=dict)

    def give(self, node: Node, part: _Part, total: bool) -> None:
        """One more gradient of `node`; total: it is a sum over T and B already."""
        if node in self.varying and not node.boolean:
            known = _per_step(node, part) if total or node not in self.free else _over_all_steps(node, part)
            self.parts.setdefault(node, []).append(known)

    def take(self, node: Node) -> Value:
        """The sum of what was given: first the parts that make up one array, then products, then the rest."""
        given = self.parts.pop(node)
        whole = [p for p in given if isinstance(p, Value)]
        whole.sort(key=lambda v: v.node.op not in ("einsum", "einsum_rows"))
        terms = [*_joined([p for p in given if isinstance(p, _Placed)], node.shape), *whole]
        total = terms[0]
        for term in terms[1:]:
            total = trace.apply("add", total, term)
        return Value(trace.node("broadcast", total, to=node.shape)) if total.shape != node.shape else total


def _per_step(node: Node, part: _Part) -> Value | _Placed:
    if isinstance(part, _Product):
        return trace.contract(part.spec, *part.operands)
    return part if isinstance(part, _Placed) else _summed_to(part, node.shape)


def _over_all_steps(node: Node, part: _Part) -> Value:
    """The sum over T and B. Of a vector's elements they are added up once, afterwards; of more axes at every step,
    because all of what is summed is kept for some steps."""
    if isinstance(part, _Product):
        return Value(trace.node("einsum_rows", *part.operands, spec=part.spec))
    assert isinstance(part, Value)  # who reads a part of such a value is such a value
    value = part if part.ndim < 2 else _summed_to(part, node.shape)
    return _summed_to(Value(trace.node("sum_rows", value, rank=value.ndim)), node.shape)


def _summed_to(value: Value, shape: Shape) -> Value:
    """Sums over the axes along which an operand of that shape was repeated."""
    for axis in range(-len(shape), 0):
        if shape[axis] == 1 and value.shape[axis] != 1:
            value = functions.sum(value, axis, keepdims=True)
    return value


def _joined(parts: Sequence[_Placed], shape: Shape) -> list[Value]:
    """Parts that do not overlap become one array, with zeros in the gaps."""
    layers: list[list[_Placed]] = []
    for part in sorted(parts, key=lambda p: (p.axis, p.start)):
        fitting = (row for row in layers if row[-1].axis == part.axis and row[-1].stop <= part.start)
        row = next(fitting, None)
        if row is None:
            layers.append([part])
        else:
            row.append(part)
    return [_layer(row, shape) for row in layers]


def _layer(row: Sequence[_Placed], shape: Shape) -> Value:
    axis, at = row[0].axis, 0
    pieces: list[Value] = []

    def fill(stop: int) -> None:
        if stop > at:
            gap = list(shape)
            gap[axis] = stop - at
            pieces.append(Value(zeros(tuple(gap))))

    for part in row:
        fill(part.start)
        own = list(shape)
        own[axis] = part.stop - part.start
        pieces.append(functions.repeat(part.value, own) if part.value.shape != tuple(own) else part.value)
        at = part.stop
    fill(shape[axis])
    return pieces[0] if len(pieces) == 1 else functions.concat(pieces, axis)


# --- what is kept ----------------------------------------------------------------------------------------------------


def _read(roots: Sequence[Node], graph: Graph) -> list[Node]:
    """The values of the forward graph that gradients read, without leaves, masks and what is made of parameters."""
    forward = graph.nodes()
    leaves, inside = depends(forward), set(forward)
    users = [n for n in topological(roots) if n not in inside]
    found = {a for n in users for a in n.args if a in inside}
    return [n for n in forward if n in found and not n.leaf and not n.random and leaves[n]]


# The states before each step and the inputs are kept in any case.
KEEP: dict[str, Choice] = {"values": cheapest_cut, "states": lambda graph, read: []}
