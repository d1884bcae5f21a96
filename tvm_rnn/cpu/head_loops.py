"""Groups of a step that share the loop over their first axis: heads, each of which reads nothing of another.

In: the groups of a step, in order, and how each is tiled. Out: runs of them. Threads meet once for all groups of a run;
and where no tile has several rows, what a head makes in a row is read again while it is in the nearest cache.

Rewrite: for row, n: a[row, n] = f(...); for row, n: b[row, n] = g(a[row, n])
         -->  for row, n: a[row, n] = f(...); b[row, n] = g(a[row, n])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.tir.expr import Expr

ALONG = ("sum", "max", "index", "slice", "flip", "concat")  # ops of one axis
AS_IT_IS = ("reshape", "broadcast")  # ops that keep a first axis of the same size


@dataclass(frozen=True)
class Within:
    """What a loop around groups has of each: `count` places from `begin` on of the first axis, and a row of the batch;
    None: all rows."""

    begin: Expr
    count: Expr
    row: Expr | None = None


@dataclass(frozen=True)
class Heads:
    """How a group can be part of a run. count: the size of its first axis; tall: whether its tiles have several rows
    of the batch; tasks: into how many parts threads would share it alone."""

    count: int
    tall: bool
    tasks: int


def runs(groups: Sequence[Group], heads: Sequence[Heads | None], enough: int) -> list[list[int]]:
    """Numbers of groups that share loops, in order; a group without `heads` is alone. enough: heads that there have to
    be where rows are inside, unless a group alone has no more parts."""
    stored = {n for group in groups for n in group.stored}
    found: list[list[int]] = []
    made: set[Node] = set()
    for number, (group, own) in enumerate(zip(groups, heads, strict=True)):
        run = found[-1] if found else []
        before = [own_of for i in run if (own_of := heads[i]) is not None]
        both = [*before, own] if own is not None else []
        few = any(h.tall for h in both) and both[0].count < min(enough, max(h.tasks for h in both))
        same = bool(before) and own is not None and before[0].count == own.count and not few
        if own is not None and same and _is_apart(group, made, stored, own.count):
            run.append(number)
        else:
            found.append([number])
            made = set()
        made |= set(group.stored)
    return found


def _is_apart(group: Group, made: set[Node], stored: set[Node], count: int) -> bool:
    """Whether each head of a group reads of what was made before nothing but the same head's."""
    members = [*group.nodes] if group.root is None else [group.root, *group.nodes]
    every, others = made | set(members), stored - made - set(members)
    return all(_keeps(node, every, others, count) for node in members)


def _keeps(node: Node, made: set[Node], others: set[Node], count: int) -> bool:
    """Whether elements of a node at one place of the first axis need of `made` those at the same place alone."""
    return all(
        _leads(node, arg, count) and (arg in made or _keeps(arg, made, others, count))
        for arg in node.args
        if _reads(arg, made, others)
    )


def _reads(node: Node, made: set[Node], others: set[Node]) -> bool:
    if node in made:
        return True
    return not (node.leaf or node in others) and any(_reads(arg, made, others) for arg in node.args)


def _leads(node: Node, arg: Node, count: int) -> bool:
    """Whether the first axis of a node is that of an operand."""
    if node.shape[:1] != (count,) or arg.shape[:1] != (count,):
        return False
    if node.op == "einsum":
        inputs, out = node.attrs["spec"].split("->")
        pairs = zip(inputs.split(","), node.args, strict=True)
        return all(letters[0] == out[0] for letters, operand in pairs if operand is arg)
    if node.op == "transpose":
        return bool(node.attrs["axes"][0] == 0)
    if node.op in ALONG:
        return len(arg.shape) + int(node.attrs["axis"]) > 0
    return node.pointwise or node.op in AS_IT_IS
