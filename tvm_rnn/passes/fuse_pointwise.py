"""Form groups: each product or reduction with the pointwise work that can run in its epilogue, the rest in groups of
one index space; and decide which values are stored.

In: a graph with regions. Out: `graph.groups` in an order that respects every dependence, with phases in `step`. A
pointwise node joins the group of its latest operand if it has the same index space there and reads it element by
element; otherwise a later group of its own shape, otherwise a new one. Switched off, every pointwise node is a group
of its own. A recurrence over all time is one group with what is read of it, and with the pointwise work around it.

Rewrite: z = gemm(..); a = sigmoid(z[0]); b = tanh(z[1]); c = a * b   -->   one group: gemm with epilogue a, b, c
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import (
    Graph,
    Group,
    Node,
    constant,
    depends,
    downstream,
    has_steps,
    is_move,
    is_scan,
    make,
    recurrence_states,
    rewrite,
    sums_rows,
    with_args,
)
from tvm_rnn.graph.node_text import in_words, joined
from tvm_rnn.graph.ops import GEMMS, TABLE, Shape

from ..decisions import listening, tell
from . import Pass
from .min_cut import HEAVY

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target

FUNCTION = 10  # an op of so many FLOPs is a function (exp, tanh, ...), not arithmetic
DEEPEST_INLINED = 4
WITH_POLES = ("div", "log", "mod", "power")  # no number, or none that is finite, where an operand is 0
MATRICES = ("scan_matrix", "rescan")
WITHOUT_EPILOGUE = {"reduce": "reduction", "random": "mask"}


@dataclass(frozen=True)
class FusePointwise(Pass):
    """Group the step and what was hoisted. enabled=False: one group per node (for ablation; still correct)."""

    name = "fuse_pointwise"
    enabled: bool = True

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        return grouped(graph, self.enabled, scans=self.enabled and target.kind == "cuda")

    def ensures(self, graph: Graph) -> None:
        ready: set[Node] = set()
        leaves = depends(graph.nodes())
        for group in graph.groups:
            members = set(group.nodes)
            for node in group.nodes:
                if node.leaf or node in ready:  # copied from where it is
                    continue
                for base in (b for a in node.args for b in bases(a, ready)):
                    ok = base.leaf or base in members or base in ready or not leaves[base]
                    self.check(ok, f"{node.op} reads a {base.op} that no earlier group stores", graph)
            ready.update(group.stored)
        for root in (*_finals(graph, "before"), *_finals(graph, "step")):
            self.check(root in ready or root.leaf, "a result is stored by no group", graph)
        grouped = {n for g in graph.groups if g.kind == "scan" for n in g.nodes}
        self.check({n for n in graph.results if is_scan(n)} <= grouped, "a recurrence has no group", graph)
        for node in read_at_last(graph):
            stored = node in ready or node.leaf
            self.check(stored, f"{node.op} is read after all steps, and stored by no group", graph)


def grouped(graph: Graph, enabled: bool = True, scans: bool = False) -> Graph:
    """The graph with groups. enabled=False: one per node. scans: those of recurrences take what they read first."""
    graph = _own_windows(_own_results(_on_units(graph) if scans else graph, scans))
    nodes = graph.nodes()
    leaves = depends(nodes)
    groups: list[Group] = []
    for region in ("before", "step", "after"):
        own = [n for n in nodes if _is_work(n, leaves) and graph.region_of(n) == region]
        groups += _Grouping(graph, region, own, enabled, leaves, scans=scans).run()
    return replace(graph, groups=tuple(groups))


def _is_work(node: Node, leaves: Mapping[Node, frozenset[str]]) -> bool:
    """Something to do for each row of each step."""
    return bool(leaves[node]) and not node.leaf and "sum_rows" not in leaves[node]


def _finals(graph: Graph, region: str) -> tuple[Node, ...]:
    """The results that a region itself must leave in arrays, whatever they are: leaves and views are copied."""
    stepped = tuple(n for n in graph.results if not is_scan(n))
    if graph.kind == "backward":
        return stepped if region == "step" else ()
    own = (graph.output,) if region == ("step" if has_steps(graph) else "before") else ()
    return (*(stepped if region == "step" else ()), *own, *(n for n in graph.emitted if graph.region_of(n) == region))


def read_at_last(graph: Graph, without: Collection[Node] = ()) -> list[Node]:
    """The values that a backward graph must store for more than a step: `after` and sums over rows read them, or
    they are the gradients of inputs. Among them may be states, of which the step itself has only the latest.

    without: sums that are made elsewhere."""
    if graph.kind != "backward":
        return []
    leaves = depends(nodes := graph.nodes())
    sums = [n for n in nodes if sums_rows(n) and n not in without]
    ends = {b for n in (*(a for n in sums for a in n.args), graph.output, *graph.emitted) for b in bases(n)}
    last = [n for n in nodes if graph.region_of(n) == "after" and n not in without]
    read = {b for n in last for a in n.args for b in bases(a)}
    wanted = ends | {b for b in read if graph.region_of(b) != "after"}
    return [n for n in nodes if n in wanted and (_is_work(n, leaves) or n.op == "state")]


def quotients(groups: Sequence[Group]) -> list[Node]:
    """What groups of `after` store where they divide: in rows that have ended all that they read is 0, and 0 / 0 would
    reach the sums over rows."""
    divides = any(node.op in WITH_POLES for group in groups for node in group.nodes)
    return [node for group in groups for node in group.stored] if divides else []


def _own_results(graph: Graph, scans: bool) -> Graph:
    """A result that is a view and is also read becomes a node of its own: its array is filled at the end of the step,
    and what reads the view must not read that array before. A join that products read is filled at its place, and so is
    a gate of a hoisted product. scans: as of `grouped`."""
    nodes, users = graph.nodes(), graph.users()
    leaves = depends(nodes)
    finals = (*_finals(graph, "before"), *_finals(graph, "step"))
    filled = {n for n in finals if _is_kept(n, users) or (scans and _is_gate(n, graph))}
    own = {n: replace(n) for n in finals if is_move(n) and leaves[n] and users[n] and n not in filled}
    return rewrite(graph, own, region={**graph.region, **{new: graph.region_of(n) for n, new in own.items()}})


def _own_windows(graph: Graph) -> Graph:
    """What sums over rows see of a convolution's operand are views of their own: the step has an array of the padded
    operand for one step alone."""
    copies: dict[Node, Node] = {}

    def own(node: Node) -> Node:
        if is_move(node) and node not in copies:
            copies[node] = replace(node, args=tuple(map(own, node.args)))
        return copies.get(node, node)

    def seen(node: Node) -> Node:
        args = tuple(own(a) if a.op == "windows" else a for a in node.args)
        return node if args == node.args else replace(node, args=args)

    new: dict[Node, Node] = {}
    for node in graph.nodes():
        new[node] = with_args(node, new)
        new[node] = seen(new[node]) if sums_rows(node) else new[node]
    if not copies:
        return graph
    region = {new[n]: where for n, where in graph.region.items() if n in new}
    return rewrite(graph, new, region={**graph.region, **region, **dict.fromkeys(copies.values(), "after")})


def _on_units(graph: Graph) -> Graph:
    """Pointwise work on hoisted products that are seen as heads is done on their units, as epilogues can: what is known
    of each unit, and the products, come in their shape, and results are seen as heads. It is, where nothing else reads
    the products: they are not stored then."""
    leaves = depends(nodes := graph.nodes())
    products = {n: found for n in nodes if (found := _seen_as_heads(n, graph)) is not None}
    moved = _moved(graph, products, leaves)
    new, flat = dict[Node, Node](), dict[Node, Node]()

    def units(node: Node) -> Node:
        """An operand in the shape of units."""
        if node in flat or node in products:
            return flat[node] if node in flat else new[node.args[0]]
        if node.scalar is not None:
            return constant(node.scalar, 1)
        return make("reshape", new[node], rank=len(node.shape), to=(prod(node.shape),))

    for node in nodes:
        new[node] = with_args(node, new)
        if node in moved:
            flat[node] = make(node.op, *map(units, node.args), source=node.source, **node.attrs)
            new[node] = make("reshape", flat[node], rank=1, to=node.shape)
    if not flat:
        return graph
    region = {new[n]: where for n, where in graph.region.items() if n in new}
    return rewrite(graph, {**new, **flat}, region={**graph.region, **region, **dict.fromkeys(flat.values(), "before")})


def _seen_as_heads(node: Node, graph: Graph) -> Node | None:
    """The hoisted product of which a node is a gate, or all, in another shape."""
    if node.op != "reshape" or len(node.args[0].shape) != 1 or len(node.shape) == 1:
        return None
    (own,) = node.args
    base = own.args[0] if own.op == "index" and own.attrs["axis"] == -2 else own
    hoisted = base.op == "gemm" and len(base.shape) <= 2 and graph.region_of(base) == "before"
    return base if hoisted else None


def _is_gate(node: Node, graph: Graph) -> bool:
    """Whether a node is what a hoisted product makes of one of its gates."""
    gate = node.op == "index" and node.attrs["axis"] == -2 and node.args[0].op == "gemm" and len(node.shape) == 1
    return gate and graph.region_of(node.args[0]) == "before"


def _moved(graph: Graph, products: Mapping[Node, Node], leaves: Mapping[Node, frozenset[str]]) -> set[Node]:
    """The pointwise nodes that are made of products' views, and of what is known, by products that nothing else
    reads."""
    users, ends, stored = graph.users(), {*graph.results, graph.output}, set[Node]()
    arrays = {n for n in graph.emitted if _is_gate(n, graph)}  # which others read

    def read_elsewhere(node: Node) -> bool:
        moves = [u for u in users[node] if u not in found and u not in arrays]
        return node in ends or any(not is_move(u) or read_elsewhere(u) for u in moves)

    def moves(node: Node) -> bool:
        late = [a for a in node.args if leaves[a]]
        alike = all(a.shape == node.shape or (prod(a.shape) == 1 and not leaves[a]) for a in node.args)
        if not late or not alike or not node.pointwise or node.boolean or node in ends:
            return False
        return all(a in found or (a in products and products[a] not in stored) for a in late)

    while True:
        found: set[Node] = set()
        for node in (n for n in graph.nodes() if graph.region_of(n) == "before"):
            found |= {node} if moves(node) else set()
        more = {base for base in products.values() if read_elsewhere(base)} - stored
        if not more:
            return found
        stored |= more


def _is_kept(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """A join that a product reads must become an array, and what a convolution in the step does."""
    read = [u for u in users[node] if u.op == "windows" and not all(map(sums_rows, users[u]))]
    return bool(read) or (len(bases(node)) > 1 and any(u.op in GEMMS and node in u.args for u in users[node]))


def _space(root: Node) -> Shape:
    """The index space of a product's or reduction's group: units, of a batched GEMM those of all members."""
    return (root.shape[0], root.shape[-1]) if root.op == "batched_gemm" else root.shape[-1:]


def _sums_neighbours(root: Node) -> bool:
    """Whether a reduction is along the last axes: whoever has some of the others needs nothing of the rest."""
    kept = root.shape
    while kept and kept[-1] == 1:
        kept = kept[:-1]
    return root.args[0].shape[: len(kept)] == kept


def is_truth(node: Node) -> bool:
    """A comparison or a combination of them: never stored, computed again wherever it is read."""
    return node.pointwise and node.boolean


def bases(node: Node, arrays: Collection[Node] = ()) -> list[Node]:
    """The values that must be stored for `node` to be read: below views (index, reshape, ...) and truth values. arrays:
    views that are stored."""
    if node in arrays or not (is_move(node) or is_truth(node)):
        return [node]
    return [b for a in node.args for b in bases(a, arrays)]


def recurrences(nodes: Sequence[Node]) -> dict[Node, tuple[Node, ...]]:
    """For each row of kind `scan` all rows of its recurrence: those of all states that it mixes, what is carried, and
    what is read."""
    rows: dict[Hashable, list[Node]] = {}
    first: dict[Node, Hashable] = {}
    for node in (n for n in nodes if is_scan(n)):
        if node.op in ("carried", "read_out"):
            first[node] = first[node.args[0]]
        else:  # what is made again of a matrix and of its gradient is read together
            first[node] = node.attrs["of"] if node.op == "rescan" else recurrence_states(node)
        rows.setdefault(first[node], []).append(node)
    return {node: tuple(rows[key]) for node, key in first.items()}


@dataclass
class _Draft:
    kind: str
    space: Shape
    root: Node | None
    nodes: list[Node] = field(default_factory=list)


class _Grouping:
    """Forms the groups of one region."""

    def __init__(
        self,
        graph: Graph,
        region: str,
        nodes: list[Node],
        enabled: bool,
        leaves: Mapping[Node, frozenset[str]],
        *,
        scans: bool = False,
    ) -> None:
        self.graph, self.region, self.nodes, self.enabled, self.leaves = graph, region, nodes, enabled, leaves
        self.scans = scans
        self.users = graph.users()
        self.inside = set(nodes)
        self.home: dict[Node, int] = {}
        self.drafts: list[_Draft] = []
        self.results = {
            graph.output,
            *graph.emitted,
            *graph.weight_gradients,
            *(n for n in graph.results if not is_scan(n)),
        }
        self.recurrences = recurrences(nodes)
        self.inlined = self._inlined() | self._prologues()

    def run(self) -> list[Group]:
        for node in self._ordered():
            if is_scan(node):
                self._scan(node)
            elif TABLE[node.op].kind in HEAVY:
                for operand in node.args:
                    self._need(operand)
                if node.op not in GEMMS:
                    self._need_inlined(node)
                index = self._open("gemm" if node.op in GEMMS else "reduce", _space(node), node)
                for gate in self.users[node] if self.scans else ():
                    if gate in self.graph.emitted and _is_gate(gate, self.graph):  # an array of its own from here on
                        self.home[gate] = index
                        self.drafts[index].nodes.append(gate)
                self.drafts[index].nodes[:0] = self._inlined_below(node)
            elif node.pointwise and not is_truth(node) and node not in self.inlined and not self._free(node):
                self._place(node)
            elif node.random or (is_move(node) and _is_kept(node, self.users)):
                self._copy(node)
        for node in self._read_elsewhere() if self.region != "step" or self.graph.kind == "backward" else ():
            self._need(node)
        for root in _finals(self.graph, self.region):
            self._need(root, final=True)
        if self.scans:
            self._into_recurrences()
        if self.scans and self.region == "before":
            self._to_readers()
            self._to_makers()
            self._sums_early()
        if self.enabled and not self.scans and self.region == "step":
            self._together()
        return self._finish()

    def _together(self) -> None:
        """Pointwise work on sums, which are stored in any case, is done where one later group alone reads it, element
        by element: gates of several sums in one loop, which asks for what is given of all of them at once.

        Rewrite: z = sum(..); i = sigmoid(z); g = sum(..); c = i * tanh(g)  -->  z, g = sum(..), sum(..); c = ..
        """
        read = {b for n in self._read_elsewhere() for b in self._through(n)}
        for index in reversed(range(len(self.drafts))):
            draft = self.drafts[index]
            members = set(draft.nodes)
            if draft.kind != "pointwise" or members & read or not all(n.pointwise for n in members):
                continue
            users = {u for n in members for u in self.users[n]} - members
            homes = {self.home.get(u, -1) if u.pointwise and u.shape == draft.space else -1 for u in users}
            home = homes.pop() if len(homes) == 1 else -1
            alike = home > index and self.drafts[home].kind == "pointwise" and not any(is_truth(u) for u in users)
            below = {b for n in members for a in n.args if a not in members for b in self._through(a)}
            if alike and all(self._is_stored(b) for b in below):
                self.drafts[home].nodes[:0] = draft.nodes
                self.home.update(dict.fromkeys(draft.nodes, home))
                draft.nodes = []
        self._forget_empty()

    def _is_stored(self, node: Node) -> bool:
        """Whether a value is an array whoever reads it."""
        home = self.home.get(node)
        return node.leaf or home is None or self.drafts[home].root is node

    def _forget_empty(self) -> None:
        """Drop groups of which nothing is left."""
        for index in reversed([i for i, d in enumerate(self.drafts) if not d.nodes]):
            del self.drafts[index]
            self.home = {n: h - (h > index) for n, h in self.home.items()}

    def _to_readers(self) -> None:
        """What one later group alone reads, element by element, is made there and never stored: out of a recurrence's
        loop all that does not read it; of pointwise work what is made of one value, of which no more is read then."""
        read = {b for n in self._read_elsewhere() for b in self._through(n)}
        for index in reversed(range(len(self.drafts))):
            draft = self.drafts[index]
            loop = draft.kind == "scan" and draft.root is not None and draft.root.op not in MATRICES
            if not loop and draft.kind != "pointwise":
                continue
            rows = {n for n in draft.nodes if is_scan(n)}
            late = downstream(draft.nodes, rows.__contains__)
            for node in [n for n in reversed(draft.nodes) if n.pointwise and n not in late and n not in read]:
                target = self._only_reader(node, index)
                if target is not None and (loop or len(self._read_whole(node)) <= 1):
                    draft.nodes.remove(node)
                    self.drafts[target].nodes.insert(0, node)
                    self.home[node] = target
        self._forget_empty()

    def _to_makers(self) -> None:
        """What a reduction makes in its loop of several values, for which alone these would be stored, is made where
        they are. What groups next to each other read of one another, pointwise work and reductions, is not stored."""
        outside = {b for n in self._read_elsewhere() for b in self._through(n)}
        for draft in self.drafts:
            for node in [n for n in draft.nodes if draft.kind == "reduce" and n is not draft.root and n.pointwise]:
                args = {a for a in node.args if self.leaves[a]}
                homes = {self.home.get(a, -1) if a.shape == node.shape else -1 for a in args}
                home = homes.pop() if len(homes) == 1 else -1
                if len(args) < 2 or home < 0 or self.drafts[home].kind != "pointwise" or is_truth(node):
                    continue
                apart = [i for i in range(home, len(self.drafts)) if self.drafts[i].kind not in ("pointwise", "reduce")]
                late = {n for d in self.drafts[apart[0] :] for n in d.nodes} if apart else set()
                if node in late and {u for a in args for u in self.users[a]} & late == {node} and not args & outside:
                    draft.nodes.remove(node)
                    self.drafts[home].nodes.append(node)
                    self.home[node] = home

    def _sums_early(self) -> None:
        """A sum of neighbours that groups without products make or read, before a product or a recurrence comes, is
        made behind these: there the values are at hand, and need not come from memory again."""
        for draft in [d for d in self.drafts if d.kind == "reduce" and d.root is not None and _sums_neighbours(d.root)]:
            index = self._index(draft)
            operands = self._operands(draft)
            latest = max((self.home.get(b, -1) for b in operands), default=-1)
            stretches = [own for own in self._stretches() if latest <= own[-1] and own[-1] < index and index not in own]
            at_hand = [own for own in stretches if operands <= self._at_hand(own)]
            if operands and at_hand:
                to = at_hand[0][-1] + 1
                self.drafts.insert(to, self.drafts.pop(index))
                moved = {h: to if h == index else h + (to <= h < index) for h in range(len(self.drafts))}
                self.home = {n: moved[h] for n, h in self.home.items()}

    def _operands(self, draft: _Draft) -> set[Node]:
        """Arrays that a group reads, but for parameters."""
        return {
            b for n in draft.nodes for a in n.args for b in self._through(a) if b not in draft.nodes and self.leaves[b]
        }

    def _stretches(self) -> list[list[int]]:
        """Groups without products or recurrences, one behind the other: one kernel may run them."""
        found: list[list[int]] = []
        for index, draft in enumerate(self.drafts):
            if draft.kind in ("pointwise", "reduce"):
                if found and found[-1][-1] == index - 1:
                    found[-1].append(index)
                else:
                    found.append([index])
        return found

    def _at_hand(self, stretch: Sequence[int]) -> set[Node]:
        """Values that some groups make or read."""
        drafts = [self.drafts[i] for i in stretch]
        return {n for d in drafts for n in d.nodes} | {b for d in drafts for b in self._operands(d)}

    def _only_reader(self, node: Node, index: int) -> int | None:
        """The one pointwise group behind group `index` that reads a node of it, and does so element by element."""
        users = self.users[node]
        homes = {self.home.get(u, -1) if u.shape == node.shape and u.pointwise else -1 for u in users}
        home = homes.pop() if len(homes) == 1 else -1
        alike = home > index and self.drafts[home].kind == "pointwise" and self.drafts[home].space == node.shape
        return home if alike and not any(is_truth(u) for u in users) else None

    def _read_whole(self, node: Node) -> set[Node]:
        """The stored values that a node is made of, but for parameters and what has fewer elements."""
        found = {b for a in node.args for b in bases(a) if self.leaves[b]}
        return {b for b in found if prod(b.shape) >= prod(node.shape)}

    def _into_recurrences(self) -> None:
        """Pointwise work that a recurrence reads element by element, and nobody before it, joins its loop: what is read
        there is less than what is made of it, which would be stored in the dtype of arithmetic."""
        for scan in [d for d in self.drafts if d.root is not None and d.kind == "scan" and d.root.op not in MATRICES]:
            for draft in reversed(self.drafts[: self._index(scan)]):
                index, at = self._index(draft), self._index(scan)
                own = draft.kind == "pointwise" and draft.space == scan.space and all(n.pointwise for n in draft.nodes)
                read = [self._reads(d, index) for d in self.drafts[index + 1 : at]]
                if own and self._reads(scan, index) and not any(read) and not self._misreads(scan, index):
                    scan.nodes[:0] = draft.nodes
                    self.home.update(dict.fromkeys(draft.nodes, at))
                    del self.drafts[index]
                    self.home = {n: h - (h > index) for n, h in self.home.items()}

    def _reads(self, draft: _Draft, index: int) -> bool:
        """Whether it reads what group `index` computes."""
        args = (a for n in draft.nodes for a in (n.args or (n,)))
        return any(self.home.get(b) == index for a in args for b in self._through(a))

    def _misreads(self, draft: _Draft, index: int) -> bool:
        """Whether it reads what group `index` computes at another element than its own."""
        read = [a for n in draft.nodes for a in n.args if a not in draft.nodes and self.home.get(a) != index]
        others = [a for a in read if not (is_truth(a) and a.shape == draft.space and self._misread(a, index) is None)]
        return any(self.home.get(b) == index for a in others for b in self._through(a))

    def _ordered(self) -> list[Node]:
        """Arguments first; what any row of a recurrence reads comes before all of its rows."""
        found: dict[Node, None] = {}
        stack = [(node, False) for node in reversed(self.nodes)]
        seen: set[Node] = set()
        while stack:
            node, ready = stack.pop()
            if ready:
                found[node] = None
            elif node in self.inside and node not in seen:
                seen.add(node)
                stack.append((node, True))
                rows = self.recurrences.get(node, (node,))
                stack += [(a, False) for row in reversed(rows) for a in reversed(row.args) if a not in rows]
                stack += [(n, False) for row in rows if row.op == "rescan" for n in self._gradients(row)]
        return list(found)

    def _gradients(self, row: Node) -> list[Node]:
        """The recurrence that goes before what is made again: on GPUs it leaves the gradients at borders of parts."""
        return [n for n in self.nodes if n.op == "scan_matrix" and n.args[0] is row.args[0]]

    def _scan(self, node: Node) -> None:
        """A row of a recurrence: the first opens its group, behind what any of them reads."""
        rows = self.recurrences[node]
        draft = next((d for d in self.drafts if d.root in rows), None)
        if draft is not None:
            self.home[node] = self._index(draft)
            draft.nodes.append(node)
            return
        below: dict[Node, None] = {}
        for row in rows:
            self._need_inlined(row)
            below.update(dict.fromkeys(self._inlined_below(row)))
        self.drafts[self._open("scan", node.shape, node)].nodes[:0] = below

    def _prologues(self) -> set[Node]:
        """Pointwise nodes that one recurrence alone reads, element by element: computed in its loop."""
        found: dict[Node, tuple[Node, ...]] = {}
        for node in reversed(self.nodes):
            users = self.users[node]
            if not self.enabled or not node.pointwise or is_truth(node) or not users or node in self.results:
                continue
            rows = self.recurrences.get(users[0]) or found.get(users[0], ())
            joins = all((self.recurrences.get(u) or found.get(u)) == rows and u.shape == node.shape for u in users)
            if rows and joins and rows[0].op not in MATRICES:
                found[node] = rows
        return set(found)

    def _read_elsewhere(self) -> list[Node]:
        """Results, and what another region reads: views among them, whose bases must be stored."""
        users = self.users.items()
        return [n for n, readers in users if n in self.results or any(u not in self.inside for u in readers)]

    def _inlined(self) -> set[Node]:
        """Pointwise nodes that only reductions read: computed inside the reduction's loop, never stored.

        At most one function (exp of a softmax) and little that is used twice: TVM's lowering of one expression is
        exponential in the depth of both (five functions deep took 24 s).
        """
        found: dict[Node, int] = {}  # how much of that lies between the node and the reduction
        for node in reversed(self.nodes):
            users = self.users[node]
            light = node.pointwise or is_move(node)
            if not light or is_truth(node) or not users or node in self.results or not self.enabled:
                continue
            if not all(u in found or (u in self.inside and TABLE[u.op].kind == "reduce") for u in users):
                continue
            depth = max(found.get(u, 0) for u in users) + (len(users) > 1) + 3 * (TABLE[node.op].cost >= FUNCTION)
            if depth <= DEEPEST_INLINED:
                found[node] = depth
            else:
                why = f"inside the reduction it would be {depth} deep, and {DEEPEST_INLINED} is the most"
                tell(False, in_words(node), f"{why}: stored instead")
        return set(found)

    def _free(self, node: Node) -> bool:
        """Reads nothing that this region's groups compute: it can be computed where it is first needed."""
        return all(b.leaf or b not in self.inside for a in node.args for b in bases(a)) and self.enabled

    def _latest(self, node: Node) -> int:
        found = [self.home[b] for a in node.args for b in self._through(a) if b in self.home]
        return max(found, default=-1)

    def _through(self, node: Node) -> list[Node]:
        """The values that must be there for `node` to be read: below views that are no arrays, truth values and inlined
        nodes."""
        if node not in self.home and (is_move(node) or is_truth(node) or node in self.inlined):
            return [b for a in node.args for b in self._through(a)]
        return [node]

    def _need(self, node: Node, final: bool = False) -> None:
        """Make sure that a free node is placed, because something now reads it as an array."""
        if node in self.home or ((node not in self.inside and not (final and not node.leaf)) and not final):
            return
        if final and (node.leaf or is_move(node) or node not in self.inside):
            if node not in self.home:
                self._copy(node)
            return
        if is_move(node) or is_truth(node):
            for base in bases(node):
                self._need(base)
        elif node.pointwise and node not in self.inlined:
            self._place(node)

    def _need_inlined(self, node: Node) -> None:
        for arg in node.args:
            for base in bases(arg):
                if base in self.inlined:
                    self._need_inlined(base)
                else:
                    self._need(base)

    def _inlined_below(self, node: Node) -> list[Node]:
        """What a reduction computes inside its own loop, arguments first."""
        found: dict[Node, None] = {}
        for arg in node.args:
            if arg in self.inlined:
                found.update(dict.fromkeys([*self._inlined_below(arg), arg]))
            elif is_move(arg):
                found.update(dict.fromkeys(self._inlined_below(arg)))
        return list(found)

    def _place(self, node: Node) -> None:
        latest = self._latest(node)
        index = self._join(node, latest) if self.enabled else None
        if index is None:
            index = self._open("pointwise", node.shape, None)
        self._put(node, self.drafts[index])

    def _put(self, node: Node, draft: _Draft) -> None:
        """Into that group; free operands into the same one where the space allows it, else into one before it."""
        self.home[node] = self._index(draft)
        for arg in node.args:
            for base in bases(arg):
                if base in self.inside and base not in self.home and base.pointwise and base not in self.inlined:
                    same = base is arg and base.shape == draft.space
                    self._put(base, draft if same else self._insert(self._index(draft), base.shape))
        draft.nodes.append(node)

    def _index(self, draft: _Draft) -> int:
        return next(i for i, d in enumerate(self.drafts) if d is draft)

    def _insert(self, index: int, space: Shape) -> _Draft:
        """A new group at that place. Free nodes depend on nothing in this region: any place will do for them."""
        self.drafts.insert(index, _Draft("pointwise", space, None))
        self.home = {n: h + (h >= index) for n, h in self.home.items()}
        return self.drafts[index]

    def _join(self, node: Node, latest: int) -> int | None:
        reasons: dict[str, None] = {}
        for index in range(max(latest, 0), len(self.drafts)):
            draft = self.drafts[index]
            if draft.kind in WITHOUT_EPILOGUE or (draft.root is not None and draft.root.op in MATRICES):
                reasons[f"a {WITHOUT_EPILOGUE.get(draft.kind, 'matrix')} has no epilogue"] = None
            elif draft.kind == "scan" and self.region == "before" and prod(node.shape) == 1 and not self.scans:
                reasons["several rows at once are quicker than step by step"] = None
            elif draft.kind == "scan" and self.region == "before" and index > latest and not self.scans:
                reasons["a recurrence that it does not read would wait for it"] = None
            elif draft.space != node.shape:
                reasons[f"its shape is {list(node.shape)}, of the group that it reads {list(draft.space)}"] = None
            elif index > latest or (misread := self._misread(node, index)) is None:
                return index
            elif listening():
                reasons[f"reads {in_words(misread)} at another element"] = None
        if reasons:
            tell(False, in_words(node), "; ".join(reasons), region=self.region)
        return None

    def _misread(self, node: Node, index: int) -> Node | None:
        """An operand that group `index` computes and that is not read at the node's own element."""
        draft = self.drafts[index]
        for arg in node.args:
            if is_truth(arg) and arg.shape == node.shape:
                if (misread := self._misread(arg, index)) is not None:
                    return misread
                continue
            gate = arg.op == "index" and arg.args[0] is draft.root and arg.attrs["axis"] == -2
            if gate or self.home.get(arg) == index:
                continue
            if any(self.home.get(b) == index for b in self._through(arg)):
                return arg
        return None

    def _open(self, kind: str, space: Shape, root: Node | None) -> int:
        self.drafts.append(_Draft(kind, space, root, [root] if root is not None else []))
        if root is not None:
            self.home[root] = len(self.drafts) - 1
        return len(self.drafts) - 1

    def _copy(self, node: Node) -> None:
        """An array made by copying a view, a leaf, or a value of another region; or a mask."""
        for base in bases(node):
            if base in self.inside and base not in self.home:
                self._need(base)
        self._open("random" if node.random else "pointwise", node.shape, None)
        self.home[node] = len(self.drafts) - 1
        self.drafts[-1].nodes.append(node)

    def _finish(self) -> list[Group]:
        wanted: set[Node] = set()
        for index, draft in enumerate(self.drafts):
            for node in draft.nodes:
                for arg in (node.args or (node,)) if is_move(node) or node.leaf else node.args:
                    wanted.update(b for b in self._through(arg) if self.home.get(b) not in (None, index))
        outside = {b for n in self._read_elsewhere() for b in self._through(n)}
        phase, groups = 0, []
        for draft in self.drafts:
            if self.region == "step" and (draft.root is not None or not phase):
                phase += 1
            keep = [n for n in draft.nodes if n in wanted or n in self.results or n in outside]
            groups.append(Group(draft.kind, self.region, phase, draft.root, tuple(draft.nodes), tuple(keep)))
            if listening():
                _tell(groups[-1], self.graph, self.leaves)
        return groups


def _tell(group: Group, graph: Graph, leaves: Mapping[Node, frozenset[str]]) -> None:
    """One group: what it computes in one go, and what of it becomes an array."""
    inside = sum(n is not group.root and (n.pointwise or n.leaf) for n in group.nodes)
    root = f"{group.kind} {in_words(group.root)}" if group.root is not None else "pointwise"
    what = f"{group.region}{f' {group.phase}' if group.region == 'step' else ''}: {root}"
    names = {result: f"the new {state.name}" for state, result in zip(graph.states, graph.results, strict=True)}
    names = {graph.output: "the output", **names}
    stored = joined(names.get(n) or in_words(n) for n in group.stored) or "nothing"
    words = f"{inside} pointwise operation{'s' * (inside != 1)}" if inside else "nothing else"
    why = f"{words} in it; stored: {stored}"
    facts = {"region": group.region, "phase": group.phase, "kind": group.kind, "pointwise": inside}
    from tvm_rnn.graph.flops import node_flops

    members = set(group.nodes)
    read = {
        b for n in group.nodes for a in n.args for b in bases(a) if b not in members and b.op not in ("param", "const")
    }
    own = [n for n in read if n.leaf or leaves[n]]
    facts |= {"flops": sum(node_flops(n) for n in group.nodes if not n.leaf)}
    facts |= {"moved_elements": sum(prod(n.shape) for n in (*own, *group.stored))}
    if group.kind == "gemm" and group.root is not None:
        facts |= {"weight_elements": sum(prod(w.shape) for w in group.root.args[::2])}
    tell(True, what, why, **facts, stored=len(group.stored))
