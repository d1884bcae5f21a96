"""What recurrences of matrices read, as their kernels want it: rows of vectors and numbers, heads side by side.

In: a graph with groups. Out: `MatrixOperands` of a recurrence, `AgainOperands` of a matrix and its gradient that are
made again, and `prepared`: the graph with a group before such a one for each operand that is no part of a stored value,
which copies it; and which matrices are kept before some steps alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import ClassVar

from tvm_rnn.graph.graph import Graph, Group, Node, is_move, make, topological
from tvm_rnn.graph.recurrences import matrix_operands

Place = tuple[Node, int]  # a stored value, and the element at which an operand begins in it
Operand = tuple[Node, int]  # a vector, and the axis of the matrix that it runs along; numbers, and NUMBER
NUMBER = 0
VIEWS = ("reshape", "index", "slice")  # of which an operand may be a part


def marks_dtype(storage: str) -> str:
    """Of matrices that are kept before some steps: that of products' operands, where it has the range of float32."""
    return "bfloat16" if storage == "bfloat16" else "float32"


def is_matrix(group: Group) -> bool:
    """Whether a group is a recurrence of matrices."""
    return group.kind == "scan" and group.root is not None and group.root.op == "scan_matrix"


def is_again(group: Group) -> bool:
    """Whether a group makes a matrix, or its gradient, again."""
    return group.kind == "scan" and group.root is not None and group.root.op == "rescan"


def marked(graph: Graph) -> list[int]:
    """The numbers of the states that are matrices, kept before some steps alone: in a forward graph of training those
    that backward makes again, in a backward graph the gradients that it makes again itself."""
    back = graph if graph.kind == "backward" else graph.backward
    if back is None:
        return []
    begins = {n.args[0] for n in back.nodes() if n.op == "rescan"}
    first = 1 + len(graph.inputs)
    leaves = graph.states if back is graph else back.inputs[first : first + len(graph.states)]
    return [number for number, leaf in enumerate(leaves) if leaf in begins]


@dataclass(frozen=True)
class RowOperands(ABC):
    """Of a group. arrays: views that are arrays of their own; copies: what was copied, by operand; bare: of operands
    that are constants times stored vectors, these vectors and the constants. signed: constants may be negative."""

    signed: ClassVar[bool] = False
    group: Group
    arrays: frozenset[Node] = frozenset()
    copies: dict[Operand, Node] = field(default_factory=dict)
    bare: dict[Operand, tuple[Node, float]] = field(default_factory=dict)

    @cached_property
    def root(self) -> Node:
        assert self.group.root is not None
        return self.group.root

    @property
    def state(self) -> Node:
        return self.root.args[0]

    @property
    def along(self) -> int:
        """The axis of keys."""
        return int(self.root.attrs["key"])

    @property
    def reads(self) -> list[Node]:
        """The read-outs."""
        return [n for n in self.group.nodes if n.op == "read_out"]

    @property
    def heads(self) -> tuple[int, ...]:
        return self.state.shape[:-2]

    @property
    @abstractmethod
    def vectors(self) -> list[Operand]:
        """Of every step, in the dtype of what products read."""

    @property
    def operands(self) -> list[Operand]:
        """Vectors and numbers."""
        return [*self.vectors, *((node, NUMBER) for node in self.numbers)]

    @property
    @abstractmethod
    def numbers(self) -> list[Node]:
        """Of every step and head, or each of its keys, in the dtype of arithmetic."""

    @property
    @abstractmethod
    def scalable(self) -> list[list[Operand]]:
        """Vectors that kernels multiply with constants: all of a list with one, or none of it."""

    def located(self, operand: Operand) -> Place:
        """Where an operand is."""
        bare, _ = self.bare.get(operand, (operand[0], 1.0))
        return _located(self.copies.get(operand, bare), self.arrays)

    def scale(self, operand: Operand) -> float:
        """The constant that kernels multiply it with."""
        return self.bare[operand][1] if operand in self.bare else 1.0

    @property
    def stored(self) -> set[Node]:
        """What operands are parts of."""
        return {self.located(operand)[0] for operand in self.operands}

    def whole(self, operand: Operand) -> bool:
        """Whether it has an element for each of the axis, and heads as the matrix has, or fewer that each serve
        several."""
        node, axis = operand
        if axis != NUMBER and (len(node.shape) < 2 or node.shape[axis] != self.state.shape[axis]):
            return False
        return any(_shares(node.shape[: len(self.heads)], self.heads, i) for i in range(len(self.heads) + 1))

    def spread(self, operand: Operand) -> tuple[int, ...]:
        """The shape of a copy of an operand."""
        node, axis = operand
        last = list(node.shape[-2:]) if len(node.shape) > 1 else [1, 1]
        if axis != NUMBER:
            last[axis] = self.state.shape[axis]
        return node.shape if self.whole(operand) else (*self.heads, *last)

    def group_size(self, operand: Operand) -> int:
        """How many heads share an operand."""
        own = self.copies.get(operand, operand[0]).shape[: len(self.heads)]
        return next(prod(self.heads[i:]) for i in range(len(own) + 1) if _shares(own, self.heads, i))


@dataclass(frozen=True)
class AgainOperands(RowOperands):
    """Of a matrix, its gradient, or both, as `graph/recurrences.py` has them; `along`: the axis that sums run along.
    undecayed: of rows whose every write is multiplied with their decay, what is written without it."""

    signed: ClassVar[bool] = True
    undecayed: dict[Node, list[tuple[Node, Node]]] = field(default_factory=dict)

    @cached_property
    def made(self) -> dict[Node, Node]:
        """What begins from each: by the matrix at the border of a part, the row that makes it again."""
        return {n.args[0]: n for n in self.group.nodes if n.op == "rescan"}

    def decay(self, row: Node) -> Node | None:
        """None: 1."""
        return None if row.args[1].scalar == 1.0 else row.args[1]

    @property
    def vectors(self) -> list[Operand]:
        other = -3 - self.along
        pairs = [pair for row in self.made.values() for pair in self.writes(row)]
        written = [operand for value, key in pairs for operand in ((value, self.along), (key, other))]
        read = [(n.args[1], self.along) for n in self.reads if n.args[1].op != "carried"]
        return list(dict.fromkeys([*written, *read]))

    def writes(self, row: Node) -> list[tuple[Node, Node]]:
        """What a row writes: pairs of a vector of the axis that sums run along, and one of the other."""
        return self.undecayed.get(row) or matrix_operands(row.args, int(row.attrs["writes"]))[0]

    @property
    def scalable(self) -> list[list[Operand]]:
        """Columns of what is written together, and each other vector."""
        if any(max(number.shape[-2:]) > 1 for number in self.numbers):
            return []
        keys = [key for row in self.made.values() for _, key in self.writes(row)]
        columns = [(key, -3 - self.along) for key in dict.fromkeys(keys)]
        return [columns, *([own] for own in self.vectors if own not in columns)]

    @property
    def numbers(self) -> list[Node]:
        return [d for row in self.made.values() if (d := self.decay(row)) is not None]


@dataclass(frozen=True)
class MatrixOperands(RowOperands):
    """Of a recurrence. apart: what is written, without a number of each head that it is multiplied with, by the product
    of both; value_scale: that number; None: there is none."""

    apart: dict[Node, Node] = field(default_factory=dict)
    value_scale: Node | None = None

    @cached_property
    def decay(self) -> Node | None:
        """None: 1."""
        node = self.root.args[1]
        return None if node.scalar == 1.0 else node

    @property
    def key(self) -> Node:
        return self.apart.get(self.root.args[2], self.root.args[2])

    @property
    def value(self) -> Node:
        return self.apart.get(self.root.args[3], self.root.args[3])

    @cached_property
    def others(self) -> list[tuple[Node, Node, bool]]:
        """Of what a step writes beside key and value: the column, a row, and whether the row is multiplied with the
        state."""
        written, products = matrix_operands(self.root.args, int(self.root.attrs["writes"]))
        pairs = [*((*pair, False) for pair in written), *((*pair, True) for pair in products)]
        return pairs[1:]

    @property
    def erase(self) -> Node | None:
        """What is multiplied with the state, and written along the key."""
        return next((row for column, row, product in self.others if product and column is self.key), None)

    @property
    def vectors(self) -> list[Operand]:
        along, other = self.along, -3 - self.along
        found = [(self.key, along), (self.value, other), *((n.args[1], along) for n in self.reads)]
        for column, row, product in self.others:
            found += [(column, along), (row, along if product else other)]
        return list(dict.fromkeys(found))

    @property
    def scalable(self) -> list[list[Operand]]:
        """By way of numbers of each step, where there are such."""
        by_key = self.decay is not None and self.decay.shape[self.along] > 1
        if by_key or not all(product for _, _, product in self.others):
            return []
        read = [node.args[1] for node in self.reads]
        written = [self.key, *(vector for column, row, _ in self.others for vector in (column, row))]
        found = read if self.others and self.erase_scale is None else [*written, *read]
        return [[(node, self.along)] for node in dict.fromkeys(found)]

    @property
    def erase_scale(self) -> Node | None:
        """What scales the product."""
        return self.root.args[-1] if self.root.attrs.get("scaled") else None

    @property
    def numbers(self) -> list[Node]:
        return [node for node in (self.decay, self.value_scale, self.erase_scale) if node is not None]


def _shares(own: tuple[int, ...], heads: tuple[int, ...], first: int) -> bool:
    return own[:first] == heads[:first] and all(size == 1 for size in own[first:])


def _located(node: Node, arrays: Collection[Node]) -> Place:
    offset = 0
    while True:
        if node in arrays:
            return node, offset
        if node.op == "index" and node.attrs["axis"] == -len(node.args[0].shape):
            offset += node.attrs["at"] * prod(node.shape)
        elif node.op == "slice" and len(node.shape) == 1 and node.attrs.get("step", 1) == 1:
            offset += node.attrs["start"]
        elif node.op != "reshape":
            return node, offset
        node = node.args[0]


def _taken_apart(
    graph: Graph, own: MatrixOperands, groups: list[Group], there: Callable[[Node], bool]
) -> tuple[MatrixOperands, list[Group]]:
    """Operands, and the groups before them, where what is written is the product of a vector that is there and a number
    of each head, and nothing else reads it: kernels multiply, and the product is not stored."""
    users, roots, rank = graph.users(), {*graph.roots}, len(own.heads)
    # What multiplies the states, or is multiplied with them, is written along the key: that is not taken apart.
    for operand in own.root.args[3:4] if own.others else own.root.args[3:1:-1]:
        node, path = operand, [operand]
        while node.op == "reshape":
            node = node.args[0]
            path.append(node)
        alone = all([*users[a]] == [b] and a not in roots for a, b in zip(path, [own.root, *path], strict=False))
        home = next((g for g in groups if node in g.stored and g.kind == "pointwise"), None)
        if node.op != "mul" or not alone or home is None:
            continue
        for number, vector in (node.args, node.args[::-1]):
            heads = number.shape[:rank] == node.shape[:rank] == own.heads and prod(number.shape) == prod(own.heads)
            if not heads or vector.shape != node.shape or not there(_located(vector, own.arrays)[0]):
                continue
            vector = vector if operand is node else make("reshape", vector, rank=len(vector.shape), to=operand.shape)
            number = make("reshape", number, rank=len(number.shape), to=(*own.heads, 1, 1))
            left = [group if group is not home else _without(group, node) for group in groups]
            return replace(own, apart={operand: vector}, value_scale=number), [g for g in left if g.nodes]
    return own, groups


def _without_constants(own: RowOperands, there: Callable[[Node], bool]) -> dict[Operand, tuple[Node, float]]:
    """Where a vector is the product of one that is there and a constant, these two: kernels multiply."""
    found = dict[Operand, tuple[Node, float]]()
    for together in own.scalable:
        bare = {operand: _bare(operand[0]) for operand in together}
        scales = {scale for _, scale in bare.values()}
        known = all(own.whole(n) and there(_located(without, own.arrays)[0]) for n, (without, _) in bare.items())
        if known and len(scales) == 1 and scales != {1.0} and (own.signed or min(scales) > 0):
            found |= bare
    return found


def _made_where_read(graph: Graph, groups: list[Group], matrices: Sequence[RowOperands]) -> list[Group]:
    """The groups, where products with constants that no matrix reads are made by all that read them, not stored."""
    products = {_unshaped(node, *VIEWS) for own in matrices for node, _ in own.bare}
    left = {*graph.roots}.union(*(own.stored for own in matrices))
    for product in products - left:
        home = next((g for g in groups if product in g.stored), None)
        readers = [g for g in groups if g is not home and not _of_matrices(g) and _reads(g, product)]
        if home is None or any(g.kind not in ("pointwise", "reduce") or g.region != "before" for g in [home, *readers]):
            continue
        new = [_without(g, product) if g is home else g for g in groups]
        groups = [g for g in new if g.nodes]
    return groups


def _reads(group: Group, node: Node) -> bool:
    """Whether what another group stores is read, or views of it."""
    return any(_unshaped(arg, *VIEWS) is node for own in group.nodes for arg in own.args)


def _bare(node: Node) -> tuple[Node, float]:
    """A vector without the constant that it is multiplied with, and the constant; 1 if there is none."""
    if node.op in VIEWS:
        bare, scale = _bare(node.args[0])
        return (node, 1.0) if scale == 1.0 else (make(node.op, bare, **node.attrs), scale)
    for number, vector in (node.args, node.args[::-1]) if node.op == "mul" else ():
        if number.scalar is not None and 0.0 < abs(number.scalar) < inf and vector.shape == node.shape:
            return vector, number.scalar
    return (node.args[0], -1.0) if node.op == "neg" else (node, 1.0)


def _undecayed(
    graph: Graph, own: AgainOperands, groups: list[Group], there: Callable[[Node], bool]
) -> tuple[AgainOperands, list[Group]]:
    """Operands, and the groups before them, where all that is written to a matrix is multiplied with its decay, as
    gradients' writes are: kernels decay what is written with the matrix, and the products are not stored if nothing
    else reads them."""
    users, roots = graph.users(), {*graph.roots}
    for row in own.made.values():
        decay, writes = own.decay(row), own.writes(row)
        bare = [] if decay is None else [_undecayed_pair(own, pair, decay, there) for pair in writes]
        found = [pair for pair in bare if pair is not None]
        if len(found) < len(writes) or not found:
            continue
        own = replace(own, undecayed={**own.undecayed, row: found})
        for before, after in zip(writes, found, strict=True):
            product = next(_unshaped(a) for a, b in zip(before, after, strict=True) if a is not b)
            home = next((g for g in groups if product in g.stored and g.kind == "pointwise"), None)
            if home is not None and product not in roots and _read_by(product, {row, *home.nodes}, users):
                left = [group if group is not home else _without(group, product) for group in groups]
                groups = [group for group in left if group.nodes]
    return own, groups


def _undecayed_pair(
    own: AgainOperands, pair: tuple[Node, Node], decay: Node, there: Callable[[Node], bool]
) -> tuple[Node, Node] | None:
    """A pair of vectors of which one is multiplied with the decay, without it; None if neither is, or if the vector
    without it is no part of a stored value."""
    for i, node in enumerate(pair):
        product = _unshaped(node)
        for number, vector in (product.args, product.args[::-1]) if product.op == "mul" else ():
            to = (*vector.shape[: len(own.heads)], *node.shape[-2:])
            known = prod(to) == prod(vector.shape) and there(_located(vector, own.arrays)[0])
            if known and _unshaped(number) is _unshaped(decay):
                bare = vector if vector.shape == to else make("reshape", vector, rank=len(vector.shape), to=to)
                return (bare, pair[1]) if i == 0 else (pair[0], bare)
    return None


def _unshaped(node: Node, *views: str) -> Node:
    """What a node is a view of. views: kinds of them, "reshape" if none are named."""
    while node.op in (views or ("reshape",)):
        node = node.args[0]
    return node


def _read_by(node: Node, readers: Collection[Node], users: Mapping[Node, Collection[Node]]) -> bool:
    """Whether nothing else reads a value, or reshapes it for others."""
    return all(user in readers or (user.op == "reshape" and _read_by(user, readers, users)) for user in users[node])


def _without(group: Group, node: Node) -> Group:
    """The group without a value that it stores, and what it makes for that alone."""
    stored = tuple(n for n in group.stored if n is not node)
    needed = {*topological(stored)}
    return replace(group, nodes=tuple(n for n in group.nodes if n in needed), stored=stored)


def _of_matrices(group: Group) -> bool:
    return is_matrix(group) or is_again(group)


def prepared(
    graph: Graph, kept: Callable[[Node], bool], given: Callable[[Node], bool] = lambda node: False
) -> tuple[Graph, list[RowOperands]]:
    """The graph with copies of operands that are no parts of stored values. kept: whether a node is an array made of
    parameters; given: whether an input lies as products read it."""
    groups, found, stored = list[Group](), list[RowOperands](), set[Node]()
    products = {n for g in graph.groups if g.kind == "gemm" and g.root is not None for n in g.root.args[1::2]}
    arrays = frozenset(n for g in graph.groups for n in g.stored if is_move(n))
    products = {_located(n, arrays)[0] for n in products}
    matrices = [g for g in graph.groups if _of_matrices(g)]
    every = {g: (MatrixOperands if is_matrix(g) else AgainOperands)(g, arrays) for g in matrices}
    vectors = {_located(n, arrays)[0] for own in every.values() for n, _ in own.vectors}
    copies: dict[Operand, Node] = {}

    def is_there(node: Node) -> bool:
        return node in stored or (node.op == "input" and given(node))

    for group in graph.groups:
        if group in every:
            matrix = every[group]
            if isinstance(matrix, MatrixOperands):
                matrix, groups = _taken_apart(graph, matrix, groups, is_there)
            elif isinstance(matrix, AgainOperands):
                matrix, groups = _undecayed(graph, matrix, groups, is_there)
            matrix = replace(matrix, bare=_without_constants(matrix, is_there))
            for operand in matrix.operands:
                node, axis = operand
                base, _ = matrix.located(operand)
                number = axis == NUMBER
                there = kept(base) if number and base.op != "input" else False
                there = there or (base in stored and not (number and base in vectors | products))
                there = there or (not number and base.op == "input" and given(base))
                if there and matrix.whole(operand):
                    continue
                if operand not in copies:
                    copy = copies[operand] = make("broadcast", node, to=matrix.spread(operand))
                    groups.append(Group("pointwise", "before", 0, None, (copy,), (copy,)))
                matrix.copies[operand] = copies[operand]
            found.append(matrix)
        groups.append(group)
        if group.region == "before":
            stored.update(n for n in group.stored if not n.leaf)
    groups = _made_where_read(graph, groups, found)
    return (replace(graph, groups=tuple(groups)) if found else graph), found
