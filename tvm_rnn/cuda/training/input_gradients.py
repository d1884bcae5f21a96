"""Gradients of inputs, for the layer below or the user, accumulated over directions and layers.

In: a backward graph's value for each row, and how values are read after all steps. Out: `InputGradient`: a kernel over
the rows of a tile; rows that have ended get 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.pointers import Place, address, arithmetic
from tvm_rnn.cuda.layer.row_kernels import THREADS, Values, elements, sources, unravel
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.index import wide


@dataclass
class InputGradient:
    """The kernel of one value. dtype: of the dense result."""

    name: str
    root: Node
    precision: str
    reads: Callable[[Node], Place | None]
    dtype: str

    def __post_init__(self) -> None:
        found = sources([self.root], lambda n: self.reads(n) is not None)
        self.read = [n for n in found if self.reads(n) is not None]
        places = [place for n in self.read if (place := self.reads(n)) is not None]
        pointers = [*((f"r{i}", place.dtype) for i, place in enumerate(places)), ("into", self.dtype)]
        scalars = [
            ("rows", "int64"),
            ("batch", "int64"),
            ("start", "int64"),
            ("has_lengths", "int32"),
            ("add", "int32"),
        ]
        more = [("lengths", "int64")]
        self.kernel: Kernel = write(self.name, [*pointers, *more], scalars, self._body, threads=THREADS)

    def _body(self, w: Writer) -> None:
        size, dtype = prod(self.root.shape), arithmetic(self.precision)
        place = Place(self.dtype, size)
        row, j, inside = elements(w, size)
        with w.when(inside):
            pointers = {n: f"r{i}" for i, n in enumerate(self.read)}
            with flavour(self.precision):
                values = Values(w, self.precision, row, self.reads, pointers)
                found = values.at(self.root, unravel(w, j, self.root.shape))
            total = w.local(1, dtype)
            w.store(total, found, 0)
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                time = w["start"] + tirx.truncdiv(row, w["batch"])
                with w.when(time >= w["lengths"][tirx.truncmod(row, w["batch"])]):
                    w.store(total, tirx.const(0.0, dtype), 0)
            at = address(place, wide(row), j)
            with w.when(tirx.NE(w["add"], tirx.const(0, "int32"))):
                there = w["into"][at]
                w.store(total, total[0] + (there if self.dtype == dtype else tirx.Cast(dtype, there)), 0)
            w.store(w["into"], total[0] if self.dtype == dtype else tirx.Cast(self.dtype, total[0]), at)

    def run(
        self,
        host: Host,
        find: Callable[[Node, bool], Pointer],
        into: Pointer,
        steps: tuple[HostExpr, HostExpr],
        add: bool,
    ) -> None:
        """Over the rows of `steps`: (the first step, how many)."""
        start, count = steps
        pointers = [*(find(n, False) for n in self.read), into, host.program.lengths]
        host.launch(self.kernel, pointers, [f"{count} * B", "B", start, "has_lengths ? 1 : 0", int(add)])
