"""All steps of a layer in one launch, in thread-block clusters: values travel through distributed shared memory.

In: a layer's phases, a batch size and a GPU. Out: a `MmaSync` of one cluster. The batch is split over clusters, which
never wait for each other. All weights stay on the chip: registers first, then shared memory.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over the blocks of a cluster; st.async and mbarriers per phase

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.persistent_step_time import resident_clusters
from tvm_rnn.cuda.model.template_base import PersistentTemplate, allowed, width_of
from tvm_rnn.cuda.persistent.exchange import CLUSTER, CLUSTER_ALONE
from tvm_rnn.cuda.persistent.exchange_in_block import BLOCK
from tvm_rnn.cuda.persistent.product.mma_sync import MmaSync
from tvm_rnn.schedule.schedule_template import template
from tvm_rnn.target import Target

CTAS = (1, 2, 4, 8, 16)
ROWS = (8, 16, 24, 32)
WARPS_U, WARPS_N, WARPS_K = (1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 8)
MOST_WARPS = 16
REGISTER_WORDS = (0, 32, 64, 96, 128, 160)
AHEAD = (1, 2, 3, 7)
CHOICES: dict[str, tuple[int, ...]] = {
    **{"ctas": CTAS, "rows": ROWS, "warps_u": tuple(range(1, MOST_WARPS + 1)), "warps_n": WARPS_N, "warps_k": WARPS_K},
    **{"register_words": REGISTER_WORDS, "ahead": AHEAD, "passes": (1, 2, 3, 4), "inputs_apart": (0, 1)},
}


@template("persistent_cluster_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentCluster(PersistentTemplate):
    """Knobs: ctas (blocks of a cluster), rows (batch rows of a cluster), warps_u, warps_n, warps_k (how a block's
    warps share units, rows and K), register_words (weights per thread in registers; the rest is in shared memory),
    ahead, passes, inputs_apart (1: the warps that copy multiply the inputs)."""

    choices = CHOICES

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> MmaSync:
        """All that registers do not keep is in shared memory. One block alone exchanges values without messages, but
        in waves, whose layers read each other's rows. Clusters of a layer in no wave may have warps that copy, where
        all of them are on the GPU at once."""
        alone = unit.layers == 1
        groups = -(-unit.batch // knobs["rows"]) * unit.step.heads
        at_once = unit.batch and groups <= resident_clusters(knobs["ctas"], unit.sms)
        several = CLUSTER_ALONE if alone and at_once else CLUSTER
        exchange = BLOCK if alone and knobs["ctas"] == 1 and not unit.step.given else several
        return MmaSync(unit.step, unit.precision, exchange, stored=unit.stored, shared_words=1 << 20, **knobs)

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[MmaSync]:
        """Blocks, rows and warps that all have something to do."""
        if unit.precision == "float32" and unit.layers > 1:
            return  # a lane would read every row of two operands
        for ctas, rows in product(allowed(record, "ctas", CTAS), allowed(record, "rows", ROWS)):
            if rows > 8 and unit.batch and rows >= unit.batch + 8:
                continue
            for shape in _shapes(ctas, rows, width_of(unit), record):
                tiles = rows // (8 * shape["warps_n"])
                # In float32 a lane sums all rows of a tile: one tile at a time.
                more = {"ahead": 7 if tiles == 1 else 2, "passes": tiles if unit.precision == "float32" else 1}
                for words, apart in product(allowed(record, "register_words", REGISTER_WORDS), _apart(unit, record)):
                    own = {"register_words": words, "inputs_apart": apart}
                    yield cls.geometry(unit, ctas=ctas, rows=rows, **own, **shape, **more)


def _apart(unit: RecurrentUnit, record: Mapping[str, int]) -> Sequence[int]:
    """Whether the warps that copy multiply inputs."""
    return allowed(record, "inputs_apart", (0, 1) if unit.step.given else (0,))


def _shapes(ctas: int, rows: int, width: int, record: Mapping[str, int]) -> Iterator[dict[str, int]]:
    blocks = -(-width // 8)  # of units: in one block of threads, as many for each warp
    even = {-(-blocks // n) for n in (1, 2, 3)} if ctas == 1 else set[int]()
    for warps_u in allowed(record, "warps_u", sorted({*WARPS_U, *(n for n in even if n <= MOST_WARPS)})):
        if ctas * warps_u * 8 >= width + ctas * 8 and (ctas, warps_u) != (1, 1):
            continue  # blocks or warps without units
        for warps_n, warps_k in product(allowed(record, "warps_n", WARPS_N), allowed(record, "warps_k", WARPS_K)):
            if rows % (8 * warps_n) == 0 and warps_u * warps_n * warps_k <= MOST_WARPS:
                yield {"warps_u": warps_u, "warps_n": warps_n, "warps_k": warps_k}
