"""Chains in registers: which fit, that results are right, and that only what others read is stored."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from emulated import POISON, run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.rowwise.chained_groups import chained_groups_kernel
from tvm_rnn.cuda.rowwise.warp_rows import MOST_ELEMENTS, MOST_NUMBERS, MOST_TOGETHER, WARPS, fits
from tvm_rnn.graph.graph import Group, Node, make


def group(*nodes: Node, root: Node | None = None) -> Group:
    return Group("reduce" if root else "pointwise", "before", 0, root, nodes, nodes[-1:])


def reshaped(node: Node, *to: int) -> Node:
    return make("reshape", node, rank=len(node.shape), to=to)


def normalised(u: Node) -> list[Group]:
    """u in the form of tanh, divided by its length, heads side by side."""
    made = make("tanh", u)
    square = make("einsum", made, made, spec="nk,nk->n")
    result = make("div", made, reshaped(make("sqrt", square), u.shape[0], 1))
    return [group(made), group(square, root=square), group(reshaped(result, prod(u.shape)))]


def test_what_fits() -> None:
    cases = ((64, 2, 2, True), (40, 2, 2, False), (2 * MOST_ELEMENTS, 2, 2, False), (64, 2, 1, True))
    for size, heads, parts, whole in (*cases, (32, MOST_NUMBERS + 1, 1, False)):
        assert fits(normalised(Node("input", shape=(heads, size))), parts) == whole


def shared(u: Node) -> list[Group]:
    """u in the form of tanh, times its squares' sum, and what several heads have together."""
    made = make("tanh", u)
    together = make("sum", made, axis=-2, keepdims=True)
    squares = make("mul", made, made)
    length = make("sum", squares, axis=-1, keepdims=True)
    result = make("mul", made, make("add", together, length))
    return [group(made), group(together, root=together), group(squares, length, root=length), group(result)]


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(3, 64), (2, 256), (2, 512), (3, 2, 64)])
def test_only_what_others_read_is_stored(shape: tuple[int, ...]) -> None:
    u = Node("input", shape=shape)
    groups = shared(u) if len(shape) > 2 else normalised(u)
    last = groups[-1].stored[0]
    home = {n: g for g in groups for n in g.stored}

    def reads(own: Group, node: Node) -> Place | None:
        return Place("float32", prod(node.shape)) if node is u or (node in home and home[node] is not own) else None

    made = chained_groups_kernel(
        "chain",
        groups,
        precision="float32",
        reads=reads,
        writes=lambda own, node: [Place("float32", prod(node.shape))],
        elsewhere=lambda own: frozenset(),
        needed=lambda node: node is last,
        early=True,
    )
    assert [(a.role, a.node) for a in made.arguments] == [("read", u), ("write", last)]
    together = min(MOST_TOGETHER, MOST_TOGETHER * 128 // (prod(shape) // shape[0]))
    rows, value = 7, np.random.default_rng(1).standard_normal((7, *shape)).astype("float32")
    names = {a.role: a.name for a in made.arguments}
    arrays = {names["read"]: value, names["write"]: np.full((rows, prod(shape)), POISON, "float32")}
    run(made.kernel, arrays, {"rows": rows}, -(-rows * shape[0] // (WARPS * together)))
    expected = np.tanh(value.astype(float))
    if len(shape) > 2:
        expected *= expected.sum(-2, keepdims=True) + (expected**2).sum(-1, keepdims=True)
    else:
        expected /= np.sqrt((expected**2).sum(-1, keepdims=True))
    assert np.abs(arrays[names["write"]].reshape(value.shape) - expected).max() < 1e-6 * max(
        1.0, np.abs(expected).max()
    )
