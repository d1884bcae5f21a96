"""A kernel of matrix states: all steps of a layer in one launch, a block for each batch row and head.

In: a `SharedPlan`. Out: a `Kernel`. States stay in registers, as tensor cores leave sums; warps have rows of them. For
every step: phases one after the other, each for all elements of a lane; then all warps meet once.

Rewrite: for t: for group: launch  -->  one launch: for t in block: phases
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.packed_layout import Pack, ceil_div
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import combiner
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .block import TENSOR, Block, SharedPlan, flat
from .element_index import COLUMN, ROW, UNIT, Along, of
from .gradient_warps import GradientWarps, store_operand
from .lane_values import Index, LaneValues, placed
from .matrix_axes import Roles
from .matrix_step import Left, MatrixStep, streamed
from .matrix_tile import LANES
from .products import Lane, PlainProduct, TensorProduct
from .streams import Streams
from .whole_matrices import WholeMatrices, pairs

SCALARS = (("steps", "int32"), ("reverse", "int32"), ("batch", "int32"))
SUMMING = 1  # the barrier of the warps with elements
OVER_ROWS, OVER_COLUMNS = (4, 8, 16), (1, 2)  # distances between lanes that share a column, and a row


def kernel(name: str, plan: SharedPlan, initial: Mapping[str, float] | None = None) -> Kernel:
    """initial: what states are after a reset, for a kernel that knows lengths and resets; else None."""
    step, masked = plan.step, initial is not None
    pointers = [(f"param_{n}", "float32") for n in range(len(step.param_nodes))]
    pointers += [(f"dense_{n}", "float32") for n in range(len(dense_weights(step)))]
    pointers += [(f"read_{n}", step.layout.rows(node).dtype) for n, node in enumerate(step.read_nodes)]
    pointers += [(f"{way}_{n}", "float32") for way in ("old", "new") for n in range(len(step.states))]
    pointers += [("y", step.layout.output.dtype), *((own.pointer, own.place.dtype) for own in step.kept)]
    pointers += [(f"parts_{n}", "float32") for n in range(len(step.accumulated))]
    pointers += MASK_POINTERS if masked else ()

    def body(w: Writer) -> None:
        with I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            block = Block(w, plan, masked)
            with I.If(block.warp < step.tile.warps):
                with I.Then():
                    _Elements(block, initial or {}).run()
                with I.Else():
                    _beside(block)

    scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
    with flavour(plan.precision):
        return write(name, pointers, scalars, body, threads=plan.threads, shared_bytes=4 * plan.words)


def _beside(block: Block) -> None:
    """What warps do that have no elements."""
    if not block.plan.gradients.sums:
        Streams(block).run()
        return
    number = block.w.keep(block.warp - block.tile.warps)
    with I.If(tirx.EQ(number, 0)):
        with I.Then():
            Streams(block).run()
        with I.Else():
            GradientWarps(block, block.w.keep(number - 1)).run()


def dense_weights(step: MatrixStep) -> list[Node]:
    """Parameters of dense products, in the order of the kernel's pointers."""
    return list(dict.fromkeys(weight for node in step.dense for weight in node.args[::2]))


def packed_by_column(layout: Layout, weight: Node) -> Pack:
    """Such a parameter, [..., K], with K outermost: threads read neighbours."""
    *outer, deep = weight.shape
    size = prod(outer)

    def index(at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        rest, found = tirx.floormod(at, size), list[Expr]()
        for extent in reversed(outer):
            found.insert(0, tirx.floormod(rest, extent))
            rest = tirx.floordiv(rest, extent)
        return (*found, tirx.floordiv(at, size)), at < size * deep

    node, elements, own = layout.packed(weight, size * deep, index)
    return Pack(node, "float32", elements, own, (weight, "float32", "by column"))


class _Elements:
    """Emits what warps do that have elements."""

    def __init__(self, block: Block, initial: Mapping[str, float]) -> None:
        self.block, self.w, self.step, self.tile, self.initial = block, block.w, block.step, block.tile, initial
        self.lanes = self.tile.lanes(block.warp, block.lane)
        self.values = LaneValues(self.step.axes, self.lanes, lambda node, index: None, self.w.keep)

    def run(self) -> None:
        w, block = self.w, self.block
        found = self.step.lanes.constant
        self.constants = {(n, i): block.constant(n, placed(i, self.lanes)) for n, i in found}
        self.products = [self._product(n) for n in range(len(self.step.products))]
        self.states = {state: self._load(n, state) for n, state in enumerate(self.step.states)}
        self.matrices = WholeMatrices(block, self.lanes)
        with w.when(w["steps"] > 0):
            self.matrices.ask(tirx.const(0, "int32"))
        block.meet_all()
        with w.loop(w["steps"]) as t:
            self._step(w.keep(t))
        for n, (state, registers) in enumerate(self.states.items()):
            for at, index in enumerate(self.values.indices(state)):
                with self._owner(self.step.axes.roles[state], index):
                    w.store(w[f"new_{n}"], registers[at], block.state_at(state, index))

    def _product(self, number: int) -> TensorProduct | PlainProduct:
        block, plan = self.block, self.block.plan
        own, first = Lane(block.warp, block.lane), plan.first_weight + number * plan.product_words
        node = self.step.products[number]
        weight, matrix = self.step.weight(node), next(a for a in node.args if a in self.step.axes.roles)
        inputs, out = node.attrs["spec"].split("->")
        texts = dict(zip(node.args, inputs.split(","), strict=True))
        summed = next(t for t in texts[matrix] if t not in out)

        def element(k: Expr, n: Expr) -> TirExpr:
            """0 beyond the matrix."""
            wide = self.tile.columns
            along = {letter: Along(COLUMN, 1, wide, value=n) for letter in texts[weight]}
            along[summed] = Along(COLUMN, 0, wide, value=k)
            index = tuple(of(along[letter]) for letter in texts[weight])
            return block.constant(weight, index)

        if plan.precision in TENSOR:
            memory = None if plan.in_registers else block.words
            product: TensorProduct | PlainProduct
            product = TensorProduct(self.w, self.tile, own, plan.precision, (memory, first))
        else:
            product = PlainProduct(self.w, self.tile, own, block.floats, first)
        product.load(element)
        return product

    def _load(self, n: int, state: Node) -> Buffer:
        indices = list(self.values.indices(state))
        registers = self.w.local(len(indices))
        for at, index in enumerate(indices):
            source = self.w[f"old_{n}"][self.block.state_at(state, index)]
            self.w.store(registers, self.block.guarded(source, "float32", self.block.inside(index)), at)
        return registers

    def _owner(self, roles: Roles, index: Index) -> AbstractContextManager[None]:
        """Statements for the lane that stores an element which several have."""
        inside, when = self.block.inside(index), self._who(roles)
        conditions = [c for c in (inside, when) if c is not None]
        if not conditions:
            return nullcontext()
        return self.w.when(conditions[0] if len(conditions) == 1 else tirx.And(*conditions))

    def _who(self, roles: Roles) -> TirExpr | None:
        block, (down, across) = self.block, self.tile.place(self.block.warp)
        if UNIT in roles or {ROW, COLUMN} <= {*roles}:
            return None
        own = [tirx.EQ(block.lane % 4, 0)] if COLUMN not in roles else []
        own += [tirx.EQ(across, 0)] if COLUMN not in roles and self.tile.across > 1 else []
        own += [tirx.EQ(down, 0), block.lane < 4] if ROW not in roles else []
        return reduce(tirx.And, own)

    # --- a step ----------------------------------------------------------------------------------------------------

    def _step(self, t: TirExpr) -> None:
        w, block, step = self.w, self.block, self.step
        local, stage = block.local(t), block.stage(t)
        if block.masked:
            with w.when(tirx.NE(block.floats[stage], tirx.const(0.0, "float32"))):
                for state, registers in self.states.items():
                    first = tirx.const(self.initial.get(state.name, 0.0), "float32")
                    for at in range(len(list(self.values.indices(state)))):
                        w.store(registers, first, at)
        self.values = LaneValues(step.axes, self.lanes, self._leaf(t, stage), w.keep)
        self.values.held |= self.matrices.take()
        with w.when(t + 1 < w["steps"]):
            self.matrices.ask(w.keep(t + 1))
        for state, registers in self.states.items():
            for at, index in enumerate(self.values.indices(state)):
                self.values.held[state, index] = registers[at]
        self._accumulate([n for n in block.plan.gradients.operands if n.leaf], local, t)
        for node in step.phases:
            self._phase(node, t)
            self._accumulate([node] if node in block.plan.gradients.operands else [], local, t)
            self._leave([own for own in step.by_lanes if own.node is node], local)
        pairs = zip(step.states, step.results, strict=True)
        news = [[w.keep(self.values.at(result, i)) for i in self.values.indices(state)] for state, result in pairs]
        late = [n for n in block.plan.gradients.operands if not n.leaf and n not in step.phases]
        self._accumulate(late, local, t)
        self._leave([own for own in step.by_lanes if own.node not in step.phases], local)
        block.meet_all()
        with nullcontext() if not block.masked else w.when(tirx.NE(block.active(local), 0)):
            for registers, values in zip(self.states.values(), news, strict=True):
                for at, value in enumerate(values):
                    w.store(registers, value, at)

    def _accumulate(self, operands: Iterable[Node], local: TirExpr, t: TirExpr) -> None:
        """Leave operands of sums to the warps that multiply."""
        for node in operands:
            store_operand(self.block, node, self.values, local, t)

    def _leave(self, left: Iterable[Left], local: TirExpr) -> None:
        """Store what this lane has of what the step leaves."""
        for own in left:
            indices = self.values.along(own.roles, own.node)
            for index, second in pairs(own.node, indices, own.place, own.apart):
                found = [self.values.at(own.node, i) for i in (index, second) if i is not None]
                self.block.leave(own, index, found, local, self._who(own.roles))

    def _leaf(self, t: TirExpr, stage: TirExpr) -> Callable[[Node, Index], TirExpr | None]:
        block, step = self.block, self.step

        def leaf(node: Node, index: Index) -> TirExpr | None:
            if node in step.row_sums:
                return block.sum_of(node, index, t)
            if node in step.dense:
                return block.dense_of(node, index, t)
            if step.is_constant(node):
                return self.constants[node, index]
            if not step.is_streamed(node):
                return None
            own = streamed(node, index)
            return None if own is None else block.of_stage(own, index, stage)

        return leaf

    def _phase(self, node: Node, t: TirExpr) -> None:
        if node in self.step.products:
            self._multiply(node)
        elif node in self.step.dense:
            self._multiply_vectors(node, t)
        elif node in self.step.axes.summed:
            self._add_up(node, t)
        else:
            for index in self.values.indices(node):
                self.values.at(node, index)

    def _multiply(self, node: Node) -> None:
        matrix = next(a for a in node.args if a in self.step.axes.roles)
        own, roles = self.products[self.step.products.index(node)], self.step.axes.roles

        def element(row: int, column: int) -> TirExpr:
            """0 beyond the matrix's columns: what lanes have there may be no number."""
            index = self.values.element(roles[matrix], row, column)
            value, along = self.values.at(matrix, index), self.lanes[COLUMN][column]
            if not self.tile.padded(COLUMN):
                return value
            return tirx.Select(along.value < self.tile.columns, value, tirx.const(0.0, "float32"))

        sums = own.multiply(element)
        for i in range(self.tile.lane_rows):
            for j in range(self.tile.lane_columns):
                self.values.held[node, self.values.element(roles[node], i, j)] = sums[i // 2, j // 2, i % 2][j % 2]

    def _multiply_vectors(self, node: Node, t: TirExpr) -> None:
        """A dense product: a thread for each element of the result. Operands go to shared memory first."""
        w, block, vectors, members = self.w, self.block, node.args[1::2], self.tile.members
        for number, vector in enumerate(vectors):
            first, roles = block.dense_at(node, number, t), self.step.roles_of(vector)
            for index in self.values.along(roles, vector):
                value = self.values.at(vector, index)
                with self._owner(roles, index):
                    w.store(block.floats, value, first + flat(vector, index))
        block.meet(self.tile.warps, SUMMING)
        size, thread = prod(node.shape), block.warp * LANES + block.lane
        for turn in range(ceil_div(size, members)):
            at = w.keep(thread + turn * members)
            with w.when(at < size):
                total = w.local(1)
                w.store(total, tirx.const(0.0, "float32"), 0)
                for number, (weight, vector) in enumerate(zip(node.args[::2], vectors, strict=True)):
                    weights, first = (
                        w[f"dense_{dense_weights(self.step).index(weight)}"],
                        block.dense_at(node, number, t),
                    )
                    own = w.keep(block.head * (size * vector.shape[0]) + at)
                    with w.loop(vector.shape[0]) as k:
                        w.store(total, total[0] + weights[own + k * size] * block.floats[first + k], 0)
                w.store(block.floats, total[0], block.dense_at(node, -1, t) + at)
        block.meet(self.tile.warps, SUMMING)

    def _add_up(self, node: Node, t: TirExpr) -> None:
        """A sum, or a maximum: of a lane's elements, then of lanes; over rows, parts of each warp in shared memory."""
        roles = set(self.step.axes.summed[node].values())
        indices = list(self.values.indices(node))
        parts = [self._of_lane(node, index) for index in indices]
        if COLUMN in roles:
            parts = [self._across(node, part, OVER_COLUMNS) for part in parts]
        if node in self.step.column_sums:
            self._meet_columns(node, indices, parts, t)
            return
        if ROW not in roles:
            self.values.held |= {(node, index): part for index, part in zip(indices, parts, strict=True)}
            return
        self._scatter(node, indices, parts, t)
        if node in self.step.lanes.waited:
            self.block.meet(self.tile.warps, SUMMING)

    def _meet_columns(self, node: Node, indices: list[Index], parts: list[TirExpr], t: TirExpr) -> None:
        """Warps that share rows add up what each has of them."""
        w, block, roles = self.w, self.block, self.step.axes.roles[node]
        own = tirx.EQ(block.lane % 4, 0)
        own = own if ROW in roles else tirx.And(tirx.EQ(self.tile.place(block.warp)[0], 0), tirx.EQ(block.lane, 0))
        offsets = [self._part(node, index, t) for index in indices]
        with w.when(own):
            for part, offset in zip(parts, offsets, strict=True):
                w.store(block.floats, part, offset)
        block.meet(self.tile.warps, SUMMING)
        self.values.held |= {(node, index): block.sum_of(node, index, t) for index in indices}

    def _of_lane(self, node: Node, index: Index) -> TirExpr:
        combine, identity = combiner(node)
        total: TirExpr | None = None
        for value, alongs in self.values.summands(node, index):
            inside = self.block.inside(tuple(of(along) for along in alongs))
            if inside is not None:
                value = tirx.Select(inside, value, tirx.const(identity, "float32"))
            total = self.w.keep(value if total is None else combine(total, value))
        assert total is not None
        return total

    def _across(self, node: Node, part: TirExpr, distances: tuple[int, ...]) -> TirExpr:
        combine, _ = combiner(node)
        for distance in distances:
            part = self.w.keep(combine(part, self._other(part, distance)))
        return part

    def _other(self, part: TirExpr, distance: int) -> TirExpr:
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        return self.w.keep(I.tvm_warp_shuffle_xor(everyone, part, distance, 32, 32))

    def _scatter(self, node: Node, indices: list[Index], parts: list[TirExpr], t: TirExpr) -> None:
        """Lanes that share columns halve them between each other as long as there are several, and store what they
        have in the end."""
        w, block, combine = self.w, self.block, combiner(node)[0]
        offsets = [self._part(node, index, t) for index in indices]
        for distance in OVER_ROWS:
            half = len(parts) // 2
            if len(parts) % 2:
                parts = [w.keep(combine(part, self._other(part, distance))) for part in parts]
                continue
            high = w.keep(tirx.Cast("int32", tirx.NE(tirx.bitwise_and(block.lane, distance), 0)))

            def chosen(a: TirExpr, b: TirExpr, high: TirExpr = high) -> TirExpr:
                return w.keep(tirx.Select(tirx.NE(high, 0), b, a))

            sent = [chosen(b, a) for a, b in zip(parts[:half], parts[half:], strict=True)]
            kept = [chosen(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
            offsets = [chosen(a, b) for a, b in zip(offsets[:half], offsets[half:], strict=True)]
            parts = [w.keep(combine(a, self._other(b, distance))) for a, b in zip(kept, sent, strict=True)]
        once = self.tile.across > 1 and COLUMN not in {
            *self.step.axes.summed[node].values(),
            *self.step.axes.roles[node],
        }
        with w.when(tirx.EQ(self.tile.place(block.warp)[1], 0)) if once else nullcontext():
            for part, offset in zip(parts, offsets, strict=True):
                w.store(block.floats, part, offset)

    def _part(self, node: Node, index: Index, t: TirExpr) -> TirExpr:
        """Where this warp's part of a sum goes."""
        block, (down, across) = self.block, self.tile.place(self.block.warp)
        first, column = block.part_at(node, index)
        parity = tirx.truncmod(t, 2) * block.plan.part_words
        roles = {*self.step.axes.summed[node].values()}
        number = down if COLUMN not in roles else across if ROW not in roles else block.warp
        return self.w.keep(parity + number * block.plan.part_width(node) + column + first)
