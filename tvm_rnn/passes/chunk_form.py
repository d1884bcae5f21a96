"""The form in which GPUs run a recurrence of a matrix: what is written and what is taken away lie along one key.

In: a graph with a `scan_matrix`. Out: the same, with the numbers that scale the key moved to the values and to the
vectors that are multiplied with the state; or why no kernel of a GPU takes it.

Rewrite: S' = d S + (b k) v + (c k) (r . S)   -->   S' = d S + k (b v) + k (c r . S)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, make, rewrite, topological, with_args

from .matrix_recurrence import Solved

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target

MOST_KEYS, MOST_READS = 256, 2  # that shared memory has room for
STORED = ("bfloat16", "float16")


def chunk_form(graph: Graph, name: str) -> Graph | str:
    """The graph with the recurrence of the state of that name in the form that chunks take, or why it has none.

    graph: normalised, so that equal vectors are one.
    """
    new = next(r for s, r in zip(graph.states, graph.results, strict=True) if s.name == name)
    state, decay, key, value, *product = new.args
    if not product:
        return graph
    erased, vector = product
    (key, scales), (other, others) = (_scaled(node, new.attrs["key"]) for node in (key, erased))
    if _viewed(key) is not _viewed(other) or key.shape != other.shape:
        return "what is taken away does not lie along the key that is written"
    for number in scales:
        value = make("mul", value, number)
    for number in others:
        vector = make("mul", vector, number)
    own = make("scan_matrix", state, decay, key, value, key, vector, **new.attrs)
    mapped: dict[Node, Node] = {}
    for node in graph.nodes():
        mapped[node] = own if node is new else with_args(node, mapped)
    return rewrite(graph, mapped)


def refused(solved: Solved, net: RNN, target: Target) -> str:
    """Why no kernel of a GPU takes a recurrence of a matrix, whatever its form is; "" where one may."""
    (new,), (state,) = solved.new, solved.states
    along, products = new.attrs["key"], len(new.args) // 2 - 1 - new.attrs["writes"]
    outputs = {n for found in solved.reads.values() for n in topological([found]) if n.op == "read_out"}
    if target.arch != "sm_90a":
        return f"chunks are for sm_90a, not for {target.arch}"
    if net.dtype not in STORED:
        return f"chunks are for {' and '.join(STORED)}, not for {net.dtype}"
    if net.reverse or net.num_directions > 1:
        return "chunks go forward in time alone"
    if net.cell.initial.get(state.name, 0.0) != 0.0:
        return "it does not begin at 0"
    if new.attrs["writes"] != 1 or products > 1:
        return "chunks have one product that is written, and one that is taken away"
    if new.args[1].shape[along] != 1:
        return "each key decays by itself"
    if state.shape[along] > MOST_KEYS or len(outputs) > MOST_READS:
        return f"chunks have up to {MOST_KEYS} keys and {MOST_READS} read-outs"
    return ""


def _scaled(node: Node, along: int) -> tuple[Node, list[Node]]:
    """A vector without the numbers that it is multiplied with."""
    if node.op == "mul":
        for number, rest in (node.args, node.args[::-1]):
            if number.shape[along] == 1 and rest.shape[along] != 1:
                vector, numbers = _scaled(rest, along)
                return vector, [number, *numbers]
    return node, []


def _viewed(node: Node) -> Node:
    """What a reshaped value is made of."""
    while node.op == "reshape":
        node = node.args[0]
    return node
