"""Find the states whose steps need not follow one another, and write their updates as recurrences over all time.

In: the normalised graph. Out: the new value of such a state is a row of kind `scan` (`graph/recurrences.py`), whose
operands are known for all steps, and its old value is `carried`. States are taken in the order of their dependence, so
that what one recurrence has found is known to the next. Of matrices no step is kept: where something is read of them
that is not a product with a known vector, they stay in the loop.

Rewrite: C' = f * C + i * outer(v, k);  y = C' @ q   -->   C' = scan_matrix(C, f, i * k, v);  y = read_out(C', q)

Source: Blelloch 1990, "Prefix sums and their applications"; Martin & Cundy 2018, "Parallelizing linear recurrent neural
nets over sequence length"; for matrices Yang, Wang, Zhang, Shen & Kim 2024, "Parallelizing linear transformers with the
delta rule over sequence length".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, depends, downstream, is_scan, make, recurrence_states, rewrite, with_args
from tvm_rnn.graph.node_text import in_words, joined
from tvm_rnn.graph.recurrences import KEPT_EVERY, KEPT_EVERY_ON_GPUS

from ..decisions import tell
from . import Pass
from .affine import Form, NotLinear, forms, known_form, product, spread, total
from .chunk_form import chunk_form, refused, sums_of_both
from .kept_read_outs import keep_read_outs
from .matrix_gradient import gradient
from .matrix_recurrence import MATRICES, Matrix, Solved, between, grows, is_matrix
from .max_plus import max_plus
from .normalise import normalise

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target

ROWS = frozenset({"scan", "scan_max", "delay", "scan_matrix"})  # what targets run over all time
# So many elements of all rows fill a GPU. One launch that walks their steps reads each value once, a recurrence over
# all time several times, but steps of few elements wait for one another. Both passes of spiking neurons, H200, walked
# and not: 32,768 elements, T 128, 83 and 63 us; 2,097,152, T 16, 266 and 840 us.
FILLING = 1 << 17
USUAL_BATCH = 64  # where the caller names none


@dataclass(frozen=True)
class ParalleliseTime(Pass):
    """Applies to states that are linear in themselves, or a maximum of sums. rows: those that the back end runs.
    batches: sizes to optimise for."""

    name = "parallelise_time"
    needs = ("hoist_gemms",)  # what recurrences read is made before them, out of the loop
    rows: frozenset[str] = ROWS
    batches: tuple[int, ...] = ()

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        rows = self.rows
        if graph.kind == "backward" and target.kind == "cuda" and _is_walked(graph, self.batches):
            why = (
                "pointwise work alone, in rows that fill the GPU: one launch walks the steps and reads each value once"
            )
            tell(False, _names(graph.states), why)
            return graph
        if graph.kind == "backward":
            rows -= {"scan_matrix"}  # solved with the matrix itself, or else the tape has one of each step
        refused: dict[str, str] = {}
        while True:
            work = _Work(graph, net, target, rows, refused)
            work.recurrences()
            number = len(refused)
            if graph.backward is not None and work.matrices:
                work.gradients()
            if len(refused) == number:
                break
        for done, what, why, facts in work.told:
            tell(done, what, why, **facts)
        return graph if work.graph is graph else normalise(work.graph)

    def ensures(self, graph: Graph) -> None:
        for node in graph.nodes():
            late = node.op == "read_out" and node.args[0].op not in ("scan_matrix", "carried")
            self.check(not late, "a read-out of something that is no recurrence", graph)


def _is_walked(graph: Graph, batches: Sequence[int]) -> bool:
    """Whether steps are pointwise work on vectors of one width, but for sums over rows, and fill the GPU."""
    leaves = depends(nodes := graph.nodes())
    work = [n for n in nodes if leaves[n] and not n.leaf and "sum_rows" not in leaves[n]]
    shapes = {s.shape for s in graph.states}
    alike = len(shapes) == 1 and len(next(iter(shapes))) == 1
    pointwise = all(n.pointwise for n in work) and {graph.output, *graph.results} <= {*work}
    return alike and pointwise and max(batches, default=USUAL_BATCH) * graph.states[0].shape[0] >= FILLING


@dataclass
class _Work:
    """What the pass makes of a graph. refused: states whose gradients are no recurrences, and why; told: what it says
    of it; matrices: those that are solved, in the order of their dependence."""

    given: Graph
    net: RNN
    target: Target
    rows: frozenset[str]
    refused: dict[str, str]
    told: list[tuple[bool, str, str, dict[str, int]]] = field(default_factory=list)
    matrices: list[Solved] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = self.given

    def recurrences(self) -> None:
        """The states, component by component."""
        for names in components(self.given):
            states = [s for s in self.graph.states if s.name in names]
            if any(self.graph.results[self.graph.states.index(s)].op == "scan_matrix" for s in states):
                continue  # the gradient of a matrix, solved with it
            try:
                solved = _solved(self.graph, states)
            except NotLinear as reason:
                self._say(False, states, f"{in_words(reason.node)} stands in the way: one step after the other")
                continue
            if isinstance(solved, str):
                self._say(False, states, solved)
            elif {new.op for new in solved.new} <= self.rows:
                self._write(solved)
            else:
                self._say(False, states, f"{solved.kind}: this target runs it one step after the other")

    def _say(self, done: bool, states: Sequence[Node], why: str) -> None:
        self.told.append((done, _names(states), why, {}))

    def _write(self, solved: Solved) -> None:
        name = solved.states[0].name
        on_gpu = self.target.kind == "cuda" and solved.new[0].op == "scan_matrix"
        trained = self.graph.backward is not None
        if why := self.refused.get(name) or (refused(solved, self.net, trained) if on_gpu else ""):
            self._say(False, solved.states, f"{solved.kind}, one step after the other: {why}")
            return
        self.graph = _written(self.graph, solved)
        if on_gpu:
            self.graph = chunk_form(normalise(self.graph), name)
        self._say(True, solved.states, f"{solved.kind}: known for all steps before what reads it")
        if solved.new[0].op == "scan_matrix":
            self.matrices.append(solved)

    def gradients(self) -> None:
        """Those of the matrices: what is read last goes first."""
        for solved in reversed(self.matrices):
            back = self.graph.backward
            assert back is not None
            found = gradient(self.given, solved, back, sums_of_both(solved, self.net, self.target))
            (state,) = solved.states
            if isinstance(found, str):
                self.refused[state.name] = found
                return
            if self.target.kind == "cuda":
                number = [s.name for s in self.given.states].index(state.name)
                found = chunk_form(found, found.states[number].name)
            self.graph = replace(self.graph, backward=found)
            every = KEPT_EVERY_ON_GPUS if self.target.kind == "cuda" else KEPT_EVERY
            spared = prod(state.shape) - -(-prod(state.shape) // every)
            why = "its gradient is such a recurrence too, backwards in time; between, both are made again"
            what = f"keep state {state.name} before each {every}th step alone"
            self.told.append((True, what, why, {"spared": spared}))
        if self.matrices and self.target.kind == "cuda":
            self.graph = keep_read_outs(self.graph)


def components(graph: Graph) -> list[frozenset[str]]:
    """The names of states that read one another, in the order of their dependence."""
    reads: dict[str, set[str]] = {}
    for state, result in zip(graph.states, graph.results, strict=True):
        read = {n.name for n in _below(result) if n.op == "state"}
        reads[state.name] = read | {state.name}
    for name in reads:  # transitive closure
        while more := set().union(*(reads[other] for other in reads[name])) - reads[name]:
            reads[name] |= more
    groups = {frozenset(b for b in reads[a] if a in reads[b]) for a in reads}
    order = list(reads)
    return sorted(groups, key=lambda g: (len(set().union(*(reads[n] for n in g))), min(map(order.index, g))))


def _below(node: Node) -> list[Node]:
    """What a value is made of, but for what is known of a state for all steps."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        own = stack.pop()
        if own in found:
            continue
        found[own] = None
        stack += _operands(own)
    return list(found)


def _operands(node: Node) -> Sequence[Node]:
    """The arguments but for states."""
    if node.op in ("carried", "read_out"):
        return node.args[:1] if node.op == "carried" else node.args
    return node.args[len(recurrence_states(node)) :] if is_scan(node) else node.args


def _names(states: Sequence[Node]) -> str:
    return f"state{'s' * (len(states) > 1)} {joined(s.name for s in states)}"


def _solved(graph: Graph, states: Sequence[Node]) -> Solved | str:
    """The recurrences of a component, or why there are none. Raises NotLinear with what stood in the way."""
    results = [graph.results[graph.states.index(s)] for s in states]
    others = {s for s in graph.states if s not in states}
    for result in results:
        unknown = [n.name for n in _below(result) if n in others]
        if unknown:
            return f"reads {joined(unknown)}, known only within the loop"
    nodes = graph.nodes()
    if graph.kind == "backward" and _reads_matrices(nodes, states, results):
        return MATRICES
    dependent = downstream(nodes, lambda n: n in states)
    if len(states) == 1 and results[0] not in dependent:
        return _delayed(states[0], results[0])
    found, blocked = forms(nodes, set(states), dependent)
    stuck = next((blocked[r] for r in results if r in blocked), None)
    if stuck is not None:
        new = max_plus(nodes, states, results) if len(states) == 1 else None
        if new is None:
            raise NotLinear(stuck)
        return Solved("a maximum of sums", states, [new], {})
    own = [spread(found[r]) for r in results]
    if len(states) > 1 or not is_matrix(states[0], own[0]):
        if len(states) == 1 and _is_same(own[0]):
            return "does not change"
        return Solved("linear, without products", states, [_scan(states, form) for form in own], {})
    matrix = Matrix(graph, states[0], results[0], found, blocked, dependent)
    return matrix.solved()


def _reads_matrices(nodes: Sequence[Node], states: Sequence[Node], results: Sequence[Node]) -> bool:
    """Whether known values of more axes than the states have are read: backwards such ones are made in each step. Not
    where recurrences make them."""
    if any(n.op == "rescan" for n in nodes):
        return False
    leaves = depends(nodes)
    rank = max(1, *(len(s.shape) for s in states))
    own = downstream(nodes, lambda n: n in states)
    read = {n for result in results for n in _below(result)} - own
    return any(leaves[n] and sum(size > 1 for size in n.shape) > rank for n in read)


def _is_same(form: Form) -> bool:
    """A state as it was, but for factors of 1 and summands of 0."""
    if any(t.chosen for t in form.terms) or len(form.linear) != 1:
        return False
    rest = [f.node.scalar for t in form.known for f in t.factors]
    return all(f.node.scalar == 1.0 for f in form.linear[0].factors) and all(v == 0.0 for v in rest)


def _delayed(state: Node, result: Node) -> Solved | str:
    """A state that keeps what another step has made."""
    form = known_form(result)
    if len(state.shape) > 1 and any(grows(t, form.axes) for t in form.terms):
        return MATRICES
    return Solved("what the step before it made", [state], [make("delay", state, result)], {})


def _scan(states: Sequence[Node], form: Form) -> Node:
    """The recurrence of one state, pointwise in all states of the component. Raises NotLinear with a product."""
    factors = []
    for state in states:
        terms = [t for t in form.linear if t.state is state]
        for term in terms:
            if term.axes != form.axes:
                raise NotLinear(between(term, form))
        factors.append(total([product(replace(t, state=None, axes=()), form.axes) for t in terms], len(form.axes)))
    rest = total([product(t, form.axes) for t in form.known], len(form.axes))
    return make("scan", *states, *factors, rest)


def _written(graph: Graph, solved: Solved) -> Graph:
    """The graph with the recurrences in the place of the steps."""
    replaced, own = dict(solved.reads), dict(zip(solved.states, solved.new, strict=True))
    for state, new in own.items():
        if new.op != "delay":  # what is kept for the next step may be another state's too
            replaced[graph.results[graph.states.index(state)]] = new
        replaced[state] = make("carried", new, state)
    mapped: dict[Node, Node] = {}
    for node in graph.nodes():
        mapped[node] = replaced.get(node) or with_args(node, mapped)
    pairs = zip(graph.states, graph.results, strict=True)
    results = tuple(own.get(state) or mapped[result] for state, result in pairs)
    return replace(rewrite(graph, mapped), results=results)
