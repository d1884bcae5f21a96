"""Gradients of parameters, on the GPU, from the weight gradients of one layer and direction after all steps.

In: a backward graph, its sums over T and B, and where they are. Out: `FinishKernels`: a kernel for each
intermediate value and for each parameter's gradient, which is dense and in the dtype that weights are given in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm_rnn.cuda.codegen.host_program import Host, Pointer, Program
from tvm_rnn.cuda.layer.pointers import Place, arithmetic
from tvm_rnn.cuda.layer.row_kernels import Rows, rows_kernel
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.graph.graph import Graph, Group, Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.passes.sums_to_gradients import SumsToGradients


@dataclass
class FinishKernels:
    """Of all layers that share a backward graph. number: of its constants, also in the kernels' names."""

    whole: Graph
    sums: Sequence[Node]
    number: str
    precision: str

    def __post_init__(self) -> None:
        self.finish = SumsToGradients(self.whole, self.sums)
        self.graph = self.finish.graph
        self.weights = Weights(self.graph, self.number, self.precision)
        self.kernels: dict[Node | tuple[str, int], Rows] = {}
        known: set[Node] = {*self.finish.inner}
        # Values on the way, but for those that packing makes: they are read where it leaves them.
        self.kept = [node for node in self.finish.kept if self.weights.place(node) is None]
        for i, node in enumerate(self.kept):
            self.kernels[node] = self._kernel(f"g{self.number}_value{i}", node, known, arithmetic(self.precision))
            known.add(node)
        for i, node in enumerate(self.graph.totals):
            name = f"g{self.number}_gradient{i}"
            self.kernels[("gradient", i)] = self._kernel(name, node, known, self.weights.raw_dtype)

    def _kernel(self, name: str, node: Node, known: set[Node], dtype: str) -> Rows:
        ready = set(known)

        def reads(other: Node) -> Place | None:
            if other in ready:
                return Place(arithmetic(self.precision), 0)
            return self.weights.place(other)

        there = reads(node) is not None
        heavy = not node.leaf and not there and TABLE[node.op].kind in ("reduce", "contract")
        group = Group("reduce" if heavy else "pointwise", "after", 0, node if heavy else None, (node,), (node,))
        elsewhere = frozenset([node] if there else [])
        places = [Place(dtype, 0)]
        return rows_kernel(
            name, group, precision=self.precision, reads=reads, writes=lambda n: places, elsewhere=elsewhere
        )

    def joined(self) -> dict[tuple[Node, ...], int]:
        """Gradients that are sums one after the other, as they lie: which sums, and the gradient's number."""
        found: dict[tuple[Node, ...], int] = {}
        for number, node in enumerate(self.graph.totals):
            if node.op == "concat" and len(node.shape) + node.attrs["axis"] == 0:
                parts = [_same_order(a) for a in node.args]
                if len({*parts}) == len(parts) and all(a in self.finish.inner for a in parts):
                    found[tuple(self.finish.inner[a] for a in parts)] = number
        return found

    def reserve(self, program: Program) -> None:
        """Memory for intermediate values, which all layers use in turn."""
        dtype = arithmetic(self.precision)
        self.values = {n: program.buffer("value", prod(n.shape), dtype) for n in self.kept}

    def run(
        self, host: Host, sums: Mapping[Node, Pointer], weights: Mapping[object, Pointer], gradients: Sequence[Pointer]
    ) -> None:
        """Fill `gradients`, in the order of the parameters. Where sums were made in a gradient, it is there already."""
        places = {leaf: sums[node] for leaf, node in self.finish.inner.items()} | dict(self.values)
        there = {number for nodes, number in self.joined().items() if sums[nodes[0]].text == gradients[number].text}
        for key, made in self.kernels.items():
            if not isinstance(key, Node) and key[1] in there:
                continue
            target = places[key] if isinstance(key, Node) else gradients[key[1]]
            pointers = []
            for argument in made.arguments:
                node = argument.node
                if argument.role == "write":
                    pointers.append(target)
                else:
                    pointers.append(places[node] if node in places else weights[node])
            host.launch(made.kernel, pointers, [1])


def _same_order(node: Node) -> Node:
    """What a node is a reshape of, or itself."""
    while node.op == "reshape":
        node = node.args[0]
    return node
