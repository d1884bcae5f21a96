"""What a step makes of a matrix, with each vector of the key axis taken once.

In: a row `scan_matrix`, and which values are known. Out: `Update`. A delta rule writes and erases along one vector that
is only scaled: that is one product of rank one, whose second vector is a sum.

Rewrite: d S + (b k) v + (-d b k) (r . S)  -->  d S + k (b v - d b (r . S))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.recurrences import matrix_operands


@dataclass(frozen=True)
class Addend:
    """A vector of the value axis, times numbers: a known one, or the sums of the product of that number."""

    factors: tuple[Node, ...]
    value: Node | int


@dataclass(frozen=True)
class Update:
    """decay S + the sum of key * (addends) over `columns`. products: the vector of the key axis of each r . S."""

    decay: Node
    products: tuple[Node, ...]
    columns: tuple[tuple[Node, tuple[Addend, ...]], ...]


def update_of(root: Node, stored: Callable[[Node], bool]) -> Update:
    """stored: whether a value can be read."""
    writes, products = matrix_operands(root.args, root.attrs["writes"])
    values = [*(v for _, v in writes), *range(len(products))]
    keys = [k for k, _ in (*writes, *products)]
    split = [_scaled(k, root.attrs["key"], stored) for k in keys]
    found: dict[Hashable, list[int]] = {}
    for i, (vector, _) in enumerate(split):
        found.setdefault(_same(vector), []).append(i)
    columns = []
    for members in found.values():
        together = len(members) > 1
        vector = split[members[0]][0] if together else keys[members[0]]
        columns.append((vector, tuple(Addend(split[i][1] if together else (), values[i]) for i in members)))
    return Update(root.args[1], tuple(r for _, r in products), tuple(columns))


def _scaled(node: Node, key: int, stored: Callable[[Node], bool]) -> tuple[Node, tuple[Node, ...]]:
    """A vector of the key axis as another one, times numbers."""
    if node.op == "mul":
        for vector, number in (node.args, node.args[::-1]):
            single = number.scalar is not None or (len(number.shape) >= -key and number.shape[key] == 1)
            if single and vector.shape == node.shape and node.shape[key] != 1 and _known(number, stored):
                found, factors = _scaled(vector, key, stored)
                if _known(found, stored):
                    return found, (*factors, number)
    return node, ()


def _known(node: Node, stored: Callable[[Node], bool]) -> bool:
    """Whether a value can be read, or is made of such values element by element."""
    if stored(node) or node.scalar is not None:
        return True
    return not node.leaf and TABLE[node.op].kind in ("pointwise", "move") and all(_known(a, stored) for a in node.args)


def _same(node: Node) -> Hashable:
    """Equal for views of the same value."""
    if node.leaf or TABLE[node.op].kind != "move":
        return node
    return node.op, repr(sorted(node.attrs.items())), tuple(map(_same, node.args))
