"""How a recurrence walks through a tile's steps: where its states come from and go to, and which rows begin again.

In: one visit of a layer, from `lower_layer.py`. Out: what `recurrence.py` needs for each batch row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.statements import Block

from .workspace import Array


@dataclass(frozen=True)
class Walk:
    """states: of each recurrence the state that it makes anew.
    first, last: each state before and after the tile; kept: before each step, with a row for each, if wanted.
    active(b): how many of the tile's steps come before row b's end.
    direction: 1 goes back in time.
    restart(t, b, body): body where row b begins again next to step t of the tile: before it, or with `behind` after it.
    fresh: what each state is then."""

    states: Mapping[Node, Node]
    first: Mapping[Node, Array]
    last: Mapping[Node, Array]
    kept: Mapping[Node, Array]
    active: Callable[[Expr], Expr]
    direction: Expr
    restart: Callable[[Expr, Expr, Block], Stmt]
    fresh: Mapping[Node, float]
    behind: bool
