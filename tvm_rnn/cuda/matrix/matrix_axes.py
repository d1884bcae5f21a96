"""Which axis of each value of a step runs along the rows of the matrix states, and which along their columns.

In: the graph of a layer's steps, or of one head of it, whose states are matrices of one shape, and vectors. Out:
`MatrixAxes`, for every value that is made of states, or of matrices of every step of the same shape, as a tape has
them; or `NotOnChip`, with what mixes rows and columns. A product may multiply rows of a matrix with a parameter; where
the graph multiplies columns, rows and columns change places (`turned`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.passes.min_cut import HEAVY

from .element_index import COLUMN, ROW, UNIT, NotOnChip

Role = str | None  # ROW, COLUMN, UNIT, or None: along neither, or not known from states
Roles = tuple[Role, ...]
FEW = 8  # numbers along an axis that is neither: each has registers of its own


@dataclass(frozen=True)
class MatrixAxes:
    """rows, columns: of the states, as kernels have them: [columns, rows] in memory where `turned`. roles: of each axis
    of what is made of states; summed: of each axis that an einsum or reduction sums, by its letter ("k" of a sum)."""

    graph: Graph
    rows: int
    columns: int
    turned: bool
    units: int = 0  # elements of vectors that run along neither
    roles: Mapping[Node, Roles] = field(default_factory=dict)
    summed: Mapping[Node, Mapping[str, Role]] = field(default_factory=dict)

    def by_size(self, size: int) -> Role:
        """What an axis of which nothing else is known runs along."""
        return {self.units: UNIT, self.rows: ROW, self.columns: COLUMN}.get(size)


def matrix_shape(states: Iterable[Shape]) -> Shape:
    """The one shape of all matrices among shapes of states. Raises NotOnChip."""
    shapes = {shape for shape in states if len(shape) > 1}
    if not shapes:
        raise NotOnChip("no state is a matrix")
    if len(shapes) > 1 or len(next(iter(shapes))) != 2:
        raise NotOnChip(f"states of shapes {' and '.join(str(list(s)) for s in sorted(shapes))}")
    (found,) = shapes
    if min(found) == 1:
        raise NotOnChip("a matrix with one row or column")
    return found


def matrix_axes(graph: Graph, shape: Shape, turned: bool, known: Collection[Node] = ()) -> MatrixAxes:
    """The axes of a step. shape: of the matrices; known: values that are there before the step, beside inputs. Raises
    NotOnChip."""
    first, second = shape
    rows, columns = (second, first) if turned else (first, second)
    vectors: dict[Node, Roles] = {s: (None,) * len(s.shape) for s in graph.states if len(s.shape) < 2}
    matrix: Roles = (COLUMN, ROW) if turned else (ROW, COLUMN)
    given = {node: matrix for node in graph.nodes() if (node.op == "input" or node in known) and node.shape == shape}
    given |= dict.fromkeys((s for s in graph.states if s not in vectors), matrix)
    own = MatrixAxes(graph, rows, columns, turned, _units(vectors, shape))
    for _ in range(len(vectors) + 1):
        walk = _Walk(graph, own, {**given, **vectors}, known)
        found = walk.run()
        results = dict(zip(graph.states, graph.results, strict=True))
        news = {s: _merged(own, walk.roles.get(results[s]), s) for s, own in vectors.items()}
        if news == vectors:
            break
        vectors = news
    for state, roles in vectors.items():
        if roles == (None,):
            vectors[state] = (found.by_size(state.shape[0]),)
    walk = _Walk(graph, own, {**given, **vectors}, known)
    found = walk.run()
    for state, result in zip(graph.states, graph.results, strict=True):
        _merged(found.roles[state], found.roles.get(result), result)
    return found


def _units(vectors: Iterable[Node], shape: Shape) -> int:
    """The one size of vectors among states that run neither along rows nor along columns; 0 where there is none."""
    sizes = {s.shape[0] for s in vectors if s.shape and s.shape[0] > FEW and s.shape[0] not in shape}
    if len(sizes) > 1:
        raise NotOnChip(f"vectors of {' and '.join(map(str, sorted(sizes)))} elements beside the matrices")
    return max(sizes, default=0)


def _merged(own: Roles, other: Roles | None, node: Node) -> Roles:
    if other is None:
        return own
    pairs = list(zip(own, other, strict=True))
    if any(a is not None and b is not None and a != b for a, b in pairs):
        raise NotOnChip(f"{in_words(node)} has rows of the states along their columns")
    return tuple(b if a is None else a for a, b in pairs)


class _Walk:
    """Over all nodes, arguments first. given: the roles of leaves; known: values that are not made in the step."""

    def __init__(self, graph: Graph, own: MatrixAxes, given: Mapping[Node, Roles], known: Collection[Node]) -> None:
        self.graph, self.own, self.known = graph, own, known
        self.roles: dict[Node, Roles] = dict(given)
        self.summed: dict[Node, dict[str, Role]] = {}

    def run(self) -> MatrixAxes:
        for node in in_step(self.graph, self.known):
            step = not node.leaf and self.graph.region_of(node) == "step"
            sums = step and TABLE[node.op].kind in HEAVY
            if node not in self.roles and (sums or any(a in self.roles for a in node.args)):
                self.roles[node] = self._of(node)
                self._check(node)
        return replace(self.own, roles=self.roles, summed=self.summed)

    def _check(self, node: Node) -> None:
        along = [role for role, size in zip(self.roles[node], node.shape, strict=True) if role is not None and size > 1]
        if len({*along}) < len(along):
            raise NotOnChip(f"{in_words(node)} pairs rows, or columns, of the states with each other")

    def _of(self, node: Node) -> Roles:
        if node.pointwise:
            found: Roles = (None,) * len(node.shape)
            for arg in node.args:
                found = _merged(found, self.roles.get(arg), node)
            return found
        if node.op in ("sum", "max"):
            return self._reduced(node)
        if node.op in ("einsum", "gemm"):
            return self._contracted(node)
        own = self.roles.get(node.args[0])
        if node.op == "reshape" and own is not None:
            return self._reshaped(node, own)
        if node.op == "transpose" and own is not None:
            return tuple(own[axis] for axis in node.attrs["axes"])
        if node.op == "broadcast" and own is not None:
            return own
        if node.op in ("index", "slice", "concat"):
            return self._part(node)
        raise NotOnChip(f"a step has {in_words(node)}")

    def _part(self, node: Node) -> Roles:
        """An axis of which parts are taken, or joined, runs along neither."""
        found: Roles = (None,) * len(node.args[0].shape)
        for arg in node.args:
            found = _merged(found, self.roles.get(arg), node)
        axis = len(found) + node.attrs["axis"]
        if found[axis] is not None:
            raise NotOnChip(f"{in_words(node)} is a part of the rows or columns of the states")
        return (*found[:axis], *found[axis + 1 :]) if node.op == "index" else found

    def _reshaped(self, node: Node, own: Roles) -> Roles:
        arg = node.args[0]
        rest = iter(role for role, size in zip(own, arg.shape, strict=True) if size != 1)
        if [s for s in arg.shape if s != 1] == [s for s in node.shape if s != 1]:
            return tuple(None if size == 1 else next(rest) for size in node.shape)
        if all(role is None for role in own) or is_output(node, self.graph):
            return (None,) * len(node.shape)
        raise NotOnChip(f"a view mixes rows and columns of {in_words(arg)}")

    def _reduced(self, node: Node) -> Roles:
        own = self.roles.get(node.args[0], (None,) * len(node.args[0].shape))
        axis = len(own) + node.attrs["axis"]
        self.summed[node] = {"k": self._of_sum(own[axis], node.args[0].shape[axis], node)}
        return (*own[:axis], None, *own[axis + 1 :]) if node.attrs["keepdims"] else (*own[:axis], *own[axis + 1 :])

    def _of_sum(self, role: Role, size: int, node: Node) -> Role:
        """What an axis runs along that is summed."""
        found = role or self.own.by_size(size)
        if found == UNIT or (found is None and size > FEW):
            raise NotOnChip(f"{in_words(node)} sums what runs neither along rows nor along columns")
        return found

    def _contracted(self, node: Node) -> Roles:
        if node.op == "gemm":
            if any(len(vector.shape) != 1 for vector in node.args[1::2]):
                raise NotOnChip(f"{in_words(node)} multiplies more than a vector with a parameter")
            return (None,) * len(node.shape)
        inputs, out = node.attrs["spec"].split("->")
        letters = dict[str, Role]()
        for text, arg in zip(inputs.split(","), node.args, strict=True):
            for letter, role in zip(text, self.roles.get(arg, (None,) * len(text)), strict=True):
                letters[letter] = _merged((letters.get(letter),), (role,), node)[0]
        sizes = {
            t: size
            for text, arg in zip(inputs.split(","), node.args, strict=True)
            for t, size in zip(text, arg.shape, strict=True)
        }
        gone = [letter for letter in letters if letter not in out]
        if gone:
            self.summed[node] = {t: self._of_sum(letters[t], sizes[t], node) for t in gone}
        if is_product(node, self.roles):
            letters |= self._product(node, letters, sizes)
        return tuple(letters[t] for t in out)

    def _product(self, node: Node, letters: Mapping[str, Role], sizes: Mapping[str, int]) -> dict[str, Role]:
        """Of the letter that a parameter brings: it takes the place of the one that is summed."""
        (gone,) = self.summed[node]
        new = [t for t in node.attrs["spec"].split("->")[1] if letters[t] is None]
        if len(new) != 1 or sizes[new[0]] != sizes[gone]:
            raise NotOnChip(f"{in_words(node)} has another shape than the states")
        if letters[gone] != COLUMN:
            raise NotOnChip(f"{in_words(node)} multiplies columns, another product rows")
        return {new[0]: COLUMN}


def is_product(node: Node, roles: Mapping[Node, Roles]) -> bool:
    """Whether a node multiplies a matrix of the step with a matrix that is none."""
    if node.op != "einsum":
        return False
    inputs, out = node.attrs["spec"].split("->")
    late = [arg in roles and None not in roles[arg] and len(arg.shape) == 2 for arg in node.args]
    gone = {t for t in inputs.replace(",", "") if t not in out}
    return sum(late) == 1 and len(gone) == 1 and len(out) == 2 and all(len(arg.shape) == 2 for arg in node.args)


def in_step(graph: Graph, known: Collection[Node]) -> list[Node]:
    """What the roots are made of in a step, arguments first. known: values that are there before it."""
    needed, stack = set[Node](), list(graph.roots)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += () if node in known else node.args
    return [node for node in graph.nodes() if node in needed and node not in known]


def is_output(node: Node, graph: Graph) -> bool:
    """Whether a view is what the layer emits, and nothing else."""
    return node is graph.output and node not in graph.results and not any(node in n.args for n in graph.nodes())


def dense_of(node: Node) -> Node:
    """A value as it is before views flatten it: its elements lie in the same order."""
    while node.op == "reshape" and prod(node.shape) == prod(node.args[0].shape):
        node = node.args[0]
    return node
