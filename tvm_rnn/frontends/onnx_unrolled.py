"""Cells that an exporter wrote once for every step, found again: a Scan in the place of the copies.

In: a model. Out: the same with a Scan for each chain of equal steps; what is no such chain stays as it is. A chain is
found by a product with a constant matrix that reads, through some nodes, what the one before it made. Its steps are
equal where their nodes, one by one, have the same operator, attributes and constants, read the step before or the same
values, and read steps of one array in order.

Rewrite: h1 = f(X[0], h0); h2 = f(X[1], h1); ...; Y = [h1, h2, ...]   -->   Y = Scan(f; h0; X)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable
from .onnx_branches import inferred, renamed
from .onnx_file import Array, Source, tensor_array
from .onnx_nodes import bodies

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

LEAST = 4  # equal steps that are worth a loop
DEEPEST = 64  # nodes one after the other in front of a step that go into its body
SMALL = 64  # elements of constants that are compared by value
OLDEST = 13  # the operator set from which on axes are inputs
PRODUCTS = ("Gemm", "MatMul")


class _Unlike(Exception):
    """Steps that are no copies of each other."""


def with_scans(source: Source) -> Source:
    """The model with copies of a step as a Scan."""
    while source.opset >= OLDEST:
        made = next(filter(None, (_rolled(source, chain) for chain in _chains(_Graph(source)))), None)
        if made is None:
            break
        source = replace(source, model=made)
    return source


class _Graph:
    """What makes and what reads each value, by the places of nodes."""

    def __init__(self, source: Source) -> None:
        self.source, self.graph = source, source.model.graph
        self.nodes = [*self.graph.node]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in self.read(node):
                self.readers.setdefault(name, []).append(i)
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.outputs = {value.name for value in self.graph.output}

    def read(self, node: NodeProto) -> list[str]:
        return [name for name in (*node.input, *_read_below(node)) if name]

    def constant(self, name: str) -> str | None:
        """What is the same for constants that are alike; None: the value is none."""
        node = self.nodes[self.maker[name]] if name in self.maker else None
        source = node.input[0] if node is not None and node.op_type == "Identity" and node.input else ""
        if source and self.maker.get(source, -1) < self.maker[name]:
            return self.constant(source)
        value = self.array(name)
        if value is not None:
            return f"{value.dtype}{value.shape}{value.tolist()}"
        return name if name in self.tensors or (node is not None and node.op_type == "Constant") else None

    def array(self, name: str) -> Array | None:
        """A small constant's elements."""
        node = self.nodes[self.maker[name]] if name in self.maker else None
        tensor = self.tensors.get(name)
        if node is not None and node.op_type == "Constant":
            tensor = next((own.t for own in node.attribute if own.name == "value"), None)
        if tensor is None or int(np.prod(tensor.dims)) > SMALL:
            return None
        try:
            return tensor_array(tensor, self.source)
        except Unreadable:
            return None

    def kind(self, place: int) -> tuple[object, ...]:
        """What is the same for equal nodes, but for the values that they read."""
        node = self.nodes[place]
        attributes = sorted(own.SerializeToString(deterministic=True) for own in node.attribute)
        constants = [name and self.constant(name) for name in node.input]
        return node.domain, node.op_type, len(node.output), *attributes, *constants

    def behind(self, places: Sequence[int]) -> set[int]:
        """The nodes that read, directly or not, what these make."""
        found, stack = set[int](), [*places]
        while stack:
            for name in self.nodes[stack.pop()].output:
                new = {*self.readers.get(name, ())} - found
                found |= new
                stack += new
        return found

    def before(self, place: int, within: set[int]) -> set[int]:
        """The nodes among these that make, directly or not, what a node reads."""
        found, stack = set[int](), [place]
        while stack:
            for name in self.read(self.nodes[stack.pop()]):
                own = self.maker.get(name)
                if own is not None and own in within and own not in found:
                    found.add(own)
                    stack.append(own)
        return found


def _chains(graph: _Graph) -> Iterator[tuple[_Graph, list[int]]]:
    """Products with one matrix each of which reads what the one before makes, the first one first."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, node in enumerate(graph.nodes):
        whole = node.op_type in PRODUCTS and len(node.input) > 1 and not bodies(node)
        if whole and graph.constant(node.input[1]) is not None:
            alike.setdefault(graph.kind(place), []).append(place)
    for places in alike.values():
        if len(places) >= LEAST and all(b in graph.behind([a]) for a, b in itertools.pairwise(places)):
            yield graph, places


def _rolled(source: Source, chain: tuple[_Graph, list[int]]) -> ModelProto | None:
    """The model with the chain as a Scan; None: its steps are not alike, or nodes have not the inputs they need."""
    try:
        return _Roll(*chain).model()
    except (_Unlike, IndexError, ValueError):
        return None


Value = tuple[str, int, int]  # "own" or "last": of this or of the last step, its node and output


@dataclass
class _Roll:
    """One chain. anchors: its products. steps: the nodes of each step, in the order of the first one's."""

    graph: _Graph
    anchors: list[int]
    steps: list[list[int]] = field(default_factory=list)
    fed: dict[str, list[str]] = field(default_factory=dict)  # by the first step's name: other values, step by step
    inner: list[NodeProto] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    scanned: dict[str, tuple[str, int, bool]] = field(default_factory=dict)  # by name in the body: array, axis, back

    def model(self) -> ModelProto:
        first = self._between(self.anchors[0], self.anchors[1])
        self.steps = [first]
        for before, anchor in zip(self.anchors, self.anchors[1:], strict=False):
            self.steps.append(self._image(self.steps[-1], before, anchor))
        if {place for step in self.steps[:2] for place in step} & {*self.anchors[2:]}:
            raise _Unlike
        self.inside = {place for step in self.steps for place in step}
        states = self._states()
        feeds = self._feeds(states)
        return self._written(states, feeds)

    def _between(self, begin: int, end: int) -> list[int]:
        """What lies between two products, the first one with it, in order."""
        behind = self.graph.behind([begin])
        return sorted({begin, *self.graph.before(end, behind)})

    def _image(self, step: Sequence[int], begin: int, anchor: int) -> list[int]:
        """The nodes of the next step. Raises _Unlike where one is missing."""
        graph, found = self.graph, {begin: anchor}
        for place in step:
            if place in found:
                continue
            node = graph.nodes[place]
            inside = [(at, graph.maker[name]) for at, name in enumerate(node.input) if graph.maker.get(name) in found]
            if not inside:
                raise _Unlike
            at, maker = inside[0]
            output = [*graph.nodes[maker].output].index(node.input[at])
            value, kind = graph.nodes[found[maker]].output[output], graph.kind(place)
            readers = graph.readers.get(value, [])
            same = [r for r in readers if graph.kind(r) == kind and [*graph.nodes[r].input].index(value) == at]
            same = [r for r in same if self._reads(place, r, found)]
            if len(same) != 1:
                raise _Unlike
            found[place] = same[0]
        return [found[place] for place in step]

    def _reads(self, place: int, other: int, found: Mapping[int, int]) -> bool:
        """Whether a node reads, of its own step, what the other one does."""
        pairs = zip(self.graph.nodes[place].input, self.graph.nodes[other].input, strict=True)
        makers = ((self.graph.maker.get(a), self.graph.maker.get(b)) for a, b in pairs)
        return all(found[a] == b for a, b in makers if a is not None and a in found)

    def _states(self) -> dict[tuple[int, int], str]:
        """What a step reads of the one before, by node of the step and output, and what the first one has for it."""
        graph, found = self.graph, dict[tuple[int, int], str]()
        for number, step in enumerate(self.steps):
            own = {name for place in step for name in graph.nodes[place].output if name}
            last = {} if not number else self._made(self.steps[number - 1])
            older = {n for s in self.steps[: max(number - 1, 0)] for place in s for n in graph.nodes[place].output if n}
            for index, place in enumerate(step):
                for at, name in enumerate(graph.nodes[place].input):
                    if name in older:
                        raise _Unlike
                    if name in last:
                        begin = graph.nodes[self.steps[0][index]].input[at]
                        if found.setdefault(last[name], begin) != begin:
                            raise _Unlike
                    elif name and name not in own and graph.constant(name) is None:
                        start = graph.nodes[self.steps[0][index]].input[at]
                        values = self.fed.setdefault(f"{index}.{at}", [])
                        if len(values) < number:
                            raise _Unlike
                        values.append(name if number else start)
        return found

    def _made(self, step: Sequence[int]) -> dict[str, tuple[int, int]]:
        return {
            name: (index, at)
            for index, place in enumerate(step)
            for at, name in enumerate(self.graph.nodes[place].output)
            if name
        }

    def _feeds(self, states: Mapping[tuple[int, int], str]) -> dict[str, str]:
        """The name in the body of what comes from outside, by the first step's name; nodes that are alike go into the
        body, down to steps of an array."""
        names = dict[str, str]()
        for values in self.fed.values():
            if len(values) == len(self.steps):
                names[values[0]] = self._fed(values)
            elif values[0] not in states.values():
                raise _Unlike
        return names

    def _fed(self, values: Sequence[str], depth: int = 0) -> str:
        graph, (first, *rest) = self.graph, values
        if depth > DEEPEST:
            raise _Unlike
        if all(own == first for own in rest):
            return first
        makers = [graph.maker.get(name) for name in values]
        if any(own is None for own in makers) or len({*makers}) not in (1, len(makers)):
            raise _Unlike
        places = [own for own in makers if own is not None]
        if (found := self._step_of(values, places)) is not None:
            name = next((own for own, known in self.scanned.items() if known == found), f"{first}#step")
            self.scanned[name] = found
            return name
        nodes = [graph.nodes[place] for place in places]
        if len({graph.kind(place) for place in places}) > 1 or len({*places}) == 1 or bodies(nodes[0]):
            raise _Unlike
        if len({[*node.output].index(name) for node, name in zip(nodes, values, strict=True)}) > 1:
            raise _Unlike
        if all(own.output[0] != nodes[0].output[0] for own in self.inner):
            copy = type(nodes[0])()
            copy.CopyFrom(nodes[0])
            inputs = zip(*(node.input for node in nodes), strict=True)
            fixed = [
                graph.constant(own[0]) is not None or not own[0] for own in zip(*(n.input for n in nodes), strict=True)
            ]
            copy.input[:] = [
                own[0] if known else self._fed(own, depth + 1) for own, known in zip(inputs, fixed, strict=True)
            ]
            self.inner.append(copy)
        return first

    def _step_of(self, values: Sequence[str], places: Sequence[int]) -> tuple[str, int, bool] | None:
        """The array, axis and direction of which these are the steps."""
        graph, nodes = self.graph, [self.graph.nodes[place] for place in places]
        axes = {own.i for own in nodes[0].attribute if own.name == "axis"} or {0}
        if nodes[0].op_type != "Gather" or len({(node.op_type, node.input[0]) for node in nodes}) > 1:
            return None
        if len({tuple(sorted(own.SerializeToString() for own in node.attribute)) for node in nodes}) > 1:
            return None
        numbers = [graph.array(node.input[1]) for node in nodes]
        if any(own is None or own.ndim for own in numbers):
            return None
        order = [int(own) for own in numbers if own is not None]
        upwards = [*range(len(order))]
        if order not in (upwards, upwards[::-1]):
            return None
        return nodes[0].input[0], axes.pop(), order != upwards

    # --- the model with a Scan ---------------------------------------------------------------------------------------

    def _written(self, states: Mapping[tuple[int, int], str], feeds: Mapping[str, str]) -> ModelProto:
        graph = self.graph
        label = graph.nodes[self.anchors[0]].output[0]
        shown = self._shown(states)
        if not self.scanned or not states:
            raise _Unlike
        scan, more = self._scan(states, feeds, shown, label)
        made: ModelProto = type(graph.source.model)()
        made.CopyFrom(graph.source.model)
        del made.graph.node[:], made.graph.value_info[:]
        others = (node for place, node in enumerate(graph.nodes) if place not in self.inside)
        made.graph.node.extend(self._joined(node, shown, label) or node for node in others)
        made.graph.node.extend([*more, scan, *self._parts(states, shown, label)])
        return _sorted(made)

    def _shown(self, states: Mapping[tuple[int, int], str]) -> list[tuple[int, int]]:
        """What others than the steps read of several of them, or of the last one where that is no state, by node of the
        step and output."""
        found = dict[tuple[int, int], None]()
        for step in self.steps:
            for name, at in self._made(step).items():
                if self._is_read(name) and not (step is self.steps[-1] and at in states and at not in found):
                    found[at] = None
        return [*found]

    def _is_read(self, name: str) -> bool:
        """Whether a value goes out of the steps."""
        return name in self.graph.outputs or not self.inside.issuperset(self.graph.readers.get(name, ()))

    def _scan(
        self,
        states: Mapping[tuple[int, int], str],
        feeds: Mapping[str, str],
        shown: Sequence[tuple[int, int]],
        label: str,
    ) -> tuple[NodeProto, list[NodeProto]]:
        """The Scan, and nodes in front of it, which give it as many steps as there are copies."""
        helper, graph = import_onnx().helper, self.graph
        types = _types(graph.source)
        old = {at: f"{label}#old.{i}" for i, at in enumerate(states)}
        nodes, step = [*self.inner], self.steps[0]
        for index, place in enumerate(step):
            node = type(graph.nodes[place])()
            node.CopyFrom(graph.nodes[place])
            second = graph.nodes[self.steps[1][index]]
            last = self._made(step)
            for at, name in enumerate(second.input):
                if name in last:
                    node.input[at] = old[last[name]]
                elif node.input[at] in feeds:
                    node.input[at] = feeds[node.input[at]]
            nodes.append(node)
        ends, made = [], [(at, graph.nodes[step[at[0]]].output[at[1]]) for at in (*states, *shown)]
        for i, (_, name) in enumerate(made):
            ends.append(f"{label}#end.{i}")
            nodes.append(helper.make_node("Identity", [name], [ends[-1]]))
        inner = {name: f"{name}#inner" for node in nodes for name in node.output if name}
        body_nodes = [renamed(node, inner) for node in nodes]
        inputs = [_declared(old[at], types.get(made[i][1]), None) for i, at in enumerate(states)]
        inputs += [self._element(name, types, nodes) for name in self.scanned]
        results = [helper.make_empty_tensor_value_info(inner[name]) for name in ends]
        body = helper.make_graph(body_nodes, f"{label}#body", inputs, results)
        more, arrays, count = list["NodeProto"](), list[str](), len(self.steps)
        onnx = import_onnx()
        for i, (array, axis, _) in enumerate(self.scanned.values()):
            steps, own = f"{label}#steps.{i}", f"{label}#array.{i}"
            value = onnx.numpy_helper.from_array(np.arange(count, dtype=np.int64), steps)
            more.append(helper.make_node("Constant", [], [steps], value=value))
            more.append(helper.make_node("Gather", [array, steps], [own], axis=axis))
            arrays.append(own)
        finals = [f"{label}#final.{i}" for i in range(len(states))]
        every = [f"{label}#all.{index}.{at}" for index, at in shown]
        back = [int(own[2]) for own in self.scanned.values()]
        scan = helper.make_node(
            "Scan",
            [*states.values(), *arrays],
            [*finals, *every],
            name=label,
            body=body,
            num_scan_inputs=len(arrays),
            scan_input_axes=[own[1] for own in self.scanned.values()],
            scan_input_directions=back,
        )
        return scan, more

    def _element(self, name: str, types: Mapping[str, TypeProto], nodes: Sequence[NodeProto]) -> object:
        """A step of an array as the body's input, of as many elements as the product that reads it takes."""
        array, axis, _ = self.scanned[name]
        sizes: list[int | str | None] | None = None
        kind = types.get(array)
        if kind is not None and kind.tensor_type.HasField("shape"):
            dims = kind.tensor_type.shape.dim
            sizes = [d.dim_value if d.HasField("dim_value") else None for d in dims]
            del sizes[axis]
        for node in nodes:
            if node.op_type in PRODUCTS and node.input[0] == name and node.input[1] in self.graph.tensors:
                shape = [*self.graph.tensors[node.input[1]].dims]
                turned = any(own.name == "transB" and own.i for own in node.attribute)
                depth = int(shape[-1] if turned else shape[-2])
                sizes = [None, depth] if sizes is None else [*sizes[:-1], sizes[-1] or depth]
        return _declared(name, kind, sizes)

    def _parts(
        self, states: Mapping[tuple[int, int], str], shown: Sequence[tuple[int, int]], label: str
    ) -> Iterator[NodeProto]:
        """One step's value each, for those who read it."""
        graph, onnx = self.graph, import_onnx()
        make = onnx.helper.make_node
        joined = {id(node) for node in graph.nodes if self._joined(node, shown, label) is not None}
        for number, step in enumerate(self.steps):
            for name, at in self._made(step).items():
                others = [graph.nodes[i] for i in graph.readers.get(name, ()) if i not in self.inside]
                if name not in graph.outputs and all(self._goes(node, joined) for node in others):
                    continue
                if at not in shown:
                    yield make("Identity", [f"{label}#final.{[*states].index(at)}"], [name])
                    continue
                place = f"{name}#number"
                yield make(
                    "Constant", [], [place], value=onnx.numpy_helper.from_array(np.array(number, np.int64), place)
                )
                yield make("Gather", [f"{label}#all.{at[0]}.{at[1]}", place], [name], axis=0)

    def _goes(self, node: NodeProto, joined: set[int]) -> bool:
        """Whether a node is read by those alone that take all steps together."""
        readers = [self.graph.nodes[i] for name in node.output for i in self.graph.readers.get(name, ())]
        outside = {*node.output} & self.graph.outputs
        return node.op_type == "Unsqueeze" and not outside and all(id(own) in joined for own in readers)

    def _joined(self, node: NodeProto, shown: Sequence[tuple[int, int]], label: str) -> NodeProto | None:
        """What takes the place of a Concat of all steps along a new axis."""
        graph = self.graph
        if node.op_type != "Concat" or len(node.input) != len(self.steps):
            return None
        makers = [graph.nodes[graph.maker[name]] if name in graph.maker else node for name in node.input]
        if any(own.op_type != "Unsqueeze" for own in makers):
            return None
        axes = {tuple(found.reshape(-1).tolist()) for own in makers if (found := graph.array(own.input[1])) is not None}
        if axes != {(0,)} or any(own.name == "axis" and own.i for own in node.attribute):
            return None
        for index, at in shown:
            if [own.input[0] for own in makers] == [graph.nodes[step[index]].output[at] for step in self.steps]:
                return import_onnx().helper.make_node("Identity", [f"{label}#all.{index}.{at}"], [*node.output])
        return None


def _declared(name: str, kind: TypeProto | None, sizes: Sequence[int | str | None] | None) -> object:
    """A value of the body. sizes: in place of the type's own."""
    helper = import_onnx().helper
    if kind is None:
        raise _Unlike
    own = kind.tensor_type
    if sizes is None and own.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in own.shape.dim]
    return helper.make_tensor_value_info(name, own.elem_type, sizes)


def _types(source: Source) -> dict[str, TypeProto]:
    graph = inferred(source.model).graph
    found = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    return found


def _read_below(node: NodeProto) -> Iterator[str]:
    for body in bodies(node):
        for own in body.node:
            yield from (*own.input, *_read_below(own))
        yield from (value.name for value in body.output)


def _sorted(model: ModelProto) -> ModelProto:
    """The model without nodes that nobody needs, each node after those that make what it reads."""
    graph: GraphProto = model.graph
    maker = {name: node for node in graph.node for name in node.output if name}
    done, order = set[int](), list["NodeProto"]()
    stack: list[tuple[NodeProto, bool]] = [(maker[v.name], False) for v in reversed(graph.output) if v.name in maker]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in done:
            done.add(id(node))
            stack.append((node, True))
            names = [*node.input, *_read_below(node)]
            stack += [(maker[name], False) for name in reversed(names) if name in maker and maker[name] is not node]
    copies = [type(node)() for node in order]
    for copy, node in zip(copies, order, strict=True):
        copy.CopyFrom(node)
    del graph.node[:]
    graph.node.extend(copies)
    return model
