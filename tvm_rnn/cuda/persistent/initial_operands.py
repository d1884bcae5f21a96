"""The first operands of a persistent kernel: initial states, converted and laid out as the product reads them.

In: the kernel's state. Out: statements that run once per launch, before the loop over time. Words that are
never published (K padded to whole blocks per warp, rows past the batch) become 0, once: 0 times garbage may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .geometry import BLOCK_WORDS, Body

Turned = Callable[[Expr, Expr], Expr]  # (row, piece) -> where that piece of the row lies


def fill_cluster(body: Body) -> None:
    """Every block fills its whole copy 0 of each carried value from the state, and zeroes all other copies."""
    geometry, k, ids = body.geometry, body.k, body.ids
    total = geometry.exchange_words
    with k.loop(-(-total // geometry.threads)) as i:
        at = i * geometry.threads + ids.thread
        with k.when(at < total):
            k.store(body.arena, tirx.const(0, "uint32"), at)
    k.do(I.cuda.cta_sync())
    view = I.decl_buffer(
        (total * 4 // geometry.itemsize,), geometry.storage, data=body.arena.data, elem_offset=0, scope="shared.dyn"
    )
    for n, state in enumerate(body.step.graph.states):
        if state not in body.step.carried:
            continue
        node, width = body.value(state), state.shape[0]
        elements = geometry.rows * width
        with k.loop(-(-elements // geometry.threads)) as i:
            flat = i * geometry.threads + ids.thread
            row, unit = tirx.floordiv(flat, width), tirx.floormod(flat, width)
            batch_row = k["row0"] + ids.group * geometry.rows + row
            with k.when(tirx.And(flat < elements, batch_row < k["batch"])):
                value: Expr = k[f"old_{n}"][tirx.Cast("int64", batch_row) * width + unit]
                if body.masks is not None:
                    value = body.masks.restarted(state, batch_row, value)
                value = body.reads.words.masked_state_at(state, value, batch_row, unit)
                block = tirx.floordiv(unit, geometry.block_k) * geometry.rows + row
                words = geometry.value_at[node] + block * BLOCK_WORDS
                element = words * (4 // geometry.itemsize) + tirx.floormod(unit, geometry.block_k)  # of copy 0
                k.store(view, convert(body, value), element)


def convert(body: Body, value: Expr) -> Expr:
    """A float32 value as the product reads it."""
    if body.geometry.precision == "tf32":
        register = body.k.local(1, "uint32")
        body.k.do(I.ptx["cvt.rna.tf32.f32"](register[0], value))
        return I.reinterpret("float32", register[0])
    return body.exchange.plain(value)


def fill_grid(body: Body, base: Expr, turned: Turned) -> None:
    """Every block publishes the initial state of its own units; the padding of K is zeroed by the first block. base:
    the group's first word of the exchange."""
    geometry = body.geometry
    for state in body.step.carried:
        node, width = body.value(state), state.shape[0]
        for j in range(geometry.own_tiles):
            with body.cells.own_tile(j):
                for block in range(geometry.blocks(width)):
                    for e in range(2):
                        registers, at = body.states[(state, block, j, e)]
                        value = body.reads.words.masked_state(state, registers[at], block, j, e)
                        body.exchange.stage(node, block, j, e, convert(body, value))
                    body.exchange.tile(node, 0, block, j, None, None)
    for node in geometry.published if geometry.zeroes_padding else ():
        _zero_grid(body, base, turned, node)


def _zero_grid(body: Body, base: Expr, turned: Turned, node: Node) -> None:
    """K blocks that no unit fills, in both copies, and the rest of the last one where units end inside it: they come in
    eights, a block holds 16 or 32."""
    geometry, k, ids = body.geometry, body.k, body.ids
    full, used = divmod(geometry.ctas * geometry.units(node.shape[0]), geometry.block_k)
    block, zero = geometry.rows * BLOCK_WORDS, tirx.const(0, "uint32")
    words = (geometry.depth_blocks(node) - full - bool(used)) * block
    with k.when(ids.rank == 0):
        for slot in range(2):
            start = geometry.value_at[node] + slot * geometry.value_words(node)
            if words:
                with k.loop(-(-words // geometry.threads)) as i:
                    at = i * geometry.threads + ids.thread
                    with k.when(at < words):
                        k.store(k["exchange"], zero, base + (start + (full + bool(used)) * block) + at)
            if used:
                tail = (geometry.block_k - used) * geometry.itemsize // 4
                with k.loop(-(-geometry.rows * tail // geometry.threads)) as i:
                    flat = i * geometry.threads + ids.thread
                    with k.when(flat < geometry.rows * tail):
                        row, word = tirx.floordiv(flat, tail), BLOCK_WORDS - tail + tirx.floormod(flat, tail)
                        at = row * BLOCK_WORDS + turned(row, tirx.floordiv(word, 4)) * 4 + tirx.floormod(word, 4)
                        k.store(k["exchange"], zero, base + (start + full * block) + at)
