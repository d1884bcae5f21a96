"""Groups of large networks that differ only in where their arrays lie have one function, which is called for each.

In: each group with its places, as code is made; then the functions in which they are. Out: those functions, and the
shared ones. Which groups are alike is known at the end, so a group is a mark at first. A function of few groups keeps
its own code: there a call would cost more than it saves.

Rewrite: for i: y[a + i] = f(x[b + i]); ...; for i: y[c + i] = f(x[d + i])
         -->  shared(y, x, a, b); ...; shared(y, x, c, d)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.scalar import replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import PLAIN, apart, buffer, sequence, variable

from .head_loops import Within
from .register_tile import Places, Wanted
from .workspace import Array

LOADED = "loaded"
# Of what is loaded the op matters to nobody, but for these: forms of code are chosen by what is around values.
SEEN_THROUGH = ("windows", "concat", "broadcast", "const")
WHOLE = 12  # a function of at most so many groups keeps its own code: those of small cells
Emit = Callable[[Expr, Places], Stmt]  # rows, places
Functions = dict[str, tirx.PrimFunc]


@dataclass
class _Use:
    """A group at its place. around: the context in which its code is made."""

    key: Hashable
    own: _Described
    emit: Emit
    around: Context

    def code(self, rows: Expr, places: Places) -> Stmt:
        return self.around.run(self.emit, rows, places)


@dataclass
class SharedGroups:
    """The groups of all functions of a file. Call `finish` on these once."""

    uses: dict[str, _Use] = field(default_factory=dict)
    count: int = 0  # of shared functions

    def put(self, group: Group, rows: Expr, places: Places, emit: Emit, unit: Hashable) -> Stmt:
        """A mark for the group's code. emit: makes it; unit: what else it depends on."""
        own, name = _Described(group, rows, places), f"group_{len(self.uses)}"
        key = (unit, tuple(sorted((name, id(form)) for name, form in replaced().items())), own.key)
        self.uses[name] = _Use(key, own, emit, copy_context())
        return tirx.Evaluate(tirx.call_extern("int32", name))

    def finish(self, functions: Mapping[str, tirx.PrimFunc]) -> Functions:
        """The functions with code in place of marks, and the shared ones."""
        marked = {name: self._marks(function.body) for name, function in functions.items()}
        alike = Counter(use.key for uses in marked.values() if len(uses) > WHOLE for use in uses)
        made: dict[Hashable, tuple[str, tirx.PrimFunc]] = {}

        def code(mark: tirx.Evaluate, few: bool) -> Stmt:
            use = self._of(mark)
            if use is None:
                return mark
            if few or alike[use.key] < use.own.fewest:
                return use.code(use.own.rows, use.own.places)
            if use.key not in made:
                name = f"shared_{self.count}"
                self.count += 1
                made[use.key] = name, use.own.function(name, use.code)
            return tirx.Evaluate(tirx.call_extern("int32", made[use.key][0], *use.own.arguments))

        def whole(function: tirx.PrimFunc, few: bool) -> tirx.PrimFunc:
            change = (tirx.Evaluate, lambda mark: code(mark, few))
            return function.with_body(tvm_ffi.structural_map(function.body, change))

        found = {name: whole(f, len(marked[name]) <= WHOLE) if marked[name] else f for name, f in functions.items()}
        return found | dict(made.values())

    def _marks(self, body: Stmt) -> list[_Use]:
        found: list[_Use] = []

        def note(mark: tirx.Evaluate) -> None:
            if (use := self._of(mark)) is not None:
                found.append(use)

        tvm_ffi.structural_walk(body, (tirx.Evaluate, note))
        return found

    def _of(self, mark: tirx.Evaluate) -> _Use | None:
        call = mark.value
        if getattr(getattr(call, "op", None), "name", "") != "tirx.call_extern":
            return None
        return self.uses.get(str(call.args[0].value))


class _Described:
    """A group and what it reads and writes. key: all but where that lies; numbers: the variables of a shared function
    and what they are here; moved: places that lie where the variables say.

    rows, places: as they were given."""

    def __init__(self, group: Group, rows: Expr, places: Places) -> None:
        self.rows, self.places, self.root = rows, places, group.root
        self.members, self.seen = {*group.nodes}, dict[Node, int]()
        self.buffers, self.numbers, self.facts = dict[str, Buffer](), dict[tirx.Var, Expr](), list[Hashable]()
        self.read = dict[Node, Array | None]()
        self.facts += [group.kind, group.region, places.chains, places.alone]
        products = self._products()
        for node in (*group.nodes, *group.stored):
            self.facts.append(self._node(node))
        write = {node: [*map(self._array, places.write(node))] for node in group.stored}
        copied = {node: self._array(places.copied[node]) for node in group.stored if node in places.copied}
        self.facts.append(tuple(node in copied for node in group.stored))
        self.moved_rows = rows if isinstance(rows, tirx.IntImm) else self._number(rows)
        self.facts.append(repr(rows) if isinstance(rows, tirx.IntImm) else "")
        self.moved = replace(
            places,
            read=self.read.__getitem__,
            write=write.__getitem__,
            products=products,
            copied=copied,
            wanted=self._wanted(),
            within=self._within(),
            batch=self._maybe(places.batch),
            threads=self._maybe(places.threads),
            odd=self._maybe(places.odd),
            given=(),
        )
        self.facts += [(str(b.dtype), b.data_alignment) for b in self.buffers.values()]
        self.key: Hashable = tuple(self.facts)

    def _number(self, value: Expr) -> Expr:
        """The variable for a number."""
        var = variable(f"given_{len(self.numbers)}")
        self.numbers[var] = value
        return var

    def _maybe(self, value: Expr | None) -> Expr | None:
        """The same of a number that some groups do not have."""
        self.facts.append(value is None)
        return None if value is None else self._number(value)

    def _array(self, array: Array) -> Array:
        """An array that lies where a variable says."""
        self.buffers.setdefault(array.buffer, self.places.buffers[array.buffer])
        self.facts.append(([*self.buffers].index(array.buffer), array.row_stride, array.strides, array.shape))
        return replace(array, base=self._number(array.base))

    def _node(self, node: Node) -> int:
        """The node's number."""
        if node in self.seen:
            return self.seen[node]
        array = self.places.read(node)
        if array is not None and node not in self.members and node.op not in SEEN_THROUGH:
            self.facts.append((LOADED, node.shape, node.boolean))
        else:
            args = node.args[1::2] if node.op == "gemm" and node is self.root else node.args  # parameters are packed
            of = tuple(map(self._node, args))
            attrs = tuple((name, _text(value)) for name, value in sorted(node.attrs.items()))
            op, name = node.op if node.scalar is None else repr(node.scalar), "" if args else node.name
            self.facts.append((op, name, node.shape, attrs, of, node in self.members, node is self.root))
        self.read[node] = None if array is None else self._array(array)
        self.seen[node] = len(self.seen)
        return self.seen[node]

    def _products(self) -> dict[Node, list[Expr]]:
        if self.root is None:
            return {}
        self.facts.append(self._node(self.root))
        if self.root not in self.places.products:
            return {}
        self.buffers["packed"] = self.places.buffers["packed"]
        self.facts.append(self.places.tails.get(self.root))
        return {self.root: [*map(self._number, self.places.products[self.root])]}

    def _wanted(self) -> Wanted | None:
        wanted = self.places.wanted
        if wanted is None:
            return None
        self.facts.append((wanted.number, wanted.groups))
        return replace(wanted, arrays=[*map(self._array, wanted.arrays)])

    def _within(self) -> Within | None:
        within = self.places.within
        self.facts.append(within is None)
        if within is None:
            return None
        return Within(self._number(within.begin), self._number(within.count), self._maybe(within.row))

    @property
    def fewest(self) -> int:
        """Groups for which a shared function is worth its calls: products are much code each, and take longer."""
        return 2 if self.root is not None and self.root.op == "gemm" else 3

    @property
    def arguments(self) -> list[TirExpr]:
        """What a call of the shared function gets."""
        given = [int64(n) if isinstance(n, int) else n for n in self.numbers.values()]
        return [*map(tirx.buffer.buffer_data, self.buffers.values()), *given]

    def function(self, name: str, code: Emit) -> tirx.PrimFunc:
        """The group's code for arrays that lie anywhere."""
        pointers, views, own = list[TirExpr](), list[Stmt](), dict[str, Buffer]()
        for key, old in self.buffers.items():
            pointer = tirx.Var(f"pointer_{key}", tvm.ir.PointerType(tvm.ir.PrimType(old.dtype)))
            own[key] = buffer(key, old.dtype, old.data_alignment)
            pointers.append(pointer)
            views.append(tirx.DeclBuffer(own[key], data=pointer))
        body = apart(name, code(self.moved_rows, replace(self.moved, buffers=own)))  # else LLVM would copy it to calls
        made = tirx.PrimFunc([*pointers, *self.numbers], sequence(views, body), tvm.ir.PrimType("int32"))
        return made.with_attr(PLAIN, name).with_attr("tirx.noalias", True)


def _text(value: object) -> str:
    """Of an attribute: of numbers all of their bits."""
    return f"{value.shape} {value.tobytes().hex()}" if isinstance(value, np.ndarray) else repr(value)
