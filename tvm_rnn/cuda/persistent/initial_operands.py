"""The first operands of a persistent kernel: initial states, converted and laid out as the product reads them.

In: the kernel's state. Out: statements that run once per launch, before the loop over time. Places that nobody will
ever publish (K padded to whole blocks per warp, rows past the batch) become 0, once: 0 times garbage may be NaN.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import swizzled

from .exchange import POISON
from .geometry import BLOCK_WORDS


def fill_cluster(body: Any) -> None:
    """Every block fills its whole copy 0 of each carried value from the state, and zeroes all other copies."""
    team, k, ids = body.team, body.k, body.ids
    total = team.exchange_words
    with k.loop(-(-total // team.threads)) as i:
        at = i * team.threads + ids.thread
        with k.when(at < total):
            k.store(body.arena, tirx.const(0, "uint32"), at)
    k.do(I.cuda.cta_sync())
    view = I.decl_buffer(
        (total * 4 // team.itemsize,), team.storage, data=body.arena.data, elem_offset=0, scope="shared.dyn"
    )
    for n, state in enumerate(body.step.graph.states):
        if state not in body.step.carried:
            continue
        node, width = body.value(state), state.shape[0]
        elements = team.rows * width
        with k.loop(-(-elements // team.threads)) as i:
            flat = i * team.threads + ids.thread
            row, unit = tirx.floordiv(flat, width), tirx.floormod(flat, width)
            batch_row = k["row0"] + ids.team * team.rows + row
            with k.when(tirx.And(flat < elements, batch_row < k["batch"])):
                value = k[f"old_{n}"][tirx.Cast("int64", batch_row) * width + unit]
                if body.masks is not None:
                    value = _restarted(body, state, batch_row, value)
                value = body.reads.words.handed_at(state, value, batch_row, unit)
                k.store(view, convert(body, value), _element(team, node, row, unit))


def _restarted(body: Any, state: Any, row: Any, value: Any) -> Any:
    """A state's value before the first step: the initial one where the row's flag says so."""
    register = body.k.local(1)
    body.k.store(register, value, 0)
    body.masks.when_reset(row, lambda: body.k.store(register, body.masks.first(state), 0))
    return register[0]


def _element(team: Any, node: Any, row: Any, unit: Any) -> Any:
    """Element of copy 0 that holds (row, unit)."""
    block = tirx.floordiv(unit, team.block_k) * team.rows + row
    words = team.value_at[node] + block * BLOCK_WORDS
    return words * (4 // team.itemsize) + tirx.floormod(unit, team.block_k)


def convert(body: Any, value: Any) -> Any:
    """A float32 value as the product reads it."""
    if body.team.precision == "tf32":
        register = body.k.local(1, "uint32")
        body.k.do(I.ptx["cvt.rna.tf32.f32"](register[0], value))
        return I.reinterpret("float32", register[0])
    if body.team.polled and body.team.precision == "float32":  # a NaN of a user's, or one with a sign, may be poison
        bits = tirx.Min(I.reinterpret("uint32", value), tirx.const(POISON - 1, "uint32"))
        return I.reinterpret("float32", bits)
    return tirx.Cast(body.team.storage, value)


def fill_grid(body: Any) -> None:
    """Every block publishes the initial state of its own units; the padding of K is zeroed by the block after it."""
    team = body.team
    for state in body.step.carried:
        node, width = body.value(state), state.shape[0]
        for j in range(team.own_tiles):
            with body._own_tile(j):
                for block in range(team.blocks(width)):
                    for e in range(2):
                        registers, at = body.states[(state, block, j, e)]
                        value = body.reads.words.handed(state, registers[at], block, j, e)
                        body.exchange.stage(node, block, j, e, convert(body, value))
                    body.exchange.tile(node, 0, block, j, None, None)
    for node in team.published if not team.fma else ():  # whose copies do not reach what nobody writes
        used = -(-team.ctas * team.units(node.shape[0]) // team.block_k)
        _zero_grid(body, node, used, team.depth_blocks(node))


def _zero_grid(body: Any, node: Any, first: int, last: int) -> None:
    """K blocks that no unit fills, in both copies; the last used block too where units end inside it."""
    team, k, ids = body.team, body.k, body.ids
    words = (last - first) * team.rows * BLOCK_WORDS
    with k.when(ids.rank == 0):
        for slot in range(2):
            start = team.value_at[node] + slot * team.value_words(node) + first * team.rows * BLOCK_WORDS
            if words:
                with k.loop(-(-words // team.threads)) as i:
                    at = i * team.threads + ids.thread
                    with k.when(at < words):
                        k.store(k["exchange"], tirx.const(0, "uint32"), body.exchange.base + start + at)
            _zero_tail(body, node, slot)


def _zero_tail(body: Any, node: Any, slot: int) -> None:
    """The part of the last block that no unit fills (units come in eights, a block holds 16 or 32)."""
    team, k, ids = body.team, body.k, body.ids
    padded = team.ctas * team.units(node.shape[0])
    used = padded % team.block_k
    if not used:
        return
    tail = (team.block_k - used) * team.itemsize // 4
    start = team.value_at[node] + slot * team.value_words(node) + padded // team.block_k * team.rows * BLOCK_WORDS
    with k.loop(-(-team.rows * tail // team.threads)) as i:
        flat = i * team.threads + ids.thread
        with k.when(flat < team.rows * tail):
            row, word = tirx.floordiv(flat, tail), BLOCK_WORDS - tail + tirx.floormod(flat, tail)
            piece = tirx.floordiv(word, 4)
            at = row * BLOCK_WORDS + (swizzled(row, piece) if team.ring else piece) * 4 + tirx.floormod(word, 4)
            k.store(k["exchange"], tirx.const(0, "uint32"), body.exchange.base + start + at)
