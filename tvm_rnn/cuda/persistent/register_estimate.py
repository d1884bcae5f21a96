"""How many registers a thread of a persistent kernel will take: an estimate, to discard geometries that would spill.

In: a `Team`. Out: registers per thread: weights, sums and operands of the largest product, cells, and what addresses
take.
"""

from __future__ import annotations

from typing import Any

from tvm_rnn.cuda.layer import fp8_weights

from .product import ffma_layout, wgmma_pipelined_layout, wgmma_staged_layout


def registers(team: Any) -> int:
    """Per thread."""
    total = sum(s.registers * team.block_words(p) for p, parts in team.shares.items() for s in parts)
    total += team.input_registers + (fp8_weights.registers(team) if team.stored else 0)
    most = max((s.kblocks for parts in team.shares.values() for s in parts), default=0)
    asked = most if team.polled else team.ahead + 1
    work = [
        team.m_tiles(p) * team.pass_tiles * 4 * team.chains[p] + asked * team.pass_tiles * 4
        for p in team.step.phases
        if p.kind == "gemm"
    ]
    total += max(work, default=0)
    if team.precision == "float32":  # sums of 8 rows per half tile, and some operands
        most = max(team.m_tiles(p) for p in team.step.phases)
        total += team.pass_tiles * (most * 16 + 24) - max(work, default=0)
    if team.fma:  # float32's estimate above is of other lanes
        total = ffma_layout.registers(team)
    elif team.staged:
        total += wgmma_staged_layout.registers(team) - max(work, default=0)
    elif team.ring:
        total += (
            max(wgmma_pipelined_layout.m_tiles(team, p) for p in team.shares) * team.rows // 2
            - max(work, default=0)
            + 16
        )
    elif any(s.registers < s.kblocks for parts in team.shares.values() for s in parts):
        total += max(team.block_words(p) for p in team.step.phases)  # fragments on their way
    for number, phase in enumerate(team.step.phases):
        cells = team.blocks(phase.width) * team.own_tiles * 2
        reads = team.step.reads[number]
        early = [team.ring or node.random or team.fetches(phase, node, slot) for node, slot in reads]
        total += (2 * len(reads) - sum(map(bool, early))) * cells
    for state in team.step.graph.states:
        total += team.blocks(state.shape[0]) * team.own_tiles * 2
    return int(total + 30)
