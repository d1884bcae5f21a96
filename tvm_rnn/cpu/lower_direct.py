"""One step of one row, of sizes that are all known here, as a plain C function: what a bundle's step calls.

In: the RNN, its graphs with all products in the step, options. Out: the function `direct`, the packing of its weights,
and what the manifest says of both:

    void direct(const x *..., y *, state *..., const weights *)

It checks nothing, takes nothing but these pointers, and reads states where they are; what lives for a step is on the
stack, most of it in registers. Vectors are no wider than the network needs, and weights lie accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.decisions import recording
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar import using
from tvm_rnn.graph.scalar_short import FORMS
from tvm_rnn.module_file.schema import Direct
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.passes.passed import Passed
from tvm_rnn.records import Records
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import PLAIN, Block, Named, load, loop, sequence, store, vector

from .lower_layer import Context, Layer, Step, Visit
from .lower_network import Given, Lowering, Run, Tile
from .register_tile import Places
from .tir_pipeline import STACK_BYTES
from .workspace import Array, strides_of

ONE, NONE = int64(1), int64(0)
CHAINS = 8  # of additions in a product of one row: nothing else hides their latency; 16 and 32 were no faster
SHORT = 4  # a loop of at most so many turns is unrolled
LEAST_BYTES = 16  # of a vector
# Of weights. From these on many steps are faster in `sequence`, which reads those of inputs once for several steps
# (Zen 5: LSTM 32 takes 0.10 us a step here and 0.12 there, LSTM 64 0.73 and 0.48).
BLOCK_BYTES = 48 << 10
MOST_BYTES = 1 << 20  # of weights: then threads are worth more than what a call costs
NUMBER = 1 << 10  # of its first graph: others of the file, whose constants have their numbers, are few
WITHOUT = ("parallelise_time", "hoist_gemms")  # left out: there is one step


@dataclass
class DirectVisit(Visit):
    """given: states too. output: where the layer's goes."""

    output: Array | None = None


class DirectLayer(Layer):
    """A layer whose one step is step 0: its old states are the caller's, its new ones in the workspace."""

    def _begin(self, ctx: Context, visit: Visit, s: Expr) -> Step:
        step = Step(visit, NONE)
        step.t, step.time, step.odd, step.sets = NONE, NONE, NONE, []
        for node in self.stepped:
            step.old.append(self._state_at(ctx, visit, node, False))
            step.new.append(self._state_at(ctx, visit, node, True))
        return step

    def _state_at(self, ctx: Context, visit: Visit, state: Node, last: bool) -> Array:
        given = None if last else visit.given.get(state)
        return given or self.state(self.graph.states.index(state), int64(last), visit.states, ctx.batch)

    def _work(self, ctx: Context, visit: Visit, step: Step) -> list[Block]:
        groups = self._groups(ctx, visit, step)
        return [*groups, self._emitted(ctx, visit, step.read | {n: arrays[0] for n, arrays in step.write.items()})]

    def _whole_output(self, ctx: Context, visit: Visit) -> Block:
        return self._emitted(ctx, visit, {self.graph.output: self._hoisted(self.graph.output, visit, NONE, ctx)})

    def _emitted(self, ctx: Context, visit: Visit, values: Mapping[Node, Array]) -> Stmt:
        assert isinstance(visit, DirectVisit) and visit.output is not None
        return moved(ctx.buffers, visit.output, values[self.graph.output], self.lanes)

    def _places(
        self, ctx: Context, visit: Visit, read: Mapping[Node, Array], write: Mapping[Node, Sequence[Array]]
    ) -> Places:
        return replace(super()._places(ctx, visit, read, write), chains=CHAINS)

    def read_in_place(self, node: Node) -> bool:
        """Whether what reads an input or state stays inside of the caller's array: vectors that begin elsewhere than at
        whole vectors, or end there, read past it."""
        if not node.shape or node.shape[-1] % self.lanes or node in self.turned or node in self.solved.values():
            return False
        users = self.graph.users().get(node, ())
        return all(u.op == "gemm" or (u.pointwise and u.shape == node.shape) for u in users)


def direct_of(own: Passed) -> DirectLowering | None:
    """For a network that is asked to be quick at one row; None where it is not, or has no such function: one that goes
    backwards or draws numbers, stored weights of fewer bits, one that is too large."""
    net, options = own.net, own.options
    if 1 not in options.batches or net.num_directions > 1 or net.reverse or net.draws or options.stored:
        return None
    machine = replace(narrowed(options.target, net), records=Records())
    options = replace(options, target=machine, batches=(1,), training=False, without=WITHOUT)
    with recording(listen=False):
        layers = own.pipeline(net, options)[-1][1]
    found = DirectLowering(net, layers, options, NUMBER, sharing=None)
    fits = found.weight_bytes <= MOST_BYTES and found.work_elements * found.itemsize <= STACK_BYTES
    return found if fits else None


class DirectLowering(Lowering):
    """The function `direct`. at: the layer whose work is being made."""

    at: int = 0
    in_bytes: ClassVar[bool] = False
    name: ClassVar[str] = "direct"
    prefix: ClassVar[str] = "direct_"
    least: ClassVar[int] = 1
    layer_type: ClassVar[type[Layer]] = DirectLayer
    visit_type: ClassVar[type[Visit]] = DirectVisit

    def _plan(self) -> None:
        self.time_major, self.rows_per_tile = True, 1
        super()._plan()

    @property
    def work_elements(self) -> int:
        """Elements of the workspace."""
        work = self.memory
        return work.fixed + work.per_row + work.per_tile_row + work.per_sequence_row

    def _plan_flow(self) -> None:
        """Of what is in the workspace alone, no parameter is read past its end."""
        values = (n for layer in self.code for n in layer.graph.nodes() if n not in layer.free)
        self.memory.fixed = max(strides_of(n.shape, self.lanes)[1] for n in values) + 2 * self.lanes
        super()._plan_flow()

    def facts(self) -> Direct:
        """What the manifest says of the function."""
        return Direct(self.name, self.packs, self.packed_elements, self.weight_bytes <= BLOCK_BYTES)

    @property
    def weight_bytes(self) -> int:
        """Of the packed weights, without the room behind them that vectors may read."""
        return self.itemsize * sum(self.code[graph].packed.size for graph in self.layers.of_layer)

    def constants(self) -> dict[str, np.ndarray]:
        """The constants that its packing reads, by name."""
        found: dict[str, np.ndarray] = {}
        for code in self.code:
            found |= named_constants(code.graph, code.number)
        return {name: value.astype(held_dtype(self.net.dtype)) for name, value in found.items()}

    # --- the function ------------------------------------------------------------------------------------------------

    def _integers(self) -> Given:
        flags = {"has_lengths": NONE, "has_reset": NONE}
        return {n: flags.get(n, ONE) for n in self.integers}

    def _memory(self, name: str) -> Buffer:
        if name != "workspace":
            return super()._memory(name)
        return tirx.decl_buffer((self.work_elements,), self.net.dtype, name=name, scope="local")

    def _sequence(self) -> tirx.PrimFunc:
        given, cell = self._arguments(), self.net.cell
        self.x, (self.y,) = self._users([a.name for a in cell.inputs]), self._users(["y"])
        self.s_in = self.s_out = self._users([a.name for a in cell.states])
        named = {f"input_{i}": user for i, user in enumerate(self.x)} | {"output": self.y}
        named |= {f"state_{i}": user for i, user in enumerate(self.s_in)}
        self.ctx.buffers = {**self.ctx.buffers, **named}
        work = [tirx.AllocBuffer(self.ws), *self.views, *self.sets]
        with using(FORMS):
            body = sequence(work, self._states(True), self._time_major(), self._states(False))
        return plain_function(self.name, [*self.x, self.y, *self.s_in, given["packed"]], body)

    def _time_major(self) -> Stmt:
        whole = Tile(NONE, NONE, ONE, NONE)
        parts = [self._copy_in(NONE, ONE)]
        for run in self.runs:
            for i in range(run.count):
                self.at = run.first + i
                parts.append(self._visit(run, int64(i), NONE, whole))
        return sequence(parts)

    # --- what is read and written where the caller has it ------------------------------------------------------------

    def _copy_in(self, start: Expr, count: Expr) -> Stmt:
        nodes = self.net.layers[0].graph.inputs
        parts = []
        for number, node in enumerate(nodes):
            base, stride = self._inputs_at(start)[number]
            if not self._is_read_in_place(number):
                array = Array(self.flow, base, stride, strides_of(node.shape, self.lanes)[0], node.shape)
                given = in_place(f"input_{number}", node)
                parts.append(moved(self.ctx.buffers, array, given, self.lanes))
        return sequence(parts)

    def _is_read_in_place(self, number: int) -> bool:
        """Of an input. The first is other layers' output, the others are given to every layer."""
        layers = self.code[:1] if number == 0 else self.code
        return all(isinstance(c, DirectLayer) and c.read_in_place(c.graph.inputs[number]) for c in layers)

    def _state(self, run: Run, number: int, user: Buffer, start: int, into: bool) -> Stmt:
        code = self.code[run.graph]
        node = code.graph.states[number]
        if node in code.turned:
            return super()._state(run, number, user, start, into)
        if into and isinstance(code, DirectLayer) and code.read_in_place(node):
            return sequence()
        size, parts = prod(node.shape), list[Stmt]()
        for i in range(run.count):
            array = self._state_array(run, number, int64(i), into)
            given = in_place(f"state_{number}", node, start + i * size)
            pair = (array, given) if into else (given, array)
            parts.append(moved(self.ctx.buffers, *pair, self.lanes))
        return sequence(parts)

    def _given(self, run: Run, i: Expr, tile: Tile) -> dict[Node, Array]:
        """States too."""
        code, layer = self.code[run.graph], self.at
        given = dict[Node, Array]()
        for number, node in enumerate(code.graph.inputs):
            if (layer == 0 or number) and self._is_read_in_place(number):
                given[node] = in_place(f"input_{number}", node)
        for number, node in enumerate(code.graph.states):
            if isinstance(code, DirectLayer) and code.read_in_place(node):
                before = [self.code[graph].graph.states[number].shape for graph in self.layers.of_layer[:layer]]
                given[node] = in_place(f"state_{number}", node, sum(map(prod, before)))
        return given

    def _output(self, run: Run, d: Expr, tile: Tile) -> Array | None:
        return None  # a visit's own is `output`

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        super()._complete(work, named, run, place, tile)
        code, layer = self.code[run.graph], self.at
        if not isinstance(work, DirectVisit):
            return
        width = (code.graph.output.shape[0],)
        work.output = Array("workspace", self._flow(1 - layer % 2), self.stride, (1,), width)
        if layer == self.net.num_layers - 1:
            work.output = Array("output", NONE, 0, (1,), (self.net.output_size,))


def in_place(buffer: str, node: Node, at: int = 0) -> Array:
    """A value in an array of the caller's, from element `at` on."""
    strides = tuple(prod(node.shape[i + 1 :]) for i in range(len(node.shape)))
    return Array(buffer, int64(at), 0, strides, node.shape)


def moved(buffers: Mapping[str, Buffer], into: Array, source: Array, lanes: int) -> Stmt:
    """The elements of one value to another place, in vectors that stay inside of both: as many whole ones as there are
    along the last axis, then halves and so on."""
    to, own = buffers[into.buffer], buffers[source.buffer]
    shape = into.shape or (1,)

    def piece(at: tuple[Expr, ...], start: int, width: int, c: Expr) -> Stmt:
        def one(v: Expr) -> Stmt:
            index = (*at, int64(start) + c * int64(width) + v) if into.shape else ()
            return store(to, into.address(0, index), load(own, source.address(0, index)))

        return vector("v", width, one)

    def row(at: tuple[Expr, ...]) -> Stmt:
        done, parts, width = 0, list[Stmt](), lanes
        while width:
            count = (shape[-1] - done) // width
            parts.append(loop("c", count, partial(piece, at, done, width)))
            done, width = done + count * width, width // 2
        return sequence(parts)

    def nest(at: tuple[Expr, ...]) -> Stmt:
        return row(at) if len(at) == len(shape) - 1 else loop("i", shape[len(at)], lambda i: nest((*at, i)))

    return nest(())


def plain_function(name: str, buffers: Sequence[Buffer], body: Stmt) -> tirx.PrimFunc:
    """A function of pointers alone, on one thread, that a module has under that name."""
    params, sets = list[TirExpr](), list[Block]()
    for number, own in enumerate(buffers):
        pointer = tirx.Var(f"pointer_{number}", tvm.ir.PointerType(tvm.ir.PrimType(own.dtype)))
        params.append(pointer)
        sets.append(tirx.DeclBuffer(own, data=pointer))
    alone = tvm_ffi.structural_map(body, (tirx.For, on_one_thread))
    func = tirx.PrimFunc(params, sequence(sets, alone))
    return func.with_attr(PLAIN, name).with_attr("tirx.noalias", True)


def on_one_thread(loop: tirx.For) -> tirx.For:
    """A loop that threads would share, in turn; a short one of known length unrolled, so that what is on the stack is
    addressed by numbers alone, and may be in registers; a longer one kept as a loop."""
    if loop.kind not in (tirx.ForKind.PARALLEL, tirx.ForKind.SERIAL):
        return loop
    known = isinstance(loop.extent, tirx.IntImm)
    if known and int(loop.extent) <= SHORT:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, annotations={})
    extent = hidden(int(loop.extent), str(loop.loop_var.ty)) if known else loop.extent
    return tirx.For(loop.loop_var, loop.min, extent, tirx.ForKind.SERIAL, loop.body, annotations={})


def hidden(number: int, dtype: str) -> Expr:
    """A number of at most 24 bits that LLVM does not know. It would unroll a product's whole loop, and then order the
    sums gate by gate: it keeps every element of x and h for all gates, in registers that it has not (LSTM 16 -> 16,
    AVX-512 on Ice Lake: 330 cycles, and 208 with loops)."""
    fence = int(tvm.get_global_func("target.llvm_lookup_intrinsic_id")("llvm.arithmetic.fence"))
    given = tirx.const(float(number), "float32")
    return tirx.Cast(dtype, tirx.call_llvm_pure_intrin("float32", tirx.IntImm("uint32", fence), given))


def narrowed(target: Target, net: RNN) -> Target:
    """The machine, with vectors that fit the network: the widest that the sizes of all states fill, and not below 16
    bytes; where none does, its own."""
    itemsize = np.dtype(net.dtype).itemsize
    sizes = {state.shape[-1] for layer in net.layers for state in layer.graph.states if state.shape}
    width = target.vector_bytes
    while width > LEAST_BYTES and any(size * itemsize % width for size in sizes):
        width //= 2
    fits = not any(size * itemsize % width for size in sizes)
    return replace(target, vector_bytes=width) if fits else target
