"""A step as phases: what a persistent kernel needs to know of a layer, or why it cannot run it.

In: a graph with groups. Out: `Step`: phases, each one product (or row reduction) and the pointwise work of the same
units, with the values that units hand to others; or `NotPersistent` with the reason. A thread owns units: it may read
what it computed for them, parameters, hoisted values and row scalars; everything else must pass through a product.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

from tvm_rnn.graph.graph import Graph, Group, Node, is_move, topological
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, Lane, NotAligned, element, fit


class NotPersistent(Exception):
    """The layer cannot run in a persistent kernel; the text says why."""


@dataclass(frozen=True)
class Diagonal:
    """Of a weight of heads, which is 0 but for blocks along its diagonal: a block's units and depth."""

    units: int
    depth: int


@dataclass(frozen=True)
class Operand:
    """One factor of a product: `source` is a state, a value of an earlier phase of the same step, or an input."""

    source: Node
    weight: Node
    depth: int
    diagonal: Diagonal | None = None

    @property
    def width(self) -> int:
        """Units of a weight of heads."""
        assert self.diagonal is not None
        return self.depth // self.diagonal.depth * self.diagonal.units

    @property
    def carried(self) -> bool:
        return self.source.op == "state"

    @property
    def given(self) -> bool:
        return self.source.op == "input"


@dataclass(frozen=True)
class Phase:
    """root: a gemm, the first sum or max over units, or None. width: units; gates: rows of the product per unit.

    nodes: pointwise values, in order. published: values that products read, in this step or (states) in the next.
    roots: sums and maxima over units that meet in one exchange. centres: for each of them None, or the sum among roots
    around whose mean it sums squares, or the maximum among them whose place it finds.
    """

    kind: str  # "gemm" | "reduce" | "pointwise"
    root: Node | None
    width: int
    gates: int
    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    published: tuple[Node, ...] = ()
    roots: tuple[Node, ...] = ()
    centres: tuple[Node | None, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.root, self.width, self.gates, self.operands, self.nodes, self.published))

    def __hash__(self) -> int:
        """Made once: geometries, of which there are thousands, have tables by phases."""
        return self._hash


@dataclass(frozen=True)
class Step:
    """phases in order; states with their new values; which hoisted values and parameters the phases read.

    reads: (node, component) of hoisted values, per phase index. params: (node, component, units of
    the phase, or 0 of what all units share) of values made of parameters. tables: of these, those of which a row is
    read that the step computes.
    """

    graph: Graph
    phases: tuple[Phase, ...]
    reads: tuple[tuple[tuple[Node, int], ...], ...]
    params: tuple[tuple[Node, int, int], ...]
    domain: dict[Node, int] = field(default_factory=dict)  # width of each value that units own; 1: a row scalar
    whole: frozenset[Node] = frozenset()  # inputs whose rows are made of 16-byte pieces, in the storage dtype
    wide: frozenset[Node] = frozenset()  # hoisted values in the dtype of arithmetic, where that is another
    shown: dict[Node, Node] = field(default_factory=dict)  # of a state: what products read in its place, made of it
    heads: int = 1  # of the layer, each of which takes this step by itself
    lined: tuple[Node, ...] = ()  # what is kept in pieces of 16 bytes, made when nothing is handed over any more
    tables: tuple[Node, ...] = ()

    @cached_property
    def known(self) -> dict[Hashable, dict[int, bool]]:
        """Of a geometry, by its key: whether a block fits, by the bytes of shared memory that it may have. Batch sizes,
        and parts of a GPU, have most geometries in common."""
        return {}

    @property
    def param_nodes(self) -> list[Node]:
        """What cells read of `params` and `tables`, in the order of a kernel's pointers."""
        return list(dict.fromkeys([*(node for node, _, _ in self.params), *self.tables]))

    @property
    def read_nodes(self) -> list[Node]:
        """The same of `reads`."""
        return list(dict.fromkeys(node for reads in self.reads for node, _ in reads))

    def result(self, state: Node) -> Node:
        return self.graph.results[self.graph.states.index(state)]

    @property
    def line_widths(self) -> list[int]:
        """Units of each vector of those of `lined`."""
        return [self.domain[node] for node in self.lined for _ in components(node, self.domain[node])]

    @cached_property
    def sources(self) -> frozenset[Node]:
        """What products read."""
        return frozenset(o.source for p in self.phases for o in p.operands)

    @property
    def carried(self) -> tuple[Node, ...]:
        """States that a product reads: their new values are published."""
        return tuple(dict.fromkeys(o.source for p in self.phases for o in p.operands if o.carried))

    @property
    def given(self) -> tuple[Node, ...]:
        """The inputs that products read."""
        return tuple(dict.fromkeys(o.source for p in self.phases for o in p.operands if o.given))


def components(node: Node, width: int) -> Iterator[tuple[int, Index]]:
    """(component, index) of what unit u owns of a value: [G, N] and [G N] both have G components of N units."""
    if node.shape in ((), (1,)):
        yield 0, (0,) * len(node.shape)
        return
    if prod(node.shape) % width or node.shape[-1] % width:
        raise NotPersistent(f"a value of shape {list(node.shape)} in a phase of {width} units")
    inner = node.shape[-1] // width
    for number in range(prod(node.shape) // width):
        rest = number // inner
        index: list[Lane | int] = [Lane(number % inner * width, width)]
        for size in reversed(node.shape[:-1]):
            index.insert(0, rest % size)
            rest //= size
        yield number, tuple(index)


def check_kept(step: Step, kept: Iterable[Node]) -> None:
    """Raises NotPersistent where a value of the step that training reads later is not one that units have."""
    roots = {root for phase in step.phases for root in (phase.root, *phase.roots)}
    for node in kept:
        if node not in step.domain or not (node.op == "state" or node.pointwise or node in roots):
            raise NotPersistent("a value that training reads later is a view")
        list(components(node, step.domain[node]))


def place(node: Node, index: Index, width: int) -> tuple[int, bool]:
    """Which component of a value an index means, and whether it moves with the unit (else: one for all units)."""
    flat, moving, step = 0, False, prod(node.shape)
    for i, size in zip(index, node.shape, strict=True):
        step //= size
        if isinstance(i, Lane):
            if i.width != width or moving:
                raise NotPersistent("a phase mixes units of different widths")
            if step != 1 and i.width != 1:
                raise NotPersistent(f"units along an outer axis of a value of shape {list(node.shape)}")
            flat, moving = flat + i.offset * step, True
        else:
            flat += int(i) * step
    if moving and flat % width:
        raise NotPersistent("a unit reads another unit's value")
    return (flat // width if moving else flat), moving


def component(node: Node, index: Index, width: int) -> int:
    """The component that an index means; below zero for one element that all units share (~element)."""
    number, moving = place(node, index, width)
    return number if moving else ~number


def phases(graph: Graph, kept: Callable[[Node], bool], hoisted: Callable[[Node], bool], products: bool = True) -> Step:
    """The step of a graph. kept, hoisted: whether a node is an array made of parameters, or one of all T. products:
    there must be some; or there must be none, and nothing but pointwise work. Raises NotPersistent."""
    emitted = (graph.output,) if graph.kind == "forward" else ()  # a backward graph's output is no value of the step
    if any(len(n.shape) != 1 for n in (*graph.states, *emitted)):
        raise NotPersistent("a state is not a vector")
    ones = [n for n in (*graph.states, *emitted) if n.shape[0] == 1]
    if ones and (not products or graph.kind != "forward" or {*graph.states} <= {*ones}):
        raise NotPersistent("a state of one unit is no row of units")
    drafts = [_phase(graph, g) for g in graph.groups if g.region == "step"]
    if products and not any(p.kind == "gemm" for p in drafts):
        raise NotPersistent("no product in the step")
    if not products and (any(p.kind != "pointwise" for p in drafts) or len({p.width for p in drafts}) != 1):
        raise NotPersistent("more than pointwise work on a row of units")
    drafts, shown = _show(graph, joined(drafts))
    step = Step(graph, tuple(drafts), (), (), shown=shown)
    domain: dict[Node, int] = {}
    for phase in drafts:
        for node in (*phase.nodes, *phase.roots, *([phase.root] if phase.root is not None else [])):
            domain[node] = 1 if node.shape in ((), (1,)) else phase.width
    for state, result in zip(graph.states, graph.results, strict=True):
        if result not in domain or result.op == "state":
            raise NotPersistent("a new state is computed outside of the step")
        domain[state] = domain[result]
    if any(node not in domain or node.op == "state" for node in emitted):
        raise NotPersistent("the output is computed outside of the step")
    if any(p.width == 1 and p.kind == "gemm" for p in drafts):
        raise NotPersistent("a product of one unit")
    if any(prod(o.source.shape) == 1 for p in drafts for o in p.operands):
        raise NotPersistent("a product reads a state or a value of one unit")
    wanted = {o.source for p in drafts for o in p.operands if not o.given}
    carried = {step.result(s) for s in graph.states if s in wanted}
    if len(carried) < len([s for s in graph.states if s in wanted]):
        raise NotPersistent("products read two states that become the same value")
    drafts = [
        replace(p, published=tuple(n for n in _own(p) if n in wanted or n in carried)) if p.kind != "reduce" else p
        for p in drafts
    ]
    if not {n for n in wanted if n.op != "state"} | carried <= {n for p in drafts for n in p.published}:
        raise NotPersistent("a product reads a value that no phase hands over")
    if any(n.shape != (p.width,) for p in drafts for n in p.published):
        raise NotPersistent("a product reads a value of which a unit has several numbers")
    found = _with_reads(replace(step, phases=tuple(drafts), domain=domain), kept, hoisted)
    if found.tables and not products:
        raise NotPersistent("a step reads rows of a table at computed places")
    return found


def _show(graph: Graph, drafts: list[Phase]) -> tuple[list[Phase], dict[Node, Node]]:
    """Where products read state * mask alone, with one mask for the whole sequence, the step before hands that over in
    place of the state: no phase has to, at the start of a step, while everybody waits."""
    users, roots = graph.users(), {*graph.roots}
    products = {p.root for p in drafts if p.kind == "gemm"}
    read = dict.fromkeys(o.source for p in drafts for o in p.operands)
    shown: dict[Node, Node] = {}
    for node in read:
        leaves = [n for n in topological([node]) if n.leaf or n.random]
        states = [n for n in leaves if n.op == "state"]
        fixed = all(n.attrs["every"] == "sequence" if n.random else n.scalar is not None or n in states for n in leaves)
        alone = node not in roots and all(u in products for u in users[node])
        masked = node.pointwise and fixed and any(n.random for n in leaves)
        same = len(states) == 1 and states[0].shape == node.shape
        if masked and alone and same and sum(states[0] in topological([n]) for n in read) == 1:
            shown[states[0]] = node
    gone: set[Node] = set(shown.values())
    for node in reversed(graph.nodes()):
        below = node.pointwise and node not in roots and bool(users[node]) and all(u in gone for u in users[node])
        gone |= {node} if below else set()
    found, state_of = [], {node: state for state, node in shown.items()}
    for phase in drafts:
        operands = tuple(replace(o, source=state_of.get(o.source, o.source)) for o in phase.operands)
        own = replace(phase, operands=operands, nodes=tuple(n for n in phase.nodes if n not in gone))
        found += [own] if own.nodes or own.kind != "pointwise" else []
    return found, shown


def _own(phase: Phase) -> tuple[Node, ...]:
    return (*phase.nodes, *([phase.root] if phase.root is not None and phase.gates == 1 else []))


def _phase(graph: Graph, group: Group) -> Phase:
    nodes = tuple(n for n in group.nodes if n is not group.root)
    if any(is_move(n) or n.leaf for n in group.stored):
        raise NotPersistent("a value of the step is a view or a copy")
    root = group.root
    if group.kind == "gemm" and root is not None:
        pairs = zip(root.args[::2], root.args[1::2], strict=True)
        width = _width(graph, group, root.shape[-1])
        operands = tuple(Operand(x, w, x.shape[0], _diagonal(w, width)) for w, x in pairs)
        for operand in operands:
            if operand.given and len(operand.source.shape) != 1:
                raise NotPersistent("a product reads an input that is not a vector")
            if not operand.given and graph.region_of(operand.source) != "step":
                raise NotPersistent("a product of the step reads a hoisted value")
            if is_move(operand.source):
                raise NotPersistent("a product reads a view")
        return Phase("gemm", root, width, prod(root.shape) // width, operands, nodes)
    if group.kind == "reduce" and root is not None:
        if root.op == "einsum" or root.shape not in ((), (1,)) or len(root.args[0].shape) != 1:
            raise NotPersistent(f"a reduction to shape {list(root.shape)}")
        width = _width(graph, group, root.args[0].shape[-1])
        if width == 1:
            raise NotPersistent("a reduction of one number")
        # What only the reduction reads is computed inside it.
        return Phase("reduce", root, width, 0, (), (), (), (root,), (None,))
    widths = {n.shape[-1] for n in nodes if n.shape not in ((), (1,))}
    if any(len(n.shape) > 2 for n in nodes) or len({_width(graph, group, w) for w in widths}) > 1:
        raise NotPersistent("pointwise work on an array")
    return Phase("pointwise", None, _width(graph, group, min(widths, default=1)), 0, (), nodes)


def _diagonal(weight: Node, width: int) -> Diagonal | None:
    """The blocks of a weight, of one gate or of several, if all that it is made of has them alike."""
    made = list(topological([weight]))
    parts = [n for n in made if n.op == "param"]
    found = {n.attrs.get("heads") for n in parts}
    alike = len(found) == 1 and all(n.shape[-2:] == (width, weight.shape[-1]) for n in parts)
    heads = found.pop() if alike and all(n.leaf or n.op in ("reshape", "concat") for n in made) else None
    return Diagonal(width // heads, weight.shape[-1] // heads) if heads else None


def joined(drafts: list[Phase]) -> list[Phase]:
    """Reductions move to the first reduction of as many units where their values are known: one exchange serves all of
    them. A sum of squares around a mean joins the sum that the mean is made of, the place of a maximum the maximum."""
    found: list[Phase] = []
    for draft in drafts:
        for at, phase in enumerate(found if draft.kind == "reduce" else ()):
            if phase.kind != "reduce" or phase.width != draft.width:
                continue
            root = draft.roots[0]
            centre = next((r for r in phase.roots if is_spread(root, r) or is_place(root, r)), None)
            late = {n for p in found[at:] for n in (*p.nodes, *p.roots, p.root)}
            if centre is not None or not late & set(topological(root.args)):
                roots, centres = (*phase.roots, root), (*phase.centres, centre)
                found[at] = replace(phase, roots=roots, centres=centres)
                break
        else:
            found.append(draft)
    return found


def is_spread(node: Node, total: Node) -> bool:
    """Whether a node is sum((x - m) ** 2), where `total` is sum(x) and m = total / (elements of x)."""
    if node.op != "sum" or total.op != "sum" or node.args[0].op != "mul":
        return False
    centred, x = node.args[0].args[0], total.args[0]
    if node.args[0].args[1] is not centred or centred.op != "sub" or centred.args[0] is not x:
        return False
    mean = centred.args[1]
    if mean.op != "mul" or total not in mean.args:
        return False
    factor = mean.args[1 - mean.args.index(total)].scalar
    return factor is not None and abs(factor * prod(x.shape) - 1) < 1e-9


def is_place(root: Node, top: Node) -> bool:
    """Whether a node is minus the place where a maximum is: max(-where(x == m or x != x, places, their number)), where
    `top` is m = max(x)."""
    if root.op != "max" or top.op != "max" or root.args[0].op != "neg" or root.args[0].args[0].op != "where":
        return False
    x, (hit, places, none) = top.args[0], root.args[0].args[0].args
    if hit.op != "logical_or" or none.scalar is None or places.value is None or places.shape != x.shape:
        return False
    equal, unequal = hit.args
    both = equal.op == "equal" and unequal.op == "not_equal" and {*unequal.args} == {x}
    return both and {*equal.args} == {x, top} and none.scalar >= float(places.value.max())


def places_of(root: Node) -> Node:
    """The places among which `is_place` finds one."""
    return root.args[0].args[0].args[1]


def _width(graph: Graph, group: Group, size: int) -> int:
    """Units of a phase: a value of 4H is four gates of H units where the cell has states of H."""
    own = {s.shape[0] for s in graph.states}
    if size in own or size == 1:
        return size
    fitting = [n for n in own if n > 1 and size % n == 0]
    return max(fitting, default=size)


def _with_reads(step: Step, kept: Callable[[Node], bool], hoisted: Callable[[Node], bool]) -> Step:
    """A dry run of every phase's expressions: what they read, or NotPersistent where a unit reads another one's."""
    from tvm import tirx

    graph = step.graph
    unknown = tirx.Var("value", graph.dtype)  # what is folded of a constant may be a division by 0
    params: dict[tuple[Node, int, int], None] = {}
    tables: dict[Node, None] = {}
    reads = []
    known: set[Node] = set(graph.states)
    for phase in step.phases:
        found: dict[tuple[Node, int], None] = {}

        def read(node: Node, index: Index, phase: Phase = phase, found: dict[tuple[Node, int], None] = found) -> object:
            if node in known:
                if step.domain[node] not in (phase.width, 1):
                    raise NotPersistent("a phase reads a value of other units")
                place(node, index, step.domain[node])
                return unknown
            if node.scalar is not None:
                return None
            if kept(node) and at_computed_row(index):
                in_row(node, index, phase.width)
                tables[node] = None
            elif kept(node):
                number = component(node, index, phase.width)
                params[(node, number, phase.width if number >= 0 else 0)] = None
            elif node.op == "input" or hoisted(node):
                found[(node, component(node, index, phase.width))] = None
            elif TABLE[node.op].kind in ("contract", "reduce"):
                raise NotPersistent("a phase reads a product that is neither its own nor in memory")
            else:
                return None
            return unknown

        try:
            if phase.kind == "gemm" and phase.root is not None:
                known.add(phase.root)
            for root, centre in zip(phase.roots, phase.centres, strict=True):
                if centre is None or root.op == "max":
                    own = root.args[0] if centre is None else places_of(root)
                    for _, index in components(own, phase.width):
                        element(own, index, read, graph.dtype)
            known.update(phase.roots)
            for state, node in step.shown.items():
                if step.result(state) in phase.published:
                    element(node, next(iter(components(node, phase.width)))[1], read, graph.dtype)
            for node in phase.nodes:
                for _, index in components(node, phase.width):
                    if node.op == "take":
                        element(node, index, partial(_but, node, read), graph.dtype)
                    elif node.pointwise and not node.boolean:
                        for arg in node.args:
                            element(arg, fit(arg.shape, index), read, graph.dtype)
                known.add(node)
        except NotAligned as reason:
            raise NotPersistent(f"a unit reads another unit's value: {reason}") from None
        reads.append(tuple(found))
    return replace(step, reads=tuple(reads), params=tuple(params), tables=tuple(tables))


def _but(node: Node, read: Callable[[Node, Index], object], inner: Node, index: Index) -> object:
    """What is read of all nodes but one, which is computed."""
    return None if inner is node else read(inner, index)


def at_computed_row(index: Index) -> bool:
    """Whether an index begins with a row that the step computes."""
    return bool(index) and not isinstance(index[0], int | Lane)


def in_row(table: Node, index: Index, width: int) -> tuple[int, bool]:
    """`place` within the row of a table."""
    shape = table.shape[1:]
    return place(Node("const", shape=shape), index[1:], width) if shape else (0, False)
