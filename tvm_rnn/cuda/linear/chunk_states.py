"""The warps of a chunk scan that have the states: each takes 16 values through all chunks, and no other warp sees it.

In: the kernel's body, a warp's number. Out: statements that take S through a chunk. S lies in registers as sums of
products, [16 values][keys], and sums of one product are the left operand of the next: S of what steps read of it, these
of what steps write, and these of what is added to S. Where warps of read-outs (`chunk_readers.py`) have the products
of what is read, they are handed S and what was written.

Source: what a step writes, by blocks of 16 steps: forward substitution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import unpack
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_block import Block
from .chunk_products import OLD, TURNED, WRITTEN, Products
from .chunk_tile import BLOCK, further, swizzled

Written = dict[str, tuple[RegisterTile, RegisterTile]]  # by what it was written along: at the time, and at the end

FEW = 4  # warps of states, whose registers are enough for two products at a time
TOGETHER = 4  # tiles of keys whose products fill a gap of what is solved
AHEAD = 3  # tiles of keys that are asked for before the two products that take one: these alone do not fill the wait
FEW_KEYS = 128  # beside whose states registers hold them


class States(Products):
    """state[n]: 8 keys; as sums of mma.sync lie. unscaled: what is erased, where that is a result."""

    unscaled: RegisterTile

    def __init__(self, block: Block, warp: TirExpr) -> None:
        super().__init__(block, warp)
        self.state = self.w.tile(self.scan.keys // 8, 4)

    # --- before and after ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Load the states; zeros where there are none."""
        w, found = self.w, self._elements(self.body.number)
        self.state.fill(tirx.const(0.0, "float32"))
        for pointer in self._memory("in", self.body.whole):
            for number, there, at in found:
                with w.when(there):
                    w.store(self.state.buffer, converted(w[pointer][at], "float32"), number)

    def finish(self) -> None:
        """Store them, after the last segment."""
        w = self.w
        with w.when(self.body.last):
            found = self._elements(self.body.row)
            for pointer in self._memory("out", tirx.const(True, "bool")):
                for number, there, at in found:
                    with w.when(there):
                        w.store(w[pointer], converted(self.state.flat[number], w[pointer].dtype), at)

    def _memory(self, end: str, able: TirExpr) -> Iterator[str]:
        """The pointers of states at one end of all steps, each within the statements of its own case. able: whether
        the user's may be there."""
        if not self.scan.converts:
            yield f"state_{end}"
            return
        with I.If(tirx.And(able, tirx.NE(self.w["users"], tirx.const(0, "int32")))):
            with I.Then():
                yield f"users_{end}"
            with I.Else():
                yield f"state_{end}"

    def _places(self) -> list[tuple[int, TirExpr, TirExpr]]:
        """(register, value, key)."""
        w, found = self.w, []
        for n in range(self.scan.keys // 8):
            for i in range(4):
                value = w.bind(self.body.value0 + self.warp * BLOCK + self.lane // 4 + 8 * (i // 2))
                found.append((n * 4 + i, value, w.bind(8 * n + self.lane % 4 * 2 + i % 2)))
        return found

    def _elements(self, array: TirExpr) -> list[tuple[int, TirExpr, TirExpr]]:
        """(register, whether there is such an element, where it is), in one of arrays [heads, ...]."""
        w, own = self.w, self.recurrence
        base = w.keep((wide(array) * own.heads + wide(self.body.head)) * (own.keys * own.values))
        found = []
        for number, value, key in self._places():
            at = value * own.keys + key if own.keys_last else key * own.values + value
            found.append((number, tirx.And(value < own.values, key < own.keys), base + wide(at)))
        return found

    # --- a chunk ---------------------------------------------------------------------------------------------------

    def advance(self, number: TirExpr) -> None:
        """Results of a chunk, and the states after it."""
        w = self.w
        self._enter(number)
        if self.scan.part == self.tile.chunk:
            self._part(0)
            return
        with w.loop(self.tile.chunk // self.scan.part) as part:
            self._part(w.keep(part * self.scan.part))

    def _part(self, first: Expr) -> None:
        """The same of some of its steps, from `first` on."""
        w, own = self.w, self.recurrence
        self.first = first
        self.old = self._operand(self.state, self.deep)
        if self.scan.hands:
            self._handed(self.old, 0, "st")
            w.do(I.ptx.bar.arrive(*self._barrier(OLD)))
        sums = w.tile(2 * self.blocks, 4)
        if own.erasing is not None:
            run(self._of_states(sums, own.erasing_vector))
        written: Written = {}
        if len(own.columns) > 1:
            self._scale(sums, "erase" if self.scan.unscaled is None else f"read_{self.scan.unscaled}")
            values = w.tile(2 * self.blocks, 4)
            self._add_values(values, False)
            written["key"] = self._known(values)
            self._add_known(sums, written["key"][0])
        elif self.scan.unscaled is not None:
            self._scale(sums, f"read_{self.scan.unscaled}")
        else:
            self._add_values(sums, own.erasing is not None)
        if self.scan.readers:
            self._hand_on(sums, written)
        else:
            self._read_all(sums, written)

    def _read_all(self, sums: RegisterTile, written: Written) -> None:
        """What the last steps write, all read-outs, the states behind the part."""
        w, own = self.w, self.recurrence
        reads = {i: w.tile(2 * self.blocks, 4) for i in range(len(own.reads)) if not self.scan.solved(i)}
        products = {i: self._of_states(found, f"read_{i}") for i, found in reads.items()}
        if not reads:
            written[own.columns[-1]] = self._write_to_states(sums, written)
            for i, read in enumerate(own.reads):
                self._store(i, read.output, self._solution(written))
            return
        # The first read-out's products fill the gaps of what steps write, where registers hold both.
        between = next(iter(products.values())) if self.tile.warps <= FEW else iter(())
        written[own.columns[-1]] = self._write(sums, [between])
        for i, read in enumerate(own.reads):
            if i not in reads:
                self._store(i, read.output, self._solution(written))
                continue
            run(products[i])
            self._read(i, read.output, reads[i], {column: both[0] for column, both in written.items()})
        self._decay()
        for column, (_, ending) in written.items():
            for block in range(self.blocks):
                run(self._outer(column, ending[block], block))

    def _hand_on(self, sums: RegisterTile, written: Written) -> None:
        """The same where others read: what is written to the states fills the gaps."""

        def hand() -> None:
            for i, column in enumerate(self.recurrence.columns):
                self._handed(written[column][0], self.scan.written_at(i), "st")
            self.w.do(I.ptx.bar.arrive(*self._barrier(WRITTEN)))

        self._write_to_states(sums, written, hand)

    def _write_to_states(
        self, sums: RegisterTile, written: Written, then: Callable[[], None] = lambda: None
    ) -> tuple[RegisterTile, RegisterTile]:
        """What the last column's steps write, and the states behind the part, whose products fill the gaps. then: what
        comes as soon as all that is written is there."""
        last = self.recurrence.columns[-1]
        self._decay()
        between = [self._outer(c, both[1][block], block) for c, both in written.items() for block in range(self.blocks)]
        written[last] = found = self._write(sums, between, last)
        then()
        for products in between:
            run(products)
        return found

    def _solution(self, written: Written) -> RegisterTile:
        """What was solved, as operand: what is written along the last column, or that of which it is made."""
        return written[self.recurrence.columns[-1]][0] if self.scan.unscaled is None else self.unscaled

    def _add_values(self, sums: RegisterTile, erases: bool) -> None:
        """What steps write, but for what they write of each other: values, and, if some is there, what they erase of
        S."""
        names = self.body.numbers.buffers
        for block in range(self.blocks):
            values = self._values(block)
            for half in range(2):
                n = 2 * block + half
                erased = self._scaled("erase", n) if "erase" in names else None
                for i, value in enumerate(values[half]):
                    if erases:
                        value = (sums[n][i] if erased is None else sums[n][i] * erased[i % 2]) + value
                    sums.store(value, n, i)

    def _values(self, block: int) -> list[list[TirExpr]]:
        """Values of a block of steps, times their scale: [8 steps][4], as sums lie."""
        w, scan = self.w, self.scan
        words, found = w.tile(2, 2, dtype="uint32"), list[list[TirExpr]]()
        line = self.lane // 16 * 8 + self.lane % 8
        column = self.warp * BLOCK + self.lane // 8 % 2 * 8
        own = self._offset(scan.value_at, scan.value_pitch)
        within = line * scan.value_pitch + swizzled(scan.value_pitch, self.lane, column * 2)
        at = w.bind(self.stage + own + tirx.Cast("uint32", within))
        w.do(I.ptx[TURNED](*words[0], *words[1], at + uint32(block * BLOCK * scan.value_pitch)))
        for half in range(2):
            values = [value for high in range(2) for value in unpack(self.precision, words[half][high])]
            if "value_scale" in self.body.numbers.buffers:
                scale = self._scaled("value_scale", 2 * block + half)
                values = [value * scale[i % 2] for i, value in enumerate(values)]
            elif self.recurrence.key.scale != 1.0:
                values = [value * self.recurrence.key.scale for value in values]
            found.append(values)
        return found

    def _write(
        self, sums: RegisterTile, between: list[Iterator[None]], column: str = ""
    ) -> tuple[RegisterTile, RegisterTile]:
        """What steps write, as operands: as it is, and what is left of it at the end of the chunk. between: other
        products, of which some are started while those here are under way; column: to these, what is written along it
        is added."""
        w, own = self.w, self.recurrence
        erases, unscaled = own.erasing is not None, None
        if self.scan.unscaled is not None:
            self.unscaled = w.tile(self.blocks, 4, dtype="uint32")
            vectors = [vector for vector, _, _ in self.scan.scores]
            unscaled = vectors.index(f"read_{self.scan.unscaled}") if own.erase is not None else None
        written = w.tile(self.blocks, 4, dtype="uint32")
        ending = w.tile(self.blocks, 4, dtype="uint32") if self.body.weighted else written
        for block in range(self.blocks):
            tiles = [sums[2 * block], sums[2 * block + 1]]
            rest = range(block + 1, self.blocks)
            scores = {other: self._scores(other, block, 0) for other in (block, *rest)} if erases else {}
            if self.scan.unscaled is not None:
                read = None if unscaled is None else self._scores(block, block, unscaled)
                self._solve_unscaled(sums, block, (scores[block], read), between)
            elif erases:
                self._solve(sums, block, scores[block], between)
            self._pack_block(written, block, tiles)
            if self.body.weighted:
                self._pack_block(ending, block, self._ending(tiles, block))
            if column:
                between.append(self._outer(column, ending[block], block))
            if erases:
                for later in rest:
                    self._add(sums, written[block], later, scores[later])
        return written, ending

    def _known(self, values: RegisterTile) -> tuple[RegisterTile, RegisterTile]:
        """What steps write that nothing is solved for, likewise."""
        written, ending = self._operand(values, self.blocks), None
        if self.body.weighted:
            ending = self.w.tile(self.blocks, 4, dtype="uint32")
            for block in range(self.blocks):
                self._pack_block(ending, block, self._ending([values[2 * block], values[2 * block + 1]], block))
        return written, written if ending is None else ending

    def _add_known(self, sums: RegisterTile, written: RegisterTile) -> None:
        """To what is to be solved: what it reads of what is known."""
        pairs = [(block, other, 1, written) for other in range(self.blocks) for block in range(other, self.blocks)]
        self._add_all(sums, pairs)

    def _ending(self, tiles: list[tuple[TirExpr, ...]], block: int) -> list[tuple[TirExpr, ...]]:
        """What steps of a block wrote, times what is left of it."""
        found = []
        for half, tile in enumerate(tiles):
            scale = self._scaled("ends", 2 * block + half)
            found.append(tuple(value * scale[i % 2] for i, value in enumerate(tile)))
        return found

    def _solve(self, sums: RegisterTile, block: int, inverse: RegisterTile, between: list[Iterator[None]]) -> None:
        """Times the inverse of the block on the diagonal."""
        words = self.w.tile(1, 4, dtype="uint32")
        advance_one(between)
        self._pack_block(words, 0, [sums[2 * block], sums[2 * block + 1]])
        for n in range(2):
            for i in range(4):
                sums.store(tirx.const(0.0, "float32"), 2 * block + n, i)
        self._add(sums, words[0], block, inverse)
        advance_one(between)

    def _solve_unscaled(
        self,
        sums: RegisterTile,
        block: int,
        scores: tuple[RegisterTile, RegisterTile | None],
        between: list[Iterator[None]],
    ) -> None:
        """What is erased, from what is known of it: values of its own block are written too, where they are written
        along the same column. Then what is written, in its place. scores: the inverse, and what steps of the block read
        of each other there.

        With L the scores, c the scale, v the values: x = y + L (v + c x)  -->  x = (1 - L c)^-1 (y + L v)
        """
        inverse, own = scores
        values: list[list[TirExpr]] = []
        if own is not None:
            words = self.w.tile(1, 4, dtype="uint32")
            values = [[self.w.keep(value) for value in half] for half in self._values(block)]
            self._pack_block(words, 0, [tuple(four) for four in values])
            self._add(sums, words[0], block, own)
        self._solve(sums, block, inverse, between)
        self._pack_block(self.unscaled, block, [self._result(sums[2 * block + n]) for n in range(2)])
        for half in range(2):
            n = 2 * block + half
            scale = self._scaled("scale", n) if "scale" in self.body.numbers.buffers else None
            for i in range(4):
                erased = sums[n][i] if scale is None else sums[n][i] * scale[i % 2]
                sums.store(values[half][i] + erased if values else erased, n, i)

    def _result(self, sums: tuple[TirExpr, ...]) -> tuple[TirExpr, ...]:
        """What is erased, as a read-out."""
        assert self.scan.unscaled is not None
        scale = self.recurrence.reads[self.scan.unscaled].vector.scale
        return sums if scale == 1.0 else tuple(value * scale for value in sums)

    def _decay(self) -> None:
        """What is left of the states at the end of the part."""
        for n, left in self._left():
            for i in range(4):
                self.state.store(self.state[n][i] * left[i % 2], n, i)

    def _outer(self, column: str, ending: tuple[TirExpr, ...], block: int) -> Iterator[None]:
        """To the states, what a block of steps wrote along a column: some tiles of keys after the other."""
        w, scan = self.w, self.scan
        own = self._offset(scan.vector_at(column), scan.key_pitch)
        within = self.lane % 16 * scan.key_pitch + swizzled(scan.key_pitch, self.lane, self.lane // 16 * 16)
        at = w.bind(self.stage + own + tirx.Cast("uint32", within))
        ahead = AHEAD if scan.keys <= FEW_KEYS and self.tile.warps <= FEW else 1
        b = w.tile(ahead + 1, 2, 2, dtype="uint32")

        def load(k: int) -> None:
            place = further(scan.key_pitch, at, k) + uint32(block * BLOCK * scan.key_pitch)
            w.do(I.ptx[TURNED](*b[k % (ahead + 1), 0], *b[k % (ahead + 1), 1], place))

        for k in range(min(ahead, self.deep)):
            load(k)
        for k in range(self.deep):
            if k + ahead < self.deep:
                load(k + ahead)
            for n in range(2):
                self._multiply(self.state[2 * k + n], ending, b[k % (ahead + 1), n])
            if (k + 1) % TOGETHER == 0:
                yield

    def _left(self) -> Iterator[tuple[int, Sequence[TirExpr]]]:
        """Of 8 keys each: what the part leaves of a lane's two; nothing where that is all."""
        w, scan = self.w, self.scan
        if self.body.weighted:
            left = w.keep(self.body.numbers.load("carried", self.number, 0))
            yield from ((n, (left, left)) for n in range(scan.keys // 8))
        if self.recurrence.decays_by_key:
            own = self._offset(scan.decay_at, scan.decay_pitch)
            at = w.bind(self.stage + own + tirx.Cast("uint32", self.lane % 4 * 8))
            for n in range(scan.keys // 8):
                two = w.tile(1, 2)
                w.do(I.ptx["ld.shared.v2.f32"](*two[0], at + uint32(32 * n)))
                yield n, two[0]


def run(statements: Iterator[None]) -> None:
    """All that are left."""
    for _ in statements:
        pass


def advance_one(statements: list[Iterator[None]]) -> None:
    """Some of the first that has any left."""
    while statements and next(statements[0], True) is not None:
        del statements[0]
