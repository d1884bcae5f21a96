"""Loops of C for the values of a layer that have memory, in order, and for its new states.

In: `LayerValues`, an `Arithmetic`, the names of what has memory already. Out: `LayerCode`: statements, the arrays that
they read, the memory that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tvm_rnn.graph.graph import Node, is_move
from tvm_rnn.graph.ops import Shape, windowed

from .arithmetic import Arithmetic, Array
from .layer_values import LayerValues
from .places import Place, broadcast, offset, viewed, windows


@dataclass
class LayerCode:
    """A layer as C. lines: its statements; arrays: numbers known now, by name; memory: elements that are kept during a
    step, by name; output: the name of the array that the layer emits."""

    lines: list[str] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True)
class Names:
    """What things are called in C. layer: what names of arrays begin with; arrays: inputs and states by their nodes;
    work: the expression before the name of what is kept during a step."""

    layer: str
    arrays: Mapping[Node, str]
    work: str


class Nests:
    """Writes one layer: `written` once."""

    def __init__(self, values: LayerValues, numbers: Arithmetic, names: Names) -> None:
        self.values, self.numbers, self.names = values, numbers, names
        self.code = LayerCode()
        self.places: dict[Node, str] = dict(names.arrays)

    def written(self) -> LayerCode:
        """The layer: values, then states, all of which are read before they change."""
        for number, node in enumerate(self.values.stored):
            state = self.values.in_place.get(node)
            self.places[node] = self._kept(f"v{number}", node.shape) if state is None else self.places[state]
            self._store(node)
        graph, output = self.values.graph, self.values.graph.output
        pairs = zip(graph.states, graph.results, strict=True)
        copies = [copy for state, result in pairs for copy in self._new(state, result)]
        if output in self.values.stored:
            self.code.output = self.places[output]
        else:
            self.code.output = self._kept("y", output.shape)
            self._each(output.shape, self.code.output, lambda at: self.read(output, at))
        for shape, place, text in copies:
            self._each(shape, place, text)
        return self.code

    def _new(self, state: Node, result: Node) -> list[tuple[Shape, str, Callable[[Place], str]]]:
        """The copy that makes a state of its result, where there is one."""
        if result is state or self.values.in_place.get(result) is state:
            return []

        def converted(at: Place) -> str:
            return self.numbers.converted(self.read(result, at), result, state)

        if result in self.values.stored and result not in self.values.in_place:
            return [(state.shape, self.places[state], converted)]
        kept = self._kept(f"new_{len(self.code.memory)}", state.shape)
        self._each(state.shape, kept, converted)
        return [(state.shape, self.places[state], lambda at: f"{kept}[{offset(at, state.shape)}]")]

    def read(self, node: Node, at: Place) -> str:
        """The element of a value: where it lies, or how it is computed."""
        if node in self.values.fixed:
            return self._known(node, at)
        if node in self.places:
            return f"{self.places[node]}[{offset(at, node.shape)}]"
        if is_move(node):
            arg = node.args[0]
            if node.op == "reshape" and arg in self.places:
                return f"{self.places[arg]}[{offset(at, node.shape)}]"
            return self.read(arg, viewed(node, at))
        return self._computed(node, at)

    def _known(self, node: Node, at: Place) -> str:
        value = self.values.fixed[node]
        if value.size == 1:
            return self.numbers.literal(node, float(value.reshape(())))
        return f"{self._array(node)}[{offset(at, node.shape)}]"

    def _array(self, node: Node) -> str:
        """The name of what is known now as an array."""
        if node not in self.places:
            self.places[node] = f"{self.names.layer}_{len(self.code.arrays)}"
            full = np.broadcast_to(self.values.fixed[node], node.shape)
            self.code.arrays[self.places[node]] = self.numbers.array(node, full)
        return self.places[node]

    def _taken(self, node: Node, at: Place) -> str:
        table, row = node.args
        lead = len(row.shape) - len(table.shape) + 1
        rest, inner = at[lead:], table.shape[1:]
        place = self.read(row, (*at[:lead], *["0"] * len(inner)))
        text = f"{self._array(table)}, {place}, {table.shape[0]}, {prod(inner)}, {offset(rest, inner)}"
        return self.numbers.taken(node, text)

    def _kept(self, name: str, shape: Shape) -> str:
        self.code.memory[name] = prod(shape)
        return f"{self.names.work}{name}"

    def _store(self, node: Node) -> None:
        place = self.places[node]
        if node.op == "gemm":
            self._product(node, place)
        elif node.op == "concat":
            self._join(node, place)
        elif node.op in ("einsum", "conv"):
            self._contract(node, place)
        elif node.op in ("sum", "max"):
            self._reduce(node, place)
        elif is_move(node):  # the copy of a view
            self._each(node.shape, place, lambda at: self.read(node.args[0], viewed(node, at)))
        else:
            self._each(node.shape, place, lambda at: self._computed(node, at))

    def _computed(self, node: Node, at: Place) -> str:
        """The element of a pointwise value, computed, though it has a place."""
        if node.op == "take":
            return self._taken(node, at)
        return self.numbers.apply(node, [self.read(arg, broadcast(at, arg.shape)) for arg in node.args])

    def _each(self, shape: Shape, place: str, text: Callable[[Place], str]) -> None:
        """A loop over all elements."""
        at = tuple("0" if size == 1 else f"i{axis}" for axis, size in enumerate(shape))
        self.code.lines += looped(at, shape, [f"{place}[{offset(at, shape)}] = {text(at)};"])

    def _product(self, node: Node, place: str) -> None:
        matrices = [self.values.fixed[w].reshape(-1, w.shape[-1]) for w in node.args[::2]]
        made = self.numbers.product(node, matrices)
        names = {}
        for key, array in made.arrays.items():
            names[key] = f"{self.names.layer}_{len(self.code.arrays)}"
            self.code.arrays[names[key]] = array
        names |= {f"x{i}": self._vector(x) for i, x in enumerate(node.args[1::2])}
        self.code.lines += [line.format(**names, y=place) for line in made.lines]

    def _vector(self, node: Node) -> str:
        """The name of an operand that lies in memory as it is."""
        while node not in self.places and node not in self.values.fixed:
            node = node.args[0]  # other shapes of what lies there
        return self._array(node) if node in self.values.fixed else self.places[node]

    def _join(self, node: Node, place: str) -> None:
        axis, start = len(node.shape) + node.attrs["axis"], 0
        for part in node.args:
            at = tuple("0" if size == 1 else f"i{i}" for i, size in enumerate(part.shape))
            to = tuple(str(start) if i == "0" and k == axis else i for k, i in enumerate(at))
            if at[axis] != "0":
                to = (*at[:axis], f"{at[axis]} + {start}" if start else at[axis], *at[axis + 1 :])
            text = self.numbers.converted(self.read(part, at), part, node)
            self.code.lines += looped(at, part.shape, [f"{place}[{offset(to, node.shape)}] = {text};"])
            start += part.shape[axis]

    def _reduce(self, node: Node, place: str) -> None:
        (arg,), own = node.args, self.numbers.sum(node)
        axis = len(arg.shape) + node.attrs["axis"]
        at = tuple("0" if size == 1 else f"i{i}" for i, size in enumerate(node.shape))
        inner = (*at[:axis], "k", *at[axis + node.attrs["keepdims"] :])
        add = own.add.format(sum="sum", a=self.read(arg, inner))
        loop = looped(["k"], [arg.shape[axis]], [f"sum = {add};"])
        self._sum(node, place, at, loop)

    def _contract(self, node: Node, place: str) -> None:
        """A sum of products over the letters that the result does not have."""
        inputs, out = node.attrs["spec"].split("->")
        left, right = inputs.split(",")
        conv = node.op == "conv"
        seen_shape = node.args[1].shape
        if conv:
            seen_shape = windowed(seen_shape, taps=node.attrs["taps"], dilation=node.attrs["dilation"])
        sizes = dict(zip(left + right, (*node.args[0].shape, *seen_shape), strict=True))
        names = {letter: "0" if size == 1 else f"{letter}_" for letter, size in sizes.items()}
        a = self.read(node.args[0], tuple(names[t] for t in left))
        seen = tuple(names[t] for t in right)
        b = self.read(node.args[1], windows(seen, node.attrs["dilation"]) if conv else seen)
        inner = [t for t in sizes if t not in out]
        add = self.numbers.sum(node).add.format(sum="sum", a=a, b=b)
        loop = looped([names[t] for t in inner], [sizes[t] for t in inner], [f"sum = {add};"])
        self._sum(node, place, tuple(names[t] for t in out), loop)

    def _sum(self, node: Node, place: str, at: Place, loop: Sequence[str]) -> None:
        own = self.numbers.sum(node)
        body = [f"{own.kind} sum = {own.begin};", *loop]
        body.append(f"{place}[{offset(at, node.shape)}] = {own.end.format(sum='sum')};")
        lines = looped(at, node.shape, body)
        self.code.lines += lines if lines is not body else ["{", *(f"  {line}" for line in body), "}"]


def looped(at: Sequence[str], sizes: Sequence[int], body: Sequence[str]) -> list[str]:
    """Statements inside of a loop for every index that is not known."""
    loops = [(index, size) for index, size in zip(at, sizes, strict=True) if index != "0"]
    lines = body if isinstance(body, list) else list(body)
    for index, size in reversed(loops):
        several = len(lines) > 1 and not (lines[0].startswith("for") and all(line[0] in " }" for line in lines[1:]))
        head = f"for (int {index} = 0; {index} < {size}; ++{index})"
        inside = [f"  {line}" for line in lines]
        lines = [f"{head} {{", *inside, "}"] if several else [head, *inside]
    return lines
