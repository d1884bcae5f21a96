"""Images as rows of pixels: between the caller's arrays, whose pixels lie side by side, and a program whose rows are
pixels, whose channels do (`passes/rows_of_pixels.py`).

In: a program, and which of the caller's arrays are images. Out: statements before all others, which copy what is given
to rows of pixels, and behind all others, which copy results back. The program's B is the call's times the pixels of an
image; lengths and flags, one for a batch row, become one for each of its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.index import int64, wide

SIDE, LINES = 32, 8  # of a tile, and of a block's threads
THREADS = 256


@dataclass
class Images:
    """Of one program. pixels: of an image. What the caller leaves out is no address, and not copied."""

    program: Program
    pixels: int
    results: list[tuple[Pointer, Pointer, int, HostExpr]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.program.each, self.host = self.pixels, self.program.sequence

    def give(self, name: str, blocks: list[tuple[int, str]]) -> None:
        """What the caller gives under that name of the host program becomes rows of pixels. blocks: (channels, rows) of
        each part of the array, one after the other; rows are pixels."""
        users, own = self._rows(name, blocks)
        for source, target, channels, rows in zip(users, own, *zip(*blocks, strict=True), strict=True):
            self._copy(source, target, (channels, self.pixels), rows)

    def take(self, name: str, blocks: list[tuple[int, str]]) -> None:
        """The same of a result, which is copied by `finish`."""
        users, own = self._rows(name, blocks)
        self.results += zip(own, users, *zip(*blocks, strict=True), strict=True)

    def flags(self) -> None:
        """Lengths and reset flags for each pixel."""
        for name, dtype, count in (("lengths", "int64", "B"), ("reset", "uint8", "T * B")):
            own = self.program.buffer(name, count, dtype)
            with self.host.when(f"has_{name}"):
                self.host.launch(_spread(f"spread_{name}", dtype, self.pixels), [Pointer(name, dtype), own], [count])
                self.host.code(f"{name} = {own.text};")

    def finish(self) -> None:
        """Results to where the caller wants them."""
        for source, target, channels, rows in self.results:
            self._copy(source, target, (self.pixels, channels), rows)

    def _rows(self, name: str, blocks: list[tuple[int, str]]) -> tuple[list[Pointer], list[Pointer]]:
        """Where each part lies at the caller's, and in memory of the program, which the name stands for from here."""
        dtype, at, total = self.program.dtype, list[str](), "0"
        for channels, rows in blocks:
            at.append(total)
            total = f"{total} + {channels} * {rows}"
        own = self.program.buffer("pixels", f"({total})", dtype)
        users = self.host.pointer("users", Pointer(name, dtype))
        self.host.code(f"{name} = {own.text};")
        return [users.at(f"({start})") for start in at], [own.at(f"({start})") for start in at]

    def _copy(self, source: Pointer, target: Pointer, size: tuple[int, int], rows: HostExpr) -> None:
        kernel = self.program.kernels.get(_name(source.dtype, size)) or _transposed(source.dtype, size)
        with self.host.when(f"{source.text} && {target.text}"):
            self.host.launch(kernel, [source, target], [f"({rows}) / {self.pixels}"])


def _name(dtype: str, size: tuple[int, int]) -> str:
    return f"turn_{size[0]}_{size[1]}_{dtype}"


def _transposed(dtype: str, size: tuple[int, int]) -> Kernel:
    """Each [lines, columns] as [columns, lines]; scalar: how many."""
    lines, columns = size
    down, across = ceil_div(lines, SIDE), ceil_div(columns, SIDE)

    def body(w: Writer) -> None:
        cta = w.keep(wide(I.cta_id([tirx.Cast("int32", w["images"] * (down * across))])))
        thread = I.thread_id([SIDE * LINES])
        x, y = w.keep(tirx.truncmod(thread, SIDE)), w.keep(tirx.truncdiv(thread, SIDE))
        place = w.keep(tirx.Cast("int32", tirx.truncmod(cta, int64(down * across))))
        start = w.keep(tirx.truncdiv(cta, int64(down * across)) * (lines * columns))
        line, column = w.keep(tirx.truncdiv(place, across) * SIDE), w.keep(tirx.truncmod(place, across) * SIDE)
        tile = I.alloc_buffer((SIDE * (SIDE + 1),), dtype, scope="shared")
        for turn in range(0, SIDE, LINES):
            i, j = w.bind(line + y + turn), w.bind(column + x)
            with w.when(tirx.And(i < lines, j < columns)):
                w.store(tile, w["source"][start + wide(i) * columns + wide(j)], (y + turn) * (SIDE + 1) + x)
        w.do(I.cuda.cta_sync())
        for turn in range(0, SIDE, LINES):
            i, j = w.bind(line + x), w.bind(column + y + turn)
            with w.when(tirx.And(i < lines, j < columns)):
                w.store(w["target"], tile[x * (SIDE + 1) + y + turn], start + wide(j) * lines + wide(i))

    pointers = [("source", dtype), ("target", dtype)]
    return write(_name(dtype, size), pointers, [("images", "int64")], body, threads=SIDE * LINES)


def _spread(name: str, dtype: str, each: int) -> Kernel:
    """target[i] = source[i / each]; scalar: how many."""

    def body(w: Writer) -> None:
        cta = I.cta_id([tirx.Cast("int32", tirx.truncdiv(w["count"] + (THREADS - 1), int64(THREADS)))])
        at = w.keep(wide(cta) * THREADS + wide(I.thread_id([THREADS])))
        with w.when(at < w["count"]):
            w.store(w["target"], w["source"][tirx.truncdiv(at, int64(each))], at)

    return write(name, [("source", dtype), ("target", dtype)], [("count", "int64")], body, threads=THREADS)
