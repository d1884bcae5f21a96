"""Parts of a row that read nothing of one another in a chain of groups, such as heads.

In: the groups of a chain. Out: into how many equal parts each value that the chain makes falls, so that the chain can
be run for each part alone: part n of a value is elements n s to (n + 1) s - 1, and reads part n of other values of the
chain. What was made before the chain may be read anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from tvm_rnn.graph.graph import Group, Node, downstream, topological
from tvm_rnn.graph.ops import Shape

LEAST = 32  # elements of a part: a warp has one


def parts_of_rows(groups: Sequence[Group], stored: Collection[Node], work: int) -> int:
    """How many parts there are at most; 1 where parts read one another. stored: what the chain stores and reads again;
    work: elements of the largest group of a row."""
    return every_parts_of_rows(groups, stored, work)[0]


def every_parts_of_rows(groups: Sequence[Group], stored: Collection[Node], work: int) -> list[int]:
    """All numbers of parts that there may be, the largest first."""
    nodes = [node for group in groups for node in group.nodes]
    read = downstream(topological(nodes), lambda node: node in stored)
    leading = {node.shape[:n]: prod(node.shape[:n]) for node in nodes for n in range(1, len(node.shape))}
    fitting = sorted((n, axes) for axes, n in leading.items() if n > 1 and work // n >= LEAST)
    found = [n for n, axes in reversed(fitting) if all(_apart(node, read, axes) for node in {*nodes, *read})]
    return list(dict.fromkeys([*found, 1]))


def _apart(node: Node, read: Collection[Node], heads: Shape) -> bool:
    """Whether part n of a value is made of part n of those of its arguments that are made of what the chain stores.
    heads: the axes of which each place is a part."""
    args, rank = [a for a in node.args if a in read], len(heads)
    if prod(node.shape) % prod(heads):
        return False
    if not args or node.op == "reshape":  # reshaped elements keep their order
        return True
    if node.pointwise and all(a.shape == node.shape for a in args):  # so do these, whatever their axes are
        return True
    if any(own.shape[:rank] != heads for own in (node, *args)):
        return False
    if node.op == "einsum":
        inputs, out = node.attrs["spec"].split("->")
        texts = [text for text, a in zip(inputs.split(","), node.args, strict=True) if a in args]
        return all(text[:rank] == out[:rank] for text in texts)
    if node.op in ("sum", "max", "index", "slice"):
        return bool(node.attrs["axis"] % len(args[0].shape) >= rank)
    return (node.pointwise or node.op == "broadcast") and all(len(a.shape) == len(node.shape) for a in args)
