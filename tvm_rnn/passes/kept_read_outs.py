"""What training keeps of what is read of a matrix: the read-out itself, in place of a value that is made of it.

In: a graph of training whose matrices are solved, and its backward graph. Out: both, where backward makes such a value
again, of the read-out and of inputs. A kernel of the recurrence leaves the read-out where it is kept; a value that is
made of it would take another launch, which reads it and what else the value is made of, and writes as much.

    keep v - d (S k)   -->   keep S k; backward: v - d (S k)
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm_rnn.graph.graph import Graph, Node, is_move, rewrite

from .matrix_gradient import rebuilt
from .normalise import normalise


def keep_read_outs(graph: Graph) -> Graph:
    """The graph of training, with its backward graph."""
    back, users = graph.backward, graph.users()
    assert back is not None
    first = 1 + len(graph.inputs) + len(graph.states)
    leaves = dict(zip((*graph.params, *graph.inputs), (*back.params, *back.inputs[1:]), strict=False))
    emitted, inputs, instead = list(graph.emitted), list(back.inputs), dict[Node, Node]()
    for number, node in enumerate(graph.emitted):
        read = _read_out(node)
        if read is None or users[node] or read in emitted:
            continue
        before = back.inputs[first + number]
        emitted[number] = read
        inputs[first + number] = Node("input", name=before.name, shape=read.shape)
        (instead[before],) = rebuilt([node], {**leaves, read: inputs[first + number]})
    if not instead:
        return graph
    roots = rebuilt(back.roots, instead)
    new = rewrite(back, dict(zip(back.roots, roots, strict=True)), inputs=(*inputs,))
    return replace(graph, emitted=(*emitted,), backward=normalise(new))


def _read_out(node: Node) -> Node | None:
    """The one read-out that a value is made of, beside inputs and parameters, if it has as many elements."""
    found, stack = set[Node](), [node]
    while stack:
        own = stack.pop()
        if own.op == "read_out":
            found.add(own)
        elif own.op == "state" or not (own.leaf or own.pointwise or is_move(own)):
            return None
        else:
            stack += own.args
    reads = [*found]
    return reads[0] if len(reads) == 1 and reads[0] is not node and prod(reads[0].shape) == prod(node.shape) else None
