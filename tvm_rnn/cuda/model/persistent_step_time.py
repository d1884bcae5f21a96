"""How long a step of a persistent kernel will take: an analytic model, to choose a regime and its geometry by.

In: a `Team`, a batch size and a GPU. Out: microseconds per step. The terms are those of a step: per phase the exchange,
the operand's way into the block, MMA, weights that are not in registers, partial sums, the cells; the whole times the
rounds in which teams that do not fit on the GPU at once must run.

Constants were measured on an H200 (driver 580, CUDA 13.0): floors of exchanges and barriers, and kernels of this
package at H 256 to 1024, B 16 to 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import Team
from tvm_rnn.cuda.persistent.product import ffma_layout
from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import FEW_STAGES, chunks, m_tiles
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled
from tvm_rnn.decisions import listening, tell
from tvm_rnn.target import Target

from .split_k_time import pooled_product


@dataclass(frozen=True)
class Rates:
    """What was fitted for one kind of exchange. exchange: of a phase, us; per_cta: more for each block of a cluster.
    latency: of one MMA after the other, cycles. shared: part of shared memory's traffic that MMA does not hide. cell:
    of a product's phase, us; each: for 10 values of a lane."""

    exchange: float
    per_cta: float
    latency: float
    shared: float
    cell: float
    each: float


RATES = {
    "cluster": Rates(0.24, 0.012, 34.0, 0.8, 0.15, 0.03),
    "grid": Rates(1.45, 0.0, 55.0, 0.77, 0.18, 0.087),
    "polled": Rates(0.95, 0.0, 55.0, 0.77, 0.18, 0.087),
    "ring": Rates(1.0, 0.0, 34.0, 0.8, 0.15, 0.03),
    "staged": Rates(2.1, 0.0, 34.0, 0.8, 0.15, 0.03),
    "fma": Rates(2.1, 0.0, 0.0, 0.0, 0.15, 0.03),
}
CLOCK_MHZ = 1900.0
MMA_CYCLES = 6.5  # m16n8k16 on one quarter of a multiprocessor; m16n8k8 of tf32 the same
# Of 8-bit codes to a fragment of mma.sync, on one quarter: an estimate from the instructions that it takes (14 and 8,
# many of which start every other cycle), not measured. Nothing of it is taken to hide behind MMA.
DECODE_CYCLES = {"bfloat16": 16.0, "float16": 14.0}
FFMA_CYCLES = 1.7  # one instruction of a warp, with the loads between
L2_BYTES_PER_US = 170e3  # of one multiprocessor, reading what all read
L2_TRIP_US = 0.15  # one load after the other
OVERLAP_LOST = 0.5  # of the shorter of loads and MMA, which mostly hides behind the longer
SHARED_BYTES_PER_CYCLE = 128.0
PASS_US = 0.4  # each further pass of a grid: four layers of LSTM 512, B = 64: 6.1 us in two passes, 5.2 in one
POLLING_US = 0.12  # each further team that polls at the same time: LSTM 512 bf16, B = 128, eight teams, 3.66 us
CROWDED, CROWDED_PART = 226, 0.003  # registers; lost time for each one more
INPUT_HIDDEN_US = 0.25  # of an input's product, behind a cluster's exchange
INPUT_FAR = 3.0  # times an operand's way, where registers hold few pieces of an input's rows at a time
INPUT_SHARED_PART = 0.5  # of its weights' way from shared memory, which is in the way of the exchange
PARTIAL_US = 0.03  # per warp that sums are collected from
ROWS_US, CELLS_US = 0.12, 0.1  # each 8 rows of a cluster beyond the first; each 256 cells of a block beyond the first
LIGHT_US = 0.04  # of a phase without a product
# Of each further vector that a cluster's blocks hand to each other, as a backward step does with the gradients of all
# gates: per 1000 bytes of it that a block receives; and where that is, of each cell of a lane beyond two, whose values
# registers are short of. LSTM 256, blocks x rows and warps of units, measured and as this predicts: bf16 16 x 8 2 1.31,
# 1.37 us; 8 x 8 4 1.49, 1.56; 16 x 8 1 1.79, 1.88; 8 x 8 2 1.89, 1.86; 4 x 8 4 2.17, 2.37; tf32 16 x 8 2 2.22, 2.08;
# 8 x 8 2 2.35, 2.64; 16 x 8 1 2.98, 2.38.
HANDED_US, HANDED_CELL_US = 0.03, 0.25
# A ring: what it costs beside the exchange, bytes per cycle that bulk copies bring into a multiprocessor, cycles of a
# product of 64 rows and 8 columns (at least as for RING_COLUMNS), more where its weights are in shared memory; how much
# of them copies do not hide, and what filling stages again costs.
RING_US, RING_COPY, RING_CYCLES, RING_COLUMNS, RING_NEAR, RING_SHOWN = 1.1, 50.0, 4.0, 36, 1.35, 0.3
RING_REFILL = 1.1, 1.4  # of large stages, of small ones
# Cycles of a product of 64 rows, at least and where its weights are in shared memory, times; of 16 bytes laid down.
STAGED_LEAST, STAGED_NEAR, STAGED_PIECE = 16.0, 1.55, 0.1
# Float32 out of rings: cycles of a multiply-add of a warp on one quarter, and of a load of 16 bytes per lane from
# shared memory; bytes per us that every multiprocessor has of L2 when all read; of a turn in which sums meet, us.
# Layers in a wave, blocks x rows, T = 100, measured and as this predicts: four LSTM 512, B = 64, 32 x 64 33.2, 31.9 us;
# 16 x 32 33.4, 32.2; B = 16, 32 x 16 10.3, 10.4; four GRU 512 26.6, 25.2; three LSTM 256, B = 64, 16 x 32 9.4, 8.5.
FMA_CYCLES, FMA_LOAD_CYCLES, FMA_L2_BYTES_PER_US, FMA_TURN_US = 1.75, 4.0, 55e3, 0.15
# Clusters that can be resident on the 132 multiprocessors of an H200 with one block on each.
RESIDENT_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}


def resident_teams(team: Team, target: Target) -> int:
    """Teams that run at the same time, one block per multiprocessor."""
    if team.exchange == "grid":
        together = RESIDENT_CLUSTERS.get(team.together, 0) * team.together * target.sms // 132
        return together // team.ctas
    return RESIDENT_CLUSTERS.get(team.ctas, 0) * target.sms // 132


def cheapest(teams: Iterable[Team], unit: Any, target: Target) -> Team | None:
    """The team that fits and has the least predicted time for the unit's batch."""
    if listening():
        teams = list(teams)
    able = (t for t in teams if able_to_run(t, target))
    best = min(able, key=lambda t: predict(t, unit.batch, target), default=None)
    if best is None and listening():
        _tell(list(teams), target)
    return best


def _tell(teams: list[Team], target: Target) -> None:
    """Why no geometry fits: what the nearest one lacks."""
    if not teams:
        tell(False, "a geometry", "the schedule has none for this precision, these sizes and so many layers")
        return
    lack = min((lacking(team, target) for team in teams), key=lambda found: found.missing_bytes)
    why = f"of {len(teams)} geometries none fits; the nearest: {lack.reason}"
    tell(False, "a geometry", why, missing_bytes=lack.missing_bytes, needed_bytes=lack.needed_bytes)


@dataclass(frozen=True)
class Lack:
    """What a team that does not fit has too little of. Bytes are those of one block."""

    reason: str
    missing_bytes: int
    needed_bytes: int


def lacking(team: Team, target: Target) -> Lack:
    """By how much a team that is not `able_to_run` misses it."""
    where = f"{team.ctas} blocks of {team.threads} threads, {team.rows} rows"
    if team.threads > 1024:
        return Lack(f"{where}: 1024 threads are the most", 1 << 40, 0)
    if not resident_teams(team, target):
        return Lack(f"{where}: this GPU runs {target.sms} blocks at once", 1 << 40, 0)
    blocks = [(p, team.depth_blocks(o.source) // team.k_parts) for p in team.step.phases for o in p.operands]
    held = sum(s.registers + s.shared for parts in team.shares.values() for s in parts)
    lanes, words = team.k_parts * team.part_lanes * 4, sum(team.block_words(p) * n for p, n in blocks)
    streamed = sum(s.streamed * team.block_words(p) for p, parts in team.shares.items() for s in parts)
    if (streamed or not held) and not team.fma and not isinstance(team, Pooled):
        why = f"{where}: a block's weights are {words * lanes} bytes, {streamed * lanes} more than it may keep"
        return Lack(why, streamed * lanes, words * lanes)
    most = min(255, (1 << 16) // team.threads // 8 * 8)
    over, shared = team.registers() - most, team.shared_bytes - target.shared_bytes
    if over > 0 and over * 4 * team.threads > shared:
        why = f"{where}: about {team.registers()} registers per thread, {most} are the most"
        return Lack(why, over * 4 * team.threads + max(0, shared), words * lanes)
    why = f"{where}: {team.shared_bytes} bytes of shared memory, {shared} more than a block may have"
    return Lack(why, max(0, shared), team.shared_bytes)


def distinct(teams: Iterable[Team], target: Target, knobs: Callable[[Team], dict[str, int]]) -> Iterator[Team]:
    """The teams that fit; of those that only offer weights more room than is used, the first. knobs: of a team."""
    seen = set()
    for team in teams:
        kept = tuple((s.registers, s.shared) for parts in team.shares.values() for s in parts)
        key = (kept, *(value for name, value in knobs(team).items() if not name.endswith("_words")))
        if key not in seen and able_to_run(team, target):
            seen.add(key)
            yield team


def able_to_run(team: Team, target: Target) -> bool:
    """Whether it fits with all weights on the chip: reading some from L2 in every step was slower than one launch per
    step (H 2048, B 64: 42 us against 15; through a ring, H 2560, B 64: 31 against 23). Not so in float32, where
    products take longer than that."""
    if team.threads > 1024 or not resident_teams(team, target) or not _holds(team):
        return False
    streams = team.fma or isinstance(team, Pooled)
    if any(s.streamed for parts in team.shares.values() for s in parts) and not streams:
        return False
    return team.fits(shared_bytes=target.shared_bytes)


def _holds(team: Team) -> bool:
    """Whether a lane's weights are no more words than it may keep: a quick look, for most geometries the last one."""
    if team.ring or team.fma:
        return True
    blocks = ((p, team.depth_blocks(o.source) // team.warps_k) for p in team.step.phases for o in p.operands)
    return sum(team.block_words(p) * n for p, n in blocks) <= team.register_words + team.shared_words


def predict(team: Team, batch: int, target: Target) -> float:
    """Microseconds per step for B = batch rows."""
    teams = ceil(batch / team.rows)
    rounds = ceil(teams / max(1, resident_teams(team, target)))
    us = rounds * sum(_phase(team, number) for number in range(len(team.step.phases)))
    us += PASS_US * (team.passes - 1) if team.exchange == "grid" else 0.0
    if team.polled and not (team.staged or team.fma):
        us += POLLING_US * (min(teams, resident_teams(team, target)) - 1)
    # Grids whose estimate comes near 255 registers spill some of them.
    plain = team.exchange == "grid" and not (team.ring or team.staged or team.fma)
    crowded = max(0, team.registers() - CROWDED) if plain else 0
    return us * (1 + CROWDED_PART * crowded)


def _rates(team: Team) -> Rates:
    kinds = {"ring": team.ring, "staged": team.staged, "fma": team.fma, "polled": team.polled}
    return RATES[next((kind for kind, used in kinds.items() if used), team.exchange)]


def exchange_us(team: Team) -> float:
    """What a step takes at least because its blocks wait for each other's values, one exchange after the other, us."""
    rates = _rates(team)
    return len(team.events) * (rates.exchange + rates.per_cta * team.ctas)


def _phase(team: Team, number: int) -> float:
    phase = team.step.phases[number]
    cluster = team.exchange == "cluster"
    us = 0.0
    rates = _rates(team)
    if phase in team.events:
        us += exchange_us(team) / len(team.events)
    if phase.kind == "gemm":
        us += _product(team, number)
    cells = team.blocks(phase.width) * team.own_tiles * 2
    us += rates.cell if phase.kind == "gemm" else LIGHT_US
    us += rates.each * cells * len(phase.nodes) / 10 * ceil(team.warps / 4) / 2
    if cluster:
        us += ROWS_US * (team.rows / 8 - 1) + CELLS_US * max(0.0, team.units(phase.width) * team.rows / 256 - 1)
        handed = sum(prod(node.shape) for node in phase.published)
        us += HANDED_US * max(0, handed - phase.width) * team.rows * team.itemsize / 1000
        us += HANDED_CELL_US * max(0, cells - 2) if handed > phase.width else 0.0
    return us


def _ring_product(team: Team, phase: Phase) -> float:
    products = copied = 0.0
    for share in team.shares[phase]:
        blocks = share.kblocks * team.k_parts
        each = max(RING_COLUMNS, team.rows) / 8 * RING_CYCLES * 2 * m_tiles(team, phase)
        products += each * team.k_parts * (share.registers + RING_NEAR * (share.kblocks - share.registers))
        copied += blocks * team.rows * 64 + share.streamed * team.k_parts * m_tiles(team, phase) * 4096
    again = 1.0
    if sum(len(c) for c in chunks(team).values()) > team.ring:
        again = RING_REFILL[team.ring > FEW_STAGES]
    return RING_US + (copied / RING_COPY + RING_SHOWN * products) * again / CLOCK_MHZ


def _staged_product(team: Team, phase: Phase) -> float:
    """Of all warpgroups: instructions take turns on the tensor cores."""
    cycles = 0.0
    for share in team.shares[phase]:
        each = max(STAGED_LEAST, team.rows / 2)
        near = STAGED_NEAR * (share.kblocks - share.registers)
        cycles += 2 * team.m_tiles(phase) * team.k_parts * each * (share.registers + near)
    pieces = sum(team.rows * team.depth_blocks(s.operand.source) * 4 for s in team.shares[phase])
    return (cycles + STAGED_PIECE * pieces) / CLOCK_MHZ


def _fma_product(team: Team, phase: Phase) -> float:
    """Of all warps, two on each quarter; the exchange hides behind the product with the layer's input."""
    high, slots = ffma_layout.high(team), ffma_layout.columns(team, phase) // ffma_layout.ACROSS
    # Of one k: sums of a lane, and a quarter of the loads of four k.
    sums = ceil(team.warps / 4) * high * slots * FMA_CYCLES
    loads = team.warps * (high + slots) / 4 * FMA_LOAD_CYCLES
    total = given = 0.0
    for share in team.shares[phase]:
        math = share.kblocks * team.block_k * max(sums, loads) / CLOCK_MHZ
        brought = team.rows * ffma_layout.ROW_BYTES * share.kblocks + share.streamed * ffma_layout.weight_bytes(
            team, phase
        )
        us = max(math, brought * team.warps / FMA_L2_BYTES_PER_US)
        total, given = total + us, given + us * share.operand.given
    met = 2 * team.warps * ffma_layout.part_words(team) * 4 / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
    return total - min(given, _rates(team).exchange) + met + FMA_TURN_US * ffma_layout.turns(team)


def _product(team: Team, number: int) -> float:
    phase = team.step.phases[number]
    if isinstance(team, Pooled):
        return pooled_product(team, phase, CLOCK_MHZ)
    if team.ring:
        return _ring_product(team, phase)
    if team.staged:
        return _staged_product(team, phase)
    if team.fma:
        return _fma_product(team, phase)
    m_tiles, rates = team.m_tiles(phase), _rates(team)
    us = 0.0
    for share in team.shares[phase]:
        steps = share.kblocks * 2
        issue = ceil(team.warps / 4) * steps * m_tiles * team.tiles * MMA_CYCLES
        chain = steps / team.chains[phase] * rates.latency
        if team.precision == "float32":  # 32 multiply-adds per cycle in each quarter
            issue = ceil(team.warps / 4) * share.kblocks * m_tiles * 2 * 4 * 8 * team.tiles * FFMA_CYCLES
            chain = 0.0
        if team.stored:
            issue += ceil(team.warps / 4) * team.passes * steps * m_tiles * DECODE_CYCLES[team.precision]
        operand = team.rows * team.depth_blocks(share.operand.source) * 64 * team.warps_u
        piece = team.block_words(phase) * 4 * 32 * team.warps_u * team.warps_k * team.warps_n
        math = max(issue, chain) / CLOCK_MHZ
        near = rates.shared * team.passes * share.shared * piece / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        trips = 1 if team.copied else team.passes * (1 if team.polled else ceil(share.kblocks / (team.ahead + 1)))
        far = max(operand / L2_BYTES_PER_US, trips * L2_TRIP_US)
        if share.operand.given:  # while the blocks wait for each other
            rows = operand / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
            if team.exchange == "grid" and not team.copied:
                rows = far * INPUT_FAR
            hidden = INPUT_HIDDEN_US if team.exchange == "cluster" else rates.exchange
            us += max(0.0, math + near + rows - hidden) + INPUT_SHARED_PART * near
        elif team.exchange == "cluster":
            us += math + near + rates.shared * operand / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        else:
            trips = 1 if team.polled or team.copied else ceil(share.kblocks / (team.ahead + 1)) * team.passes
            far = max(operand / L2_BYTES_PER_US, trips * L2_TRIP_US)
            us += near + max(far, math) + OVERLAP_LOST * min(far, math)
    if team.warps_k > 1:
        traffic = 2 * team.warps * m_tiles * team.tiles * 512
        us += PARTIAL_US * (team.warps_k - 1) * team.passes + traffic / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
    return us
