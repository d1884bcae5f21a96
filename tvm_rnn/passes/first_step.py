"""The first step of a call that is given no states: what products make of a state that is 0 is 0.

In: a normalised graph, the initial values of its states. Out: the same graph without these products. cuDNN leaves them
out too where it is given no states; a parameter that is infinite or NaN would show in them, so the runtime asks for
such a step only where all parameters are finite.

Rewrite: h = 0:  add(gemm(W, x), gemm(R, h))  -->  gemm(W, x)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_rnn.graph.graph import Graph, Node, constant, rewrite
from tvm_rnn.graph.ops import TABLE

from .normalise import Builder


def first_step(graph: Graph, initial: Mapping[str, float]) -> Graph:
    """The graph of a step from the initial states; the graph itself where no product reads one that is 0. initial: by
    name of those that are not 0."""
    builder, new = Builder(), dict[Node, Node]()
    zeros, states = set[Node](), {state for state in graph.states if not initial.get(state.name)}
    for node in graph.nodes():
        gone = [arg in zeros or arg in states for arg in node.args]
        left = [arg for arg, zero in zip(node.args, gone, strict=True) if not zero]
        if (node.op == "gemm" and all(gone[1::2])) or (node.op == "add" and not left):
            zeros.add(node)
            zero = builder.leaf(constant(0.0, len(node.shape)))
            new[node] = builder.make("broadcast", zero, to=node.shape, source=node.source)
        elif node.op == "add" and len(left) == 1 and left[0].shape == node.shape:
            new[node] = new[left[0]]
        elif node.leaf:
            new[node] = builder.leaf(node)
        else:
            if TABLE[node.op].kind == "move" and node.args and not left:
                zeros.add(node)
            new[node] = builder.make(node.op, *(new[arg] for arg in node.args), source=node.source, **node.attrs)
    return rewrite(graph, new) if zeros else graph
