"""The shared memory of a persistent kernel: in which order its users lie there.

In: the kernel's state (`persistent.Body`), which knows who each thread is. Out: `body.arena` and those who use it:
exchange, inputs, reads of cells, product. Weights are loaded. Before: `check` refuses teams that have no kernel.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.persistent.product.ffma import FmaProduct
from tvm_rnn.cuda.persistent.product.ffma_pipeline import FmaInputs
from tvm_rnn.cuda.persistent.product.mma_sync import Product
from tvm_rnn.cuda.persistent.product.wgmma_pipelined import Wide
from tvm_rnn.cuda.persistent.product.wgmma_split_k import PooledProduct
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled
from tvm_rnn.cuda.persistent.product.wgmma_staged import Grouped

from .bulk_copy_pipeline import Ringed
from .cell_reads import CellReads
from .exchange import Cluster, Grid
from .exchange_by_polling import Polled
from .layer_input_rows import Inputs
from .operand_cp_async import Copies
from .operands_staged import Operands, Staged, StagedInputs
from .product import ffma_layout, wgmma_pipelined_layout, wgmma_split_k_layout, wgmma_staged_layout

ALIGNMENT, RING_ALIGNMENT = 128, 1024  # swizzled tiles want the second


def check(team: Any) -> None:
    """Raises ValueError where no kernel can be written for a team."""
    if team.polled and not team.pollable:
        raise ValueError("polled teams have products alone, of whole K blocks; staged: warpgroups; fma: float32")
    if isinstance(team, Pooled):
        if not wgmma_split_k_layout.able(team):
            raise ValueError("clusters share K by a ring, whole warpgroups and equal rows, without inputs and codes")
    elif team.ring and not wgmma_pipelined_layout.able(team):
        raise ValueError("a ring has two stages at least, whole warpgroups, a counter in L2, no inputs and no codes")


def lay_out(body: Any) -> None:
    """Allocate shared memory and construct its users."""
    team, k, ids = body.team, body.k, body.ids
    align = RING_ALIGNMENT if team.ring or team.staged else ALIGNMENT
    arena = body.arena = I.alloc_buffer((team.shared_bytes // 4,), "uint32", scope="shared.dyn", align=align)
    if team.ring:
        pooled = isinstance(team, Pooled)
        layout: Any = wgmma_split_k_layout if pooled else wgmma_pipelined_layout
        body.exchange = Ringed(k, team, ids, arena, layout.places(team).stage // 4)
        # A ring has none of theirs in shared memory.
        body.inputs, body.copies, body.reads = Inputs(body, 0), Copies(body, 0), CellReads(body, 0)
        body.product = (PooledProduct if pooled else Wide)(k, team, ids, arena, body.exchange)
        return
    if team.staged:
        partial_at = team.weight_words + wgmma_staged_layout.words(team)
        stage_at = partial_at + team.partial_words
        body.exchange = Staged(k, team, ids, arena, stage_at, body)
        body.operands, body.inputs, body.copies = Operands(body), StagedInputs(body), Copies(body, 0)
        body.inputs.announce()
        body.reads = CellReads(body, stage_at + team.stage_words)
        body.product = Grouped(body, partial_at)
        return
    if team.fma:
        weights_at = ffma_layout.ring_words(team)
        partial_at = weights_at + team.weight_words
        stage_at = partial_at + team.partial_words
        body.exchange = Staged(k, team, ids, arena, stage_at, body)
        body.inputs, body.copies = FmaInputs(body, 0), Copies(body, 0)
        body.inputs.announce()
        body.reads = CellReads(body, stage_at + team.stage_words)
        body.product = FmaProduct(body, 0, weights_at, partial_at)
        return
    partial_at = team.exchange_words if team.exchange == "cluster" else 0
    stage_at = partial_at + team.partial_words
    inputs_at = stage_at + team.stage_words
    copies_at = inputs_at + team.inputs_words
    fetch_at = copies_at + team.copy_words
    weights_at = fetch_at + team.fetch_words
    if team.exchange == "cluster":
        body.exchange = Cluster(k, team, ids, arena, stage_at, weights_at + team.weight_words)
    else:
        grid = Grid(k, team, ids, arena, stage_at)
        body.exchange = Polled(k, team, ids, arena, stage_at, body) if team.polled else grid
    body.inputs, body.copies = Inputs(body, inputs_at), Copies(body, copies_at)
    body.inputs.announce()
    body.reads = CellReads(body, fetch_at)
    body.product = Product(k, team, ids, arena, weights_at, partial_at, body.copies)
