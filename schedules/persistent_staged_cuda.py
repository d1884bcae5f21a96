"""All steps of a layer in one launch, units spread over the GPU: operands lie in shared memory once, for warpgroups.

In: a layer's phases, a batch size and a GPU. Out: a `WgmmaStaged` of many blocks; slices of the batch are groups of
their own. Values travel through L2 without a counter; weights stay in registers and shared memory. For layers in a
wave, which multiply their input while they wait for their own units' values.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over all multiprocessors; wgmma; values polled for

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator, Mapping

from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.template_base import MOST_ROWS, PersistentTemplate, allowed, rows_per_group, width_of
from tvm_rnn.cuda.persistent.geometry import MMA
from tvm_rnn.cuda.persistent.product.wgmma_staged import WgmmaStaged
from tvm_rnn.schedule.schedule_template import template
from tvm_rnn.target import Target

UNITS = (1, 2, 3, 4)  # blocks of 8 units of each warp
ROWS = tuple(range(8, MOST_ROWS + 1, 8))
WARPS_K = (1, 2, 3, 4)
REGISTER_WORDS = (32, 64, 96, 112, 128)
AHEAD = (0, 1, 2, 3, 4, 6, 8)
EVERYTHING = 1 << 20  # words of weights for shared memory: what registers do not keep lies there
CHOICES: dict[str, tuple[int, ...]] = {
    **{"rows": ROWS, "warps_k": WARPS_K, "register_words": REGISTER_WORDS, "ahead": AHEAD},
}


@template("persistent_staged_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentStaged(PersistentTemplate):
    """Knobs: ctas (blocks of a group), rows (batch rows of a group), warps_k (warpgroups of a block, each with a part
    of K), register_words (weights per thread in registers; the rest is in shared memory), ahead (blocks of K of the
    input that are still to be multiplied when the other units' values are asked for)."""

    choices = CHOICES

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> WgmmaStaged:
        """Four warps of a warpgroup share the units."""
        return WgmmaStaged(unit.step, unit.precision, stored=unit.stored, warps_u=4, shared_words=EVERYTHING, **knobs)

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[WgmmaStaged]:
        """Layers of a wave whose values can be polled for."""
        if unit.precision not in MMA or unit.stored or unit.layers == 1:
            return  # alone, a layer's input is hoisted, which was faster: LSTM 1024 bf16, B = 64, 3.64 us against 4.40
        width = width_of(unit)
        for ctas in allowed(record, "ctas", sorted({-(-width // (32 * n)) for n in UNITS})):
            if ctas > target.sms:
                continue
            for rows in allowed(record, "rows", rows_per_group(unit.batch, target.sms // ctas)):
                for warps_k in allowed(record, "warps_k", WARPS_K):
                    for words in allowed(record, "register_words", REGISTER_WORDS):
                        for ahead in allowed(record, "ahead", (2,) if unit.step.given else (0,)):
                            knobs = {"ctas": ctas, "rows": rows, "warps_k": warps_k, "register_words": words}
                            geometry = cls.geometry(unit, **knobs, ahead=ahead)
                            if geometry.possible:
                                yield geometry
