"""How long a step of a persistent kernel will take: an analytic model, to choose a regime and its geometry by.

In: a `Geometry`, a batch size and a GPU. Out: microseconds per step. The terms are those of a step: per phase the
exchange, the product as its kind predicts it (`Geometry.product_us`), the cells; the whole times the rounds in which
groups that do not fit on the GPU at once must run.

Constants were measured on an H200 (driver 580, CUDA 13.0): floors of exchanges and barriers, and kernels of this
package at H 256 to 1024, B 16 to 64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.decisions import listening, tell
from tvm_rnn.target import HOPPER, Target

LIGHT_US = 0.04  # of a phase without a product
# What products of members' inputs add to a step, behind the exchange; cells of phases of nothing else hide there. H200,
# B 32, us for 128 steps with them and with hoisted products: 16 GRUs of 128 80.9, 67.2; 16 LSTMs 90.8, 84; 4 GRUs 70.2,
# 51.4; 4 LSTMs 74.4, 59.4.
GIVEN_US = 0.1
APART_US = 0.03  # where the warps that copy multiply them
# Clusters that can be resident on the 132 multiprocessors of an H200 with one block on each.
RESIDENT_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
SM_THREADS, BLOCK_SHARED_BYTES = 2048, 1024  # of a multiprocessor; what a block takes beside its own
# Blocks of small layers that share a multiprocessor: each waits most of the time, and more would begin to wait for each
# other.
MOST_TOGETHER = 4


def resident_clusters(blocks: int, sms: int) -> int:
    """Clusters of so many blocks that run at the same time on so many multiprocessors, one block on each."""
    return RESIDENT_CLUSTERS.get(blocks, 0) * blocks * sms // 132 // blocks


def resident_groups(geometry: Geometry, target: Target) -> int:
    """Groups of blocks that run at the same time, one block per multiprocessor."""
    return resident_clusters(geometry.cluster, target.sms) * geometry.cluster // geometry.ctas


def blocks_together(geometry: Geometry, target: Target) -> int:
    """Blocks that one multiprocessor has room for; one, where blocks wait for each other through memory."""
    if geometry.exchange.in_memory:
        return 1
    shared = target.sm_shared_bytes // (geometry.shared_bytes + BLOCK_SHARED_BYTES)
    registers = target.registers // (geometry.block_threads * 8 * ceil(geometry.registers / 8))
    return max(1, min(MOST_TOGETHER, shared, registers, SM_THREADS // geometry.block_threads))


def cheapest(geometries: Iterable[Geometry], batch: int, target: Target) -> Geometry | None:
    """The geometry that fits and has the least predicted time for that batch."""
    if listening():
        geometries = list(geometries)
    able = (t for t in geometries if able_to_run(t, target))
    best = min(able, key=lambda t: predict(t, batch, target), default=None)
    if best is not None or not listening():
        return best
    lacks = [lacking(geometry, target) for geometry in geometries]
    if lacks:
        lack = min(lacks, key=lambda found: found.missing_bytes)
        why = f"of {len(lacks)} geometries none fits; the nearest: {lack.reason}"
        tell(False, "a geometry", why, missing_bytes=lack.missing_bytes, needed_bytes=lack.needed_bytes)
    else:
        tell(False, "a geometry", "the schedule has none for this precision, these sizes and so many layers")
    return None


@dataclass(frozen=True)
class Lack:
    """What a geometry that does not fit has too little of. Bytes are those of one block."""

    reason: str
    missing_bytes: int
    needed_bytes: int


def lacking(geometry: Geometry, target: Target) -> Lack:
    """By how much a geometry that is not `able_to_run` misses it."""
    where = f"{geometry.ctas} blocks of {geometry.block_threads} threads, {geometry.rows} rows"
    if geometry.block_threads > 1024:
        return Lack(f"{where}: 1024 threads are the most", 1 << 40, 0)
    if geometry.hopper and target.arch != HOPPER:
        return Lack(f"{where}: {target.arch} lacks clusters, or wgmma", 1 << 40, 0)
    if geometry.step.heads > 1 and geometry.exchange.in_memory:
        return Lack(f"{where}: a head's blocks are those of a cluster", 1 << 40, 0)
    if not resident_groups(geometry, target):
        return Lack(f"{where}: this GPU runs {target.sms} blocks at once", 1 << 40, 0)
    held = sum(s.registers + s.shared for parts in geometry.shares.values() for s in parts)
    lanes, words = geometry.k_parts * geometry.part_lanes * 4, geometry.weights_of_lane
    streamed = sum(s.streamed * geometry.block_words(p) for p, parts in geometry.shares.items() for s in parts)
    if (streamed or not held) and not geometry.streams:
        why = f"{where}: a block's weights are {words * lanes} bytes, {streamed * lanes} more than it may keep"
        return Lack(why, streamed * lanes, words * lanes)
    most = geometry.most_of_thread
    over, shared = geometry.registers - most, geometry.shared_bytes - target.shared_bytes
    if over > 0 and over * 4 * geometry.block_threads > shared:
        why = f"{where}: about {geometry.registers} registers per thread, {most} are the most"
        return Lack(why, over * 4 * geometry.block_threads + max(0, shared), words * lanes)
    why = f"{where}: {geometry.shared_bytes} bytes of shared memory, {shared} more than a block may have"
    return Lack(why, max(0, shared), geometry.shared_bytes)


def able_to_run(geometry: Geometry, target: Target) -> bool:
    """Whether it fits with all weights on the chip: reading some from L2 in every step was slower than one launch per
    step (H 2048, B 64: 42 us against 15; through a pipeline, H 2560, B 64: 31 against 23). Not so in float32, where
    products take longer than that."""
    if (geometry.hopper and target.arch != HOPPER) or not resident_groups(geometry, target):
        return False
    if geometry.step.heads > 1 and geometry.exchange.in_memory:  # whose launches take slices of the batch alone
        return False
    known = geometry.step.known.setdefault(geometry.key, {})
    if target.shared_bytes not in known:
        known[target.shared_bytes] = _fits(geometry, target)
    return known[target.shared_bytes]


def _fits(geometry: Geometry, target: Target) -> bool:
    """Whether one block has room on a multiprocessor."""
    if geometry.block_threads > 1024:
        return False
    # A quick look at what a lane may keep, for most geometries the last one.
    holds = geometry.streams or geometry.weights_of_lane <= geometry.register_words + geometry.shared_words
    if not geometry.streams and (not holds or any(share.streamed for _, share in geometry.weights)):
        return False
    return geometry.fits(shared_bytes=target.shared_bytes)


class StepTime:
    """The time of a geometry's steps on a GPU, for any batch size. at_once: batch rows of one round; together: blocks
    that a multiprocessor has room for."""

    def __init__(self, geometry: Geometry, target: Target) -> None:
        self.geometry, self.resident = geometry, resident_groups(geometry, target)
        self.together = blocks_together(geometry, target)
        self.at_once = self.resident // geometry.step.heads * geometry.rows
        self._round = sum(phase.us for phase in phase_times(geometry))

    def whole(self, batch: int) -> int:
        """How many of so many rows it takes: whole rounds, where blocks wait for each other through memory. Clusters do
        not, and one launch is for all: LSTM 256 bf16, B = 128 on an H200 1.04 us, in 120 rows and 8 1.47."""
        return batch // self.at_once * self.at_once or batch if self.geometry.exchange.in_memory else batch

    def us(self, batch: int) -> float:
        """Microseconds per step for B = batch rows."""
        groups = ceil(batch / self.geometry.rows) * self.geometry.step.heads
        rounds = ceil(groups / max(1, self.resident))
        return (rounds * self._round + self.geometry.extra_us(min(groups, self.resident))) * self.geometry.slowdown


def predict(geometry: Geometry, batch: int, target: Target) -> float:
    """Microseconds per step for B = batch rows."""
    return StepTime(geometry, target).us(batch)


def exchange_us(geometry: Geometry) -> float:
    """What a step takes at least because its blocks wait for each other's values, one exchange after the other, us."""
    rates = geometry.rates
    return len(geometry.events) * (rates.exchange + rates.per_cta * geometry.ctas)


@dataclass(frozen=True)
class PhaseTime:
    """Where the time of one phase of a step goes, in microseconds.

    kind: of the phase; units: how many it computes. exchange: blocks wait for each other's values. product: the
    products. cells: pointwise work, and publishing its values."""

    kind: str
    units: int
    exchange: float
    product: float
    cells: float

    @property
    def us(self) -> float:
        return self.exchange + self.product + self.cells


def phase_times(geometry: Geometry) -> list[PhaseTime]:
    """The phases of a step in the order in which they run, for one round of groups."""
    return [_phase(geometry, phase) for phase in geometry.step.phases]


def _phase(geometry: Geometry, phase: Phase) -> PhaseTime:
    rates, product = geometry.rates, phase.kind == "gemm"
    waits = exchange_us(geometry) / len(geometry.events) if phase in geometry.events else 0.0
    cells = geometry.blocks(phase.width) * geometry.own_tiles * 2
    us = rates.cell if product else LIGHT_US
    us += rates.each * cells * len(phase.nodes) / 10 * ceil(geometry.warps / 4) / 2
    us += geometry.exchange.phase_us(geometry, phase, cells)
    given = [operand.given for operand in phase.operands if geometry.step.heads > 1]
    if any(given):
        beside = geometry.input_product is not None
        us = (APART_US if beside else GIVEN_US) + (0.0 if all(given) else us)
    return PhaseTime(phase.kind, phase.width, waits, geometry.product_us(phase) if product else 0.0, us)
