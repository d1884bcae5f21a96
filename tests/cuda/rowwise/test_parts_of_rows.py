"""Parts of rows: heads that read nothing of one another, and chains that have none."""

from __future__ import annotations

from tvm_rnn.cuda.rowwise.parts_of_rows import parts_of_rows
from tvm_rnn.graph.graph import Group, Node, make


def leaf(*shape: int) -> Node:
    return Node("input", shape=shape)


def group(*nodes: Node, root: Node | None = None) -> Group:
    return Group("reduce" if root else "pointwise", "before", 0, root, nodes, nodes[-1:])


def reshaped(node: Node, *to: int) -> Node:
    return make("reshape", node, rank=len(node.shape), to=to)


def parts(*groups: Group, work: int = 4096) -> int:
    return parts_of_rows(groups, {n for g in groups for n in g.stored}, work)


def normalised(u: Node, spec: str = "nk,nk->n") -> list[Group]:
    """Each head divided by its length."""
    square = make("einsum", u, u, spec=spec)
    length = make("sqrt", square)
    result = make("div", u, reshaped(length, *length.shape, 1))
    return [group(square, root=square), group(length), group(result)]


def test_heads_are_apart() -> None:
    u = make("tanh", reshaped(leaf(3 * 64), 3, 64))
    assert parts(group(u), *normalised(u)) == 3
    flat = reshaped(u, 192)
    assert parts(group(u), group(flat)) == 3  # elements keep their order


def test_what_was_made_before_may_be_read_anywhere() -> None:
    u, v = leaf(4, 64), leaf(1, 64)
    first = make("mul", u, v)
    assert parts(group(first), *normalised(first)) == 4


def test_heads_that_read_each_other_are_not() -> None:
    u = make("tanh", leaf(4, 64))
    mixed = make("einsum", leaf(4, 4), u, spec="nm,mk->nk")
    assert parts(group(u), group(mixed, root=mixed)) == 1
    over_heads = make("sum", u, axis=-2, keepdims=False)
    assert parts(group(u), group(over_heads, root=over_heads)) == 1
    shared = make("mul", u, reshaped(make("index", u, axis=-2, at=0), 1, 64))
    assert parts(group(u), group(shared)) == 1


def test_little_work_stays_together() -> None:
    u = make("tanh", leaf(4, 4))
    assert parts(group(u), *normalised(u), work=16) == 1
