"""After all steps: what is made of the sums of one layer and direction, the gradients of its parameters, as a graph.

In: a backward graph and its nodes that sum over T and B. Out: the graph from these sums, its inputs, to the
gradients, and which values on the way are worth an array of their own. Mostly it joins the gates' gradients to one
array. Back ends write it: `cpu/training/parameter_gradients.py` on CPUs, `cuda/training/gradient_kernels.py` on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm_rnn.graph.graph import Graph, Node, rewrite, with_args
from tvm_rnn.graph.ops import TABLE

from .fuse_pointwise import FUNCTION


@dataclass
class SumsToGradients:
    """graph: what is made of the sums, which are its inputs. kept: values on the way. inner: the sum that each input
    stands for."""

    whole: Graph
    sums: Sequence[Node]

    def __post_init__(self) -> None:
        leaves = {n: Node("input", shape=n.shape, name=f"sum_{i}") for i, n in enumerate(self.sums)}
        new: dict[Node, Node] = dict(leaves)
        for node in self.whole.nodes():
            new.setdefault(node, with_args(node, new))
        graph = rewrite(replace(self.whole, results=(), emitted=()), new, backward=None, groups=())
        # A graph has an output; this one is read for its weight_gradients alone.
        self.graph = replace(graph, output=graph.weight_gradients[0] if graph.weight_gradients else Node("input"))
        self.kept = [n for n in self.graph.nodes() if self._is_kept(n)]
        self.inner = {leaf: node for node, leaf in leaves.items()}

    def _is_kept(self, node: Node) -> bool:
        """Reductions, functions, and what several read: TVM's lowering of one expression is exponential in both."""
        if node.leaf or node.boolean or node in self.graph.weight_gradients:
            return not node.leaf and TABLE[node.op].kind in ("reduce", "contract")
        users = self.graph.users()[node]
        op = TABLE[node.op]
        return op.kind in ("reduce", "contract") or (op.kind == "pointwise" and (len(users) > 1 or op.cost >= FUNCTION))
