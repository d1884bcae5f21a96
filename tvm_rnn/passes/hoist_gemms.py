"""Move what does not read state out of the time loop: one GEMM over all T in place of one per step.

In: the normalised graph, everything in `step`. Out: nodes that depend on inputs and parameters alone, and that hang on
a product or reduction, are in `before`, as are masks; nodes that depend on parameters alone are in `weights`. In a
backward graph products that the carried gradients do not depend on, and all that is made of them, are in `after`, as
are sums over rows; what these read of inputs with masks is in `before`. Steps read the fewest values of `before`
that will do. Products of a table's rows leave the loop first, with the table (`product_tables.py`).

Rewrite: step: z = W x_t + R h + b   -->   before: xw = W x + b (all T at once);  step: z = xw[t] + R h
         step: dx_t = W^T dz         -->   after: dx = W^T dz (all T at once)

Source: Appleyard, Kocisky & Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs", section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import (
    Graph,
    Node,
    depends,
    downstream,
    is_scan,
    make,
    makes_levels,
    rewrite,
    topological,
    with_args,
)
from tvm_rnn.graph.node_text import in_words, states_of
from tvm_rnn.graph.ops import TABLE

from ..decisions import listening, tell
from . import Pass
from .batched_gemms import batched_product
from .min_cut import HEAVY, cheapest_cut
from .product_tables import with_product_tables

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target


@dataclass(frozen=True)
class HoistGemms(Pass):
    """Inputs' products leave the loop. Always applies to a cell with a product of an input."""

    name = "hoist_gemms"

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        graph = _regroup_sums(with_product_tables(graph, target))
        nodes = graph.nodes()
        leaves = depends(nodes)
        early = {n for n in nodes if leaves[n] == {"input"} and not n.leaf}
        looped = any("state" in leaves[n] for n in nodes if not n.leaf) or not all(map(is_scan, graph.results))
        large: set[Node] = set()
        again = not looped and any(n.op == "rescan" for n in nodes)
        # The states before each step are inputs, but for matrices made again: they would be kept for all steps.
        if graph.kind == "backward" and not again:
            large = downstream(nodes, lambda n: bool(leaves[n]) and _is_matrix(n, graph, leaves)) & early
            large -= {*topological(n for n in nodes if is_scan(n))}
        early -= large
        moved = _hanging_on_products(nodes, early) if looped else early
        sunk = _sunk(graph, moved) if looped else {}
        moved |= {n for n in nodes if n.random}  # made for all rows of a tile at once
        moved |= {n for n in downstream(nodes, lambda n: n.op == "uniform") & early if not _grows(n)}
        late = _after(graph, moved) if graph.kind == "backward" else set()
        masked = _masked_operands(graph, early, moved) if graph.kind == "backward" else set[Node]()
        moved |= masked
        if listening():
            _tell(nodes, leaves, moved=moved, late=late, early=early, large=large, sunk=sunk)
            for node in masked:
                tell(True, in_words(node), "sums over all rows alone read it: made for all of T, and not in the step")
        region = {**graph.region, **dict.fromkeys(moved, "before"), **dict.fromkeys(late, "after")}
        return _with_own_masks(replace(graph, region=region))

    def ensures(self, graph: Graph) -> None:
        nodes = graph.nodes()
        leaves = depends(nodes)
        for node in nodes:
            inside = graph.region_of(node) == "before"
            late = "state" in leaves[node]
            self.check(not (inside and late), f"{node.op} in `before` reads a value of `step`", graph)
            early = graph.region_of(node) != "after" and any(graph.region_of(a) == "after" for a in node.args)
            self.check(not early, f"{node.op} reads a value of `after` too early", graph)


def _is_matrix(node: Node, graph: Graph, leaves: Mapping[Node, frozenset[str]]) -> bool:
    """Whether a value is larger than a vector, or a product that is no GEMM; vectors of members are neither."""
    if len(node.shape) < 2:
        return False
    free = {a for a in node.args if not leaves[a]}
    product = node.op == "einsum" and batched_product(node, free) is None
    return product or prod(node.shape) > prod(graph.inputs[0].shape)


def _terms(node: Node, users: dict[Node, list[Node]], top: bool = True) -> list[Node]:
    """The summands of a tree of additions whose inner nodes have no other use and no broadcasting."""
    if node.op != "add" or (not top and len(users[node]) > 1) or any(a.shape != node.shape for a in node.args):
        return [node]
    return [t for a in node.args for t in _terms(a, users, top=False)]


def _regroup_sums(graph: Graph) -> Graph:
    """(W x + R h) + b  -->  (W x + b) + R h, so that everything early in a sum can leave the loop together. Not where
    values are rounded to 8 bits: these sums stay as they were written, to the last bit."""
    nodes, users = graph.nodes(), graph.users()
    if makes_levels(nodes):
        return graph
    leaves = depends(nodes)
    new: dict[Node, Node] = {}
    for node in nodes:
        new[node] = with_args(node, new)
        if node.op != "add":
            continue
        terms = _terms(node, users)
        late = [t for t in terms if "state" in leaves[t]]
        early = [t for t in terms if "state" not in leaves[t]]
        if len(terms) < 3 or not late or not any(leaves[t] for t in early):
            continue
        ordered = [new[t] for t in (*early, *late)]
        total = ordered[0]
        for term in ordered[1:]:
            total = make("add", total, term, source=node.source)
        new[node] = total
    return rewrite(graph, new)


def _hanging_on_products(nodes: list[Node], early: set[Node]) -> set[Node]:
    """Early products and reductions, all they need, and all early nodes computed from them."""
    moved: set[Node] = set()
    for node in nodes:
        if node in early and (
            TABLE[node.op].kind in (*HEAVY, "scan") or (any(a in moved for a in node.args) and not _grows(node, moved))
        ):
            stack = [node]
            while stack:
                n = stack.pop()
                if n not in moved:
                    moved.add(n)
                    stack.extend(a for a in n.args if a in early)
    return moved


def _after(graph: Graph, moved: set[Node]) -> set[Node]:
    """Products that no result depends on, all that is made of them, and sums over rows."""
    leaves = depends(nodes := graph.nodes())
    carried, free = set(topological(graph.results)), {n for n in nodes if not leaves[n]}
    found: set[Node] = set()
    for node in nodes:
        product = node.op == "gemm" or batched_product(node, free) is not None
        wanted = product or any(a in found for a in node.args)
        if "sum_rows" in leaves[node] or (wanted and node not in carried and node not in moved):
            found.add(node)
    return found


def _masked_operands(graph: Graph, early: set[Node], moved: set[Node]) -> set[Node]:
    """What is made of masks, and read by sums over all rows alone: x * mask and h * mask. One pass over all rows costs
    less than a mask, an input and an array to write in every step."""
    nodes, users, roots = graph.nodes(), graph.users(), {*graph.roots}
    masked, multiples = downstream(nodes, lambda n: n.random), _multiples(nodes)
    found = {n for n in masked if n.pointwise and n in early and n not in moved and n not in roots and users[n]}
    found -= multiples

    def fits(node: Node) -> bool:
        read = all(u in found or (not u.leaf and TABLE[u.op].kind == "sum_rows") for u in users[node])
        return read and all(a.leaf or a in moved or a in multiples or a in found for a in node.args)

    while wrong := {n for n in found if not fits(n)}:
        found -= wrong
    return found


def _multiples(nodes: list[Node]) -> set[Node]:
    """What is computed from masks and constants alone."""
    found: set[Node] = set()
    for node in nodes:
        constant = all(a in found or a.mask or a.scalar is not None for a in node.args)
        if node.pointwise and constant and any(a.mask or a in found for a in node.args):
            found.add(node)
    return found


def _with_own_masks(graph: Graph) -> Graph:
    """A multiple of a mask, which many regions read, becomes a node of each: else it would be stored for all rows."""
    nodes = graph.nodes()
    multiples = _multiples(nodes)
    new: dict[Node, Node] = {}
    copies: dict[tuple[Node, str], Node] = {}
    regions: dict[Node, str] = {}

    def own(node: Node, region: str) -> Node:
        if node not in multiples:
            return new[node]
        if (node, region) not in copies:
            made = replace(node, args=tuple(own(a, region) for a in node.args))
            copies[node, region], regions[made] = made, region
        return copies[node, region]

    for node in nodes:
        region = graph.region_of(node)
        if node in multiples:
            new[node] = node
            continue
        args = tuple(own(a, region) for a in node.args)
        new[node] = node if all(a is b for a, b in zip(args, node.args, strict=True)) else replace(node, args=args)
        if node in graph.region:
            regions[new[node]] = region
    if not multiples:
        return graph
    roots = {n: own(n, graph.region_of(n)) for n in multiples if n in {*graph.roots}}
    return rewrite(graph, {**new, **roots}, region=regions)


def _grows(node: Node, kept: Collection[Node] = ()) -> bool:
    """An outer product, or what is made of one that is not kept: cheap to compute in the loop, large to keep for all
    steps."""
    outer = (a for a in node.args if a.pointwise and a not in kept)
    return prod(node.shape) > sum(prod(a.shape) for a in node.args) or any(_grows(a, kept) for a in outer)


def _sink(graph: Graph, moved: set[Node]) -> dict[Node, str]:
    """Give back to the loop cheap nodes whose operands must be kept for the loop anyway: less memory, no more work.
    Returns them with the reason."""
    given: dict[Node, str] = {}
    users = graph.users()
    roots = set(graph.roots)
    for node in reversed(graph.nodes()):
        if node not in moved or TABLE[node.op].kind in (*HEAVY, "scan") or any(u in moved for u in users[node]):
            continue
        operands = [a for a in node.args if a in moved]
        kept = [a for a in operands if any(u not in moved for u in users[a]) or a in roots]
        if operands and len(kept) == len(operands):
            moved.discard(node)
            given[node] = "cheap, and what it reads is kept for the loop anyway: less memory, no more work"
        elif TABLE[node.op].kind == "move" and len(operands) == 1:
            moved.discard(node)
            given[node] = "a view of one stored value costs nothing where it is read"
    return given


def _sunk(graph: Graph, moved: set[Node]) -> dict[Node, str]:
    """What is given back to the loop. In a backward graph whose tape has states alone, and all else is made again, that
    is more where it saves a vector as wide as the output."""
    plain, few = set(moved), set(moved)
    sunk = _sink(graph, plain)
    if graph.kind == "backward" and len(graph.inputs) == 2 + len(graph.emitted) + len(graph.states):
        given = _cut(graph, few)
        if _left(graph, few) + prod(graph.inputs[0].shape) <= _left(graph, plain):
            plain, sunk = few, given
    moved &= plain
    return sunk


def _left(graph: Graph, moved: set[Node]) -> int:
    """Elements that are kept for the loop."""
    users = graph.users()
    return sum(prod(n.shape) for n in moved if any(u not in moved for u in users[n]))


def _cut(graph: Graph, moved: set[Node]) -> dict[Node, str]:
    """Give back all but the fewest elements of which the steps can make what they read without a product, as a tape of
    values would. Returns what is given back, with the reason."""
    users, late, roots = graph.users(), _after(graph, moved), {*graph.roots}
    stays = {n for n in moved if n in roots or is_scan(n) or any(u in late for u in users[n])}
    read = [n for n in graph.nodes() if n in moved and any(u not in moved and u not in late for u in users[n])]
    wanted = {n for n in topological([*cheapest_cut(graph, read, stays), *stays]) if n in moved}
    given = moved - wanted
    moved &= wanted
    return dict.fromkeys(given, "made again in the steps of what they read anyway: fewer elements for all of T")


def _tell(
    nodes: list[Node],
    leaves: Mapping[Node, frozenset[str]],
    *,
    moved: set[Node],
    late: set[Node],
    early: set[Node],
    large: set[Node],
    sunk: Mapping[Node, str],
) -> None:
    """What became of every product and reduction, and of what hangs on them. moved, late: values that moved out, to the
    front or to the back; early: those that no state is needed for; large: of these the ones that are too large to keep;
    sunk: those that were given back, with the reason."""
    heavy = [n for n in nodes if not n.leaf and TABLE[n.op].kind in HEAVY and leaves[n]]
    states = states_of(nodes)
    for node in heavy:
        facts = {"elements": prod(node.shape)}
        kind = "product" if TABLE[node.op].kind == "contract" else "reduction"
        if node in moved:
            tell(True, in_words(node), f"reads no state: one {kind} over all T before the loop", **facts)
        elif node in late:
            why = f"no gradient that is carried reads it: one {kind} over all T after the loop"
            tell(True, in_words(node), why, **facts)
        elif node in large:
            tell(False, in_words(node), "made of a matrix of each step, which would be kept for all of T", **facts)
        else:
            tell(False, in_words(node), f"reads {' and '.join(states[node])}, known only within the loop", **facts)
    for node in (n for n in nodes if n.random):
        why = "made of counters for all rows of a tile at once, and again where gradients read it"
        tell(True, in_words(node), why, elements=prod(node.shape))
    if not heavy:
        tell(False, "the step", "it has no product and no reduction")
    for node, reason in sunk.items():
        tell(False, in_words(node), reason)
    for node in early - moved - large - sunk.keys():
        if any(a in moved for a in node.args) and _grows(node):
            wide, narrow = prod(node.shape), sum(prod(a.shape) for a in node.args)
            why = f"an outer product: {wide} elements to keep per step and row in place of {narrow}"
            tell(False, in_words(node), why, elements=wide)
        elif node.pointwise and not any(a in sunk for a in node.args):
            tell(False, in_words(node), "hangs on no product: computed where it is read, and not kept for all of T")
