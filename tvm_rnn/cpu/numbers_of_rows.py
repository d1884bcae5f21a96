"""Pointwise work on one number for each row: a vector has the numbers of several rows.

In: a pointwise group all of whose values are single numbers, such as the decay and the write strength of a head. Out: a
register tile whose lanes are rows. Alone, each would fill a vector of equal lanes.

Rewrite: for row: a[row] = f(b[row])  -->  for rows / lanes: (vector row): a[row] = f(b[row])
"""

from __future__ import annotations

from math import prod

from tvm_rnn.graph.graph import Group
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Expr

from .register_tile import Tile


def is_numbers(group: Group) -> bool:
    """Whether a group is such work, of rows that are there for all steps."""
    return group.region == "before" and group.kind == "pointwise" and all(prod(n.shape) == 1 for n in group.nodes)


class NumbersOfRows(Tile):
    """A tile of one number in each of `lanes` rows."""

    def row_of(self, r: Expr, v: Expr) -> Expr:
        return v

    def index_of(self, p: Expr, v: Expr) -> Index:
        return (0,) * max(1, len(self.group.nodes[-1].shape))
