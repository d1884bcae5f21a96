"""All steps of a layer in one launch in strict float32: pipelines of operands and weights, FFMA, values polled for.

In: a layer's phases, a batch size and a GPU. Out: a `Ffma` of blocks of 8 warps; slices of the batch are groups of
their own. Weights that shared memory has no room for come from L2 in every step, while others are multiplied. For
layers in a wave, which multiply their input while the other units' values are on their way.

Data flow of a block and step (64 rows and 16 units of an LSTM with H = I = 512: a tile of 64 x 64, K = 1024): each
warp brings an eighth of x_t, of h_(t-1) and of its 64 rows of [W R] through a pipeline of two stages of 8 KB,
multiplies them, 64 rows by 64 columns, 128 sums per lane, and writes its sums to shared memory (139 KB, in two
turns); 256 lanes add them up, compute 4 cells each, and publish 16 units of h_t. Estimated cycles: 64 x 64 x 1024 /
128 = 32800 of FFMA (36700 with what issues between), 2200 for sums, 600 for cells; the exchange (4000) hides behind the
18000 of x. 24 loads of 16 bytes per lane for 512 FFMA take three quarters of shared memory's time, 524 KB from L2 half
of L2's. In all 39500 cycles: 21 us at 1.9 GHz. Measured on an H200: 33.2 us for four such layers, T = 100. A third
stage, resident weights and tiles of 32 x 128 change nothing of it: FFMA do not issue as fast as that.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over multiprocessors, K over warps; values polled for

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator, Mapping

from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.template_base import MOST_ROWS, PersistentTemplate, allowed, rows_per_group, width_of
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.ffma import Ffma
from tvm_rnn.schedule.schedule_template import Config, template
from tvm_rnn.target import Target

UNITS = (1, 2, 3, 4, 6, 8)  # blocks of 8 units of each block
WARPS = 8
ROWS = tuple(range(8, MOST_ROWS + 1, 8))
STAGES = (2, 3, 4)
SHARED_WORDS = tuple(range(0, 1025, 8))  # of weights, per lane of a warp
CHOICES: dict[str, tuple[int, ...]] = {"rows": ROWS, "fma": STAGES, "shared_words": SHARED_WORDS}


@template("persistent_fma_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentFma(PersistentTemplate):
    """Knobs: ctas (blocks of a group), rows (batch rows of a group), fma (stages of each warp's pipeline),
    shared_words (weights per lane that stay in shared memory; the rest comes from L2 in every step)."""

    choices = CHOICES

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> Ffma:
        """Eight warps: as many as can share the block's units do, the others share rows."""
        blocks = -(-width_of(unit) // (8 * knobs["ctas"]))
        warps_u = next(n for n in (8, 4, 2, 1) if blocks % n == 0)
        return Ffma(
            unit.step,
            unit.precision,
            ctas=knobs["ctas"],
            rows=knobs["rows"],
            warps_u=warps_u,
            warps_k=WARPS // warps_u,
            register_words=0,
            shared_words=knobs["shared_words"],
            stored=unit.stored,
            stages=knobs["fma"],
        )

    @classmethod
    def knobs(cls, geometry: Geometry) -> Config:
        """Stages are called "fma" in records."""
        assert isinstance(geometry, Ffma)
        of = geometry
        return {"ctas": of.ctas, "rows": of.rows, "fma": of.stages, "shared_words": of.shared_words}

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[Ffma]:
        """Layers of a wave: for each pipeline size, with as many resident weights as there is room for, or none."""
        if unit.precision != "float32" or unit.stored or unit.layers == 1:
            return
        width = width_of(unit)
        for ctas in allowed(record, "ctas", sorted({-(-width // (8 * n)) for n in UNITS})):
            if ctas > target.sms:
                continue
            for rows in allowed(record, "rows", rows_per_group(unit.batch, target.sms // ctas)):
                for stages in allowed(record, "fma", STAGES):
                    made = cls.geometry(unit, ctas=ctas, rows=rows, fma=stages, shared_words=0)
                    if made.possible:
                        for words in allowed(record, "shared_words", _words(cls, unit, made, target)):
                            yield cls.geometry(unit, ctas=ctas, rows=rows, fma=stages, shared_words=words)


def _words(cls: type[PersistentFma], unit: RecurrentUnit, made: Ffma, target: Target) -> list[int]:
    """None, and the most that fit: a step's weights, else fewer."""
    every = sum(share.kblocks * made.block_words(phase) for phase, parts in made.shares.items() for share in parts)
    for words in (n for n in reversed(SHARED_WORDS) if 0 < n <= every):
        geometry = cls.geometry(unit, ctas=made.ctas, rows=made.rows, fma=made.stages, shared_words=words)
        if geometry.shared_bytes <= target.shared_bytes and geometry.weight_words:
            return [0, words]
    return [0]
