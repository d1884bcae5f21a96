"""ONNX's If: where its condition is known before the model runs, the branch that is taken, in its place; else both.

In: a model. Out: the same without such nodes, those in branches and bodies too. Conditions are computed from constants
and from shapes, as far as ONNX's shape inference knows these; every branch that is put in tells it more. Where only a
run shows the condition, both branches run and one's results are taken, if these are of the same types: operators
change nothing but what they make.

Rewrite: y = If(16000 == 16000, then: z = f(x), else: ...)   -->   z = f(x); y = Identity(z)
         y = If(c, then: z = f(x), else: w = g(x))           -->   z = f(x); w = g(x); y = Where(c, z, w)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.network.program import Step
from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable, integer
from .folding import FOLDED, MOVES
from .onnx_file import TYPES, Array, Source, tensor_array, type_name
from .onnx_nodes import GraphSteps, attributes_of, bodies, constant_of, label, nodes_below, ordinary_attributes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

UNKNOWN = -(1 << 61) - 2718281828  # stands for a size that is not known, in shapes that are partly known
BFLOAT16 = "bfloat16"
FIX = ": fix it by "  # begins what a caller can give
WHERE = 9  # the operator set from which on there is Where
INFERRED = "unk__"  # begins names that ONNX's shape inference gives to sizes
SMALL = 256  # elements: of values that are computed here. What decides about branches is no weight


def without_branches(source: Source) -> Source:
    """The model without each If that can be taken out."""
    while any(node.op_type == "If" for node in _every_node(source.model.graph)):
        found = replace(source, model=inferred(source.model))
        folding = _Folding(found)
        folding.graph(found.model.graph, {})
        if not folding.changed and not folding.both(found.model.graph):
            break
        source = found
    return source


def _every_node(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        yield from nodes_below(node)


def inferred(model: ModelProto) -> ModelProto:
    """A copy of the model with the types of its values, in branches and bodies too."""
    found: ModelProto = type(model)()
    found.CopyFrom(model)
    for graph in (found.graph, *(g for node in _every_node(found.graph) for g in bodies(node))):
        del graph.value_info[:]
    with contextlib.suppress(Exception):  # of a model that is too large; of another class in each version
        found = import_onnx().shape_inference.infer_shapes(found, data_prop=True)
    return found


@dataclass
class _Folding:
    """One way through a model: what is known, and the branches that are taken. changed: whether there were any."""

    source: Source
    changed: bool = False
    steps: GraphSteps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = GraphSteps(self.source)

    def graph(self, graph: GraphProto, outer: dict[str, Array | None]) -> None:
        """Fold a graph in place. outer: values around it, by name; None: not known."""
        values = _Values(self.steps, graph, outer)
        taken = {*self._names(graph)}
        nodes: list[NodeProto] = []
        for node in graph.node:
            self.source.spending.take(label(node), nodes=1)
            branch = values.branch(node)
            if branch is not None:
                self.changed = True
                nodes += _spliced(graph, node, branch, taken)
                continue
            folded = values.read(node)
            self.changed |= folded is not node
            nodes.append(folded)
        del graph.node[:]
        graph.node.extend(nodes)
        for node in graph.node:
            for body in bodies(node):
                self.graph(body, values.known)

    def both(self, graph: GraphProto) -> bool:
        """Put both branches of the model's first If whose results are alike in its place. Whether there was one."""
        version, taken = self.source.opset, {*self._names(graph)}
        for place, node in enumerate(graph.node):
            branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
            if node.op_type != "If" or not _is_standard(node) or not _alike(branches, node) or version < WHERE:
                continue
            nodes, chosen = [*graph.node[:place]], list[list[str]]()
            for name in ("then_branch", "else_branch"):
                part = type(node)()
                part.CopyFrom(node)
                part.output[:] = [output and _fresh(f"{output}#{name}", taken) for output in node.output]
                nodes += _spliced(graph, part, branches[name], taken)
                chosen.append([*part.output])
            make = import_onnx().helper.make_node
            results = zip(node.output, *chosen, strict=True)
            nodes += [make("Where", [node.input[0], a, b], [own], name=node.name) for own, a, b in results if own]
            nodes += graph.node[place + 1 :]
            del graph.node[:]
            graph.node.extend(nodes)
            return True
        return False

    def _names(self, graph: GraphProto) -> Iterator[str]:
        yield from (value.name for value in graph.input)
        yield from (tensor.name for tensor in graph.initializer)
        yield from (name for node in graph.node for name in node.output)


class _Values:
    """The values of one graph that are known; partly, where they are shapes."""

    def __init__(self, steps: GraphSteps, graph: GraphProto, outer: dict[str, Array | None]) -> None:
        self.steps = steps
        self.types: dict[str, TypeProto] = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
        self.known = {**outer, **dict.fromkeys(value.name for value in graph.input)}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}

    def branch(self, node: NodeProto) -> GraphProto | None:
        """The branch that an If takes, if that is known."""
        if node.op_type != "If" or not _is_standard(node) or len(node.input) != 1:
            return None
        condition = self._value(node.input[0])
        if condition is None or condition.size != 1 or _is_partial(condition):
            return None
        name = "then_branch" if condition.reshape(()) else "else_branch"
        found = next((a.g for a in node.attribute if a.name == name), None)
        return found if found is not None and len(found.output) == len(node.output) else None

    def read(self, node: NodeProto) -> NodeProto:
        """Note what a node makes. The node, or a constant in its place."""
        try:
            made = self._made(node)
        except Unreadable:  # it is said where the model is read, if the node is still needed there
            made = None
        self.known.update(dict.fromkeys(node.output))
        self.known.update(zip(node.output, made or (), strict=False))
        if made is None or len(made) != 1 or node.op_type == "Constant" or _is_partial(made[0]):
            return node
        onnx = import_onnx()
        value = onnx.numpy_helper.from_array(made[0], node.output[0])
        constant: NodeProto = onnx.helper.make_node("Constant", [], [*node.output], name=node.name, value=value)
        return constant

    def _value(self, name: str) -> Array | None:
        """A value that is small and known, partly perhaps."""
        if name in self.tensors:
            with contextlib.suppress(Unreadable):
                self.known[name] = self._tensor(self.tensors.pop(name))
        return self.known.get(name)

    def _tensor(self, tensor: TensorProto) -> Array | None:
        if math.prod(tensor.dims) > SMALL or type_name(tensor.data_type) == BFLOAT16:
            return None
        return tensor_array(tensor, self.steps.source)

    def _made(self, node: NodeProto) -> list[Array] | None:
        """What a node makes, where it is known. Raises Unreadable."""
        if not _is_standard(node):
            return None
        if node.op_type == "Constant":
            tensors = [self._tensor(a.t) for a in node.attribute if a.name == "value"]
            found = tensors[0] if tensors else constant_of(self.steps, node)[0]
            return None if found is None else [found]
        if node.op_type in ("Shape", "Size"):
            return self._sizes(node)
        if node.op_type not in FOLDED:
            return None
        values = [self._value(name) if name else None for name in node.input]
        if any(name and value is None for name, value in zip(node.input, values, strict=True)):
            return None
        partial = [_is_partial(value) for value in values]
        if any(partial if node.op_type not in MOVES else partial[1:] if node.op_type != "Concat" else ()):
            return None
        attributes = ordinary_attributes(self.steps, node)
        return self.steps.compute(Step(node.op_type, tuple(node.input), tuple(node.output), attributes), values, SMALL)

    def _sizes(self, node: NodeProto) -> list[Array] | None:
        kind = self.types.get(node.input[0]) if node.input else None
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = [int(d.dim_value) if d.HasField("dim_value") else UNKNOWN for d in kind.tensor_type.shape.dim]
        if node.op_type == "Size":
            return None if UNKNOWN in dims else [np.array(math.prod(dims))]
        given = attributes_of(node, self.steps.source.opset)
        end = integer(given, "end", len(dims))
        return [np.array(dims[integer(given, "start", 0) : end], np.int64)]


def _alike(branches: dict[str, GraphProto], node: NodeProto) -> bool:
    """Whether both branches make results of the same dtypes and sizes, as far as their types say."""
    if {*branches} != {"then_branch", "else_branch"} or len(node.input) != 1:
        return False
    then, other = (branches[name].output for name in ("then_branch", "else_branch"))
    if not len(then) == len(other) == len(node.output):
        return False
    return all(_kind(a) is not None and _kind(a) == _kind(b) for a, b in zip(then, other, strict=True))


def _kind(value: ValueInfoProto) -> tuple[int, tuple[int | str, ...]] | None:
    """dtype and sizes; None where a size has neither number nor name."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    sizes = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
    return None if "" in sizes else (kind.elem_type, sizes)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "#"
    taken.add(name)
    return name


def _is_standard(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")


def _is_partial(value: Array | None) -> bool:
    return value is not None and value.dtype == np.int64 and bool((value == UNKNOWN).any())


def _spliced(graph: GraphProto, node: NodeProto, branch: GraphProto, taken: set[str]) -> Iterator[NodeProto]:
    """The nodes of a branch for the graph around it. taken: the names there, to which the branch's are added."""
    names = dict[str, str]()
    for name in [*(t.name for t in branch.initializer), *(n for own in branch.node for n in own.output if n)]:
        fresh, count = name, 0
        while fresh in taken:
            count += 1
            fresh = f"{name}#{label(node)}" + f"#{count}" * (count > 1)
        taken.add(fresh)
        names[name] = fresh
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    graph.sparse_initializer.extend(branch.sparse_initializer)
    for own in branch.node:
        yield renamed(own, names)
    onnx = import_onnx()
    for value, name in zip(branch.output, node.output, strict=True):
        if name:
            yield onnx.helper.make_node("Identity", [names.get(value.name, value.name)], [name], name=name)


def renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    """A copy of the node with other names, in its bodies too, but for what these name themselves."""
    found = type(node)()
    found.CopyFrom(node)
    for values in (found.input, found.output):
        values[:] = [names.get(name, name) for name in values]
    for body in bodies(found):
        own = {*(t.name for t in body.initializer), *(v.name for v in body.input)}
        own |= {name for inner in body.node for name in inner.output}
        outer = {old: new for old, new in names.items() if old not in own}
        nodes = [renamed(inner, outer) for inner in body.node]
        del body.node[:]
        body.node.extend(nodes)
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return found


def undecided(graph: GraphProto, node: NodeProto) -> str:
    """What the condition of an If depends on, and those of the Ifs below it, and how to fix that; and why both branches
    cannot run. graph: the model's, with the types of its values."""
    makers = {name: own for own in _every_node(graph) for name in own.output if name}
    inputs = {value.name: value for value in graph.input}
    conditions = [own.input[0] for own in (node, *nodes_below(node)) if own.op_type == "If" and own.input]
    found: dict[str, set[str]] = {"given": set(), "shapes": set()}
    stack, seen = [(name, "given") for name in conditions], set[tuple[str, str]]()
    while stack:
        item = name, by = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if name in inputs:
            found[by].add(name)
        elif name in makers:
            own = makers[name]
            by = "shapes" if own.op_type in ("Shape", "Size") else by
            stack += [(value, by) for value in (*own.input, *(out.name for b in bodies(own) for out in b.output))]
    sized = {name for name in found["shapes"] if _has_all_sizes(inputs[name])}
    found["shapes"] -= found["given"] | sized
    asked = {
        by: ", ".join(f"{n!r}: {_open_shape(inputs[n]) if by == 'shapes' else '...'}" for n in inputs if n in own)
        for by, own in found.items()
    }
    fixes = [f"{by}={{{text}}}" for by, text in asked.items() if text]
    fix = f"{FIX}{', '.join(fixes)}" if fixes else ""
    return f"its condition is not known before the model runs{fix}{_unlike(makers.get(node.output[0], node))}"


def _open_shape(value: ValueInfoProto) -> str:
    """An input's shape with dots for the sizes that the file does not say."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return "..."
    axes = [str(d.dim_value) if d.HasField("dim_value") and d.dim_value > 0 else "..." for d in kind.shape.dim]
    return f"[{', '.join(axes)}]"


def _unlike(node: NodeProto) -> str:
    """Which results the branches make in types that are not the same, or not known; "" where there are none."""
    branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
    if {*branches} != {"then_branch", "else_branch"}:
        return ""
    pairs = zip(node.output, *(branches[name].output for name in ("then_branch", "else_branch")), strict=False)
    unlike = [(name, a, b) for name, a, b in pairs if _kind(a) is None or _kind(a) != _kind(b)]
    shown = ", ".join(f"{name!r} as {_text(a)} or {_text(b)}" for name, a, b in unlike)
    return f"; both branches would run, if they made the same shapes, but they make {shown}" if unlike else ""


def _text(value: ValueInfoProto) -> str:
    kind = value.type.tensor_type
    name = TYPES[kind.elem_type][0] if kind.elem_type in TYPES else "an unknown type"
    if not kind.HasField("shape"):
        return f"{name} of an unknown shape"
    names = (d.dim_param if not d.dim_param.startswith(INFERRED) else "" for d in kind.shape.dim)
    sizes = (
        str(d.dim_value) if d.HasField("dim_value") else own or "?"
        for d, own in zip(kind.shape.dim, names, strict=True)
    )
    return f"{name} [{', '.join(sizes)}]"


def _has_all_sizes(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)
