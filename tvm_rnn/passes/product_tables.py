"""Products of a table's rows leave the loop with the table: W E[i] is row i of E W^T, which parameters alone make.

In: a forward graph, on single products. Out: the same with a row of such a table in place of each product of a row;
nothing is left but the row. The table is no larger than the matrix. On GPUs only where a state decides which row it is:
otherwise the products of all steps are one GEMM, and what a step reads of it is asked for early.

Rewrite: step: W E[i]   -->   weights: P = E W^T;  step: P[i]
"""

from __future__ import annotations

from tvm_rnn.decisions import tell
from tvm_rnn.graph.graph import Graph, Node, depends, make, rewrite, with_args
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.target import Target


def with_product_tables(graph: Graph, target: Target) -> Graph:
    """Training reads the rows themselves: its graphs stay as they are."""
    if graph.kind != "forward" or graph.backward is not None or graph.emitted:
        return graph
    leaves = depends(nodes := graph.nodes())
    new: dict[Node, Node] = {}
    for node in nodes:
        if not _of_a_row(node) or not (target.kind == "llvm" or "state" in leaves[node]):
            new[node] = with_args(node, new)
            continue
        weight, (table, places) = new[node.args[0]], node.args[1].args
        rows, depth = table.shape
        fits = rows <= depth
        limit = f"a table of {rows} rows of products, {'no' if fits else 'which is'} larger than the matrix"
        tell(fits, in_words(node), f"the product of a row of {in_words(table)}: {limit}")
        if fits:
            products = make("einsum", new[table], weight, source=node.source, spec="vk,nk->vn")
            new[node] = make("take", products, new[places], source=node.source, rank=2)
        else:
            new[node] = with_args(node, new)
    return rewrite(graph, new)


def _of_a_row(node: Node) -> bool:
    """Whether it is a product of a matrix with one row of a table of vectors."""
    if node.op != "gemm" or len(node.args) != 2:
        return False
    weight, x = node.args
    return x.op == "take" and len(weight.shape) == len(x.args[0].shape) == 2 and x.args[1].shape == (1,)
