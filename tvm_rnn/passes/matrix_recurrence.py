"""The recurrence of a matrix: decay S + k v + p (r . S), and what is read of it; no step of it is kept.

In: the graph, the state, and the forms of what depends on it. Out: a row `scan_matrix` and the read-outs that take the
place of what was read, or the reason why there are none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tvm_rnn.graph.graph import Graph, Node, downstream, make
from tvm_rnn.graph.node_text import in_words

from .affine import Axes, Factor, Form, Letter, NotLinear, Term, forms, product, spread, total

MATRICES = "a matrix of each step would be kept"


@dataclass(frozen=True)
class Solved:
    """states, and for each its recurrence. reads: values that are read of a matrix, with what takes their place."""

    kind: str
    states: Sequence[Node]
    new: Sequence[Node]
    reads: Mapping[Node, Node]


def is_matrix(state: Node, form: Form) -> bool:
    """Whether its values are too many to be kept for all steps: it is multiplied with a vector, or all that it is made
    of has fewer axes."""
    if len(state.shape) < 2:
        return False
    small = (all(f.letters < {*form.axes} for f in _split(t)) for t in form.terms)
    return any(t.axes != form.axes for t in form.linear) or any(grows(t, form.axes) for t in form.known) or all(small)


def grows(term: Term, axes: Axes) -> bool:
    return prod(a.size for a in axes if a is not None) > sum(prod(f.node.shape) for f in _split(term))


def between(term: Term, form: Form) -> Node:
    """A factor that mixes the elements of a state."""
    summed = [a for a in term.axes if a is not None and a not in form.axes]
    mixing = [f.node for f in term.factors if set(f.letters) & set(summed)]
    return mixing[0] if mixing else term.state or term.factors[0].node


def _split(term: Term) -> list[Factor]:
    """The factors of a term, those that are products of values of fewer axes taken apart."""
    found: list[Factor] = []
    stack = list(term.factors)
    while stack:
        factor = stack.pop()
        parts = _parts(factor)
        if parts is None:
            found.append(factor)
        else:
            stack += parts
    return found


def _parts(factor: Factor) -> list[Factor] | None:
    """A product of operands each of which lacks an axis, as its operands; None for anything else."""
    node, axes = factor.node, factor.axes
    if node.op == "mul":
        new = [Factor(a, tuple(None if s == 1 else x for s, x in zip(a.shape, axes, strict=True))) for a in node.args]
        return new if all(f.letters < factor.letters for f in new) or _one_is_whole(new, factor) else None
    if node.op == "reshape" and [s for s in node.args[0].shape if s != 1] == [s for s in node.shape if s != 1]:
        rest = iter([a for a in axes if a is not None])
        own = tuple(None if s == 1 else next(rest) for s in node.args[0].shape)
        return _parts(Factor(node.args[0], own))
    if node.op == "transpose":
        order = node.attrs["axes"]
        own = tuple(axes[order.index(i)] for i in range(len(order)))
        return _parts(Factor(node.args[0], own))
    if node.op == "einsum":
        inputs, out = node.attrs["spec"].split("->")
        if set(inputs.replace(",", "")) - set(out):
            return None
        names = dict(zip(out, axes, strict=True))
        new = [
            Factor(a, tuple(names[name] for name in text)) for text, a in zip(inputs.split(","), node.args, strict=True)
        ]
        return new if all(f.letters < factor.letters for f in new) else None
    return None


def _one_is_whole(parts: Sequence[Factor], whole: Factor) -> bool:
    """A product of an outer product with a number for each row of it."""
    inner = [f for f in parts if f.letters == whole.letters]
    return len(inner) == 1 and len(whole.letters) > 1 and _parts(inner[0]) is not None


@dataclass
class _Pairs:
    """Pairs of vectors whose products are summed: those with the same second vector become one."""

    found: dict[frozenset[tuple[Node, tuple[int, ...]]], tuple[list[Node], Node]] = field(default_factory=dict)

    def add(self, first: Term, axes: Axes, second: Sequence[Factor], inside: Axes) -> None:
        """Both as values over their axes."""
        letters = {a: i for i, a in enumerate(inside) if a is not None}
        right = product(Term(tuple(second)), inside)
        known = frozenset((f.node, tuple(letters.get(a, -1) for a in f.axes if a is not None)) for f in second)
        if any(-1 in places for _, places in known):  # summed among themselves: not compared
            known = frozenset({(right, ())})
        self.found.setdefault(known, ([], right))[0].append(product(first, axes))

    def nodes(self, rank: int) -> list[tuple[Node, Node]]:
        return [(total(first, rank), second) for first, second in self.found.values()]


class Matrix:
    """A state of two axes (and more before them: heads) whose steps are not kept."""

    def __init__(
        self,
        graph: Graph,
        state: Node,
        result: Node,
        found: Mapping[Node, Form],
        blocked: Mapping[Node, Node],
        dependent: Collection[Node],
    ) -> None:
        self.graph, self.state, self.result = graph, state, result
        self.found, self.blocked, self.dependent = found, blocked, dependent
        self.form = spread(found[result], True, found[result].axes[:-2])

    def solved(self) -> Solved | str:
        key = self._key()
        if isinstance(key, str):
            return key
        try:
            new = self.recurrence(key)
        except NotLinear as reason:
            return f"{in_words(reason.node)} varies along both axes of {self.state.name}, or mixes both"
        reads = self._reads(new, key)
        if isinstance(reads, str):
            return reads
        products = (len(new.args) - 2) // 2 - int(new.attrs["writes"])
        rank = f", and {products} product{'s' * (products > 1)} of rank one" if products else ""
        return Solved(f"a linear recurrence of a matrix{rank}", [self.state], [new], reads)

    def _key(self) -> int | str:
        """The axis along which known vectors are multiplied with the matrix."""
        axes = self.form.axes
        contracted = set()
        for term in self.form.linear:
            contracted |= {i - len(axes) for i, (a, b) in enumerate(zip(term.axes, axes, strict=True)) if a is not b}
        ends = self._ends()
        if ends is None:
            return MATRICES + ": something else than a product with a known vector reads it"
        for node in ends:
            left = self.found[node].axes
            for term in self.found[node].linear:
                contracted |= {i - len(axes) for i, a in enumerate(term.axes) if a is not None and a not in left}
        if not contracted:
            return MATRICES + ": no product with a known vector reads it"
        if len(contracted) > 1 or not contracted <= {-1, -2}:
            return f"products run along {len(contracted)} of its axes"
        return contracted.pop()

    def recurrence(self, key: int) -> Node:
        """The row. Raises NotLinear with what mixes both axes."""
        form = self.form
        axes, rank = form.axes, len(form.axes)
        decays = []
        products, writes = _Pairs(), _Pairs()
        for term in form.linear:
            if term.axes == axes:
                decays.append(self._decay(replace(term, state=None, axes=()), axes, -3 - key))
            else:
                self._rank_one(term, key, products)
        for known in form.known:
            self._outer(known, key, writes)
        pairs = [*writes.nodes(rank), *products.nodes(rank)]
        operands = [node for pair in pairs for node in pair]
        return make("scan_matrix", self.state, total(decays, rank), *operands, writes=len(writes.found), key=key)

    def _decay(self, term: Term, axes: Axes, other: int) -> Node:
        node = product(term, axes)
        if node.shape[other] != 1:
            raise NotLinear(node)
        return node

    def _rank_one(self, term: Term, key: int, into: _Pairs) -> None:
        """p and r of p (r . S): what has the letter of the result, and what has that of the state."""
        axes = self.form.axes
        out, summed, free = axes[key], term.axes[key], axes[-3 - key]
        if any(a is not b for i, (a, b) in enumerate(zip(term.axes, axes, strict=True)) if i != len(axes) + key):
            raise NotLinear(between(term, self.form))
        left: list[Factor] = []
        right: list[Factor] = []
        for together in _connected(_split(term), axes):
            letters = frozenset().union(*(f.letters for f in together))
            if free in letters or {out, summed} <= letters:
                raise NotLinear(together[0].node)
            (right if summed in letters else left).extend(together)
        inside = tuple(summed if a is out else a for a in axes)
        into.add(contracted(replace(term, factors=tuple(left), state=None, axes=()), axes), axes, right, inside)

    def _outer(self, term: Term, key: int, into: _Pairs) -> None:
        """k and v of k v: what has the letter of the key, and the rest."""
        axes = self.form.axes
        along, free = axes[key], axes[-3 - key]
        keys: list[Factor] = []
        values: list[Factor] = []
        for factor in _connected(_split(term), axes):
            letters = frozenset().union(*(f.letters for f in factor))
            if {along, free} <= letters:
                raise NotLinear(factor[0].node)
            (values if free in letters else keys).extend(factor)
        into.add(contracted(replace(term, factors=tuple(keys)), axes), axes, values, axes)

    def _ends(self) -> list[Node] | None:
        """Where the matrix is read: values that have it no longer along both axes, of values that have. None where it
        is read by something else."""
        users, ends = self.graph.users(), []
        whole = [n for n in self.graph.nodes() if n in self.dependent and n in self.found and self._is_whole(n)]
        roots = {self.graph.output, *self.graph.emitted, *self.graph.weight_gradients}
        inside = set(whole)
        for node in whole:
            if node is not self.result and node in roots:
                return None
            for user in users[node]:
                if user in inside or user is self.result:
                    continue
                if user not in self.found:
                    return None
                ends.append(user)
        return list(dict.fromkeys(ends))

    def _is_whole(self, node: Node) -> bool:
        """Whether some state in it is multiplied with no vector."""
        own = self.found[node]
        return any(all(a is None or a in own.axes for a in t.axes) for t in own.linear)

    def _reads(self, new: Node, key: int) -> dict[Node, Node] | str:
        """What is read of the new matrix, or of the old one, as read-outs of the recurrence."""
        graph = self.graph
        needed = _needed(graph, self.result)
        inner = [n for n in graph.nodes() if n in needed]
        after = downstream(graph.nodes(), lambda n: n is self.result)
        if self.result in {graph.output, *graph.emitted}:
            return MATRICES
        reads: dict[Node, Node] = {}
        again, _ = forms(graph.nodes(), {self.result}, after)
        for node in self._ends() or []:
            if node in inner:
                continue
            source, form = (new, again.get(node)) if node in after else (None, self.found[node])
            if form is None or (node in after and self._reads_old(node)):
                return f"{in_words(node)} reads it before and after the step"
            try:
                reads[node] = _read_out(form, source or make("carried", new, self.state), key)
            except NotLinear as reason:
                return f"{in_words(reason.node)} reads it along another axis"
        return reads

    def _reads_old(self, node: Node) -> bool:
        """Whether a value reads the old matrix past the new one."""
        stack, seen = [node], {self.result}
        while stack:
            own = stack.pop()
            if own is self.state:
                return True
            if own not in seen:
                seen.add(own)
                stack += own.args
        return False


def _needed(graph: Graph, result: Node) -> set[Node]:
    """What other values read only through the result: the update's own nodes."""
    users, inner = graph.users(), {result}
    roots = {*graph.roots} - {result}
    for node in reversed(graph.nodes()):
        if node not in roots and users[node] and all(u in inner for u in users[node]):
            inner.add(node)
    return inner


def contracted(term: Term, axes: Axes) -> Term:
    """The term with what is summed apart from the rest as values of their own: (u . v) w, not the sum of u v w."""
    found: list[Factor] = []
    for together in _connected(_split(term), axes):
        letters = frozenset().union(*(f.letters for f in together))
        own = tuple(a for a in axes if a in letters)
        found += together if letters <= {*axes} else [Factor(product(Term(tuple(together)), own), own)]
    return replace(term, factors=tuple(found))


def _connected(factors: Sequence[Factor], axes: Axes) -> list[list[Factor]]:
    """Factors that are summed together stay together."""
    groups: list[tuple[set[Letter], list[Factor]]] = []
    for factor in factors:
        summed = set(factor.letters) - {a for a in axes if a is not None}
        touching = [g for g in groups if g[0] & summed]
        merged = (summed.union(*(g[0] for g in touching)), [*(f for g in touching for f in g[1]), factor])
        groups = [g for g in groups if g not in touching] + [merged]
    return [members for _, members in groups]


def _read_out(form: Form, source: Node, key: int) -> Node:
    """A value that is made of products of a matrix with known vectors."""
    parts = []
    for term in form.linear:
        kept = tuple(a for i, a in enumerate(term.axes) if i != len(term.axes) + key)
        if any(a is not None and a not in form.axes for a in kept):
            raise NotLinear(term.factors[0].node if term.factors else source)
        parts.append(read_term(term, form.axes, source, key))
    parts += [product(t, form.axes) for t in form.known]
    return total(parts, len(form.axes))


def read_term(term: Term, axes: Axes, source: Node, key: int) -> Node:
    """One product of a matrix with a known vector along `key`, and with other known values, over those axes."""
    along = term.axes[key]
    kept = tuple(a for i, a in enumerate(term.axes) if i != len(term.axes) + key)
    if along in axes:
        raise NotLinear(term.factors[0].node if term.factors else source)
    together = _connected(_split(term), (*axes, *kept))
    vector = Term(tuple(f for own in together if _reaches(own, along) for f in own), scale=term.scale)
    for factor in vector.factors:
        if set(factor.letters) & {kept[-1]}:
            raise NotLinear(factor.node)
    rest = tuple(f for own in together if not _reaches(own, along) for f in own)
    groups = [a for a in axes if a is not None and a in vector.letters and a not in term.axes]
    value = _of_groups(vector, source, term.axes, key, groups)
    return product(Term((Factor(value, (*groups, *kept)), *rest), chosen=term.chosen), axes)


def _reaches(factors: Sequence[Factor], letter: Letter | None) -> bool:
    return any(letter in f.letters for f in factors)


def _of_groups(vector: Term, source: Node, axes: Axes, key: int, groups: Sequence[Letter]) -> Node:
    """The read-out by one vector, or by one for each place of the letters that the matrix does not have: queries that
    share its heads. Their axes come first."""
    if not groups:
        return make("read_out", source, product(vector, axes), key=key)
    first, *others = groups
    found = []
    for place in range(first.size):
        own = tuple(_at(f, first, place) for f in vector.factors)
        part = _of_groups(replace(vector, factors=own), source, axes, key, others)
        found.append(make("reshape", part, rank=len(part.shape), to=(1, *part.shape)))
    return make("concat", *found, axis=-len(found[0].shape))


def _at(factor: Factor, letter: Letter, place: int) -> Factor:
    """A factor at one place of a letter; itself if it does not vary with it."""
    if letter not in factor.letters or factor.node.shape[factor.axes.index(letter)] == 1:
        return factor
    at = factor.axes.index(letter)
    node = make("index", factor.node, axis=at - len(factor.axes), at=place)
    return Factor(node, tuple(a for a in factor.axes if a is not letter))
