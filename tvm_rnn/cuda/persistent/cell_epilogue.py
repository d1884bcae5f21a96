"""The epilogue of one phase: pointwise work on a lane's units; y, published values and the tape are stored.

In: the kernel's state (`persistent.Body`), a phase, the gates that its product left in registers, and what the layout
keeps. Out: statements: every value once, in registers; y, published and kept values stored, as soon as a phase has
them. Expressions come from the op table. A lane has one unit of each block for two batch rows; two lanes with
neighbouring units exchange a row each, so that 16-bit values are stored in pairs; where a lane has units of two blocks
beside each other, two pairs are exchanged for four units of a row: what is stored at once fills sectors of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import converted
from tvm_rnn.cuda.codegen.poison import written
from tvm_rnn.cuda.layer.phases import Phase, components
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout, Taped
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr

from .exchange import convert
from .geometry import LANES, Body, Slots
from .tape_lines import TapeLines, name_of


class Epilogue:
    """One phase of one step."""

    def __init__(self, body: Body, phase: Phase, gates: Sequence[Expr]) -> None:
        self.body, self.phase, self.gates = body, phase, gates
        self.k, self.geometry, self.step = body.k, body.geometry, body.step

    def emit(self) -> None:
        body, phase = self.body, self.phase
        own = [n for n in phase.nodes if n.pointwise and not n.boolean]
        each = sum(len(list(components(n, self.step.domain[n]))) for n in own)
        # Outside of every condition, so that later phases see them too.
        self.registers, self.used = self.k.local(max(1, each * len(list(body.cells.each(phase.width))))), 0
        for j in range(self.geometry.own_tiles):
            with body.cells.own_tile(j):
                blocks = 1 if phase.width == 1 else self.geometry.blocks(phase.width)
                for block in range(blocks):
                    for e in range(self.geometry.lane_rows):
                        self._cell(block, j, e)
                    if self.geometry.lane_rows == 1:  # nobody looks at the other row's values
                        body.held |= {(*key[:4], 1): value for key, value in body.held.items() if key[4] == 0}
                for block in range(blocks):
                    self._store(block, j)
        body.exchange.phase(self._published())

    def _cell(self, block: int, j: int, e: int) -> None:
        body, phase = self.body, self.phase
        if phase.root is not None and phase.kind == "gemm":
            for gate in range(phase.gates):
                half = block * phase.gates + gate
                at = (half // 2 * self.geometry.own_tiles + j) * 4 + half % 2 * 2 + e
                body.held[(phase.root, gate, block, j, e)] = self.gates[at]
        for node in phase.nodes:
            if not node.pointwise or node.boolean:
                continue
            own = 0 if self.step.domain[node] == 1 else block
            for number, index in components(node, self.step.domain[node]):
                key = (node, number, own, j, e)
                if key in body.held:
                    continue
                self.k.store(self.registers, self._value(node, index, block, j, e), self.used)
                body.held[key] = self.registers[self.used]
                self.used += 1

    def _value(self, node: Node, index: Index, block: int, j: int, e: int) -> Expr:
        known = self.body.reads.reader(self.phase, block, j, e)
        return element(node, index, lambda inner, at: None if inner is node else known(inner, at), "float32")

    # --- what becomes of the values ----------------------------------------------------------------------------------

    def _store(self, block: int, j: int) -> None:
        """Published values are staged and, with them, y where it is one of them in 16-bit; otherwise y as scalars."""
        body, phase = self.body, self.phase
        for node, (slot, when, y) in self._published().items():
            for e in range(self.geometry.lane_rows):
                body.exchange.stage(node, block, j, e, self._stored(self._next(node, block, j, e), block))
            body.exchange.publish_tile(node, slot, block, j, when, y)
        output = self.step.graph.output
        ours = (output in phase.nodes or output is phase.root) and body.tape_stores.late is None
        ours = ours and not body.copies_output
        if ours and not (output in phase.published and self._vectors(output)):
            self._store_scalars(block, j)

    def _next(self, node: Node, block: int, j: int, e: int) -> Expr:
        """A published value: of a state, what the next step begins with, as products read it."""
        value = self.body.held[(node, 0, block, j, e)]
        states = [s for s in self.step.carried if self.step.result(s) is node]
        if self.body.masks is not None and states:
            value = self.body.masks.after(states[0], value, block, j, e)
        return self.body.reads.words.masked_state(states[0], value, block, j, e) if states else value

    def _published(self) -> Slots:
        """Per published value: the copy it goes to, when, and how 16 bytes of it become y."""
        body = self.body
        found: Slots = {}
        for node in self.phase.published:
            carried = node in body.carried
            when = body.t + 1 < self.k["steps"] if carried and node not in self.step.sources else None
            ours = node is self.step.graph.output and not body.copies_output
            y = self._store_vector if ours and self._vectors(node) else None
            found[node] = (1 - body.par if carried else body.par, when, y)
        return found

    def _stored(self, value: Expr, block: int) -> Expr:
        """In the storage dtype; 0 for units that only fill up the last block, whose weights are 0 but may meet inf."""
        geometry, width = self.geometry, self.phase.width
        if geometry.ctas * geometry.units(width) != width:
            value = tirx.Select(self.body.cells.unit(width, block) < width, value, tirx.const(0.0, "float32"))
        return convert(self.body, value)

    def _vectors(self, node: Node) -> bool:
        if self.body.masks is not None or not self.geometry.exchange.stages:
            return False  # what is published is the next step's state, y is zero in rows that have ended
        if any(self.step.result(state) is node for state in self.step.shown):
            return False
        place = self.body.layout.output
        ends = node.shape[0] % 8 == 0 or self.body.layout.whole_rows  # units that only fill up are 0
        whole = ends and place.align >= 16 and place.row_stride % 8 == 0
        return self.geometry.itemsize == 2 and whole and place.dtype == self.geometry.storage

    def _store_vector(self, row: Expr, unit: Expr, words: Sequence[Expr]) -> None:
        """16 bytes of y: 8 units of one of the geometry's rows."""
        body, k = self.body, self.k
        row = k["row0"] + body.ids.group * self.geometry.rows + row
        with k.when(tirx.And(row < k["batch"], unit < self.phase.width)):
            at = (body.time(body.t) + row) * body.layout.output.row_stride + unit
            k.do(I.ptx["st.global.v4.b32"](k["y"].ptr_to([at]), *words))

    def _store_scalars(self, block: int, j: int) -> None:
        body, k = self.body, self.k
        place, node = body.layout.output, self.step.graph.output
        width = self.step.domain[node]
        if width == 1 and block:
            return  # one number per row, not one of each block of units
        values = [body.held[(node, 0, block, j, e)] for e in range(2)]
        if body.masks is not None:
            values = [body.masks.kept(value, tirx.const(0.0, "float32"), j, e) for e, value in enumerate(values)]
        # A layer above looks for words that are written: not one half at a time.
        if pairs(place, width, body.layout.whole_rows) and place.align >= 4 and place.row_stride % 2 == 0:
            body.tape_stores.pair("y", place, values, (0, block, j), width)
            return
        for e, value in enumerate(values):
            with k.when(body.cells.alone(width, block, j, e)):
                row = body.time(body.t) + body.cells.row(j, e)
                at = row * place.row_stride + (body.cells.unit(width, block) if width > 1 else 0)
                k.store(k["y"], self._written(value), at)

    def _written(self, value: Expr) -> Expr:
        """In y's dtype. A layer above may look for words that are not POISON: as float32, that is a NaN that a sign
        makes of the usual one, and it becomes another NaN. Conversions to 16 bits never make it."""
        value = tirx.Cast(self.body.layout.output.dtype, value)
        if self.body.layout.output.dtype != "float32" or not self.step.given:
            return value
        return I.reinterpret("float32", written(value))


LOWER, UPPER = 0x5410, 0x3276  # of prmt: the lower halves of a and b; the upper ones of b and a
NEIGHBOUR, NEXT_PAIR = 4, 8  # lanes: the next unit's is so many further, and that of the next pair of units


def pairs(place: Place, width: int, padded: bool = False) -> bool:
    """Whether values are stored two at a time, as words. padded: whether there is a place behind an odd one."""
    return place.dtype in ("bfloat16", "float16") and (width % 2 == 0 or padded)


def pointers(layout: Layout) -> list[tuple[str, str]]:
    """The kernel's pointers to kept values, with dtypes."""
    return [(name_of(own), own.place.dtype) for own in layout.taped]


class TapeStores:
    """The stores of one kernel. Of all values of a phase the words are made first, then they are stored: shuffles and
    conversions of one value do not wait for the store of another, as one store after the other has them."""

    def __init__(self, body: Body, late: bool) -> None:
        """late: y is stored a step later where it is a state, from that state's registers; or, but for the last step's,
        by other warps (`copy_warps.py`)."""
        self.body, self.k, self.layout, self.step = body, body.k, body.layout, body.step
        self.back = 0  # steps from the one that is being written to the one that is stored
        self.late: Taped | None = None
        self.lines = TapeLines(body)
        self.copied = False  # whether the lines of the step before go to memory
        results, output = self.step.graph.results, self.step.graph.output
        if late and self.layout.emits and output in results and self.step.domain[output] > 1:
            state = self.step.graph.states[results.index(output)]
            self.late = Taped(-1, state, self.layout.output, output.shape[0])

    def prepare(self) -> None:
        """Once: where lines go."""
        self.lines.prepare()

    def met(self) -> None:
        """All of a block have met: the first time in a step the lines of the one before go to memory."""
        if self.lines.lines and not self.copied:
            self.lines.met()
        self.copied = True

    def before(self) -> None:
        """States as they are when the step begins; y of the step before."""
        self.copied = False
        self._store([own for own in self.layout.taped if own.node.op == "state"])
        if self.late is not None and not self.body.copies_output:
            with self.k.when(self.body.t > 0) if self.body.par == 0 else nullcontext():
                self._store_late(self.late)

    def end(self) -> None:
        """Behind the last step: its y."""
        if self.late is not None:
            self.body.t = self.k["steps"]
            self._store_late(self.late)
        if self.lines.lines:
            self.lines.end()

    def _store_late(self, own: Taped) -> None:
        self.back = 1
        self._store([own])
        self.back = 0

    def phase(self, phase: Phase) -> None:
        """What the phase has computed."""
        made = {*phase.nodes, *phase.roots, phase.root}
        owns = [own for own in self.layout.taped if own.node in made and own.node.op != "state"]
        self._store([own for own in owns if not self.lines.takes(own)])
        self._write_lines([own for own in owns if self.lines.takes(own)])

    def _write_lines(self, owns: Sequence[Taped]) -> None:
        geometry = self.body.geometry
        for j in range(geometry.own_tiles) if owns else ():
            with self.body.cells.own_tile(j):
                values = [
                    (own, number, block, [self._value(own.node, number, block, j, e) for e in range(2)])
                    for own in owns
                    for number, _ in components(own.node, self.step.domain[own.node])
                    for block in range(geometry.blocks(geometry.line_width))
                ]
                self.lines.write(values, j)

    def _value(self, node: Node, number: int, block: int, j: int, e: int) -> Expr:
        if node.op == "state":
            registers, at = self.body.states[(node, block, j, e)]
            return registers[at]
        return self.body.held[(node, number, block, j, e)]

    def _store(self, owns: Sequence[Taped]) -> None:
        geometry = self.body.geometry
        for j in range(geometry.own_tiles) if owns else ():
            with self.body.cells.own_tile(j):
                words = list[Word]()
                for own in owns:
                    self._values(own, j, words)
                self._store_words(words, j)

    def _values(self, own: Taped, j: int, words: list[Word]) -> None:
        """Store one number at a time what does not lie in pairs; else make the words of it, to be stored later."""
        node, place, name, width = own.node, own.place, name_of(own), self.step.domain[own.node]
        whole = place.align >= 4 and place.row_stride % 2 == 0
        fours = place.align >= 8 and place.row_stride % 4 == own.apart % 4 == 0
        for number, _ in components(node, width):
            for block in range(1 if width == 1 else self.body.geometry.blocks(width)):
                values = [self._value(node, number, block, j, e) for e in range(2)]
                first_at = self.layout.spread(own.apart, number * width)
                padded = self.layout.whole_rows and own.number < 0
                if width > 1 and pairs(place, width, padded) and whole:
                    word = self._word(name, place, values, (first_at, block, width))
                    words.append(replace(word, fours=fours and first_at % 4 == 0))
                else:
                    self._each(name, place, values, (first_at, block, j), width)

    def _at(self, place: Place, j: int, e: Expr, offset: Expr) -> Expr:
        row = self.body.time(self.body.t - self.back) + self.body.cells.row(j, e)
        return row * place.row_stride + tirx.Cast("int64", offset)

    def _each(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int], width: int) -> None:
        """of: where the component begins, block, own tile. Of one number per row, the first unit's lanes store it."""
        (first_at, block, j), body = of, self.body
        for e, value in enumerate(values):
            with self.k.when(body.cells.alone(width, block, j, e)):
                offset = first_at + body.cells.unit(width, block) if width > 1 else first_at
                self.k.store(self.k[name], converted(value, place.dtype), self._at(place, j, e, offset))

    def pair(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int], width: int) -> None:
        """One value's words. name: of a pointer; of: as for `_each`."""
        first_at, block, j = of
        self._store_words([self._word(name, place, values, (first_at, block, width))], j)

    def _word(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int]) -> Word:
        """Lanes of even units have two units of the first row, those of odd units of the second. of: where the
        component begins, block, width."""
        k, kind = self.k, "bf16x2" if place.dtype == "bfloat16" else "f16x2"
        own, word = k.local(1, "uint32"), k.local(1, "uint32")
        _, block, width = of
        if width % 2:  # 0 stands behind the last one
            real = self.body.cells.unit(width, block) < width
            values = [k.keep(tirx.Select(real, value, tirx.const(0.0, "float32"))) for value in values]
        k.do(I.ptx[f"cvt.rn.{kind}.f32"](own[0], values[1], values[0]))
        mask = tirx.const(0xFFFFFFFF, "uint32")
        other = k.keep(tirx.call_extern("uint32", "__shfl_xor_sync", mask, own[0], NEIGHBOUR, LANES))
        halves = tirx.Select(self._odd, tirx.const(UPPER, "uint32"), tirx.const(LOWER, "uint32"))
        k.do(I.ptx["prmt.b32"](word[0], own[0], other, k.bind(halves)))
        return Word(name, place, word, *of)

    @property
    def _odd(self) -> Expr:
        return tirx.NE(tirx.floormod(self.body.ids.g, 2), 0)

    def _store_words(self, words: Sequence[Word], j: int) -> None:
        """Those of the same units share their condition."""
        body, geometry = self.body, self.body.geometry
        e = tirx.Select(self._odd, tirx.const(1, "int32"), tirx.const(0, "int32"))
        inside = body.cells.row(j, e) < self.k["batch"]
        found: dict[tuple[int, int], list[Word]] = {}
        for own in words:
            filled = geometry.ctas * geometry.units(own.width) == own.width
            found.setdefault((0, 0) if filled else (own.block, own.width), []).append(own)
        for (block, width), those in found.items():
            units = inside if not width else tirx.And(inside, self._unit(width, block) < width)
            couples, rest = _couples(those) if not width else ([], those)
            exchanged = [self._exchanged(*couple) for couple in couples]
            with self.k.when(units):
                for (own, _), (unit, *two) in zip(couples, exchanged, strict=True):
                    at = self._at(own.place, j, e, own.first_at + unit)
                    self.k.do(I.ptx["st.global.v2.b32"](self.k[own.name].ptr_to([at]), *two))
                for own in rest:
                    at = self._at(own.place, j, e, own.first_at + self._unit(own.width, own.block))
                    self.k.do(I.ptx["st.global.b32"](self.k[own.name].ptr_to([at]), own.register[0]))

    def _exchanged(self, low: Word, high: Word) -> tuple[Expr, Expr, Expr]:
        """Of two pairs of units, of two blocks, four units beside each other: the first one, and both words."""
        k, ids = self.k, self.body.ids
        odd = tirx.NE(tirx.floormod(tirx.floordiv(ids.g, 2), 2), 0)
        given = k.keep(tirx.Select(odd, low.register[0], high.register[0]))
        mask = tirx.const(0xFFFFFFFF, "uint32")
        other = k.keep(tirx.call_extern("uint32", "__shfl_xor_sync", mask, given, NEXT_PAIR, LANES))
        first, second = (
            k.keep(tirx.Select(odd, *pair)) for pair in ((other, low.register[0]), (high.register[0], other))
        )
        block = tirx.Select(odd, tirx.const(8, "int32"), tirx.const(0, "int32"))
        unit = self.body.cells.first_unit(low.width, low.block) + block + tirx.floordiv(ids.g, 4) * 4
        return unit, first, second

    def _unit(self, width: int, block: int) -> Expr:
        """The first of a lane's two units."""
        return self.body.cells.unit(width, block) - tirx.floormod(self.body.ids.g, 2)


@dataclass(frozen=True)
class Word:
    """Two units of a row, to be stored. name: of a pointer; first_at: where the component begins; block, width: whose
    units these are; fours: whether four of them, from a multiple of four on, lie as one piece of memory."""

    name: str
    place: Place
    register: Buffer
    first_at: int
    block: int
    width: int
    fours: bool = False


def _couples(words: Sequence[Word]) -> tuple[list[tuple[Word, Word]], list[Word]]:
    """The words of two blocks beside each other that can be stored as one, and the rest."""
    found = {(own.name, own.first_at, own.width, own.block): own for own in words if own.fours}
    couples = []
    for (name, first_at, width, block), own in found.items():
        if block % 2 == 0 and (other := found.get((name, first_at, width, block + 1))) is not None:
            couples.append((own, other))
    taken = [id(own) for couple in couples for own in couple]
    return couples, [own for own in words if id(own) not in taken]
