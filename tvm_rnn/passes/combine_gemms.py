"""Make one GEMM of independent GEMMs: those of one dependency level that read the same operand get a gate axis.

In: a graph whose products are `gemm` nodes of one parameter and one vector each, in regions. Out: fewer, larger `gemm`
nodes. Gates that feed gates are on another level and stay apart; so do products of different widths.

Rewrite: gemm(W_i, x), gemm(W_f, x), ...   -->   z[G, N] = gemm(stack(W_i, W_f, ...), x);  z[0], z[1], ...
         gemm(W, x) + gemm(R, h)           -->   gemm(W, x, R, h), where both are in the same region
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, rewrite, topological, with_args
from tvm_rnn.graph.node_text import in_words, joined

from ..decisions import tell
from . import Pass
from .normalise import Builder

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target


@dataclass(frozen=True)
class CombineGemms(Pass):
    """Combine the products of each level. Does nothing where no two products share an operand."""

    name = "combine_gemms"

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        return combined(graph)

    def ensures(self, graph: Graph) -> None:
        seen: dict[tuple[object, ...], Node] = {}
        for node in graph.nodes():
            if node.op != "gemm":
                continue
            key = (graph.region_of(node), node.args[1::2], node.shape[-1])
            self.check(key not in seen, "two products of one level still read the same operand", graph)
            seen[key] = node


def combined(graph: Graph) -> Graph:
    """The graph with the products of each level combined."""
    return _stack(_merge_sums(graph))


def _merge_sums(graph: Graph) -> Graph:
    """add(gemm, gemm) of one region, neither used elsewhere, is one gemm over both operands."""
    users, builder = graph.users(), Builder()
    new: dict[Node, Node] = {}
    roots = set(graph.roots)
    region = dict(graph.region)
    for node in graph.nodes():
        new[node] = with_args(node, new)
        if new[node] is not node:
            region[new[node]] = graph.region_of(node)
        if node.op != "add" or any(new[a].op != "gemm" for a in node.args):
            continue
        if why := _kept_apart(graph, node, users, roots):
            tell(False, f"the sum {in_words(node)}", why)
            continue
        new[node] = builder.make("gemm", *(w for a in node.args for w in new[a].args), source=node.source)
        region[new[node]] = graph.region_of(node)
        tell(True, f"the sum {in_words(node)}", "one product over both operands")
    return rewrite(graph, new, region=region)


def _kept_apart(graph: Graph, node: Node, users: Mapping[Node, list[Node]], roots: set[Node]) -> str:
    """Why a sum of two products cannot be one product; empty where it can."""
    shared = [a for a in node.args if len(users[a]) > 1 or a in roots]
    if shared:
        return f"{in_words(shared[0])} is also read on its own"
    regions = [graph.region_of(a) for a in (*node.args, node)]
    if len({*regions}) > 1:
        return f"the products run at different times: {' and '.join(dict.fromkeys(regions))}"
    if len({a.shape for a in (*node.args, node)}) > 1:
        return f"the products have different shapes: {' and '.join(str(list(a.shape)) for a in node.args)}"
    return ""


def _stack(graph: Graph) -> Graph:
    families: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes():
        if node.op == "gemm" and len(node.shape) == 1:
            families.setdefault((graph.region_of(node), node.args[1::2], node.shape[0]), []).append(node)
    builder = Builder()
    new: dict[Node, Node] = {}
    region = dict(graph.region)
    leader = {n: family for family in families.values() if len(family) > 1 for n in family}
    _tell(families)
    for node in graph.nodes():
        if node not in leader:
            new[node] = with_args(node, new)
            region[new[node]] = graph.region_of(node)
            continue
        family = leader[node]
        pairs: list[Node] = []
        for position, operand in enumerate(node.args[1::2]):
            gates = []
            for member in family:
                weight = member.args[2 * position]
                lifted = (1, *weight.shape)
                gates.append(builder.make("reshape", weight, rank=2, to=lifted))
            pairs += [builder.make("concat", *gates, axis=-3), new[operand]]
        combined = builder.make("gemm", *pairs, source=family[0].source)
        new[node] = builder.make("index", combined, axis=-2, at=family.index(node))
        region[combined] = region[new[node]] = graph.region_of(node)
    return rewrite(graph, new, region=region)


def _tell(families: Mapping[tuple[object, ...], list[Node]]) -> None:
    """Which products became one, and what keeps the others apart."""
    every = [(key[0], family) for key, family in families.items()]
    if not every:
        tell(False, "the products", "there are none of a vector")
    below = {family[0]: frozenset(topological(family[0].args[1::2])) for _, family in every}
    for region, family in every:
        operands, width = family[0].args[1::2], family[0].shape[0]
        what = joined(in_words(n) for n in family)
        if len(family) > 1:
            read = " and ".join(in_words(x) for x in operands)
            why = f"{len(family)} products of {read}: one of {len(family)} gates"
            tell(True, what, why, region=region, gates=len(family), width=width)
            continue
        others = [other for where, other in every if where == region and other is not family]
        reasons = [_difference(family, other, below) for other in others]
        why = "; ".join(reasons) if reasons else f"the only product of region `{region}`"
        tell(False, what, why, region=region, width=width)


def _difference(family: Sequence[Node], other: Sequence[Node], below: Mapping[Node, frozenset[Node]]) -> str:
    """What keeps the products of two families of one region from being one. below: what each one's operands read."""
    mine, theirs = (own[0].args[1::2] for own in (family, other))
    if mine == theirs:
        return f"{family[0].shape[0]} units, {in_words(other[0])} has {other[0].shape[0]}"
    for later, earlier in ((family, other), (other, family)):
        if not below[later[0]].isdisjoint(earlier):
            return f"{in_words(later[0])} needs the result of {in_words(earlier[0])}: another level"
    read = [" and ".join(in_words(x) for x in operands) for operands in (mine, theirs)]
    return f"reads {read[0]}, {in_words(other[0])} reads {read[1]}"
