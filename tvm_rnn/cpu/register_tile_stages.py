"""The arrays of a register tile, each a nest of loops: sums in registers, then what is made of them, then what is
stored.

In: the sizes of its axes, of which lanes are the last one, and its value at a place. Out: a statement. Loops over what
is summed are outside and have their order; those over the tile are unrolled, lanes are a vector. A template that has a
schedule gets the sums as blocks of TVM's instead, "product_i" and "partial", and does what it likes with them.

Rewrite: acc[row, unit] = sum over k of f(row, unit, k)
         -->  (unrolled row) (vector unit): acc = 0;  for k: (unrolled row) (vector unit): acc += f
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.analysis import get_sblock_access_region

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import sequence, variable

from .workspace import dense

Place = Sequence[Expr]


@dataclass(frozen=True)
class Sum:
    """axes: what is summed over, outermost first, and how many of each; first: what a sum begins at; join: two values
    as one."""

    axes: Mapping[tirx.Var, Expr]
    first: Expr
    join: Callable[[TirExpr, Expr], Expr]


@dataclass(frozen=True)
class Stage:
    """One array. place: the variables of its axes, 0 along one of one; value: there; address: of a place in the
    buffer."""

    name: str
    extents: tuple[int, ...]
    place: Place
    value: Expr
    buffer: Buffer
    address: Callable[[Place], Expr]
    sum: Sum | None = None

    def __call__(self, *place: Expr) -> TirExpr:
        """What was stored."""
        return tirx.BufferLoad(self.buffer, [self.address(place)])

    def _put(self, place: Place, value: Expr) -> Stmt:
        return tirx.BufferStore(self.buffer, value, [self.address(place)])

    def _added(self) -> Stmt:
        """One more term."""
        assert self.sum is not None
        return self._put(self.place, self.sum.join(self(*self.place), self.value))

    def statement(self) -> Stmt:
        """Everything the array has."""
        if self.sum is None:
            return self._everywhere(self.place, self._put(self.place, self.value))
        fresh, done = axes(self.extents), self._everywhere(self.place, self._added(), self._shorter)
        for var, extent in reversed([*self.sum.axes.items()]):
            done = tirx.For(var, int64(0), wide(extent), tirx.ForKind.SERIAL, done)
        return sequence(self._everywhere(fresh, self._put(fresh, self.sum.first)), done)

    @property
    def _shorter(self) -> int:
        """Where the loop over the first axis goes, among those around the vector: inside, if that is the shorter side
        of what is summed. Registers hold its values for each term, and one of the other side's."""
        first, *others = self.extents[:-1] or (1,)
        return len(others) if first < prod(others) else 0

    def _everywhere(self, place: Place, done: Stmt, first: int = 0) -> Stmt:
        """done at all places. first: how many of the other loops are around that over the first axis."""
        kind, loops = tirx.ForKind.VECTORIZED, [*zip(place, self.extents, strict=True)]
        loops.insert(first, loops.pop(0))
        for var, extent in reversed(loops):
            if extent > 1:
                done = tirx.For(var, int64(0), int64(extent), kind, done)
            kind = tirx.ForKind.UNROLLED
        return done

    def block(self, buffers: Iterable[Buffer]) -> Stmt:
        """A sum for a schedule: loops over its axes, then over what is summed, around one block. buffers: what it may
        read or write."""
        assert self.sum is not None
        own = [var if extent > 1 else variable("one") for var, extent in zip(self.place, self.extents, strict=True)]
        kinds = [tirx.IterVar.DataPar] * len(own) + [tirx.IterVar.CommReduce] * len(self.sum.axes)
        sizes = dict(zip(own, map(int64, self.extents), strict=True)) | {k: wide(n) for k, n in self.sum.axes.items()}
        inside = [
            tirx.IterVar(tvm.ir.Range(int64(0), size), var, kind)
            for (var, size), kind in zip(sizes.items(), kinds, strict=True)
        ]
        body, first = self._added(), self._put(self.place, self.sum.first)
        whole = s_tir.SBlock(inside, [], [], self.name, body)
        reads, writes, _ = get_sblock_access_region(whole, {buffer: buffer for buffer in buffers})
        around = [variable(var.name) for var in sizes]
        done = s_tir.SBlockRealize(around, True, s_tir.SBlock(inside, reads, writes, self.name, body, first))
        for var, size in reversed([*zip(around, sizes.values(), strict=True)]):
            done = tirx.For(var, int64(0), size, tirx.ForKind.SERIAL, done)
        return done


def axes(extents: Sequence[int]) -> Place:
    """A variable for each axis that has more than one place."""
    return [variable(f"i{n}") if extent > 1 else 0 for n, extent in enumerate(extents)]


def in_registers(
    name: str, extents: tuple[int, ...], dtype: str, value: Callable[..., Expr], sum: Sum | None = None
) -> Stage:
    """An array that lies in registers. value: at each place."""
    place = axes(extents)
    buffer = tirx.decl_buffer((prod(extents),), dtype, name=f"{name}_local", scope="local")
    return Stage(name, extents, place, value(*place), buffer, lambda index: dense(extents, index), sum)


# TVM's schedule without the types of arguments being looked at in Python: that is half of its time.
_PLAIN = {name: method.__wrapped__ for name, method in vars(Schedule).items() if hasattr(method, "__wrapped__")}
Unchecked = type("Unchecked", (Schedule,), _PLAIN)
_LOWER = (
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.LowerOpaqueBlock,
)


def scheduled(sums: Sequence[Stage], buffers: Sequence[Buffer], schedule: Callable[[Schedule], object]) -> Stmt:
    """The sums as a schedule makes them. buffers: what they may read.

    A Schedule takes closed functions only: the variables of the loops around the sums are parameters of one."""
    given = dict.fromkeys([*buffers, *(own.buffer for own in sums)])
    plain = sequence([own.statement() for own in sums])
    free = [var for var in tirx.analysis.undefined_vars(plain, []) if var not in given]
    blocks = sequence([own.block(given) for own in sums])
    body = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", blocks))
    sch = Unchecked(tirx.PrimFunc([*given, *free], body).with_attr("global_symbol", "main"))
    schedule(sch)
    return tvm.ir.transform.Sequential([p() for p in _LOWER])(sch.mod)["main"].body
