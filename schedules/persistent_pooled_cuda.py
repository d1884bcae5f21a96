"""All steps of a layer in one launch, units spread over the whole GPU, K shared by the blocks of a cluster.

In: a large layer's phases, a batch size and a GPU. Out: a `WgmmaSplitK`. A block reads its part of K of what the others
publish, a half or a quarter, and multiplies all of the cluster's units by it; weights stay in registers, then in shared
memory; what does not fit comes from L2 in every step, without waiting for other blocks.

Rewrite: for t: gemm; pointwise  -->  one kernel; clusters over units, blocks of a cluster over K; sums through
distributed shared memory

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator, Mapping
from math import ceil

from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.template_base import MOST_ROWS, PersistentTemplate, allowed, rows_per_group, width_of
from tvm_rnn.cuda.persistent.geometry import MMA
from tvm_rnn.cuda.persistent.product.wgmma_split_k import WgmmaSplitK
from tvm_rnn.cuda.persistent.product.wgmma_tiles import TILE_ROWS, WARPGROUP
from tvm_rnn.schedule.schedule_template import template
from tvm_rnn.target import Target

BLOCKS = (1, 2, 3, 4)  # of 8 units, per CTA
ROWS = tuple(range(8, MOST_ROWS + 1, 8))
WARPS_U, WARPS_K = (4, 3, 2, 1), (1, 2, 3, 4, 6, 8, 12, 16)
CLUSTERS = (2, 4)
REGISTER_WORDS = (0, 32, 48, 56, 64, 72, 80, 96, 112, 128)
SHARED_WORDS = tuple(range(0, 513, 8))
RINGS, PACES = (2, 3, 4, 5, 6, 7, 8, 9, 10), (1, 2, 3, 4)
# The best pipeline of those that were timed: 3 stages of 2 blocks of K. LSTM 2560 bf16, B = 64, stages x blocks of K:
# 3 x 2 11.4 us, 3 x 3 12.2, 4 x 2 12.5, 6 x 1 12.6, 2 x 3 14.4, 2 x 2 15.1; GRU 2816, B = 32: 3 x 2 7.1, 2 x 3 9.5.
TIMED_RING, TIMED_PACE = 3, 2
LEAST_BYTES = 16_000_000  # of weights: smaller layers are on the chip as a whole, and wait for other things
MOST_GROUPS = 4  # warpgroups
CHOICES: dict[str, tuple[int, ...]] = {
    **{"rows": ROWS, "warps_u": WARPS_U, "warps_k": WARPS_K, "register_words": REGISTER_WORDS},
    **{"shared_words": SHARED_WORDS, "ring": RINGS, "pace": PACES, "together": CLUSTERS, "apart": (0, 1)},
}


@template("persistent_pooled_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentPooled(PersistentTemplate):
    """Knobs: ctas (blocks of a group), rows (batch rows of a group), warps_u, warps_k (how a block's warps share cells;
    warpgroups share gates), register_words (weights per thread in registers), shared_words (in shared memory, per
    thread), ring (stages in shared memory), pace (blocks of K that come through a stage with their weights), together
    (blocks of a cluster), apart (1: sums have a place of their own in shared memory, 0: they take the pipeline's)."""

    choices = CHOICES

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> WgmmaSplitK:
        return WgmmaSplitK(unit.step, unit.precision, stored=unit.stored, **knobs)

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[WgmmaSplitK]:
        """Of large layers whose input is hoisted, forwards: backwards K is all gates, four times as much to read."""
        bytes_each = 4 if unit.precision == "tf32" else 2
        gates = [(p.gates * p.width, sum(o.depth for o in p.operands)) for p in unit.step.phases if p.kind == "gemm"]
        large = sum(rows * depth for rows, depth in gates) * bytes_each >= LEAST_BYTES
        if unit.precision not in MMA or unit.stored or unit.step.graph.kind != "forward":
            return
        if unit.step.given or unit.layers > 1 or not (large or record):
            return
        for knobs in _shapes(unit, target, record):
            for words in allowed(record, "register_words", REGISTER_WORDS):
                for apart in allowed(record, "apart", (1, 0)):
                    ways = {"register_words": words, "ring": TIMED_RING, "pace": TIMED_PACE, "apart": apart}
                    own = {"shared_words": 0, **knobs, **ways, **record}
                    made = cls.geometry(unit, **own)
                    if made.possible and "shared_words" not in record:
                        made = cls.geometry(unit, **{**own, "shared_words": _room(cls, unit, target, own)})
                    if made.possible:
                        yield made


def _shapes(unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Blocks, rows and warps: a warpgroup for every 64 gates, if there are few."""
    width, gates = width_of(unit), max(p.gates for p in unit.step.phases)
    for together in allowed(record, "together", CLUSTERS):
        for each in BLOCKS:
            ctas = ceil(width / (8 * each * together)) * together
            if ctas > target.sms or ctas != record.get("ctas", ctas):
                continue
            tiles = ceil(together * each * gates * 8 / TILE_ROWS)
            groups = next((n for n in range(MOST_GROUPS, 0, -1) if tiles % n == 0), 1)
            for warps_u in allowed(record, "warps_u", WARPS_U):
                warps_k = groups * WARPGROUP // warps_u
                if each % warps_u or warps_u * warps_k != groups * WARPGROUP:
                    continue
                whole = 8 * warps_k  # rows: every warp has as many
                slices = {ceil(n / whole) * whole for n in rows_per_group(unit.batch, target.sms // ctas)}
                for rows in allowed(record, "rows", sorted(n for n in slices if n <= MOST_ROWS)):
                    yield {"together": together, "ctas": ctas, "rows": rows, "warps_u": warps_u, "warps_k": warps_k}


def _room(cls: type[PersistentPooled], unit: RecurrentUnit, target: Target, own: dict[str, int]) -> int:
    """Words of weights per thread that shared memory has room for: the most, in steps of a block of K."""
    made = cls.geometry(unit, **own)
    step = max(made.block_words(p) for p in made.shares)

    def fits(blocks: int) -> bool:
        return cls.geometry(unit, **{**own, "shared_words": blocks * step}).shared_bytes <= target.shared_bytes

    wanted = int(sum(share.kblocks - share.registers for parts in made.shares.values() for share in parts))
    most = min(wanted, SHARED_WORDS[-1] // step)
    if fits(most):  # where nothing is streamed, the pipeline is smaller
        return most * step
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least * step
