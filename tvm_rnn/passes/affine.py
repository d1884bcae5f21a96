"""How a value depends on states: as a sum of products of known values and at most one state, by its indices.

In: the nodes of a step, and which of them count as known for all steps. Out: for each other node its `Form`, or the
node that stood in the way. A form is written as an einsum is: every axis has a letter, and a letter of a term that its
form does not have is summed.

    S + outer(b * (v - S @ k), k)   -->   S[i,j] + b v[i] k[j] - b k[l] k[j] S[i,l]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

import numpy as np

from tvm_rnn.graph.graph import Node, constant, make
from tvm_rnn.graph.ops import Shape

MOST_TERMS = 64  # of one value: what has more is not written out
_numbers = count()


@dataclass(frozen=True, eq=False)
class Letter:
    """An index with its size; another letter for each use."""

    size: int
    number: int = field(default_factory=lambda: next(_numbers))


Axes = tuple[Letter | None, ...]  # of a value; None: an axis of size 1


@dataclass(frozen=True, eq=False)
class Factor:
    """A known value, its axes by letters."""

    node: Node
    axes: Axes

    @property
    def letters(self) -> frozenset[Letter]:
        return frozenset(a for a in self.axes if a is not None)


@dataclass(frozen=True, eq=False)
class Term:
    """scale * the factors' product, times the state if there is one. chosen: conditions under which it counts at all,
    each with whether it must hold: what is not chosen is 0, whatever the factors are."""

    factors: tuple[Factor, ...] = ()
    state: Node | None = None
    axes: Axes = ()  # of the state
    scale: float = 1.0
    chosen: tuple[tuple[Factor, bool], ...] = ()

    @property
    def letters(self) -> frozenset[Letter]:
        own = frozenset(a for a in self.axes if a is not None)
        return own.union(*(f.letters for f in (*self.factors, *(c for c, _ in self.chosen))))

    def renamed(self, new: Mapping[Letter, Letter | None]) -> Term:
        """With other letters; None for an axis of which only one place is there."""

        def axes(own: Axes) -> Axes:
            return tuple(None if a is None else new.get(a, a) for a in own)

        factors = tuple(Factor(f.node, axes(f.axes)) for f in self.factors)
        chosen = tuple((Factor(f.node, axes(f.axes)), holds) for f, holds in self.chosen)
        return replace(self, factors=factors, axes=axes(self.axes), chosen=chosen)

    def times(self, other: Term) -> Term:
        state, axes = (self.state, self.axes) if other.state is None else (other.state, other.axes)
        factors, chosen = (*self.factors, *other.factors), (*self.chosen, *other.chosen)
        return Term(factors, state, axes, self.scale * other.scale, chosen)


@dataclass(frozen=True, eq=False)
class Form:
    """A value as a sum of terms over its own axes."""

    axes: Axes
    terms: tuple[Term, ...]

    @property
    def linear(self) -> tuple[Term, ...]:
        return tuple(t for t in self.terms if t.state is not None)

    @property
    def known(self) -> tuple[Term, ...]:
        return tuple(t for t in self.terms if t.state is None)

    def renamed(self, new: Mapping[Letter, Letter | None]) -> Form:
        axes = tuple(None if a is None else new.get(a, a) for a in self.axes)
        return Form(axes, tuple(t.renamed(new) for t in self.terms))

    def fresh(self) -> Form:
        """With letters that no other form has."""
        own = {a for a in self.axes if a is not None}.union(*(t.letters for t in self.terms))
        return self.renamed({a: Letter(a.size) for a in own})


def axes_of(shape: Shape) -> Axes:
    return tuple(Letter(size) if size != 1 else None for size in shape)


def known_form(node: Node) -> Form:
    """Of a value that no state is needed for."""
    axes = axes_of(node.shape)
    return Form(axes, (Term((Factor(node, axes),)),))


def state_form(node: Node) -> Form:
    """Of a state itself."""
    axes = axes_of(node.shape)
    return Form(axes, (Term((), node, axes),))


class NotLinear(Exception):
    """A value that is no such sum. node: the operation that stood in the way."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.op)
        self.node = node


def forms(
    nodes: Iterable[Node], states: Collection[Node], dependent: Collection[Node]
) -> tuple[dict[Node, Form], dict[Node, Node]]:
    """The forms of the nodes (arguments first) that depend on `states`, and for each that has none the node that stood
    in the way. dependent: all nodes that read one of the states, themselves among them."""
    found: dict[Node, Form] = {}
    blocked: dict[Node, Node] = {}
    for node in nodes:
        if node not in dependent:
            continue
        if node in states:
            found[node] = state_form(node)
            continue
        if (first := next((blocked[a] for a in node.args if a in blocked), None)) is not None:
            blocked[node] = first
            continue
        try:
            args = [found[a].fresh() if a in found else known_form(a) for a in node.args]
            form = RULES[node.op](node, args, dependent)
            if len(form.terms) > MOST_TERMS:
                raise NotLinear(node)
            found[node] = form
        except (NotLinear, KeyError):
            blocked[node] = node
    return found, blocked


Rule = Callable[[Node, Sequence[Form], Collection[Node]], Form]
RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _aligned(forms: Sequence[Form]) -> tuple[Axes, list[Form]]:
    """Operands of equal rank over the same letters; an axis of size 1 stays None in its own form and is broadcast."""
    axes: Axes = tuple(
        next((a for a in own if a is not None), None) for own in zip(*(f.axes for f in forms), strict=True)
    )
    new = []
    for form in forms:
        names = {a: b for a, b in zip(form.axes, axes, strict=True) if a is not None and a is not b}
        new.append(form.renamed(names))
    return axes, new


def _scaled(form: Form, by: float) -> tuple[Term, ...]:
    return tuple(replace(t, scale=t.scale * by) for t in form.terms)


@_rule("neg")
def _neg(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    return Form(args[0].axes, _scaled(args[0], -1.0))


@_rule("add", "sub")
def _add(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    axes, (left, right) = _aligned(args)
    return Form(axes, (*left.terms, *_scaled(right, -1.0 if node.op == "sub" else 1.0)))


@_rule("mul", "div")
def _mul(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    left, right = node.args
    if (left in dependent and right in dependent) or (node.op == "div" and right in dependent):
        raise NotLinear(node)
    if node.op == "div":
        inverse = make("div", constant(1.0, len(right.shape)), right, source=node.source)
        args = (args[0], known_form(inverse))
    axes, (a, b) = _aligned(args)
    return Form(axes, _product(a, b))


def _product(a: Form, b: Form) -> tuple[Term, ...]:
    return tuple(s.times(t) for s in a.terms for t in b.terms)


@_rule("where")
def _where(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    if node.args[0] in dependent:
        raise NotLinear(node)
    axes, (condition, yes, no) = _aligned(args)
    (own,) = condition.terms[0].factors
    terms = [replace(t, chosen=(*t.chosen, (own, holds))) for f, holds in ((yes, True), (no, False)) for t in f.terms]
    return Form(axes, tuple(t for t in terms if not _is_zero(t)))


def _is_zero(term: Term) -> bool:
    return any(f.node.scalar == 0.0 for f in term.factors)


@_rule("sum")
def _sum(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    (form,) = args
    at = len(form.axes) + node.attrs["axis"]
    letter = form.axes[at]
    kept = (*form.axes[:at], *((None,) if node.attrs["keepdims"] else ()), *form.axes[at + 1 :])
    terms = form.terms
    if letter is not None:
        terms = tuple(t if letter in t.letters else replace(t, scale=t.scale * letter.size) for t in terms)
    return Form(kept, terms)


@_rule("einsum")
def _einsum(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    if all(a in dependent for a in node.args):
        raise NotLinear(node)
    inputs, out = node.attrs["spec"].split("->")
    names: dict[str, Letter | None] = {}
    for text, form in zip(inputs.split(","), args, strict=True):
        for name, letter in zip(text, form.axes, strict=True):
            names[name] = names.get(name) or letter
    renamed = []
    for text, form in zip(inputs.split(","), args, strict=True):
        if len(set(text)) != len(text):
            raise NotLinear(node)
        new = {a: names[name] for name, a in zip(text, form.axes, strict=True) if a is not None}
        renamed.append(form.renamed({a: b for a, b in new.items() if a is not b}))
    terms = _product(renamed[0], renamed[1])
    summed = [letter for name, letter in names.items() if name not in out and letter is not None]
    terms = tuple(replace(t, scale=t.scale * prod(s.size for s in summed if s not in t.letters)) for t in terms)
    return Form(tuple(names[name] for name in out), terms)


@_rule("transpose")
def _transpose(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    return Form(tuple(args[0].axes[a] for a in node.attrs["axes"]), args[0].terms)


@_rule("reshape")
def _reshape(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    """Axes of size 1 come and go; others must stay."""
    form, to = args[0], node.attrs["to"]
    own = [a for a in form.axes if a is not None]
    if [a.size for a in own] != [size for size in to if size != 1]:
        raise NotLinear(node)
    rest = iter(own)
    return Form(tuple(None if size == 1 else next(rest) for size in to), form.terms)


@_rule("broadcast")
def _broadcast(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    pairs = zip(args[0].axes, node.attrs["to"], strict=True)
    return Form(tuple(Letter(size) if a is None and size != 1 else a for a, size in pairs), args[0].terms)


@_rule("index")
def _index(node: Node, args: Sequence[Form], dependent: Collection[Node]) -> Form:
    """One place of an axis: a sum with a vector of zeros and a one, for what is a state there."""
    form = args[0]
    at = len(form.axes) + node.attrs["axis"]
    letter = form.axes[at]
    kept = (*form.axes[:at], *form.axes[at + 1 :])
    if letter is None:
        return Form(kept, form.terms)
    one = constant([float(i == node.attrs["at"]) for i in range(letter.size)])
    chosen = Factor(one, (letter,))
    terms = tuple(replace(t, factors=(*t.factors, chosen)) if letter in t.letters else t for t in form.terms)
    return Form(kept, terms)


# --- one spelling for all ------------------------------------------------------------------------------------------


def spread(form: Form, known: bool = False, heads: Axes = ()) -> Form:
    """The form with its known matrices written out: S (I - b k k^T) is S - b (S k) k^T. Only those that a state is
    multiplied with; known: those of terms without a state too. heads: axes that all matrices have, beside the state's
    own: a vector of each head is no matrix."""
    terms = [t for term in form.terms for t in _spread(term, form.axes, known, heads)]
    return Form(form.axes, tuple(_without_diagonals(t, form.axes) for t in terms))


def _spread(term: Term, axes: Axes, known: bool, heads: Axes) -> list[Term]:
    alone = term.state is None
    mixing = [f for f in term.factors if (_spans(f, axes) if alone else f.letters - {*axes})]
    mixing = [f for f in mixing if len(f.letters - {*heads, *term.axes[:-2]}) > 1]
    several = ((f, _written_out(f.node, len(f.letters) if alone else 0)) for f in mixing if known or not alone)
    inside, written = next(((f, w) for f, w in several if w is not None and len(w.terms) > 1), (None, None))
    if inside is None:
        return [term]
    assert written is not None
    names = {a: b for a, b in zip(written.axes, inside.axes, strict=True) if a is not None}
    rest = replace(term, factors=tuple(f for f in term.factors if f is not inside))
    return [t for part in written.renamed(names).terms for t in _spread(rest.times(part), axes, known, heads)]


def _spans(factor: Factor, axes: Axes) -> bool:
    """Whether it lies along both axes of a matrix, or is summed: a vector of each head is one value, sum or not."""
    return {*axes[-2:]} <= factor.letters or bool(factor.letters - {*axes})


def _written_out(node: Node, least: int = 0) -> Form | None:
    """A known value as a sum of products, where sums are at its top; None where it is anything else. least: sums of
    values of fewer axes stay as they are."""
    if node.op not in ("add", "sub", "neg", "mul", "reshape", "transpose"):
        return None
    if sum(size > 1 for size in node.shape) < least:
        return None
    args = [(_written_out(a, least) or known_form(a)).fresh() for a in node.args]
    if node.op == "mul" and all(len(a.terms) == 1 for a in args):
        return None
    try:
        return RULES[node.op](node, args, ())
    except NotLinear:
        return None


def _without_diagonals(term: Term, axes: Axes) -> Term:
    """With vectors in place of constant diagonal matrices: what is multiplied with them takes their other letter."""
    for factor in term.factors:
        if factor.node.value is None or len(factor.letters) != 2:
            continue
        value: np.ndarray = np.squeeze(factor.node.value)
        summed = [a for a in factor.axes if a is not None and a not in axes]
        if summed and value.shape[0] == value.shape[1] and (value == np.diag(np.diagonal(value))).all():
            (other,) = factor.letters - {summed[0]}
            rest = tuple(f for f in term.factors if f is not factor)
            if (value != np.eye(len(value))).any():
                rest = (*rest, Factor(constant(np.diagonal(value)), (other,)))
            return _without_diagonals(replace(term, factors=rest).renamed({summed[0]: other}), axes)
    return term


# --- back to nodes ------------------------------------------------------------------------------------------------


def product(term: Term, axes: Axes) -> Node:
    """The factors' product as one value over those axes, size 1 where nothing varies; what is not among the axes is
    summed. Conditions are applied at the end."""
    parts = [_over(f.node, f.axes, _union(f.axes, axes)) for f in term.factors]
    letters = [_union(f.axes, axes) for f in term.factors]
    value, own = constant(term.scale, len(axes)), axes
    if not parts or term.scale != 1.0:
        parts, letters = [value, *parts], [axes, *letters]
    value, own = parts[0], letters[0]
    for part, more in zip(parts[1:], letters[1:], strict=True):
        whole = _union(own, more)
        value, own = make("mul", _over(value, own, whole), _over(part, more, whole)), whole
    while len(own) > len(axes):
        value, own = make("sum", value, axis=-1, keepdims=False), own[:-1]
    for condition, holds in term.chosen:
        if not set(condition.letters) <= set(axes):
            raise NotLinear(condition.node)
        zero, test = constant(0.0, len(axes)), _over(condition.node, condition.axes, axes)
        value = make("where", test, value, zero) if holds else make("where", test, zero, value)
    return value


def _union(own: Axes, base: Axes) -> Axes:
    """The axes of `base`, and behind them what `own` has besides."""
    return (*base, *(a for a in own if a is not None and a not in base))


def _over(node: Node, own: Axes, whole: Axes) -> Node:
    """A value with its axes in that order, and of size 1 where it does not vary."""
    own = tuple(None if size == 1 else a for a, size in zip(own, node.shape, strict=True))
    order = [i for i, a in sorted(enumerate(own), key=lambda pair: _place(pair[1], whole)) if a is not None]
    squeezed = tuple(node.shape[i] for i, a in enumerate(own) if a is not None)
    if squeezed != node.shape:
        node = make("reshape", node, rank=len(node.shape), to=squeezed, source=node.source)
    places = [i for i, a in enumerate(own) if a is not None]
    axes = tuple(places.index(i) for i in order)
    if axes != tuple(range(len(axes))):
        node = make("transpose", node, axes=axes, source=node.source)
    letters = {a for a in own if a is not None}
    to = tuple(a.size if a is not None and a in letters else 1 for a in whole)
    return node if to == node.shape else make("reshape", node, rank=len(node.shape), to=to, source=node.source)


def _place(letter: Letter | None, whole: Axes) -> int:
    return -1 if letter is None else whole.index(letter)


def total(nodes: Sequence[Node], rank: int) -> Node:
    """The sum of values of equal rank; 0 if there are none."""
    if not nodes:
        return constant(0.0, rank)
    value = nodes[0]
    for node in nodes[1:]:
        value = make("add", value, node)
    return value
