"""A part of a small matrix that follows a delta rule, for tests of its statements."""

from __future__ import annotations

from functools import partial

from tvm_rnn import target
from tvm_rnn.cpu.matrix_part import Part, Work
from tvm_rnn.cpu.matrix_update import update_of
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.walk_through_time import Walk, is_few
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.schedule.schedule_template import Unit
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, sequence

V4 = target.TABLE["x86-64-v4"]


def delta_rule(values: int, keys: int) -> Group:
    """S' = d S + (b k) v + (-d b k) (k . S), y = S' q, z = S k."""
    state = Node("state", shape=(values, keys), name="S")
    k, q = (Node("input", shape=(1, keys), name=n) for n in "kq")
    v = Node("input", shape=(values, 1), name="v")
    d, b, erase = (Node("input", shape=(1, 1), name=n) for n in ("d", "b", "erase"))
    new = make("scan_matrix", state, d, make("mul", k, b), v, make("mul", erase, k), k, writes=1, key=-1)
    after = make("read_out", new, q, key=-1)
    before = make("read_out", make("carried", new, state), k, key=-1)
    return Group("scan", "before", 1, new, (new, after, before), (after, before))


def delta_part(values: int, keys: int, first: Expr = 0) -> Part:
    """All of it, in a workspace."""
    group, memory = delta_rule(values, keys), buffer("workspace", "float32")
    root = group.root
    assert root is not None

    def array(node: Node) -> Array:
        strides = (32, 1)[-len(node.shape) :]
        return Array("workspace", 0, 4096, strides, node.shape)

    places = Places({"workspace": memory}, lambda n: array(n) if n.op == "input" else None, lambda n: [array(n)], {})
    state = root.args[0]
    turned = Array("workspace", 0, 4096, (1, 64), state.shape)
    ends, restart = {state: turned}, (lambda t, b, body: sequence(body))
    walk = Walk(
        {root: state},
        ends,
        ends,
        {},
        lambda b: int64(9),
        int64(0),
        restart,
        {state: 0.0},
        False,
        partial(is_few, int64(9)),
    )
    unit = Unit("scan", "before", "float32", width=values, depths=(keys,))
    update = update_of(root, lambda n: n.op == "input")
    work = Work(group, unit, places, walk, V4, {"panels": 1}, update)
    return Part(work, root, int64(0), (), int64(0), int64(1), first)
