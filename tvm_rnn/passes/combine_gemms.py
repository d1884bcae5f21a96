"""Make one GEMM of several that read the same operand and do not wait for each other: its extra axis is the gate.

In: a graph whose products are `gemm` nodes of one parameter and one vector each, in regions. Out: fewer, larger `gemm`
nodes. Gates that feed gates are on another level and stay apart; so do products of different widths.

Rewrite: gemm(W_i, x), gemm(W_f, x), ...   -->   z[G, N] = gemm(stack(W_i, W_f, ...), x);  z[0], z[1], ...
         gemm(W, x) + gemm(R, h)           -->   gemm(W, x, R, h), where both are in the same region

For GPUs products of members become batched GEMMs first (`batched_gemms.py`), and these are combined alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, rewrite, with_args
from tvm_rnn.graph.node_text import in_words, joined
from tvm_rnn.graph.ops import GEMMS

from ..decisions import tell
from . import Pass
from .batched_gemms import with_batched_gemms
from .normalise import Builder

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target


@dataclass(frozen=True)
class CombineGemms(Pass):
    """Combine the products of each level. Does nothing where no two products share an operand."""

    name = "combine_gemms"

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        return combined(with_batched_gemms(graph) if target.kind == "cuda" else graph)

    def ensures(self, graph: Graph) -> None:
        seen: dict[tuple[object, ...], Node] = {}
        for node in graph.nodes():
            if node.op not in GEMMS:
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
        kind = new[node.args[0]].op if node.op == "add" else ""
        if kind not in GEMMS or any(new[a].op != kind for a in node.args):
            continue
        if why := _kept_apart(graph, node, users, roots):
            tell(False, f"the sum {in_words(node)}", why)
            continue
        new[node] = builder.make(kind, *(w for a in node.args for w in new[a].args), source=node.source)
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
        if node.op in GEMMS and len(node.shape) == len(node.args[1].shape):
            families.setdefault((graph.region_of(node), node.args[1::2], node.shape[-1]), []).append(node)
    builder = Builder()
    new: dict[Node, Node] = {}
    region = dict(graph.region)
    leader = {n: family for family in families.values() if len(family) > 1 for n in family}
    _tell(families, graph.nodes())
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
                lifted = (*weight.shape[:-2], 1, *weight.shape[-2:])
                gates.append(builder.make("reshape", weight, rank=len(weight.shape), to=lifted))
            pairs += [builder.make("concat", *gates, axis=-3), new[operand]]
        combined = builder.make(family[0].op, *pairs, source=family[0].source)
        new[node] = builder.make("index", combined, axis=-2, at=family.index(node))
        region[combined] = region[new[node]] = graph.region_of(node)
    return rewrite(graph, new, region=region)


@dataclass(frozen=True)
class _Family:
    """Products that can be one. below: all products that their operands are made of."""

    members: Sequence[Node]
    words: str
    operands: str
    below: frozenset[Node]

    @property
    def reads(self) -> tuple[Node, ...]:
        return self.members[0].args[1::2]

    @property
    def width(self) -> int:
        return self.members[0].shape[0]


def _tell(families: Mapping[tuple[object, ...], list[Node]], nodes: Sequence[Node]) -> None:
    """Which products became one, and what keeps the others apart. nodes: of the graph, arguments first."""
    if not families:
        tell(False, "the products", "there are none of a vector")
    products = {node for family in families.values() for node in family}
    below: dict[Node, frozenset[Node]] = {}
    for node in nodes:
        below[node] = frozenset(products.intersection(node.args)).union(*(below[a] for a in node.args))
    every = []
    for key, own in families.items():
        reads = own[0].args[1::2]
        made = frozenset(products.intersection(reads)).union(*(below[x] for x in reads))
        every.append((key[0], _Family(own, in_words(own[0]), " and ".join(in_words(x) for x in reads), made)))
    for region, family in every:
        what = joined(in_words(n) for n in family.members)
        if len(family.members) > 1:
            why = f"{len(family.members)} products of {family.operands}: one of {len(family.members)} gates"
            tell(True, what, why, region=region, gates=len(family.members), width=family.width)
            continue
        others = [other for where, other in every if where == region and other is not family]
        reasons = [_difference(family, other) for other in others]
        why = "; ".join(reasons) if reasons else f"the only product of region `{region}`"
        tell(False, what, why, region=region, width=family.width)


def _difference(family: _Family, other: _Family) -> str:
    """What keeps the products of two families of one region from being one."""
    if family.reads == other.reads:
        return f"{family.width} units, {other.words} has {other.width}"
    for later, earlier in ((family, other), (other, family)):
        if not later.below.isdisjoint(earlier.members):
            return f"{later.words} needs the result of {earlier.words}: another level"
    return f"reads {family.operands}, {other.words} reads {other.operands}"
