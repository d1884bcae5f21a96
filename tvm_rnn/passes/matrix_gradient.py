"""The gradient of a matrix's recurrence, which is one too: transposed maps, backwards in time; no step of it is kept.

In: a graph of training whose matrix `matrix_recurrence.py` has solved, and its backward graph, in which the matrix
before each step is an input. Out: a backward graph in which the carried gradient is a row `scan_matrix`, and nothing
else reads either matrix but read-outs; or the reason why there is none. What is read along the axis that the recurrence
does not multiply is read of rows `rescan`: the gradient made again from what is known by then, and the matrix made
again from the steps that the tape has it of.

    S' = d S + k v + p (r . S);  y = q . S'   -->   G = dS' + q dy;  dS = d G + r (p . G)
                                                    dv = k . G;  dk = G v;  dq = S' dy;  dd = sum of S * G
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm_rnn.graph.graph import Graph, Node, depends, downstream, make, rewrite, with_args
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.recurrences import BOTH_AXES

from .affine import RULES, Axes, Factor, Form, NotLinear, Term, forms, known_form, product, spread, state_form, total
from .matrix_recurrence import Matrix, Solved, contracted, read_term
from .normalise import normalise


def gradient(given: Graph, solved: Solved, back: Graph, summed: int = 0) -> Graph | str:
    """The backward graph with the recurrence of the matrix's gradient, or why it has none.

    given: the forward graph as the gradients were derived from it. back: its backward graph; other matrices may be
    solved there. summed: the product of matrix and gradient is read as one number, where no more of it is wanted, no
    more than so many products are written to the two, and no more vectors than that are multiplied with either."""
    (state,), (new,) = solved.states, solved.new
    number = next(i for i, s in enumerate(given.states) if s.name == state.name)
    made, back = _made_again(given, number, back)
    tape, carried = back.inputs[1 + len(given.inputs) + number], back.states[number]
    own = _Gradient(back, tape, carried, made, back.results[number], new.attrs["key"], summed)
    try:
        graph = own.graph()
        return graph if own.vectors(graph) <= summed else replace(own, summed=0, whole={}, read={}, part={}).graph()
    except NotLinear as reason:
        return f"{in_words(reason.node)} stands in the way of its gradient: one step after the other"


def _made_again(given: Graph, number: int, back: Graph) -> tuple[Node, Graph]:
    """The matrix after the step, as a value of the backward graph, and the graph of which it is the last root."""
    leaves = zip((*given.inputs, *given.states, *given.emitted), back.inputs[1:], strict=True)
    there = {**dict(zip(given.params, back.params, strict=True)), **dict(leaves)}
    whole = normalise(replace(back, emitted=(*back.emitted, rebuilt([given.results[number]], there)[0])))
    return whole.emitted[-1], replace(whole, emitted=whole.emitted[:-1])


def rebuilt(roots: Iterable[Node], instead: Mapping[Node, Node]) -> list[Node]:
    """The roots with other values in the place of some, in what these are made of too."""
    roots, new = list(roots), dict[Node, Node]()
    stack = [(node, False) for node in roots]
    while stack:
        node, ready = stack.pop()
        other = instead.get(node, node)
        if other.leaf:
            new[node] = other
        elif ready:
            new[node] = with_args(other, new)
        elif node not in new:
            stack.append((node, True))
            stack += [(a, False) for a in other.args if a not in new]
    return [new[node] for node in roots]


@dataclass
class _Gradient:
    """tape: the matrix before the step; made: after it. carried: the gradient after the step; result: before it. key:
    the axis of the recurrence's products. whole: values that have all of a matrix; read: those made of them that have
    not; part: of these those that are summed further before anything else is made of them."""

    back: Graph
    tape: Node
    carried: Node
    made: Node
    result: Node
    key: int
    summed: int
    whole: dict[Node, Form] = field(default_factory=dict)
    read: dict[Node, Form] = field(default_factory=dict)
    part: dict[Node, Form] = field(default_factory=dict)

    @property
    def other(self) -> int:
        """The axis of the values."""
        return -3 - self.key

    def graph(self) -> Graph:
        """Raises NotLinear with what stood in the way."""
        self._find()
        new = self._recurrence()
        again = self._again(self.carried, self.whole[self.result])
        tape = self._again(self.tape, _of(self.tape, self.whole[self.made]))
        states = [make("carried", row, row.args[0]) for row in (new, again, tape)]
        instead = {node: self._read_out(form, *states) for node, form in self.read.items()}
        instead[self.result] = new
        roots = rebuilt(self.back.roots, instead)
        graph = normalise(rewrite(self.back, dict(zip(self.back.roots, roots, strict=True))))
        self._check(graph)
        return graph

    def vectors(self, graph: Graph) -> int:
        """How many vectors along values the matrices that are made again are multiplied with, or made of."""
        again = [n for n in graph.nodes() if n.op == "rescan" and n.attrs["of"] == self.tape.name]
        reads = [n.args[1] for n in graph.nodes() if n.op == "read_out" and n.args[0].args[0] in again]
        return len({row for n in again for row in n.args[2::2]} | {v for v in reads if v.op != "carried"})

    def _find(self) -> None:
        """Which values have all of a matrix, and which are read of it."""
        self.whole |= {self.carried: state_form(self.carried), self.tape: known_form(self.tape)}
        moving = {self.carried}
        roots = {*self.back.roots} - {self.result}
        graph = replace(self.back, emitted=(*self.back.emitted, self.made))
        users = graph.users()
        for node in graph.nodes():
            if node in self.whole or not any(a in self.whole or a in self.part for a in node.args):
                continue
            if node.op not in RULES:
                raise NotLinear(node)
            form = RULES[node.op](node, [self._form(a) for a in node.args], moving)
            if any(self._is_whole(t, form.axes) for t in form.terms):
                self.whole[node] = form
                moving |= {node} if form.linear else set()
                if node in roots:
                    raise NotLinear(node)
            elif self.summed and node not in roots and all(user.op == "sum" for user in users[node]):
                self.part[node] = form
            else:
                self.read[node] = form
        if self.result not in self.whole or self.made not in self.whole:
            raise NotLinear(self.result)

    def _form(self, node: Node) -> Form:
        own = self.whole.get(node) or self.part.get(node)
        return own.fresh() if own is not None else known_form(node)

    def _is_whole(self, term: Term, axes: Axes) -> bool:
        """A gradient is read along either axis, and the matrix along that of the values alone."""
        if any(f.axes[self.other] in axes for f in term.factors if f.node is self.tape):
            return True
        return bool(term.state) and {term.axes[-1], term.axes[-2]} <= {*axes}

    def _recurrence(self) -> Node:
        nodes = self.back.nodes()
        own = downstream(nodes, lambda n: n is self.carried)
        found, blocked = forms(nodes, {self.carried}, own)
        if self.result in blocked:
            raise NotLinear(blocked[self.result])
        return Matrix(self.back, self.carried, self.result, found, blocked, own).recurrence(self.key)

    def _again(self, state: Node, form: Form) -> Node:
        """A matrix's recurrence, of values that are all known by then: it is read along the axis of the values."""
        row = Matrix(self.back, state, self.result, {self.result: form}, {}, ()).recurrence(self.key)
        writes = row.attrs["writes"]
        if len(row.args) != 2 + 2 * writes:
            raise NotLinear(row.args[-1])
        turned = [node for k, v in zip(row.args[2::2], row.args[3::2], strict=True) for node in (v, k)]
        return make("rescan", state, row.args[1], *turned, writes=writes, key=self.other, of=self.tape.name)

    def _read_out(self, form: Form, new: Node, again: Node, tape: Node) -> Node:
        heads = tuple(a for t in form.terms for f in t.factors if f.node is self.tape for a in f.axes[:-2])
        parts = [self._read(term, form.axes, new, again, tape) for term in spread(form, True, heads).terms]
        return total(parts, len(form.axes))

    def _read(self, term: Term, axes: Axes, new: Node, again: Node, tape: Node) -> Node:
        matrices = [f for f in term.factors if f.node is self.tape]
        if not matrices and term.state is None:
            return product(contracted(term, axes), axes)
        if not matrices:
            along = self.key if term.axes[self.key] not in axes else self.other
            own = contracted(term, (*axes, *term.axes))
            return read_term(own, axes, new if along == self.key else again, along)
        if term.state is None:
            own = _term_of(self.tape, term)
            return read_term(contracted(own, (*axes, *own.axes)), axes, tape, self.other)
        rest = tuple(f for f in term.factors if f not in matrices)
        if len(matrices) > 1 or matrices[0].axes != term.axes or any(term.axes[self.other] in f.letters for f in rest):
            raise NotLinear(self.tape)
        axis, kept = self.other, tuple(a for i, a in enumerate(term.axes) if i != len(term.axes) + self.other)
        writes = again.args[0].attrs["writes"] + tape.args[0].attrs["writes"]
        if writes <= self.summed and not any(
            term.axes[self.key] in letters for letters in (axes, *(f.letters for f in rest))
        ):
            axis, kept = BOTH_AXES, term.axes[:-2]
        both = make("read_out", again, tape, key=axis)
        return product(replace(term, factors=(Factor(both, kept), *rest), state=None, axes=()), axes)

    def _check(self, graph: Graph) -> None:
        """What recurrences read is known before the steps, and nothing else has a matrix."""
        nodes = graph.nodes()
        leaves = depends(nodes)
        mine = [n for n in nodes if n.op == "rescan" and n.attrs["of"] == self.tape.name]
        mine += [n for n in nodes if n.op == "scan_matrix" and n.args[0] is self.carried]
        late = downstream(
            nodes, lambda n: n.op == "read_out" and n.args[0].args[0].op == "rescan" and n.args[0].args[0] in mine
        )
        for node in nodes:
            users_of = [a for a in node.args if a in (self.tape, self.carried)]
            if users_of and node.op not in ("scan_matrix", "rescan", "carried"):
                raise NotLinear(node)
            if node.op == "read_out" and node.args[0].args[0] in mine:
                operands: Sequence[Node] = node.args[1:]
            elif node in mine:
                operands = node.args[1:]
            else:
                continue
            for operand in operands:
                if "state" in leaves[operand] or (operand in late and operand.op != "carried"):
                    raise NotLinear(operand)


def _term_of(tape: Node, term: Term) -> Term:
    """A term with the matrix in the place of a state."""
    matrix, *more = [f for f in term.factors if f.node is tape]
    if more or term.state is not None:
        raise NotLinear(tape)
    return replace(term, factors=tuple(f for f in term.factors if f is not matrix), state=tape, axes=matrix.axes)


def _of(tape: Node, form: Form) -> Form:
    terms = [_term_of(tape, t) if any(f.node is tape for f in t.factors) else t for t in form.terms]
    return Form(form.axes, tuple(terms))
