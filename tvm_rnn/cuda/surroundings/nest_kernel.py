"""What all kernels of loop nests have in common: the arrays and sizes that they are given, and how loops are split.

In: a piece, names of sizes, and what writes a kernel's body. Out: `Launch`: a kernel, and what the host program gives
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.surroundings.held_sizes import HeldSizes
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

from .inline import Piece
from .narrow import Narrow
from .statements import loads_of

Variables = Mapping[tirx.Var, TirExpr]


@dataclass(frozen=True)
class Launch:
    """A kernel, the arrays and sizes that it is given, in its order, and how many elements it makes: of none it must
    not be launched. where: when it is the one of several kernels for the same; None: always."""

    kernel: Kernel
    arrays: tuple[Buffer, ...]
    sizes: tuple[Expr, ...]
    elements: Expr
    written: Buffer
    where: Expr | None = None

    def when(self, condition: Expr) -> Launch:
        """The launch where this is true."""
        return replace(self, where=condition)


@dataclass
class NestKernel:
    """A nest's arrays and sizes by the names that they have in its kernel."""

    name: str
    piece: Piece
    held: HeldSizes
    arrays: list[Buffer] = field(default_factory=list)
    sizes: dict[tirx.Var, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.piece.nest is not None
        self.nest = self.piece.nest
        self.extents = {own.loop_var: self.held(own.extent) for own in self.nest.loops}
        self.target = self.piece.stores.buffer
        values = [own for own in (self.nest.store.value, self.nest.first, self.piece.stores.value) if own is not None]
        made = (self.nest.store.buffer, self.target)
        for load in (load for value in values for load in loads_of(value)):
            if not any(load.source.same_as(own) for own in (*made, *self.arrays)):
                self.arrays.append(load.source)
        self.arrays.append(self.target)
        shapes = [axis for own in self.arrays for axis in own.shape]
        for value in (*values, *shapes, *self.piece.stores.indices, *self.extents.values()):
            self._note(value)

    def _note(self, value: Expr) -> None:
        buffers = [own.source for own in loads_of(value)]

        def size(own: tirx.Var) -> None:
            known = own in self.extents or any(own.same_as(buffer) for buffer in buffers)
            if not known and own not in self.sizes:
                self.sizes[own] = f"n{len(self.sizes)}"

        tvm_ffi.structural_walk(value, (tirx.Var, size))

    @property
    def own(self) -> list[tirx.Var]:
        """The loops over the result's elements."""
        return [loop.loop_var for loop in self.nest.own]

    @property
    def summed(self) -> list[tirx.Var]:
        """The loops over a sum's terms, in order."""
        return [loop.loop_var for loop in self.nest.summed]

    def count(self, loops: Sequence[tirx.Var]) -> Expr:
        """How many elements these loops go over, as the host computes it."""
        found: Expr = int64(1)
        for own in loops:
            found = found * wide(self.extents[own])
        return found

    def known(self, loops: Sequence[tirx.Var]) -> int | None:
        """The same where it is a number."""
        found = 1
        for own in loops:
            extent = self.extents[own]
            if not isinstance(extent, tirx.IntImm):
                return None
            found *= int(extent)
        return found

    def launch(self, body: Callable[[Frame], None], threads: int, where: Expr | None = None) -> Launch:
        """The kernel that `body` writes."""
        pointers = [(f"a{i}", str(own.dtype)) for i, own in enumerate(self.arrays)]
        scalars = [(name, "int32") for name in self.sizes.values()]
        kernel = write(self.name, pointers, scalars, lambda w: body(Frame(w, self)), threads=threads)
        return Launch(kernel, tuple(self.arrays), tuple(self.sizes), self.count(self.own), self.target, where)


@dataclass(frozen=True)
class Frame:
    """A nest's kernel while its body is written."""

    w: Writer
    of: NestKernel

    def extent(self, loop: tirx.Var) -> TirExpr:
        """How often a loop runs, as int32."""
        return self.narrow({}).size(self.of.extents[loop])

    def count(self, loops: Sequence[tirx.Var]) -> TirExpr:
        """How many elements these loops go over."""
        found: TirExpr = tirx.const(1, "int32")
        for own in loops:
            found = found * self.extent(own)
        return found

    def split(self, index: TirExpr, loops: Sequence[tirx.Var]) -> dict[tirx.Var, TirExpr]:
        """Each loop's variable, of the number of an element, the last loop the quickest."""
        found, rest = dict[tirx.Var, TirExpr](), index
        for own in reversed(loops[1:]):
            extent = self.extent(own)
            found[own] = self.w.keep(tirx.Mod(rest, extent))
            rest = self.w.keep(tirx.Div(rest, extent))
        return found | dict.fromkeys(loops[:1], rest)

    def narrow(self, variables: Variables, sums: Mapping[Buffer, TirExpr] | None = None) -> Narrow:
        """Expressions in terms of the kernel. sums: values in the place of loads of an array."""
        sizes = {size: self.w[name] for size, name in self.of.sizes.items()}
        given = [*(sums or {}).items()]

        def load(source: Buffer, at: TirExpr) -> TirExpr:
            for own, value in given:
                if own.same_as(source):
                    return value
            number = next(i for i, own in enumerate(self.of.arrays) if own.same_as(source))
            return self.w[f"a{number}"][at]

        return Narrow({**sizes, **variables}, load)

    def begin(self, sums: Buffer, variables: Variables) -> None:
        """What a sum begins with, in a register."""
        first = self.of.nest.first
        assert first is not None
        self.w.store(sums, self.narrow(variables).value(first), 0)

    def store(self, variables: Variables, sums: Mapping[Buffer, TirExpr] | None = None) -> None:
        """Store the nest's element: what follows of its sum."""
        store, narrow = self.of.piece.stores, self.narrow(variables, sums)
        flat = narrow.flat(store.buffer.shape, [narrow.value(wide(index)) for index in store.indices])
        self.w.store(self.w[f"a{len(self.of.arrays) - 1}"], narrow.value(store.value), flat)
