"""Few states, many steps: time in segments that run at once. Each does to the states S -> M S + N, which is composed.

In: a `Recurrence` and a tile. Out: `Segments`, which says how many there are and launches what finds the states before
each, for `ChunkScan`: `SegmentEnds`, a chunk scan of all segments but the last that begins with no states and leaves N,
and with one key of each value's and leaves the columns of M, of as many further values; where nothing is erased M is a
number, or one of each key; and `Compose`, which goes through the segments.

Rewrite: for all steps: S = M_t S + N_t  -->  for each segment: M, N; for segments: S = M S + N; for each segment: steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import wide

from .chunk_block import Block
from .chunk_scan import USERS, ChunkScan
from .chunk_states import States
from .chunk_tile import ChunkTile
from .recurrence import Recurrence

LEAST = 3  # segments that are worth it: all but the last are run twice
COMPOSED = 4  # segments that are composed while both kernels run a chunk
VALUES = 2  # of a block that composes
HELD = 128  # elements of the next M that a thread has, or has asked for


def map_size(recurrence: Recurrence) -> int:
    """Numbers of M: of each two keys, of each key, or one."""
    if recurrence.erasing is not None:
        return recurrence.keys**2
    return recurrence.keys if recurrence.decays_by_key else 1


@dataclass(frozen=True)
class SegmentEnds(ChunkScan):
    """A recurrence without read-outs. Pointers: operands, then ends [segments, B, heads, states] and maps [segments, B,
    heads, keys of S before, keys], or [segments, B, heads, 1 or keys]; steps: of all segments but the last."""

    @property
    def tiles(self) -> int:
        return super().tiles + (ceil_div(self.recurrence.keys, self.tile.values) if self.recurrence.erasing else 0)

    @property
    def map0(self) -> int:
        """The value from which on there are columns of M."""
        return super().tiles * self.tile.values

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return (*self.recurrence.operands, ("ends", "float32"), ("maps", "float32"))

    def states(self, block: Block, warp: TirExpr) -> States:
        return _Ends(block, warp, self)


class _Ends(States):
    """N, or columns of M."""

    def __init__(self, block: Block, warp: TirExpr, scan: SegmentEnds) -> None:
        super().__init__(block, warp)
        self.map0 = scan.map0
        self.erases = scan.recurrence.erasing is not None
        self.total = self.w.tile(self.scan.keys // 8, 2)  # of M where nothing is erased: of a lane's keys

    def begin(self) -> None:
        w = self.w
        self.total.fill(tirx.const(1.0, "float32"))
        for number, value, key in self._places():
            one = tirx.EQ(value - self.map0, key)
            w.store(self.state.buffer, tirx.Select(one, tirx.const(1.0, "float32"), tirx.const(0.0, "float32")), number)

    def _left(self) -> Iterator[tuple[int, Sequence[TirExpr]]]:
        for n, left in super()._left():
            if not self.erases:
                for i in range(2):
                    self.total.store(self.total[n][i] * left[i], n, i)
            yield n, left

    def finish(self) -> None:
        w, own = self.w, self.recurrence
        for number, there, at in self._elements(self.body.number):
            with w.when(there):
                w.store(w["ends"], self.state.flat[number], at)
        array = w.keep(wide(self.body.number) * own.heads + wide(self.body.head))
        if not self.erases:
            size = map_size(own)
            first = w.bind(tirx.And(tirx.EQ(self.body.value0 + self.warp, 0), self.lane < 4))
            for number, total in enumerate(self.total.flat):
                key = w.bind(8 * (number // 2) + self.lane * 2 + number % 2)
                with w.when(tirx.And(first, key < size)):
                    w.store(w["maps"], total, array * size + wide(key))
            return
        for number, value, key in self._places():
            column = w.bind(value - self.map0)
            with w.when(tirx.And(tirx.And(column >= 0, column < own.keys), key < own.keys)):
                at = array * (own.keys * own.keys) + wide(column * own.keys + key)
                w.store(w["maps"], self.state.flat[number], at)


@dataclass(frozen=True)
class Compose:
    """Pointers: state_in, ends, maps, and starts [segments, B, heads, states]; scalars: segments, batch. dtype: of the
    user's states; if that is not float32, there are users_in and a scalar, users, as of `ChunkScan`."""

    name: str
    recurrence: Recurrence
    dtype: str = "float32"

    @property
    def threads(self) -> int:
        return ceil_div(self.recurrence.keys, 32) * 32

    @property
    def tiles(self) -> int:
        return ceil_div(self.recurrence.values, VALUES)

    def blocks(self, batch: int) -> int:
        return self.tiles * self.recurrence.heads * batch

    @cached_property
    def kernel(self) -> Kernel:
        pointers = [(name, "float32") for name in ("state_in", "ends", "maps", "starts")]
        scalars = [("segments", "int32"), ("batch", "int32")]
        if self.dtype != "float32":
            pointers, scalars = [*pointers, (USERS[0], self.dtype)], [*scalars, ("users", "int32")]
        return write(self.name, pointers, scalars, self._body, threads=self.threads)

    def _body(self, w: Writer) -> None:
        _Composing(w, self).run()


class _Composing:
    """The body of a kernel that composes: a thread has a key of VALUES values; the others' are in shared memory."""

    def __init__(self, w: Writer, compose: Compose) -> None:
        self.w, self.own, self.threads, self.dtype = w, compose.recurrence, compose.threads, compose.dtype
        block = w.keep(I.cta_id([tirx.Cast("int32", wide(w["batch"]) * (compose.tiles * self.own.heads))]))
        self.key = w.keep(I.thread_id([self.threads]))
        self.states = I.alloc_buffer((self.threads * VALUES,), "float32", scope="shared", align=16)
        self.value0 = w.keep(tirx.truncmod(block, compose.tiles) * VALUES)
        self.array = w.keep(tirx.Cast("int64", tirx.truncdiv(block, compose.tiles)))
        self.count = w.bind(wide(w["batch"]) * self.own.heads)
        self.there = w.bind(self.key < self.own.keys)
        self.state, self.end = w.local(VALUES), w.local(VALUES)

    def run(self) -> None:
        w = self.w
        for v in range(VALUES):
            w.store(self.state, tirx.const(0.0, "float32"), v)
            w.store(self.end, tirx.const(0.0, "float32"), v)
        if self.dtype == "float32":
            self._begin("state_in")
        else:
            with I.If(tirx.NE(w["users"], tirx.const(0, "int32"))):
                with I.Then():
                    self._begin(USERS[0])
                with I.Else():
                    self._begin("state_in")
        self.factors = w.local(min(self.own.keys, HELD))
        self.here = w.keep(tirx.min(self.key, self.own.keys - 1))
        last = w.keep(tirx.max(w["segments"] - 2, 0))
        erases = self.own.erasing is not None
        with w.when(tirx.And(w["segments"] > 1, tirx.const(erases, "bool"))):
            for i in range(self.own.keys):
                self._ask(tirx.const(0, "int32"), i)
        with w.loop(w["segments"]) as segment:
            number = w.keep(wide(segment) * self.count + self.array)
            self._each(lambda v: w.store(w["starts"], self.state[v], self._place(number, v)))
            with w.when(segment + 1 < w["segments"]):
                self._each(lambda v: w.store(self.end, w["ends"][self._place(number, v)], v))
                if erases:
                    self._multiply(segment, last)
                else:
                    self._scale(number)

    def _begin(self, pointer: str) -> None:
        w = self.w
        self._each(lambda v: w.store(self.state, converted(w[pointer][self._place(self.array, v)], "float32"), v))

    def _place(self, number: TirExpr, v: int) -> TirExpr:
        own, value = self.own, self.value0 + v
        inner = value * own.keys + self.key if own.keys_last else self.key * own.values + value
        return number * (own.keys * own.values) + wide(inner)

    def _each(self, body: Callable[[int], None]) -> None:
        """Of every value that there is."""
        for v in range(VALUES):
            with self.w.when(tirx.And(self.there, self.value0 + v < self.own.values)):
                body(v)

    def _factor(self, segment: TirExpr, i: int) -> TirExpr:
        number = self.w.bind(wide(segment) * self.count + self.array)
        return self.w["maps"].ptr_to([number * (self.own.keys * self.own.keys) + wide(i * self.own.keys + self.here)])

    def _ask(self, segment: TirExpr, i: int) -> None:
        """Load a factor long before it is needed, where registers have room for it."""
        if i < min(self.own.keys, HELD):
            self.w.do(I.ptx["ld.global.f32"](self.factors[i], self._factor(segment, i)))

    def _scale(self, number: TirExpr) -> None:
        """S = m S + N: m is a number, or one of each key."""
        size = map_size(self.own)
        left = self.w.keep(self.w["maps"][number * size + wide(tirx.min(self.here, size - 1))])
        for v in range(VALUES):
            self.w.store(self.state, self.state[v] * left + self.end[v], v)

    def _multiply(self, segment: TirExpr, last: TirExpr) -> None:
        """S = M S + N."""
        w, state = self.w, self.state
        w.do(I.cuda.cta_sync())
        for v in range(VALUES):
            w.store(self.states, state[v], self.key * VALUES + v)
            w.store(state, self.end[v], v)
        w.do(I.cuda.cta_sync())
        after = w.keep(tirx.min(segment + 1, last))
        for i in range(self.own.keys):
            late = w.local(1)
            if i >= HELD:
                w.do(I.ptx["ld.global.f32"](late[0], self._factor(segment, i)))
            now = self.factors[i] if i < HELD else late[0]
            for v in range(VALUES):
                w.store(state, state[v] + now * self.states[i * VALUES + v], v)
            self._ask(after, i)


@dataclass(frozen=True)
class Segments:
    """The segments of a chunk scan. Their memory, float32: N of all but the last, their M, the states before each."""

    name: str
    recurrence: Recurrence
    tile: ChunkTile
    reverse: bool = False
    dtype: str = "float32"  # of the user's states

    @cached_property
    def ends(self) -> SegmentEnds:
        return SegmentEnds(f"{self.name}_ends", replace(self.recurrence, reads=()), self.tile, self.reverse)

    @cached_property
    def compose(self) -> Compose:
        return Compose(f"{self.name}_compose", self.recurrence, self.dtype)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of N and M."""
        return self.recurrence.keys * self.recurrence.values, map_size(self.recurrence)

    def memory_size(self, rows: HostExpr) -> str:
        """Numbers, at most, for so many rows of steps. LEAST segments have more than LEAST - 1 of LEAST chunks each."""
        (states, maps), heads = self.sizes, self.recurrence.heads
        most = f"{rows} * {heads} / {(LEAST - 1) * self.tile.chunk}"
        return f"std::min<int64_t>(sms / {self._tiles}, {most}) * {2 * states + maps}"

    @property
    def _tiles(self) -> int:
        """Of values, of the scan whose segments these are."""
        return ceil_div(self.recurrence.values, self.tile.values)

    def span(self, host: Host, steps: HostExpr) -> str:
        """Steps of a segment, which has LEAST chunks at least: there are as many as the GPU has room for, though what
        finds their ends, which has columns of M too, may take two turns; but composing takes no longer than a segment.
        """
        chunk, blocks = self.tile.chunk, self._tiles * self.recurrence.heads
        chunks = host.let("chunks", f"({steps} + {chunk - 1}) / {chunk}")
        root = f"std::min<int64_t>({chunks} / {LEAST}, static_cast<int64_t>(std::sqrt({COMPOSED} * {chunks})))"
        most = host.let("segments", f"std::min<int64_t>(sms / (B * {blocks}), {root})")
        return host.let("span", f"({most} < {LEAST} ? {chunks} : ({chunks} + {most} - 1) / {most}) * {chunk}")

    def launch(
        self,
        host: Host,
        pointers: Mapping[str, Pointer],
        scalars: Mapping[str, HostExpr],
        memory: Pointer,
        masked: bool,
    ) -> Pointer:
        """What finds the states before each segment, which it returns. pointers, scalars: those of the chunk scan, and
        segments."""
        states, count = self.sizes[0], f"{scalars['segments']} * B * {self.recurrence.heads}"
        places = {"ends": memory, "starts": memory.at(f"{count} * {states}")}
        places["maps"] = memory.at(f"{count} * {2 * states}")
        before = dict(scalars) | {"steps": f"({scalars['segments']} - 1) * {scalars['span']}"}
        for kernel in (self.ends.kernels[masked], self.compose.kernel):
            own = {name: {**pointers, **places}[name] for name, _ in kernel.pointers}
            host.launch(kernel, own, {name: before[name] for name, _ in kernel.scalars})
        return places["starts"]
