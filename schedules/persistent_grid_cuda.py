"""All steps of a layer in one launch, units spread over the whole GPU: values travel through L2, a counter per step.

In: a layer's phases, a batch size and a GPU. Out: a `MmaSync` or a `WgmmaPipelined` of many blocks; slices of the batch
are groups of their own.
Weights stay in registers, then in shared memory; what does not fit is read from L2 in every step (streamed).

In strict float32 lanes multiply without tensor cores, as in clusters, and read all rows of a tile from L2, each of its
own part of K.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over all multiprocessors; a release and an acquire per phase

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from tvm_rnn.cuda.model.choose_geometry import ANY, RecurrentUnit
from tvm_rnn.cuda.model.template_base import MOST_ROWS, PersistentTemplate, allowed, rows_per_group, width_of
from tvm_rnn.cuda.persistent.exchange import COUNTER
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.exchange_of_rows import FEW
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.few_rows import ROWS as FEW_ROWS
from tvm_rnn.cuda.persistent.product.few_rows import FewRows
from tvm_rnn.cuda.persistent.product.mma_sync import MmaSync
from tvm_rnn.cuda.persistent.product.row_by_lanes import RowByLanes
from tvm_rnn.cuda.persistent.product.wgmma_pipelined import MANY_ROWS, WgmmaPipelined
from tvm_rnn.schedule.schedule_template import Config, template
from tvm_rnn.target import Target

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8)  # of 8 units, per CTA
ROWS = (*FEW_ROWS, *range(8, MOST_ROWS + 1, 8))
WARPS_U, WARPS_N, WARPS_K = (1, 2, 3, 4), (1, 2, 4), (1, 2, 4, 8, 16)
TIMED_WARPS_K = (1, 2, 4, 8)
TIMED_WARPS_U = (1, 2, 4)  # with weights in 16 bits; three share the 24 units of a block of H = 2560 and 3072 in 8
REGISTER_WORDS = (0, 32, 64, 96, 112, 128, 160)
SHARED_WORDS = (0, 32, 64, 96, 128, 144, 160, 192)
IN_LANES_WARPS_K, IN_LANES_ROWS = (4, 8, 16), (8, 16, 32)
AHEAD = (0, 1, 3, 7)
PASSES = (1, 2, 4)
RINGS = (0, 2, 3, 4, 5, 6, 8)
# Small stages, all that a step needs or many; few large ones. With many rows there is room for two of these.
TIMED_RINGS, TIMED_WITH_MANY_ROWS = (4, 8, 3), (2,)
RING_REGISTER_WORDS = (64, 96, 112, 128)
# Words of weights per thread in registers, and in shared memory.
TIMED_WORDS = ((160, 0), (128, 0), (128, 64), (128, 128), (96, 96), (64, 0), (96, 192), (64, 64), (64, 128), (128, 192))
CHOICES: dict[str, tuple[int, ...]] = {
    **{"rows": ROWS, "warps_u": WARPS_U, "warps_n": WARPS_N, "warps_k": WARPS_K, "register_words": REGISTER_WORDS},
    **{"shared_words": SHARED_WORDS, "ahead": AHEAD, "passes": PASSES, "polled": (0, 1), "copied": (0, 1)},
    **{"ring": RINGS, "together": (1, 2), "by_lanes": (0, 1)},
}
SHARED = ("ctas", "rows", "warps_u", "warps_n", "warps_k", "register_words", "shared_words")  # knobs of both kinds


@template("persistent_grid_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentGrid(PersistentTemplate):
    """Knobs: ctas (blocks of a group), rows (of a group; up to 4: polled), warps_u, warps_n, warps_k (how its warps
    share units, rows and K), register_words and shared_words (weights per thread kept there), ahead (K blocks
    asked for before use), passes (in which the rows are multiplied), copied (operands come by asynchronous copies),
    polled (values are exchanged without a counter), ring (stages that operands of wgmma come through; 0: none),
    together (blocks that fetch operands for each other; only if a record says so: it was slower), by_lanes (a row
    without tensor cores)."""

    choices = CHOICES

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> Geometry:
        """What neither registers nor shared memory keep is streamed."""
        return _pipeline(unit, knobs) if knobs.get("ring") else _direct(unit, knobs)

    @classmethod
    def knobs(cls, geometry: Geometry) -> Config:
        """As records name them: 0 for what the other kind of product has, and for a counter."""
        found = {name: int(getattr(geometry, name)) for name in (*SHARED, "passes")}
        found |= {"ahead": 1, "polled": int(geometry.exchange.polls), "copied": 0, "ring": 0, "together": 1}
        found["by_lanes"] = int(isinstance(geometry, RowByLanes))
        if isinstance(geometry, MmaSync):
            found |= {"ahead": geometry.ahead, "copied": geometry.copied}
        if isinstance(geometry, WgmmaPipelined):
            found |= {"ring": geometry.ring, "together": geometry.together}
        return {name: found[name] for name in ("ctas", *CHOICES)}

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[Geometry]:
        """Through a pipeline, then without one."""
        fixed = {name: value for name, value in record.items() if name in ("ctas", *CHOICES)}
        if unit.precision == "float32":
            yield from _in_lanes(unit, target, fixed)
            return
        plain = not unit.step.given and not unit.stored  # a pipeline has no weights for inputs, and none in 8 bits
        if fixed.get("ring", 1) and not fixed.get("polled") and not fixed.get("copied") and plain:
            yield from _pipelines(unit, target, fixed)
        if not fixed.get("ring"):
            yield from _directs(unit, target, fixed)
            if unit.batch <= FEW_ROWS[-1] and unit.layers == 1 and fixed.get("polled", 1):
                yield from _few_rows(unit, target, fixed)


def _direct(unit: RecurrentUnit, knobs: Mapping[str, int]) -> MmaSync:
    own = {name: knobs[name] for name in (*SHARED, "ahead", "passes", "copied") if name in knobs}
    if knobs["rows"] in FEW_ROWS:
        kind = RowByLanes if knobs.get("by_lanes") else FewRows
        return kind(unit.step, unit.precision, FEW, stored=unit.stored, **own)
    exchange = POLLING if knobs.get("polled") else COUNTER
    return MmaSync(unit.step, unit.precision, exchange, stored=unit.stored, **own)


def _pipeline(unit: RecurrentUnit, knobs: Mapping[str, int]) -> WgmmaPipelined:
    own = {name: knobs[name] for name in (*SHARED, "ring", "together") if name in knobs}
    return WgmmaPipelined(unit.step, unit.precision, stored=unit.stored, **own)


def _directs(unit: RecurrentUnit, target: Target, fixed: Mapping[str, int]) -> Iterator[MmaSync]:
    """Every warp reads its operands itself."""
    width = width_of(unit)
    for ctas in allowed(fixed, "ctas", sorted({-(-width // (8 * n)) for n in BLOCKS})):
        if ctas > target.sms:
            continue
        for rows in allowed(fixed, "rows", rows_per_group(unit.batch, target.sms // ctas)):
            for shape in _shapes(rows, -(-width // (8 * ctas)), WARPS_U if unit.stored else TIMED_WARPS_U):
                for words, near in _rooms(unit, {"ctas": ctas, "rows": rows, **shape, **fixed}):
                    knobs = {"ctas": ctas, "rows": rows, **shape, "register_words": words, "shared_words": near}
                    if unit.step.given:
                        yield _direct(unit, {**knobs, "ahead": 1, "copied": 1, **fixed})
                    for ahead in AHEAD[1:] if unit.step.given else AHEAD:  # two operands: no time to wait for each
                        for passes in PASSES:
                            if rows // (8 * shape["warps_n"]) % passes == 0:
                                more = {"ahead": ahead, "passes": passes, "polled": 0}
                                yield from _exchanges(_direct(unit, {**knobs, **more, **fixed}), fixed)


def _few_rows(unit: RecurrentUnit, target: Target, fixed: Mapping[str, int]) -> Iterator[MmaSync]:
    """Groups of fewer than eight rows: one that holds the batch."""
    width = width_of(unit)
    slices = FEW_ROWS if unit.batch == ANY else [next(rows for rows in FEW_ROWS if rows >= unit.batch)]
    for ctas in allowed(fixed, "ctas", sorted({-(-width // (8 * n)) for n in BLOCKS})):
        for rows in allowed(fixed, "rows", slices) if ctas <= target.sms else ():
            if rows not in slices:
                continue
            ways = allowed(fixed, "by_lanes", (0, 1) if rows == 1 and unit.precision == "tf32" else (0,))
            for shape, way in product(_shapes(8, -(-width // (8 * ctas)), TIMED_WARPS_U), ways):
                own = {"ctas": ctas, "rows": rows, **shape, "by_lanes": way}
                for words, near in _rooms(unit, {**own, **fixed}):
                    more = {"register_words": words, "shared_words": near, "ahead": AHEAD[-1], "passes": 1}
                    made = _direct(unit, {**own, **more, **fixed})
                    if made.possible:
                        yield made


def _rooms(unit: RecurrentUnit, knobs: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Words in registers and in shared memory that hold all weights: each way for them to lie once. Where none does,
    the most, for the reason why not."""
    seen = set[tuple[tuple[int, int], ...]]()
    for words, near in TIMED_WORDS:
        made = _direct(unit, {"register_words": words, "shared_words": near, **knobs})
        kept = tuple((share.registers, share.shared) for _, share in made.weights)
        if kept not in seen and not any(share.streamed for _, share in made.weights):
            seen.add(kept)
            yield words, near
    if not seen:
        yield max(TIMED_WORDS, key=sum)


def _in_lanes(unit: RecurrentUnit, target: Target, fixed: Mapping[str, int]) -> Iterator[MmaSync]:
    """In float32 without tensor cores: every lane reads all rows of a tile from L2, of a small part of K. The layer is
    alone, and its product reads no input: lanes would read two operands so. Few rows also of large batches: groups that
    find no room at once take turns."""
    if max(unit.layers, unit.beside) > 1 or unit.step.given or unit.stored:
        return
    width = width_of(unit)
    for ctas in allowed(fixed, "ctas", sorted({-(-width // (8 * n)) for n in BLOCKS})):
        if ctas > target.sms:
            continue
        for rows in allowed(fixed, "rows", [n for n in IN_LANES_ROWS if n == 8 or not 0 < unit.batch <= n // 2]):
            for shape in _shapes(rows, -(-width // (8 * ctas)), TIMED_WARPS_U, IN_LANES_WARPS_K):
                own = {"passes": rows // (8 * shape["warps_n"]), "ahead": 1, "polled": 0}
                for words, near in TIMED_WORDS:
                    knobs = {"ctas": ctas, "rows": rows, **shape, "register_words": words, "shared_words": near}
                    yield _direct(unit, {**knobs, **own, **fixed})


def _exchanges(geometry: MmaSync, fixed: Mapping[str, int]) -> Iterator[MmaSync]:
    """The geometry with a counter and, where it can do without, polled: then it asks for all of an operand at once."""
    if not fixed.get("polled"):
        yield geometry
    polled = replace(geometry, exchange=POLLING)
    if fixed.get("polled", 1) and geometry.ahead == fixed.get("ahead", AHEAD[-1]) and polled.possible:
        yield polled


def _pipelines(unit: RecurrentUnit, target: Target, fixed: Mapping[str, int]) -> Iterator[WgmmaPipelined]:
    """Eight warps, which share cells; what registers do not keep lies in shared memory."""
    width = width_of(unit)
    for ctas in allowed(fixed, "ctas", sorted({-(-width // (8 * n)) for n in BLOCKS})):
        if ctas > target.sms:
            continue
        blocks = -(-width // (8 * ctas))
        warps_u = next(n for n in (4, 2, 1) if blocks % n == 0)
        slices = {*rows_per_group(unit.batch, target.sms // ctas), min(64, -(-unit.batch // 8) * 8)}  # or in rounds
        for rows in allowed(fixed, "rows", sorted(slices - {0})):
            stages = TIMED_WITH_MANY_ROWS if rows > MANY_ROWS else TIMED_RINGS
            for ring in allowed(fixed, "ring", stages):
                for words in RING_REGISTER_WORDS:
                    knobs = {"ctas": ctas, "rows": rows, "warps_u": warps_u, "warps_k": 8 // warps_u, "ring": ring}
                    most = _pipeline(unit, {**knobs, "register_words": words, "shared_words": 1 << 20, **fixed})
                    near = sum(s.shared * most.block_words(p) for p, parts in most.shares.items() for s in parts)
                    # More than one tile of 64 gates per block has not been timed.
                    if near in SHARED_WORDS and most.most_gate_tiles == 1:
                        yield _pipeline(unit, {**knobs, "register_words": words, "shared_words": near, **fixed})


def _shapes(
    rows: int, blocks: int, across: tuple[int, ...], deep: tuple[int, ...] = TIMED_WARPS_K
) -> Iterator[dict[str, int]]:
    for warps_u in across:
        for warps_n in WARPS_N:
            for warps_k in deep:
                fits = blocks % warps_u == 0 and rows % (8 * warps_n) == 0
                if fits and 4 <= warps_u * warps_n * warps_k <= 16:
                    yield {"warps_u": warps_u, "warps_n": warps_n, "warps_k": warps_k}
