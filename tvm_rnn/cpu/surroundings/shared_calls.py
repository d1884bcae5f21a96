"""Calls of a graph that differ only in where their arrays lie have one function, which is called for each: the blocks
of a transformer are as much code as one of them.

In: a call's loops, what is known of its values. Out: `Scheduled`: statements on arrays of their own, made once for all
calls that are alike; in the graph's function as they are, or as a function of their own.

Rewrite: for i: work[a + i] = f(x0[i]); ...; for i: work[b + i] = f(work[a + i])
         -->  around_0_shared_0(work + a, x0); ...; around_0_shared_0(work + b, work + a)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import tirx

from tvm_rnn.cpu.pair_product import PairProduct
from tvm_rnn.surroundings.calls import Value
from tvm_rnn.surroundings.loops import with_numbers
from tvm_rnn.surroundings.memory import Room
from tvm_rnn.surroundings.nest import reads, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import PLAIN, apart, raised, sequence, variable
from tvm_rnn.tir.statements import buffer as flat_buffer

from .columns import Laid
from .constants import Constants
from .elementary import with_polynomials
from .levels import rounded_as_kept
from .places import Place, moved
from .schedule import Tiles
from .whole_numbers import Range, WholeNumbers

Layout = Callable[[Value], Value]  # of a constant


@dataclass
class Setting:
    """What schedules depend on beside loops. lanes: elements of a vector. pairs: instructions for pairs of whole
    numbers, by words of a vector. levels: whether the graph rounds values to 8 bits. whole: the ranges of values that
    are whole numbers, as far as calls have been read. constants: where these are laid out."""

    lanes: int
    threads: tirx.Var
    pairs: Mapping[int, PairProduct]
    levels: bool
    whole: Mapping[Value, Range]
    constants: Constants


@dataclass(eq=False)
class Scheduled:
    """A call's statements. params: the arrays of its values, in order. sizes: variables for sizes. laid: constants as
    they are read, by the place of the value and how it is laid out. own: arrays that are needed meanwhile. whole: what
    is known of the values after it. particular: whether it depends on constants' elements."""

    params: Sequence[Buffer]
    sizes: Sequence[tirx.Var]
    threads: tirx.Var
    statements: list[Stmt] = field(default_factory=list)
    laid: dict[Buffer, tuple[int, Layout]] = field(default_factory=dict)
    own: list[Buffer] = field(default_factory=list)
    whole: dict[int, Range] = field(default_factory=dict)
    particular: bool = False

    @staticmethod
    def of(
        loops: tirx.PrimFunc,
        params: Sequence[Buffer],
        sizes: Sequence[tirx.Var],
        values: Sequence[Value],
        setting: Setting,
    ) -> Scheduled:
        """values: of the parameters."""
        found, known = Scheduled(params, sizes, setting.threads), setting.whole
        nests = list(loops.body.seq) if isinstance(loops.body, tirx.SeqStmt) else [loops.body]
        temporary = [s.buffer for s in nests if isinstance(s, tirx.AllocBuffer)]
        nests = [s for s in nests if not isinstance(s, tirx.AllocBuffer)]
        numbers = {param: value for param, value in zip(params, values, strict=True) if value.constant is not None}
        nests = [with_numbers(nest, numbers) for nest in nests]
        nests = [rounded_as_kept(nest) for nest in nests] if setting.levels else nests
        nests = [with_polynomials(nest) for nest in nests]
        whole = WholeNumbers({p: known[v] for p, v in zip(params, values, strict=True) if v in known})
        whole.read(nests)
        found.whole = {i: whole.known[p] for i, p in enumerate(params) if p in whole.known}
        tiles = Tiles(setting.lanes, setting.threads, found._layouts(values, setting.constants), whole, setting.pairs)
        found.statements = tiles.scheduled(nests, lambda b: any(b.same_as(o) for o in temporary))
        found.own = [*temporary, *tiles.copies]
        return found

    def _layouts(self, values: Sequence[Value], constants: Constants) -> Laid:
        """How this call's constants can be laid out, as others' then are."""
        places = {p: i for i, (p, v) in enumerate(zip(self.params, values, strict=True)) if v.constant is not None}

        def laid(buffer: Buffer, layout: Layout) -> Buffer | None:
            if buffer not in places:
                return None
            found = layout(values[places[buffer]])
            into = tirx.decl_buffer([int64(n) for n in found.array.shape], found.dtype, name="w")
            self.laid[into] = places[buffer], layout
            return into

        def array(buffer: Buffer) -> np.ndarray | None:
            self.particular |= buffer in places
            return values[places[buffer]].array if buffer in places else None

        return Laid(
            lambda buffer, axis: laid(buffer, lambda own: constants.along(own, axis)),
            lambda buffer, axis, width: laid(buffer, lambda own: constants.panels(own, axis, width)),
            lambda buffer, axis, pair, width: laid(buffer, lambda own: constants.paired(own, axis, pair, width)),
            array,
            lambda buffer: buffer in places,
        )

    def read(self, values: Sequence[Value]) -> list[tuple[Buffer, Value]]:
        """The arrays that the statements read or write, with a call's own values."""
        there = [*zip(self.params, values, strict=True)]
        there += [(buffer, layout(values[i])) for buffer, (i, layout) in self.laid.items()]
        return [own for own in there if own[1].constant is None or any(reads(s, own[0]) for s in self.statements)]

    def inline(self, places: Sequence[tuple[Buffer, Place]], sizes: Mapping[tirx.Var, Expr]) -> list[Stmt]:
        """The statements where arrays lie at these places."""
        return [replaced(moved(s, places), sizes) for s in self.statements]

    def function(self, name: str, arrays: Sequence[Buffer]) -> tirx.PrimFunc:
        """The statements as a function of pointers to these arrays, of sizes and a number of threads."""
        pointers, views, places = list[TirExpr](), list[Stmt](), list[tuple[Buffer, Place]]()
        for i, own in enumerate(arrays):
            pointers.append(tirx.Var(f"pointer_{i}", tvm.ir.PointerType(tvm.ir.PrimType(own.dtype))))
            flat = flat_buffer(f"a{i}", str(own.dtype), alignment=1)
            views.append(tirx.DeclBuffer(flat, data=pointers[-1]))
            places.append((own, Place(flat, Room(int64(0), int64(0)))))
        threads, sizes = variable("threads"), [variable(size.name) for size in self.sizes]
        names = {self.threads: threads, **dict(zip(self.sizes, sizes, strict=True))}
        body = apart(name, sequence(self.inline(places, names)))  # else LLVM would copy it to calls
        made = tirx.PrimFunc([*pointers, *sizes, threads], sequence(views, body), tvm.ir.PrimType("int32"))
        return made.with_attr(PLAIN, name).with_attr("tirx.noalias", True)

    def call(self, name: str, places: Sequence[Place], sizes: Mapping[tirx.Var, Expr]) -> Stmt:
        """A call of that function."""
        arguments = [*(place.address for place in places), *(sizes[own] for own in self.sizes), self.threads]
        return raised(tirx.EQ(tirx.call_extern("int32", name, *arguments), tirx.const(0, "int32")))
