"""What recurrences of matrices read, as their kernels want it: rows of vectors and numbers, heads side by side.

In: a graph with groups. Out: `MatrixOperands` of a group, and `prepared`: the graph with a group before such a
recurrence for each operand that is no part of a stored value, which copies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from tvm_rnn.graph.graph import Graph, Group, Node, make

Place = tuple[Node, int]  # a stored value, and the element at which an operand begins in it


def is_matrix(group: Group) -> bool:
    """Whether a group is a recurrence of matrices."""
    return group.kind == "scan" and group.root is not None and group.root.op == "scan_matrix"


@dataclass(frozen=True)
class MatrixOperands:
    """Of a group. copies: what was copied, by operand."""

    group: Group
    copies: dict[Node, Node] = field(default_factory=dict)

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

    @cached_property
    def decay(self) -> Node | None:
        """None: 1."""
        node = self.root.args[1]
        return None if node.scalar == 1.0 else node

    @property
    def key(self) -> Node:
        return self.root.args[2]

    @property
    def value(self) -> Node:
        return self.root.args[3]

    @cached_property
    def others(self) -> list[tuple[Node, Node, bool]]:
        """Of what a step writes beside key and value: the column, a row, and whether the row is multiplied with the
        state."""
        args, writes = self.root.args, int(self.root.attrs["writes"])
        pairs = list(zip(args[2::2], args[3::2], strict=True))
        return [(column, row, number >= writes) for number, (column, row) in enumerate(pairs) if number]

    @property
    def erase(self) -> Node | None:
        """What is multiplied with the state, and written along the key."""
        return next((row for column, row, product in self.others if product and column is self.key), None)

    @property
    def reads(self) -> list[Node]:
        """The read-outs."""
        return [n for n in self.group.nodes if n.op == "read_out"]

    @property
    def heads(self) -> tuple[int, ...]:
        return self.state.shape[:-2]

    @property
    def vectors(self) -> list[Node]:
        """Of every step, in the dtype of what products read."""
        others = [node for column, row, _ in self.others for node in (column, row)]
        return list(dict.fromkeys([self.key, self.value, *(n.args[1] for n in self.reads), *others]))

    @property
    def numbers(self) -> list[Node]:
        """Of every step and head, or each of its keys, in the dtype of arithmetic."""
        return [self.decay] if self.decay is not None else []

    def located(self, node: Node) -> Place:
        """Where an operand is."""
        return _located(self.copies.get(node, node))

    def group_size(self, node: Node) -> int:
        """How many heads share an operand."""
        own = node.shape[: len(self.heads)] if node not in self.copies else self.copies[node].shape[: len(self.heads)]
        return next(prod(self.heads[i:]) for i in range(len(own) + 1) if _shares(own, self.heads, i))


def _shares(own: tuple[int, ...], heads: tuple[int, ...], first: int) -> bool:
    return own[:first] == heads[:first] and all(size == 1 for size in own[first:])


def _located(node: Node) -> Place:
    offset = 0
    while True:
        if node.op == "index" and node.attrs["axis"] == -len(node.args[0].shape):
            offset += node.attrs["at"] * prod(node.shape)
        elif node.op == "slice" and len(node.shape) == 1 and node.attrs.get("step", 1) == 1:
            offset += node.attrs["start"]
        elif node.op != "reshape":
            return node, offset
        node = node.args[0]


def prepared(graph: Graph, kept: Callable[[Node], bool]) -> tuple[Graph, list[MatrixOperands]]:
    """The graph with copies of operands that are no parts of stored values. kept: whether a node is an array made of
    parameters."""
    groups, found, stored = list[Group](), list[MatrixOperands](), set[Node]()
    products = {n for g in graph.groups if g.kind == "gemm" and g.root is not None for n in g.root.args[1::2]}
    products = {_located(n)[0] for n in products}
    vectors = {_located(n)[0] for g in graph.groups if is_matrix(g) for n in MatrixOperands(g).vectors}
    for group in graph.groups:
        if is_matrix(group):
            own = MatrixOperands(group)
            for node in (*own.vectors, *own.numbers):
                base, _ = _located(node)
                number = node in own.numbers
                there = kept(base) if number and base.op != "input" else False
                there = there or (base in stored and not (number and base in vectors | products))
                whole = any(_shares(node.shape[: len(own.heads)], own.heads, i) for i in range(len(own.heads) + 1))
                if not (there and whole):
                    last = node.shape[len(own.heads) :]
                    to = node.shape if whole else (*own.heads, *last)
                    copy = own.copies[node] = make("broadcast", node, to=to)
                    groups.append(Group("pointwise", "before", 0, None, (copy,), (copy,)))
            found.append(own)
        groups.append(group)
        if group.region == "before":
            stored.update(n for n in group.stored if not n.leaf)
    return (replace(graph, groups=tuple(groups)) if found else graph), found
