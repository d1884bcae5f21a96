"""The warps of a chunk scan that have the states: each takes 16 values through all chunks, and no other warp sees it.

In: the kernel's body, a warp's number. Out: statements that take S through a chunk. S lies in registers as sums of
products, [16 values][keys], and sums of one product are the left operand of the next: S of what steps read of it, these
of what steps write, and these of what is added to S. Nothing but right operands comes from shared memory.

Source: sums as operands: Dao 2023, "FlashAttention-2"; what a step writes, by blocks of 16 steps, forward substitution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_block import Block
from .chunk_tile import BLOCK, piece_bytes
from .recurrence import Rows

TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
FEW = 4  # warps of states, whose registers are enough for two products at a time
STORE_TURNED = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"


class States:
    """warp: the number of this one, among those of states. state[n]: 8 keys; as sums of mma.sync lie."""

    def __init__(self, block: Block, warp: TirExpr) -> None:
        self.body, self.w, self.scan, self.warp = block, block.w, block.scan, warp
        self.recurrence, self.tile, self.precision = block.recurrence, block.tile, block.recurrence.precision
        self.deep, self.blocks = self.scan.keys // BLOCK, self.scan.part // BLOCK
        self.lane = block.lane
        self.state = self.w.tile(self.scan.keys // 8, 4)

    # --- before and after ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Load the states; zeros where there are none."""
        for number, there, at in self._elements(self.body.number):
            self.w.store(self.state.buffer, tirx.const(0.0, "float32"), number)
            with self.w.when(there):
                self.w.store(self.state.buffer, self.w["state_in"][at], number)

    def finish(self) -> None:
        """Store them, after the last segment."""
        with self.w.when(self.body.last):
            for number, there, at in self._elements(self.body.row):
                with self.w.when(there):
                    self.w.store(self.w["state_out"], self.state.flat[number], at)

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
        w, body = self.w, self.body
        self.number = number
        self.stage = w.keep(body.base + tirx.Cast("uint32", body.slot(number)))
        parity = number % 2 * (self.scan.score_sets * self.scan.score_bytes) + self.scan.scores_at
        self.scores = w.keep(body.base + tirx.Cast("uint32", parity))
        key_line = self.lane // 16 * 8 + self.lane % 8  # of right operands whose rows are columns of the product
        self.key_at = w.bind(tirx.Cast("uint32", key_line * self.scan.key_pitch + self.lane // 8 % 2 * 16))
        self.score_at = w.bind(tirx.Cast("uint32", key_line * self.scan.score_pitch + self.lane // 8 % 2 * 16))
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
        sums = w.tile(2 * self.blocks, 4)
        if own.erasing is not None:
            run(self._of_states(sums, own.erasing_vector))
        written: dict[str, tuple[RegisterTile, RegisterTile]] = {}
        if len(own.columns) > 1:
            self._scale(sums, "erase")
            values = w.tile(2 * self.blocks, 4)
            self._add_values(values, False)
            written["key"] = self._known(values)
            self._add_known(sums, written["key"][0])
        else:
            self._add_values(sums, own.erasing is not None)
        reads = {i: w.tile(2 * self.blocks, 4) for i in range(len(own.reads)) if not own.solved(i)}
        products = {i: self._of_states(found, f"read_{i}") for i, found in reads.items()}
        # The first read-out's products fill the gaps of what steps write, where registers hold both.
        between = next(iter(products.values())) if self.tile.warps <= FEW and products else iter(())
        written[own.columns[-1]] = self._write(sums, between)
        for i, read in enumerate(own.reads):
            if i not in reads:
                self._store(i, read.output, written[own.columns[-1]][0])
                continue
            run(products[i])
            self._read(i, read.output, reads[i], {column: both[0] for column, both in written.items()})
        self._carry({column: both[1] for column, both in written.items()})

    def _operand(self, sums: RegisterTile, count: int) -> RegisterTile:
        """Sums [2 count tiles of 8 columns] as the left operand of `count` steps of K."""
        words = self.w.tile(count, 4, dtype="uint32")
        for k in range(count):
            self._pack_block(words, k, [sums[2 * k], sums[2 * k + 1]])
        return words

    def _pack_block(self, words: RegisterTile, k: int, tiles: list[tuple[TirExpr, ...]]) -> None:
        for i in range(4):
            tile = tiles[i // 2]
            pack(self.w, self.precision, words[k][i], tile[2 * (i % 2)], tile[2 * (i % 2) + 1])

    def _multiply(self, sums: tuple[TirExpr, ...], a: tuple[TirExpr, ...], b: tuple[TirExpr, ...]) -> None:
        self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums, *a, *b, *sums))

    def _of_states(self, sums: RegisterTile, vector: str) -> Iterator[None]:
        """<vector, S> of all steps of the chunk: one step of K after the other."""
        w, scan = self.w, self.scan
        at = w.bind(self.stage + self.key_at + self._offset(scan.vector_at(vector), scan.key_pitch))
        b = w.tile(2, self.blocks, 2, 2, dtype="uint32")
        sums.fill(tirx.const(0.0, "float32"))

        def load(k: int) -> None:
            for block in range(self.blocks):
                own = uint32(32 * k + block * BLOCK * scan.key_pitch)
                w.do(I.ptx[LDMATRIX.format("x4")](*b[k % 2, block, 0], *b[k % 2, block, 1], at + own))

        load(0)
        for k in range(self.deep):
            if k + 1 < self.deep:
                load(k + 1)
            for n in range(2 * self.blocks):
                self._multiply(sums[n], self.old[k], b[k % 2, n // 2, n % 2])
            yield

    def _offset(self, at: int, pitch: int) -> TirExpr:
        """Where rows of the first step of the part begin."""
        return tirx.Cast("uint32", self.first * pitch + at)

    def _scaled(self, name: str, n: int) -> list[TirExpr]:
        """A number of the steps of a tile's two columns."""
        numbers = self.body.numbers
        step = self.w.bind(self.first + 8 * n + self.lane % 4 * 2)
        return [self.w.keep(numbers.load(name, self.number, step + odd)) for odd in range(2)]

    def _add_values(self, sums: RegisterTile, erases: bool) -> None:
        """What steps write, but for what they write of each other: values, and, if some is there, what they erase of
        S."""
        w, scan, names = self.w, self.scan, self.body.numbers.buffers
        words = w.tile(2, 2, dtype="uint32")
        line = self.lane // 16 * 8 + self.lane % 8
        column = self.warp * BLOCK + self.lane // 8 % 2 * 8
        own = self._offset(scan.value_at, scan.value_pitch)
        at = w.bind(self.stage + own + tirx.Cast("uint32", line * scan.value_pitch + column * 2))
        for block in range(self.blocks):
            w.do(I.ptx[TURNED](*words[0], *words[1], at + uint32(block * BLOCK * scan.value_pitch)))
            for half in range(2):
                n = 2 * block + half
                scale = self._scaled("value_scale", n) if "value_scale" in names else None
                erased = self._scaled("erase", n) if "erase" in names else None
                for high in range(2):
                    for odd, value in enumerate(unpack(self.precision, words[half][high])):
                        i = 2 * high + odd
                        value = value if scale is None else value * scale[odd]
                        if erases:
                            before = sums[n][i] if erased is None else sums[n][i] * erased[odd]
                            value = before + value
                        sums.store(value, n, i)

    def _write(self, sums: RegisterTile, between: Iterator[None]) -> tuple[RegisterTile, RegisterTile]:
        """What steps write, as operands: as it is, and what is left of it at the end of the chunk. between: other
        products, of which some are started while those here are under way."""
        w, erases = self.w, self.recurrence.erasing is not None
        written = w.tile(self.blocks, 4, dtype="uint32")
        ending = w.tile(self.blocks, 4, dtype="uint32") if self.body.weighted else written
        for block in range(self.blocks):
            tiles = [sums[2 * block], sums[2 * block + 1]]
            if erases:
                self._solve(sums, block, between)
            self._pack_block(written, block, tiles)
            if self.body.weighted:
                self._pack_block(ending, block, self._ending(tiles, block))
            if erases:
                for later in range(block + 1, self.blocks):
                    self._add(sums, written[block], later, self._scores(later, block, 0))
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
        for block in range(self.blocks):
            for other in range(block + 1):
                self._add(sums, written[other], block, self._scores(block, other, 1))

    def _scale(self, sums: RegisterTile, name: str) -> None:
        """Times a number of each step, if they have one."""
        if name not in self.body.numbers.buffers:
            return
        for n in range(2 * self.blocks):
            scale = self._scaled(name, n)
            for j in range(4):
                sums.store(sums[n][j] * scale[j % 2], n, j)

    def _ending(self, tiles: list[tuple[TirExpr, ...]], block: int) -> list[tuple[TirExpr, ...]]:
        """What steps of a block wrote, times what is left of it."""
        found = []
        for half, tile in enumerate(tiles):
            scale = self._scaled("ends", 2 * block + half)
            found.append(tuple(value * scale[i % 2] for i, value in enumerate(tile)))
        return found

    def _solve(self, sums: RegisterTile, block: int, between: Iterator[None]) -> None:
        """Times the inverse of the block on the diagonal."""
        words = self.w.tile(1, 4, dtype="uint32")
        inverse = self._scores(block, block, 0)
        next(between, None)
        self._pack_block(words, 0, [sums[2 * block], sums[2 * block + 1]])
        for n in range(2):
            for i in range(4):
                sums.store(tirx.const(0.0, "float32"), 2 * block + n, i)
        self._add(sums, words[0], block, inverse)
        next(between, None)

    def _scores(self, block: int, other: int, which: int) -> RegisterTile:
        """The scores of 16 steps of what 16 others wrote, as a right operand."""
        w, scan = self.w, self.scan
        b = w.tile(2, 2, dtype="uint32")
        own = which * scan.score_bytes + block * BLOCK * scan.score_pitch + other * BLOCK * 2
        at = self.scores + self.score_at + self._offset(own, scan.score_pitch + 2)
        w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], at))
        return b

    def _add(self, sums: RegisterTile, a: tuple[TirExpr, ...], block: int, b: RegisterTile) -> None:
        """To the steps of `block`: what others wrote, times scores."""
        for n in range(2):
            self._multiply(sums[2 * block + n], a, b[n])

    def _read(self, i: int, output: Rows, sums: RegisterTile, written: dict[str, RegisterTile]) -> None:
        """A read-out of all steps, stored. written: by what it was written along."""
        self._scale(sums, f"read_{i}")
        whose = {(vector, column): n for n, (vector, _, column) in enumerate(self.recurrence.scores)}
        pairs = [
            (block, other, whose[f"read_{i}", column], own)
            for column, own in written.items()
            for other in range(self.blocks)
            for block in range(other, self.blocks)
        ]
        loaded = self._scores(*pairs[0][:3])
        for number, (block, other, _, own) in enumerate(pairs):
            now = loaded
            if number + 1 < len(pairs):
                loaded = self._scores(*pairs[number + 1][:3])
            self._add(sums, own[other], block, now)
        self._store(i, output, self._operand(sums, self.blocks))

    def _store(self, i: int, output: Rows, words: RegisterTile) -> None:
        """Results to memory, by way of shared memory: a row's 16 values lie side by side there."""
        w, scan, body, lane = self.w, self.scan, self.body, self.lane
        pitch = scan.result_pitch
        begin = w.bind(scan.results_at + self.warp * (self.tile.chunk * pitch))
        line = lane // 16 * 8 + lane % 8
        into = w.bind(body.base + tirx.Cast("uint32", begin + line * pitch + lane // 8 % 2 * 16))
        w.do(I.cuda.warp_sync())
        for block in range(self.blocks):
            w.do(I.ptx[STORE_TURNED](into + uint32(block * BLOCK * pitch), *words[block]))
        w.do(I.cuda.warp_sync())
        step0 = w.bind(self.number * self.tile.chunk + self.first)
        value0 = w.bind(body.value0 + self.warp * BLOCK)
        if piece_bytes(output) == 16:
            four = w.tile(1, 4, dtype="uint32")
            for turn in range(self.blocks):
                line, half = w.bind(turn * BLOCK + lane // 2), w.bind(lane % 2)
                at = body.base + tirx.Cast("uint32", begin + line * pitch + half * 16)
                w.do(I.ptx["ld.shared.v4.b32"](*four[0], at))
                value = w.bind(value0 + half * 8)
                with w.when(tirx.And(body.stored(step0 + line), value < output.width)):
                    to = w[f"output_{i}"].ptr_to([body.element(output, step0 + line, value)])
                    w.do(I.ptx["st.global.v4.b32"](to, *four[0]))
            return
        with w.loop(scan.part // 2) as pair:
            line, column = w.bind(pair * 2 + lane // 16), w.bind(lane % 16)
            value = w.bind(value0 + column)
            with w.when(tirx.And(body.stored(step0 + line), value < output.width)):
                found = body.words[tirx.truncdiv(begin + line * pitch, 2) + column]
                w.store(w[f"output_{i}"], found, body.element(output, step0 + line, value))

    def _carry(self, ending: dict[str, RegisterTile]) -> None:
        """The states at the end of the part. ending: by what it was written along."""
        for n, left in self._left():
            for i in range(4):
                self.state.store(self.state[n][i] * left[i % 2], n, i)
        for column, own in ending.items():
            self._add_outer(column, own)

    def _add_outer(self, column: str, ending: RegisterTile) -> None:
        """What was written along a column."""
        w, scan = self.w, self.scan
        own = self._offset(scan.vector_at(column), scan.key_pitch)
        at = w.bind(self.stage + own + tirx.Cast("uint32", self.lane % 16 * scan.key_pitch + self.lane // 16 * 16))
        b = w.tile(2, 2, 2, dtype="uint32")
        pairs = [(k, block) for block in range(self.blocks) for k in range(self.deep)]

        def load(number: int) -> None:
            k, block = pairs[number]
            place = at + uint32(block * BLOCK * scan.key_pitch + 32 * k)
            w.do(I.ptx[TURNED](*b[number % 2, 0], *b[number % 2, 1], place))

        load(0)
        for number, (k, block) in enumerate(pairs):
            if number + 1 < len(pairs):
                load(number + 1)
            for n in range(2):
                self._multiply(self.state[2 * k + n], ending[block], b[number % 2, n])

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
