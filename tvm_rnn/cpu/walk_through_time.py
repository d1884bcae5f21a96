"""How a recurrence walks through a tile's steps: where its states come from and go to, and which rows begin again.

In: one visit of a layer, from `lower_layer.py`. Out: what `recurrence.py` needs for each batch row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.recurrences import matrix_operands
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block

from .workspace import Array

CHUNK = 4  # steps of a matrix at once: 8 save 4 % of its operations, and take 4 times the products between steps
# To turn a matrix of 64 x 64 around and back takes 20 times what a step on its rows takes more than one on columns, and
# 8 times with products of the matrix itself: rows sum them across lanes, one step after the other.
FEW_STEPS, FEW_WITH_PRODUCTS = 20, 8


@dataclass(frozen=True)
class Kept:
    """Which steps of a tile a tape has a matrix before, by their place in the order of forward's steps, and where."""

    has: Callable[[Expr], Expr]
    array: Callable[[Expr], Array]


@dataclass(frozen=True)
class Again:
    """Where a matrix is that is made again in backward: `slot` elements for each step, or one for all. kept: where the
    tape has it before a place in the order of forward's steps; None: a gradient. fresh: what it begins with."""

    memory: Array
    slot: int
    kept: Callable[[Expr], Array] | None
    fresh: float


@dataclass(frozen=True)
class Walk:
    """What a recurrence asks of the layer that it runs in.

    states: of each recurrence the state that it makes anew.
    first, last: each state before and after the tile; kept: before each step, with a row for each, if wanted.
    active(b): how many of the tile's steps come before row b's end.
    direction: 1 goes back in time.
    restart(t, b, body): body where row b begins again next to step t of the tile: before it, or with `behind` after it.
    fresh: what each state is then.
    few(root): whether the sequence has so few steps that a matrix stays as its owner laid it out: see `is_few`; None:
    none does. count: steps of the tile. tape: of matrices that a tape has of some steps. again: of those made again."""

    states: Mapping[Node, Node]
    first: Mapping[Node, Array]
    last: Mapping[Node, Array]
    kept: Mapping[Node, Array]
    active: Callable[[Expr], Expr]
    direction: Expr
    restart: Callable[[Expr, Expr, Block], Stmt]
    fresh: Mapping[Node, float]
    behind: bool
    few: Callable[[Node], Expr] | None
    count: Expr = 0
    tape: Mapping[Node, Kept] = field(default_factory=dict)
    again: Mapping[Node, Again] = field(default_factory=dict)


def is_few(steps: Expr, root: Node) -> Expr:
    """Of the steps of a whole sequence, for the recurrence `root`: tiles of it leave matrices to each other."""
    _, products = matrix_operands(root.args, root.attrs["writes"])
    return tirx.LT(steps, int64(FEW_WITH_PRODUCTS if products else FEW_STEPS))
