"""What the cells of a persistent kernel read from memory: parameters once, hoisted values and inputs some steps early.

In: the kernel's state (`persistent.Body`). Out: registers, and readers for expressions of the op table. A lane loads
exactly what belongs to its own units and batch rows. Most hoisted values come by way of shared memory: a warp copies
what its own cells will read, without registers, and reads nothing but its own copies, so that no barrier of the block
is needed. Masks are words of 32 steps (`cuda/rowwise/dropout_masks.py`), a bit for each step: a lane loads them once in
32 steps, those for whole sequences once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase, at_computed_row, component, components, in_row, place
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.rowwise.dropout_masks import BITS, WORD
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import LANES, Body, Cells, Geometry

Coming = tuple[Phase, Node, int, int, int, int]  # a read of one cell: with block, own tile, row of two
Entry = tuple[Phase, Node, int, int, int]  # of a warp's copies, 8 x 8 values: with component, block, own tile
PREFETCH_AHEAD = 6  # steps from a value's prefetch into L2 to its load, where registers are short


def place_of(layout: Layout, node: Node) -> Place:
    """Where an input or a hoisted value lies; of a mask, its words."""
    return Place(WORD, prod(node.shape)) if node.mask else layout.rows(node)


class CellReads:
    """The registers of one kernel. `coming[par]`: values of the next even or odd step, by (phase, node, slot, cell).

    Steps that take their operands from a pipeline are long, and short of registers: they ask for their own values while
    the first product is under way (`now`), or where no product comes first, for the next step's."""

    def __init__(self, body: Body, at: int) -> None:
        self.body, self.k, self.geometry, self.step = body, body.k, body.geometry, body.step
        copies = Prefetch if self.geometry.copy_warps else OwnPrefetch
        self.prefetch, self.words = copies(body, at), MaskWords(body)
        self.params: dict[tuple[Node, int, int, int], Expr] = {}  # with width and block
        self.ahead = 1 if self.geometry.reads_in_step else 2  # steps
        self.late = self.geometry.reads_in_step and self.step.phases[0].kind == "gemm"
        self.coming: list[dict[Coming, tuple[Buffer, int]]] = [{} for _ in range(self.ahead)]

    def load_params(self) -> None:
        """Once, at the kernel's start."""
        k, layout = self.k, self.body.layout
        for node, slot, width in self.step.params:
            source = k[f"param_{self.step.param_nodes.index(node)}"]
            if slot < 0:
                register = k.local(1)
                k.store(register, source[tirx.const(layout.offset(node, ~slot), "int64")], 0)
                self.params[(node, slot, width, 0)] = register[0]
                continue
            register = k.local(self.geometry.blocks(width))
            for block in range(self.geometry.blocks(width)):
                unit = tirx.Min(self.body.cells.unit(width, block), tirx.const(width - 1, "int32"))
                k.store(register, source[tirx.Cast("int64", layout.offset(node, slot * width) + unit)], block)
                self.params[(node, slot, width, block)] = register[block]

    def prepare(self) -> None:
        """Registers for loads in flight; loads the first two steps' values."""
        k = self.k
        self.prefetch.prepare()
        for par in range(self.ahead):
            for phase, reads in zip(self.step.phases, self.step.reads, strict=True):
                cells = list(self.body.cells.each(phase.width))
                for node, slot in reads:
                    if node.mask or self.geometry.prefetches(phase, node, slot):
                        continue
                    dtype = place_of(self.body.layout, node).dtype
                    registers = k.local(len(cells), dtype)
                    for at, (block, j, e) in enumerate(cells):
                        k.store(registers, tirx.const(0.0, dtype), at)
                        self.coming[par][(phase, node, slot, block, j, e)] = (registers, at)
            if not self.late:
                self.ask(par, tirx.const(par, "int32"))

    def phase(self, phase: Phase, par: int, t: Expr) -> None:
        """After a phase of step t: ask for what takes the place of the values that it has read.

        A thread waits for loads by counters, of which it has six, and so for all that are in flight by the same one:
        what is asked for at a step's end, the next step waits for as it begins. LSTM 256 backwards, B = 32, on an H200
        took 1.5 us, and 1.8 where both of two steps did so. Here it is under way while the phase's values are."""
        if self.ahead > 1:
            self.ask(par, t + self.ahead, phase)

    def after(self, par: int, t: Expr) -> None:
        """At the end of step t."""
        self.words.after(t + 1)
        if self.ahead == 1 and not self.late:
            self.ask(0, t + 1)

    def now(self, t: Expr, *, prefetch: bool) -> list[Callable[[], None]]:
        rows = dict.fromkeys((phase, node, j, e) for phase, node, _, _, j, e in self.coming[0])
        at = t + PREFETCH_AHEAD if prefetch else t
        return [partial(self._row, at, *row, prefetch=prefetch) for row in rows] if self.late else []

    def _row(self, t: Expr, phase: Phase, node: Node, j: int, e: int, *, prefetch: bool) -> None:
        """Of one batch row, from one address: loads lie at constant distances from it."""
        k, body = self.k, self.body
        source, stride = k[self.geometry.read_names[node]], place_of(body.layout, node).row_stride
        keys = [key for key in self.coming[0] if (key[0], key[1], *key[4:]) == (phase, node, j, e)]
        unit = body.cells.first_unit(phase.width, 0) if prefetch else body.cells.unit(phase.width, 0)
        now = tirx.And(body.ids.g == 0, t < k["steps"]) if prefetch else tirx.const(True, "bool")
        with k.when(now), body.cells.own_tile(j):
            row = k.keep((body.time(t) + body.cells.row(j, e)) * stride)
            first = k.keep(row + unit)
            for key in keys:
                slot, block = key[2:4]
                begin = body.layout.offset(node, ~slot if slot < 0 else slot * phase.width)
                at = row + begin if slot < 0 else first + (begin + block * 8)
                with k.when(body.cells.inside(phase.width if slot >= 0 else 1, block, j, e)):
                    if not prefetch:
                        registers, number = self.coming[0][key]
                        k.store(registers, source[at], number)
                    elif slot >= 0:
                        k.do(I.ptx["prefetch.global.L2"](source.ptr_to([at])))

    def ask(self, par: int, t: Expr, of: Phase | None = None) -> None:
        """Load the values of step t, those of one phase or all; nothing waits for them here."""
        k, body = self.k, self.body
        wanted = {key: place for key, place in self.coming[par].items() if of is None or key[0] is of}
        if not wanted:
            return
        with k.when(t < k["steps"]):
            time = k.bind(body.time(t))
            for (phase, node, slot, block, j, e), (registers, at) in wanted.items():
                stride = place_of(body.layout, node).row_stride
                offset: Expr = body.layout.offset(node, ~slot if slot < 0 else slot * phase.width)
                offset = offset if slot < 0 else offset + body.cells.unit(phase.width, block)
                row = time + body.cells.row(j, e)
                with body.cells.own_tile(j), k.when(body.cells.inside(phase.width if slot >= 0 else 1, block, j, e)):
                    k.store(registers, k[self.geometry.read_names[node]][row * stride + offset], at)

    def _in_row(self, table: Node, index: Index, width: int, block: int) -> Expr:
        """An element of a table's row, from L2: nobody knew which before."""
        number, moving = in_row(table, index, width)
        within: Expr = tirx.const(number, "int32")
        if moving:
            unit = tirx.Min(self.body.cells.unit(width, block), tirx.const(width - 1, "int32"))
            within = within * width + unit
        at = tirx.Cast("int64", index[0]) * prod(table.shape[1:]) + tirx.Cast("int64", within)
        return self.k.keep(self.k[f"param_{self.step.param_nodes.index(table)}"][at])

    def reader(self, phase: Phase, block: int, j: int, e: int) -> Callable[[Node, Index], Expr | None]:
        body = self.body

        def read(node: Node, index: Index) -> Expr | None:
            domain = self.step.domain.get(node)
            if domain is not None:
                number, _ = place(node, index, domain)
                own = 0 if domain == 1 else block
                if (node, number, own, j, e) in body.held:
                    return body.held[(node, number, own, j, e)]
                if node.op == "state":
                    registers, at = body.states[(node, own, j, e)]
                    return registers[at]
                return None
            if node.leaf and node.op not in ("input", "param") and node.scalar is not None:
                return None
            if node in self.step.tables and at_computed_row(index):
                return self._in_row(node, index, phase.width, block)
            number = component(node, index, phase.width)
            if node.mask:
                return self.words.value((node, number, phase.width, block, j, e))
            key = (node, number, phase.width, block) if number >= 0 else (node, number, 0, 0)
            if key in self.params:
                return self.params[key]
            for loaded in (self.prefetch.now, self.coming[body.par % self.ahead]):
                if (phase, node, number, block, j, e) in loaded:
                    registers, at = loaded[(phase, node, number, block, j, e)]
                    return tirx.Cast("float32", registers[at])
            return None

        return read


Key = tuple[Node, int, int, int, int, int]  # mask, component, units of the phase, block, own tile, row of two


class MaskWords:
    """The words of one kernel."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.geometry, self.step = body, body.k, body.geometry, body.step
        self.words: dict[Key, tuple[Buffer, int]] = {}
        self.shift: Expr = tirx.const(0, "int32")

    def prepare(self) -> None:
        """Registers, and what the first step reads."""
        found: dict[Key, None] = {}
        for phase, reads in zip(self.step.phases, self.step.reads, strict=True):
            for node, slot in reads:
                if node.mask:
                    found |= {(node, slot, phase.width, *cell): None for cell in self.body.cells.each(phase.width)}
        for whole in (True, False):
            own = [key for key in found if _whole(key[0]) == whole]
            registers = self.k.local(max(1, len(own)), "float32" if whole else WORD)
            self.words |= {key: (registers, at) for at, key in enumerate(own)}
            if own:
                self._load(own, tirx.const(0, "int32"))

    def begin(self, t: Expr) -> None:
        """Step t begins: which bit is its own."""
        if any(not _whole(key[0]) for key in self.words):
            self.shift = self.k.keep(tirx.bitwise_and(self.body.order(t), BITS - 1))

    def after(self, t: Expr) -> None:
        """Step t - 1 ends: where step t begins another word, load it."""
        own = [key for key in self.words if not _whole(key[0])]
        if not own:
            return
        k = self.k
        first = tirx.Select(k["direction"] < 0, tirx.const(BITS - 1, "int32"), tirx.const(0, "int32"))
        turns = tirx.EQ(tirx.bitwise_and(self.body.order(t), BITS - 1), first)
        with k.when(tirx.And(t < k["steps"], turns)):
            self._load(own, t)

    def _load(self, own: list[Key], t: Expr) -> None:
        """All of them at once, then what is made of them, then the prefetch of later ones into L2."""
        k, body = self.k, self.body
        # 0, which the compiler cannot know: what is made of a word here is waited for here, and not in every step.
        none = k.keep(tirx.Cast(WORD, k["direction"] * k["direction"] - 1))
        group = k.keep(tirx.Cast("int64", body.order(t) >> (BITS.bit_length() - 1)) * k["batch"])
        loaded = k.local(len(own), WORD)
        for n, key in enumerate(own):
            k.store(loaded, tirx.const(0, WORD), n)
            with self._cell(key):
                k.store(loaded, self.word(key[0], *self._at(group, key)), n)
        for n, key in enumerate(own):
            registers, at = self.words[key]
            word = tirx.bitwise_xor(loaded[n], none)
            k.store(registers, self.number(word) if _whole(key[0]) else word, at)
        with k.when(t + BITS < k["steps"]):
            later = k.keep(group + k["direction"] * k["batch"])
            for key in own:
                if not _whole(key[0]):
                    with self._cell(key):
                        source, (row, unit) = k[self.geometry.read_names[key[0]]], self._at(later, key)
                        k.do(I.ptx["prefetch.global.L2"](source.ptr_to([self._element(key[0], row, unit)])))

    @contextmanager
    def _cell(self, key: Key) -> Iterator[None]:
        """For lanes that have that cell."""
        _, slot, width, block, j, e = key
        with self.body.cells.own_tile(j), self.k.when(self.body.cells.inside(width if slot >= 0 else 1, block, j, e)):
            yield

    def _at(self, group: Expr, key: Key) -> tuple[Expr, Expr]:
        """Row and unit of a cell's word."""
        node, slot, width, block, j, e = key
        row = tirx.Cast("int64", self.body.cells.row(j, e))
        unit: Expr = ~slot if slot < 0 else slot * width + self.body.cells.unit(width, block)
        return row if _whole(node) else group + row, unit

    def _element(self, node: Node, row: Expr, unit: Expr) -> Expr:
        return row * prod(node.shape) + tirx.Cast("int64", unit)

    def word(self, node: Node, row: Expr, unit: Expr) -> Expr:
        return self.k[self.geometry.read_names[node]][self._element(node, row, unit)]

    def number(self, word: Expr) -> Expr:
        """The lowest bit as a number."""
        one, zero = (tirx.const(value, "float32") for value in (1.0, 0.0))
        return tirx.Select(tirx.NE(tirx.bitwise_and(word, tirx.const(1, WORD)), tirx.const(0, WORD)), one, zero)

    def masked_state(self, state: Node, value: Expr, block: int, j: int, e: int) -> Expr:
        """What products read of a state's value in one cell."""
        width = self.step.domain[state]
        return self._shown(state, value, lambda node, slot: self.value((node, slot, width, block, j, e)))

    def masked_state_at(self, state: Node, value: Expr, row: Expr, unit: Expr) -> Expr:
        """The same in any batch row and unit."""
        width = self.step.domain[state]

        def number(node: Node, slot: int) -> Expr:
            return self.number(self.word(node, tirx.Cast("int64", row), ~slot if slot < 0 else slot * width + unit))

        return self._shown(state, value, number)

    def _shown(self, state: Node, value: Expr, mask: Callable[[Node, int], Expr]) -> Expr:
        node = self.step.shown.get(state)
        if node is None:
            return value
        width, own = self.step.domain[state], self.k.keep(value)

        def read(inner: Node, index: Index) -> Expr | None:
            if inner is state:
                return own
            if not inner.mask:
                return None
            return mask(inner, component(inner, index, width))

        _, index = next(components(node, width))
        return element(node, index, read, "float32")

    def value(self, key: Key) -> Expr:
        """The mask of one cell in this step."""
        registers, at = self.words[key]
        return registers[at] if _whole(key[0]) else self.number(registers[at] >> tirx.Cast(WORD, self.shift))


def _whole(node: Node) -> bool:
    return bool(node.attrs["every"] == "sequence")


def prefetched(geometry: Geometry) -> list[tuple[Phase, Node, int]]:
    """Each (phase, hoisted value, component) that is prefetched."""
    every = zip(geometry.step.phases, geometry.step.reads, strict=True)
    return [(phase, *read) for phase, reads in every for read in reads if geometry.prefetches(phase, *read)]


class Pieces:
    """Where the hoisted values of one kernel lie that shared memory prefetches: pieces of 16 bytes, 8 rows of a value
    and 8 units for each entry of `order`, of each warp's cells."""

    def __init__(self, geometry: Geometry, layout: Layout) -> None:
        self.geometry, self.layout = geometry, layout
        self.order: list[Entry] = []
        for phase, node, slot in prefetched(geometry):
            for block in range(geometry.blocks(phase.width)):
                self.order += [(phase, node, slot, block, j) for j in range(geometry.own_tiles)]
        # A value's pieces follow each other, also where several phases read it.
        known = list(dict.fromkeys(entry[1] for entry in self.order))
        self.order.sort(key=lambda entry: known.index(entry[1]))
        self.of_row = 8 * geometry.itemsize // 16
        self.strides = {node: layout.rows(node).row_stride for node in known}
        self.stages = geometry.prefetch_steps

    def entries(self, node: Node) -> list[Entry]:
        return [entry for entry in self.order if entry[1] is node]

    @property
    def warp_words(self) -> int:
        """Of shared memory, of all steps of one warp."""
        return self.geometry.prefetch_words // self.geometry.prefetching_warps

    @property
    def step_words(self) -> int:
        """Of one step of one warp."""
        return self.warp_words // self.stages

    def element(self, k: Writer, cells: Cells, group: Expr, node: Node, flat: Expr) -> Expr:
        """Element at time 0 of the flat-th piece of a value, of the warp that has these cells."""
        entries, geometry, lanes = self.entries(node), self.geometry, 16 // self.geometry.itemsize
        each = 8 * self.of_row
        entry, row = tirx.floordiv(flat, each), tirx.floormod(tirx.floordiv(flat, self.of_row), 8)
        piece = tirx.floormod(flat, self.of_row) * lanes
        unit, tile = k.local(1, "int32"), k.local(1, "int32")
        for n, (phase, _, slot, block, j) in enumerate(entries):
            with k.when(entry == n):
                # Units past the last one are never looked at: any will do.
                last = self.strides[node] if phase.width % 8 else phase.width
                within = tirx.Min(cells.first_unit(phase.width, block) + piece, tirx.const(last - lanes, "int32"))
                k.store(unit, self.layout.offset(node, slot * phase.width) + within, 0)
                k.store(tile, cells.tile(j), 0)
        row = k["row0"] + group * geometry.rows + tile[0] * 8 + row
        row = tirx.Cast("int64", tirx.Min(row, k["batch"] - 1))
        return k.keep(row * self.strides[node] + unit[0])


class Prefetch:
    """What cells read of the copies, which warps of their own make (`copy_warps.py`). at: the word of the arena where
    they begin."""

    def __init__(self, body: Body, at: int) -> None:
        self.body, self.k, self.geometry, self.at = body, body.k, body.geometry, at
        self.now: dict[Coming, tuple[Buffer, int]] = {}
        self.pieces = Pieces(self.geometry, body.layout)
        self.order = self.pieces.order

    def prepare(self) -> None:
        """Registers for a step's values; the first steps' copies begin."""
        k, geometry = self.k, self.geometry
        if not self.order:
            if geometry.input_product is not None:
                self._start()
            return
        self.warp = k.keep(self.at + self._warp() * self.pieces.warp_words)
        self.registers = k.local(2 * len(self.order), geometry.storage)
        for n, (phase, node, slot, block, j) in enumerate(self.order):
            for e in range(2):
                self.now[(phase, node, slot, block, j, e)] = (self.registers, 2 * n + e)
        self._start()

    def _start(self) -> None:
        """The first step's values are there."""
        self.k.do(I.cuda.cta_sync())

    def _await(self) -> None:
        """A step's values are there: since a barrier of the step before."""

    def _later(self, t: Expr) -> None:
        """Step t's values are in registers."""

    def _warp(self) -> Expr:
        """This warp's number, among those that have copies."""
        geometry, ids = self.geometry, self.body.ids
        if geometry.prefetching_warps == geometry.warps:
            return ids.warp
        group, each = tirx.floordiv(ids.warp, geometry.warps_k), min(geometry.warps_k, geometry.pass_tiles)
        return group * each + tirx.Min(ids.warp_k, tirx.const(each - 1, "int32"))

    def begin(self, t: Expr) -> None:
        """Step t begins: its values to registers."""
        if not self.order:
            return
        k, geometry, ids = self.k, self.geometry, self.body.ids
        self._await()
        elements, size = self.pieces.step_words * 4 // geometry.itemsize, geometry.shared_bytes // geometry.itemsize
        view = I.decl_buffer((size,), geometry.storage, data=self.body.arena.data, scope="shared.dyn")
        place = self.warp * (4 // geometry.itemsize) + tirx.floormod(t, self.pieces.stages) * elements
        place = k.keep(place + ids.q * 16 + ids.g)
        for n in range(len(self.order)):
            for e in range(2):
                k.store(self.registers, view[place + n * 64 + e * 8], 2 * n + e)
        self._later(t)


class OwnPrefetch(Prefetch):
    """Each warp makes the copies that its own cells read."""

    def _start(self) -> None:
        """Where this lane's pieces come from; the first steps' copies begin."""
        k, pieces = self.k, self.pieces
        arena = I.cuda.cvta_generic_to_shared(self.body.arena.ptr_to([tirx.const(0, "int32")]))
        self.base = k.keep(arena + tirx.Cast("uint32", (self.warp + self.body.ids.lane * 4) * 4))
        self.sources: list[tuple[Node, int, int, Expr]] = []  # with the first of 32 pieces, and how many are left
        at = 0
        for node in pieces.strides:
            count = len(pieces.entries(node)) * 8 * pieces.of_row
            for i in range(0, count, LANES):  # lanes past the last piece repeat it
                flat = tirx.Min(self.body.ids.lane + i, count - 1)
                element = pieces.element(k, self.body.cells, self.body.ids.group, node, flat)
                self.sources.append((node, at + i, count - i, element))
            at += count
        for t in range(pieces.stages - 1):
            self._copy(tirx.const(t, "int32"), t)

    def _copy(self, t: Expr, slot: Expr) -> None:
        """Begin to copy step t to a stage."""
        k, geometry, ids = self.k, self.geometry, self.body.ids
        every = geometry.prefetching_warps == geometry.warps
        copies = tirx.const(True, "bool") if every else ids.warp_k < geometry.pass_tiles
        with k.when(tirx.And(copies, t < k["steps"])):
            time = k.bind(self.body.time(t))
            for node, first, left, element in self.sources:
                source = k[self.geometry.read_names[node]].ptr_to([time * self.pieces.strides[node] + element])
                target = self.base + tirx.Cast("uint32", slot * (self.pieces.step_words * 4) + first * 16)
                with nullcontext() if left >= LANES else k.when(ids.lane < left):
                    k.do(I.ptx["cp.async.cg.shared.global"](target, source, 16))
        k.do(I.ptx["cp.async.commit_group"]())

    def _await(self) -> None:
        self.k.do(I.ptx["cp.async.wait_group"](self.pieces.stages - 2))
        self.k.do(I.cuda.warp_sync())

    def _later(self, t: Expr) -> None:
        """The copy of a later step takes the place of the last one's."""
        later = t + (self.pieces.stages - 1)
        self._copy(later, tirx.floormod(later, self.pieces.stages))
