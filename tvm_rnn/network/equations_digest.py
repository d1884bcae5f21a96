"""The digest that a manifest knows a network's equations by.

In: an RNN. Out: SHA-256 of every layer's equations as traced, with the arrays in them.
"""

from __future__ import annotations

import hashlib

from tvm_rnn.graph.graph_text import graph_text

from .rnn import RNN


def equations_digest(net: RNN) -> str:
    """SHA-256 of every layer's equations as traced, with the arrays in them: what a manifest knows them by."""
    distinct = {id(layer.graph): layer.graph for layer in net.layers}.values()
    found = hashlib.sha256()
    for graph in distinct:
        found.update(f"{sorted(graph.sizes.items())} {graph.dtype}{graph_text(graph).partition(chr(10))[2]}".encode())
        for node in graph.nodes():
            if node.op == "const" and node.value is not None:
                found.update(node.value.tobytes())
    return found.hexdigest()
