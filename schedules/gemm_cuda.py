"""Products with parameters on NVIDIA GPUs: which kernel, which tile.

In: a gemm unit and a GPU. Out: knob values, from which `tvm_rnn.cuda.gemm.group_kernels` writes kernels. Two sets of
tiles: `many_*` for hoisted products over all of T and B, `few_*` for the rows of one step, where weights come from L2
and blocks must be spread over all multiprocessors.

Rewrite: out[row, gate, unit] = sum_k x[row, k] w[gate, unit, k]  -->  tiles of rows x (units with all their gates)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from tvm_rnn.cuda.model.tile_time import Product, Shape, tiles_of, tiles_us
from tvm_rnn.errors import ConfigError
from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import HOPPER, Target

TENSOR = ("float16", "bfloat16", "tf32")
# Clusters of so many blocks with a multiprocessor for each, of 132: they lie within a group of at most 18.
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15}
LEAST_STAGES, GAIN = 4, 0.8  # of a pipeline; of what is read, below which a larger cluster was quicker
TILE_US, KERNEL_US = 0.3, 3.0  # of a tile of K of wgmma, and of what is before and behind all of them
MANY_US = 0.5  # of one of mma.sync, of 128 rows
TALL_NAMES = ("tall", "taller")  # of kernels whose blocks share K, for fewer rows and for more
TALL_GAINS = {
    False: 0.1,
    True: 0.2,
}  # of others' time, from which on they are replaced: by whether they leave room
SECOND_GAIN = 0.1  # in all, without which one kernel is enough
TALL_BATCHES, TALL_STEPS = range(128, 513, 64), (1, 2, 3, 4, 6, 8, 16, 32, 64)  # rows, where nobody named any; of calls
FEWER = {16: "least", 64: "fewer"}  # rows of tiles below the few_* one, for GPUs without wgmma
HIGH = 64  # rows of a step up to which blocks share K, or tiles for few rows are used
SHARE_ACROSS = 8  # threads along units
# Rows of a tile whose weights are streamed: as many as are multiplied while memory sends these. Of its pipeline: bytes
# of a stage at least, for each has a barrier; and of all stages at most, so that two blocks fit a multiprocessor.
SKINNY_ROWS, STAGE_BYTES, HALF_BYTES = 16, 8_000, 113_000
MANY_ROWS = 2048  # of a step, as of images, whose rows are pixels: these are as many as of a hoisted product
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ROWS = (0, *POWERS[:6], *(HIGH * n for n in range(1, 33)))


@template("gemm_cuda", kinds=("gemm",), targets=("cuda",))
class GemmCuda:
    """Knobs. A launch takes the first kernel that is for its number of rows:

    share: up to so many rows, from share_from on, blocks share K (share_*, as few_*). most: the last of these kernels
        takes up to so many rows, in several tiles; kept: percent of the weights that L2 is asked to keep; overlap: from
        so many times 64 rows on, as below, 0: never.
    skinny_half, skinny: without tensor cores. A product of a few rows, of which people say skinny, is as slow as its
        weights are read: the skinny_* tile streams them. skinny: up to so many rows; skinny_half: up to so many rows it
        is a tile of half as many.
    few: up to so many rows the few_* tile is used; least, fewer: without wgmma, tiles for fewer rows than that.
    wide: from so many rows on wgmma with the wide_* tile; below `slim` rows with a quarter of its columns, below `mid`
        with half.
    tall, taller: from *_from to so many rows, before these, wgmma whose blocks share K, with the tile of that name;
        *_listed: the same of lists, which lose rows from step to step.
    many: all others.

    Of a tile, few_*, many_* and skinny_*: rows, columns, warps (down rows), along (warps along columns), split (parts
    of K in a block), cluster (parts of K over blocks), stages, pace (K tiles of a stage), blocks (on a multiprocessor).
    Without tensor cores: units (of a thread), across (threads along units), high (its rows).

    span: tiles of 8 units side by side, which makes a thread's units consecutive; widest: what packed columns are
    padded to; overlap: few_* kernels fetch weights while the kernel before them runs (slower in graphs of steps on an
    H200)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Hoisted products, and steps of many rows: the largest tile that fits registers. Steps: enough blocks for
        every multiprocessor."""
        if unit.region == "step" and min(unit.batches, default=0) >= MANY_ROWS:
            unit = replace(unit, region="before")
        if unit.dtype in TENSOR:
            return _tensor(unit, target, knob)
        return _lanes(unit, target, knob)

    @staticmethod
    def every(unit: Unit, target: Target) -> Iterator[Config]:
        """What differs from the default in the knobs of the kernels that run: shared K, tiles for few rows, wgmma."""
        default = GemmCuda.configure(unit, target, Knobs())
        for change in _changes(unit, default):
            with suppress(ConfigError):  # stages that do not fit
                yield GemmCuda.configure(unit, target, Knobs(change))

    @staticmethod
    def schedule(sch: Any, unit: Unit, config: Config) -> None:
        """Nothing: kernels are written for a configuration, not scheduled."""


def _changes(unit: Unit, default: Config) -> Iterator[Config]:
    """Knobs to change together; the others follow from them."""
    spaces: list[dict[str, tuple[int, ...]]] = []
    if unit.region == "step" and default.get("share") and unit.dtype in TENSOR:
        spaces += [{"share_cluster": (1, 2, 4), "share_kept": (0, 25, 50, 75)}, {"share_overlap": (0, 1, 2)}]
        spaces += [{"share_from": (0, 16, 32)}, {"share": (0,)}]
    elif unit.region == "step":
        spaces += [{"few_stages": (2, 3, 4, 6), "few_pace": (1, 2, 4)}, {"few_split": (1, 2, 4, 8)}]
        spaces += [{"few_blocks": (1, 2)}, {"overlap": (1,)}]
        spaces += [{"few_columns": (2 * default["few_columns"],)}] if "few_columns" in default else []
    elif default.get("wide_columns"):
        half = default["wide_columns"] // 2
        spaces += [{"wide_columns": (half,), "wide_stages": (6,), "wide_cluster": (1,)}, {"wide": (128,)}]
        spaces += [{"wide_stages": (6,)}, {"wide_cluster": (1,)}, {"wide_stages": (4,)}]
    for choices in spaces:
        for values in product(*choices.values()):
            yield dict(zip(choices, values, strict=True))


def _power(value: int, least: int, most: int) -> int:
    """The smallest power of two that is not below the value, within bounds."""
    return next((p for p in POWERS if p >= max(value, least) or p == most), most)


def _tensor(unit: Unit, target: Target, knob: Knobs) -> Config:
    step = unit.region == "step"
    longest = 4 if unit.dtype != "tf32" else 2
    fitting = [s for s in (1, 2, 4) if s <= longest and 8 * s * unit.gates <= 128 and 8 * s < 2 * unit.width]
    span = 1 if step else max(fitting, default=1)
    block = 8 * span * unit.gates
    blocks = -(-unit.width // (8 * span))  # of units
    most = [n for n in (1, 2, 4, 8, 16, 32) if n < 2 * blocks]
    fit = max((n for n in most if n * block <= 128), default=1)
    hopper = target.arch == "sm_90a"
    wide = max((n for n in most if n * block <= 256), default=0) if hopper else 0
    wide = wide if wide * block >= 64 else 0
    stages = max(4, min(8, target.shared_bytes // ((128 + block * wide) * 128 + 16)))
    most_rows = HIGH if wide else 2 * HIGH
    few = _few(unit, target, block, _power(max(unit.batches, default=64), 16, most_rows))
    columns = knob("wide_columns", (0, *(block * n for n in POWERS)), block * wide)
    room = target.shared_bytes // ((128 + columns) * 128 + 16)
    knobs = {
        "span": knob("span", (1, 2, 4), span),
        "widest": knob("widest", [block * n for n in POWERS], block * max(fit, wide)),
        "few": knob("few", (0, *POWERS), few["rows"] if step else 0),
        "overlap": knob("overlap", (0, 1), 0),
        "wide": knob("wide", (0, *POWERS), HIGH if step else 2 * HIGH),
        "wide_columns": columns,
        "wide_stages": knob("wide_stages", [s for s in (4, 5, 6, 7, 8) if s <= max(4, room)], stages),
        "wide_cluster": knob("wide_cluster", (1, 2), 1 + (block * wide % 16 == 0)),
        "wide_blocks": target.sms,
        "mid": _narrower(unit, target, blocks, wide, block) if columns == block * wide else 0,
        "slim": _slim(target, blocks, wide, block) if columns == block * wide else 0,
    }
    knobs |= _share(unit, target, block, knob)
    below = [] if hopper or not step else _fewer(unit, few["rows"])
    if not step:
        room = _room(target, blocks, wide, block)
        rows = HIGH if room else _most_shared(unit, target, block, wide, knobs["share_cluster"])
        knobs["share_most"] = knob("share_most", ROWS, rows)
        knobs |= {"wide": knob("wide", (0, *POWERS), HIGH)} if room else {}
    knobs |= _tall(unit, target, block, knobs, knob)
    high = 1 if fit * block > 128 else 2
    many = {"rows": 64 * high, "columns": block * fit, "warps": 4, "split": 1, "stages": 3, "cluster": 1, "blocks": 1}
    many |= {"along": 1, "pace": 1}
    choices = {"columns": [block * n for n in POWERS], "rows": POWERS, "stages": (2, 3, 4, 5, 6, 8)}
    tiles = [(FEWER[rows], _few(unit, target, block, rows)) for rows in below]
    knobs |= {size: tile["rows"] for size, tile in tiles}
    for size, tile in (*tiles, ("few", few), ("many", many)):
        for part, value in tile.items():
            knobs[f"{size}_{part}"] = knob(f"{size}_{part}", choices.get(part, (1, 2, 4, 8)), value)
    return knobs


def _fewer(unit: Unit, most: int) -> list[int]:
    """Rows of tiles below the one for most rows, for batch sizes that leave half of that or more empty: without wgmma
    no blocks share K, and a tile takes its time however few of its rows are there."""
    return [rows for last, rows in pairwise((0, *FEWER)) if rows < most and any(last < b <= rows for b in unit.batches)]


def _share(unit: Unit, target: Target, block: int, knob: Knobs) -> Config:
    """For steps and for hoisted products of short calls: as many columns as keep every multiprocessor at work once.

    Measured on an H200, LSTM and GRU of 2048 and 2560 units, one step at a time, with the hoisted product: LSTM tf32 at
    B = 1, 16, 64, 128 18.6, 20.2, 25.3, 37.0 us against 48.2, 50.4, 53.1, 57.6 by the few_* tiles for 128 rows (18.1
    and 19.7 at B = 1 and 16 by those for 16 rows); bf16 12.7 against 28.4 at B = 64. K over one block or four instead
    of two: 30.1 or 38.9 us against 29.2 (tf32, B = 64).

    Hoisted products of 16 rows, H100: GRU 1024 of 512 inputs fp16 3.8 us, by the many_* tile, whose blocks are few and
    go through all of K, 6.9; of 256 rows 8.2 and 7.2. A step of 16 rows: GRU 1024 fp16 5.6 us (few_* 8.1), LSTM 502
    bf16 4.2 (5.8); of 256 rows, in four tiles, GRU 1024 22 (many_* 17).
    """
    blocks = -(-unit.width * unit.gates // block)
    cluster = _sharing(unit, target, block)
    each, along = _columns(unit, target, block, cluster)
    step = unit.region == "step"
    large = step and sum(unit.depths) >= 1536 and each * block // along <= 256
    large = large and -(-blocks // each) * cluster >= 0.75 * target.sms
    able = tuple(c for c in CLUSTERS if c <= _deep(unit))  # a block without a tile of K has no sums
    cluster = knob("share_cluster", able, cluster if large else _spread(unit, target, block))
    each, along = _columns(unit, target, block, cluster, knob)
    fits = target.arch == "sm_90a" and each * block // along <= 256
    return {
        "share": knob("share", (0, 64, 128), 128 if large else 64) if fits else 0,
        "share_most": knob("share_most", ROWS, _at_once(unit, target, block, cluster)) if step else 0,
        "share_from": knob("share_from", (0, 16, 32), 0),
        "share_columns": knob("share_columns", [block * n for n in range(1, 65)], block * each),
        "share_along": along,
        "share_cluster": cluster,
        "share_kept": knob("share_kept", range(101), _kept(unit, target)),
        "share_overlap": knob("share_overlap", (0, 1, 2), 2),
        "share_bytes": target.shared_bytes,
    }


def _spread(unit: Unit, target: Target, block: int) -> int:
    """Blocks of a cluster for a product of few rows: the fewest that keep most multiprocessors at work, each with a
    tile of K at least."""
    blocks = -(-unit.width * unit.gates // block)

    def busy(cluster: int) -> int:
        each, along = _columns(unit, target, block, cluster)
        return -(-blocks // each) * cluster if each * block // along <= 256 else 0

    return max((c for c in CLUSTERS if c <= _deep(unit)), key=lambda c: (busy(c), -c))


def _deep(unit: Unit) -> int:
    """Tiles of K, of 128 bytes each."""
    size = 4 if unit.dtype == "tf32" else 2
    return sum(-(-depth * size // 128) for depth in unit.depths)


def _columns(unit: Unit, target: Target, block: int, cluster: int, knob: Knobs | None = None) -> tuple[int, int]:
    """(blocks of columns of a cluster, warpgroups along them)."""
    blocks = -(-unit.width * unit.gates // block)
    each = -(-blocks // (CLUSTERS[cluster] * target.sms // CLUSTERS[1]))
    along = 1 + (each * block > 256)
    along = along if knob is None else knob("share_along", (1, 2), along)
    return -(-each // along) * along, along


def _sharing(unit: Unit, target: Target, block: int) -> int:
    """Blocks of a cluster: two, but where rows are so long that to read them once per cluster is most of what all
    read, as of a backward step's.

    Measured on an H200, B = 64, a backward step with 2, 4 and 8: LSTM 2560 bf16 29.4, 17.9, 15.4 us, tf32 55.9, 32.2,
    28.7; layer-norm LSTM 512 bf16 6.4, 3.5, 3.5.
    """
    blocks = -(-unit.width * unit.gates // block)
    best, least = 2, 0.0
    for cluster in (2, 4, 8):
        each, along = _columns(unit, target, block, cluster)
        clusters = -(-blocks // each)
        stages = target.shared_bytes // ((64 + each * block) * 128 + 16)
        busy = clusters * cluster / target.sms
        if each * block // along > 256 or stages < LEAST_STAGES or busy < 0.75:
            continue
        read = (64 * clusters + unit.width * unit.gates) / busy
        if not least or read < GAIN * least:
            best, least = cluster, read
    return best


def _kept(unit: Unit, target: Target) -> int:
    """Percent of the weights that L2 should keep from step to step: half of what it holds, of weights that it does not
    hold beside all else.

    Measured at B = 64: LSTM 2048 tf32 (67 MB) 29.2, 25.8, 25.3, 28.7 us with 0, 30, 50, 70 percent; GRU 2048 tf32 (50
    MB) 21.7, 19.3 with 0, 50; LSTM 2560 bf16 (52 MB) 23.5, 19.6, 19.6 with 0, 50, 80; tf32 (105 MB) 42.3, 38.2, 40.8
    with 0, 30, 40.
    """
    weights = unit.gates * unit.width * sum(unit.depths) * (4 if unit.dtype == "tf32" else 2)
    return 0 if weights <= 0.7 * target.l2_bytes else min(100, 50 * target.l2_bytes // weights)


def _narrower(unit: Unit, target: Target, blocks: int, wide: int, block: int) -> int:
    """Rows below which tiles of half the columns, alone instead of in pairs, keep more multiprocessors at work. In
    steps that is so while each has one at most: half the columns are half an epilogue, which takes as long as the sums.

    Measured on an H200, us per step of eight with the hoisted product, B = 256: GRU 1024 bf16 14.0 (many_* 21.1), LSTM
    502 bf16 15.0 (21.4), LSTM 512 tf32 14.1 (23.5), GRU 2048 bf16 27.9 (39.8), at B = 512 47.9 (64.2). Of a quarter of
    the columns 12.5, 12.6, 11.9, 36.1 and 68.7: better where tiles are few.

    Hoisted products, H200: GRU 1024 bf16, 512 rows 8.5 us; before they had these tiles, 256 rows 12.4 (many_*).
    """
    if wide < 2 or wide * block // 2 < 64:
        return 0
    across = -(-blocks // wide)
    if unit.region == "step":
        return 128 * max(1, target.sms // (2 * across)) + 1
    return 256 * max(1, target.sms // 2 // across)


def _slim(target: Target, blocks: int, wide: int, block: int) -> int:
    """Rows below which tiles of a quarter of the columns take half of the multiprocessors at most: the other half is
    for the product that runs beside, as a first step's does beside the hoisted one."""
    if wide < 4 or wide * block // 4 < 32:
        return 0
    high = target.sms // 2 // (4 * -(-blocks // wide))
    return 128 * high + 1 if high else 0


def _room(target: Target, blocks: int, wide: int, block: int) -> bool:
    """Whether the narrowest tiles of up to 128 rows keep a good part of the multiprocessors at work, but not so many
    that another product has no room beside. Blocks that share K take them all.

    H200, us of a call of one step, whose hoisted products share K before the step, or have such tiles beside it: GRU
    1024 bf16 B 72 15.0 and 11.3, B 128 15.9 and 11.8, GRU 2048 bf16 B 100 28.6 and 21.0, LSTM 512 tf32 B 100 18.9 and
    11.3, LSTM 502 bf16 B 100 14.0 and 12.6; of two steps that one at B 244 15.7 and 16.4, the others are the same.
    """
    part = 4 if _slim(target, blocks, wide, block) else 2
    tiles = -(-blocks // wide) * part if wide >= part else 0
    return target.sms // 5 <= tiles <= target.sms // 2


def _most_shared(unit: Unit, target: Target, block: int, wide: int, cluster: int) -> int:
    """Rows of a hoisted product up to which blocks share K: two tiles of them; where K is deep and units are few, as
    many as take no longer than tiles that go through all of K, while those would leave most multiprocessors idle."""
    blocks, deep = -(-unit.width * unit.gates // block), _deep(unit)
    if not wide or deep < 4 * cluster:
        return 2 * HIGH
    narrow = -(-blocks // wide) * min(4, wide)  # tiles of 128 rows, with a quarter of the columns
    idle = 2 * HIGH * (target.sms // 5 // narrow)
    turns = GAIN * (deep * TILE_US + KERNEL_US) // (deep / cluster * TILE_US + KERNEL_US)
    return max(2 * HIGH, min(idle, int(turns) * _at_once(unit, target, block, cluster), ROWS[-1]))


def _tall(unit: Unit, target: Target, block: int, ladder: Config, knob: Knobs) -> Config:
    """Tiles for numbers of rows of which the others' tiles would be few and go through all of K: such that blocks of a
    cluster share it, or of as many columns as give each multiprocessor one. One shape, for the rows where it gains, or
    two, where those for few rows are too many clusters for more.

    H200, us, with the others' tiles and with these: LSTM 326, 390 rows of 2960 inputs in tf32 52 and 23, GRU 1044, 305
    rows, tf32 19.8 and 16.4, GRU 1512, 288 rows, tf32 32.6 and 28.4, 64 units, 256 rows of 1925 inputs in bf16 16.2
    and 4.4, 24 units, 5863 rows of 2890 inputs in tf32 48 and 25. Where K is short they take longer: LSTM 512, 256
    rows, tf32 8.3 and 9.6.
    """
    own, none = Product.of(unit), [(0, 1, Shape(block, HIGH, 1))] * 2
    least = max(HIGH, ladder["few"], ladder["share"], ladder["share_most"] if ladder["share"] else 0)
    steps = (1,) if unit.region == "step" else TALL_STEPS
    counts = {
        batch * n: 1 / n if ladder["wide_columns"] else 1.0 for batch in unit.batches or TALL_BATCHES for n in steps
    }
    every = sorted(rows for rows in counts if rows > least)
    found = none
    if target.arch == HOPPER and every:
        others = {rows: _others(own, target, ladder, rows) for rows in every}
        gains = {shape: _gains(own, shape, others, target) for shape in _tall_shapes(own, block)}
        parts = [[every], *([every[:n], every[n:]] for n in range(1, len(every)))]
        ladders = [[rung for rung in (_rung(part, least, gains, counts) for part in split) if rung] for split in parts]
        best = max(ladders, key=lambda rungs: sum(gain for gain, _ in rungs) - SECOND_GAIN * len(rungs))
        found = [*(rung for _, rung in best), *none][:2]
    knobs: Config = {}
    for name, (last, first, shape) in zip(TALL_NAMES, found, strict=True):
        knobs |= {name: knob(name, (0, last), last), f"{name}_from": first, f"{name}_rows": shape.rows}
        knobs |= {f"{name}_columns": shape.columns, f"{name}_along": 1, f"{name}_cluster": shape.parts or 1}
        more = [rows for rows in every if rows > last] if last and unit.region == "step" else []
        ends = (rows for rows in more if not _list_gains(own, shape, ladder, rows, target))
        end = next(ends, TALL_BATCHES.stop)
        knobs[f"{name}_listed"] = max([last, *(rows for rows in more if rows < end)])
    return knobs


def _list_gains(own: Product, shape: Shape, ladder: Config, rows: int, target: Target) -> bool:
    """Whether a shape takes less than the others' tiles over all steps of a list that has so many rows at first, and
    ever fewer: the others' tiles take as long however few rows are left, as of GRU 1044 with 305 rows in tf32."""
    left = range(HIGH, rows + HIGH, HIGH)
    own_us = sum(tiles_us(own, now, shape, target) for now in left)
    return own_us < (1 - TALL_GAINS[False]) * sum(_others(own, target, ladder, rows, now)[0] for now in left)


def _rung(
    every: Sequence[int], least: int, gains: Mapping[Shape, Mapping[int, float]], counts: Mapping[int, float]
) -> tuple[float, tuple[int, int, Shape]] | None:
    """The shape that gains most at these numbers of rows, in all, and the rows that it is for: (last, first, shape).
    counts: how often a number of rows is met."""
    best, most = None, 0.0
    for shape, of in gains.items():
        there = [rows for rows in every if of[rows]]
        gain = sum(of[rows] * counts[rows] for rows in there)
        if gain > most:
            before = [least, *(rows for rows in gains[shape] if rows < there[0])]
            end = next((rows for rows in every if rows > there[0] and rows not in there), None)
            last = max(rows for rows in there if end is None or rows < end)
            best, most = (gain, (last, max(before) + 1, shape)), gain
    return best


def _gains(
    own: Product, shape: Shape, others: Mapping[int, tuple[float, float]], target: Target
) -> Mapping[int, float]:
    """The part of the others' time that a shape saves, by rows; 0 where it is not enough."""
    saved = {rows: 1 - tiles_us(own, rows, shape, target) / us for rows, (us, _) in others.items()}
    return {rows: gain if gain > others[rows][1] else 0.0 for rows, gain in saved.items()}


def _others(own: Product, target: Target, ladder: Config, rows: int, left: int = 0) -> tuple[float, float]:
    """(microseconds by the tiles that are there for so many rows, the part of them that others must gain): more where
    they leave room for another product beside them, as of the other direction. left: of a list, the rows that are."""
    if not ladder["wide_columns"]:
        tiles = -(-(left or rows) // (2 * HIGH)) * -(-own.columns // (2 * HIGH))
        return -(-tiles // target.sms) * own.deep * MANY_US + KERNEL_US, TALL_GAINS[2 * tiles <= target.sms]
    part = next((part for size, part in (("slim", 4), ("mid", 2)) if rows < ladder[size]), 1)
    shape = Shape(ladder["wide_columns"] // part, pairs=part == 1)
    return tiles_us(own, left or rows, shape, target), TALL_GAINS[2 * tiles_of(own, left or rows, shape) <= target.sms]


def _tall_shapes(own: Product, block: int) -> Iterator[Shape]:
    """Those whose sums, and in tf32 rows beside them, fit registers; where blocks share K, each has two tiles of it."""
    for high, parts in product((1, 2), CLUSTERS):
        for columns in range(block, min(192, own.columns + block - 1) + 1, block):
            if parts == 1 or 2 * parts <= own.deep:
                yield Shape(columns, HIGH * high, parts)


def _at_once(unit: Unit, target: Target, block: int, cluster: int) -> int:
    """Rows, in tiles of 64, for which there are multiprocessors at the same time where clusters share K."""
    each, _ = _columns(unit, target, block, cluster)
    blocks = -(-unit.width * unit.gates // block)
    beside = -(-blocks // each)
    return min(ROWS[-1], HIGH * (CLUSTERS[cluster] * target.sms // CLUSTERS[1] // beside))


def _few(unit: Unit, target: Target, block: int, rows: int) -> Config:
    """A tile for so many rows of a step: so narrow that every multiprocessor has a part.

    Broader tiles with K shared by a cluster read less, but were slower on an H200 (64 rows, 1024 units: 6.9 us for two
    blocks of units, 10.9 for four, 6.5 for one).
    """
    along = 2 if rows >= HIGH and 2 * block <= 128 and -(-unit.width // 16) >= 0.9 * target.sms else 1
    warps = rows // 16 // along
    pace, stages = _pipeline((rows + block * along) * 128, 4 if rows <= 16 else 2)
    split = max(1, min(4, 8 // (warps * along)))
    tile = {"rows": rows, "columns": block * along, "warps": warps, "along": along, "split": split, "pace": pace}
    return {**tile, "stages": stages, "cluster": 1, "blocks": 2 if block <= 128 else 1}


def _pipeline(tile_bytes: int, pace: int) -> tuple[int, int]:
    """K tiles of a stage, and stages, such that two blocks fit a multiprocessor where they can."""
    while pace > 1 and 2 * pace * tile_bytes > 110_000:
        pace //= 2
    return pace, max(s for s in (2, 3, 4, 5, 6) if s == 2 or s * pace * tile_bytes <= 110_000)


def _lanes(unit: Unit, target: Target, knob: Knobs) -> Config:
    step, double = unit.region == "step", unit.dtype == "float64"
    choices = (1, 2, 4, 8)
    units = next((u for u in choices if unit.gates * u % 4 == 0 and unit.gates * u >= 8), 1 if unit.gates > 8 else 4)
    if not step and not double:  # 16 columns of a thread: 44.2 against 42.8 TFLOP/s with 8, where rows are many
        units = max((u for u in choices if unit.gates * u in (12, 16)), default=units)
    shared = _share_lanes(unit, target, knob)
    units = shared.pop("units", units)
    slots = -(-unit.gates * units // 4) * 4
    high = 8 if slots * (2 if double else 1) <= 16 else 4 if slots <= 32 else 1
    few_high = min(high, 8 if slots <= 12 else 4)
    rows = _power(max(unit.batches, default=64), 8, 8 * few_high)

    def waves(across: int) -> int:
        """How long it takes, in columns of the multiprocessor with most to do."""
        tiles = -(-unit.width // (across * units))
        return across * -(-tiles // target.sms)

    across = 8 if waves(8) <= waves(4) else 4
    tall = max(1, rows // 8)
    few = {"rows": rows, "across": across, "high": tall, "split": 256 // (8 * across), "blocks": 1 if slots > 8 else 2}
    few["pace"], few["stages"] = _pipeline(128 * (rows + slots * across), 4 if rows <= 16 else 2)
    skinny = _skinny(unit, target, units, slots)
    weights = (8 if double else 4) * unit.gates * unit.width * sum(unit.depths)
    streams = weights >= 1 << 22
    many = {"rows": 16 * high, "across": 16, "high": high, "split": 1, "blocks": 2 if slots == 8 and not double else 1}
    many |= {"stages": 2, "pace": 1}
    knobs = {
        "units": knob("units", (1, 2, 3, 4, 5, 8), units),
        "few": knob("few", (0, *POWERS), _most_of_few(unit, target, 16 * units, 16 * high)),
        "skinny": knob("skinny", (0, *POWERS), 2 * SKINNY_ROWS if step or streams else 0),
        "skinny_half": knob("skinny_half", (0, *POWERS), SKINNY_ROWS // 2 if 2 * weights > target.l2_bytes else 0),
        "overlap": knob("overlap", (0, 1), 0),
        **shared,
    }
    values = {"rows": POWERS, "across": (4, 8, 16), "stages": (2, 3, 4, 5, 6, 7, 8)}
    for size, tile in (("skinny", skinny), ("few", few), ("many", many)):
        for part, value in tile.items():
            knobs[f"{size}_{part}"] = knob(f"{size}_{part}", values.get(part, (1, 2, 4, 8)), value)
    return knobs


def _skinny(unit: Unit, target: Target, units: int, slots: int) -> Config:
    """A tile of SKINNY_ROWS rows, whose weights are streamed: a warp's, of which all warps of the block, and of a
    cluster, multiply a part of K. Of shapes that keep multiprocessors equally busy the broadest: lanes along rows all
    read the same weights from shared memory.

    H200, us, float32, 1, 16 and 32 rows: 512 -> 32,000 22, 23 and 39 (cuBLAS 18, 39 and 40; the few_* tile for 64 rows
    87); of 8 rows 19 up to 8. LSTM 512 of 512 inputs with 8 across and a cluster of two 6.9, 6.9 and 9.5, with 4 across
    7.7, 7.7 and 10.9 (few_* 13); 1024 -> 4096 8.4, 8.3 and 12.9 against 8.9, 8.8 and 14.9 (few_* 21).
    """

    def busy(shape: tuple[int, int]) -> float:
        across, cluster = shape
        tiles = -(-unit.width // (across * units)) * cluster
        return across / cluster * -(-tiles // target.sms)

    shapes = [(16, 1), *([(8, 2)] if target.arch == "sm_90a" else []), (8, 1), (4, 1)]
    across, cluster = min(shapes, key=busy)
    tile_bytes = 128 * (SKINNY_ROWS + slots * across)
    pace = next((p for p in (1, 2, 4) if p * tile_bytes >= STAGE_BYTES), 4)
    stages = max(2, min(8, HALF_BYTES // (pace * tile_bytes)))
    shape = {"rows": SKINNY_ROWS, "across": across, "high": SKINNY_ROWS * across // 32, "split": 8, "cluster": cluster}
    return {**shape, "pace": pace, "stages": stages, "blocks": 1 if slots > 8 else 2}


def _most_of_few(unit: Unit, target: Target, across: int, rows: int) -> int:
    """Up to how many rows the smaller tiles are quicker: while larger ones, of so many units and rows, would leave half
    of the multiprocessors without one; of a hoisted product three quarters, since both directions run side by side.

    Measured on an H100, float32, 256 rows of 512 units: a step's four gates 23.2 us, 256 results 11.1 us; in tiles of
    128 rows, of which there are 32 and 4, 42.6 and 59.8 us. 128 rows of 512 -> 32,000, H200: smaller ones 202, larger
    ones 110. Hoisted, both directions, H200, us of a call in a graph, smaller and larger: LSTM 128 -> 48 of 16 rows
    25.2 and 46.5, of 512 26.9 and 49.7; GRU 512 of 64 rows 51.6 and 118.8, of 512 276 and 283; LSTM 1024 of 128 rows
    286 and 414, of 512 621 and 547.
    """
    half = rows * (target.sms // (2 if unit.region == "step" else 4) // -(-unit.width // across))
    return min(512, max(128, 1 << (half.bit_length() - 1))) if half else HIGH


def _share_lanes(unit: Unit, target: Target, knob: Knobs) -> Config:
    """For large steps without tensor cores: the shape whose busiest multiprocessor has least to do.

    K tiles of 64 columns take 0.6 us each; where a cluster starts and ends, 2 us go by. Measured with the hoisted
    product at B = 64: LSTM 2560 172.6 us with 4 rows x 20 columns of a thread and two blocks sharing K (8 rows x 20:
    184; 8 x 8 and four blocks: 225; the few_* tile: 226), four LSTM layers of 512 46.4 us (few_* 61.1, persistent 53).
    """
    large = unit.gates * unit.width * sum(unit.depths) >= 1 << 20
    if unit.region != "step" or unit.dtype != "float32" or target.arch != "sm_90a" or not large:
        return {"share": 0}
    found = []
    for units in (1, 2, 3, 4, 5, 8):
        slots = -(-unit.gates * units // 4) * 4
        if slots > 20 or slots > unit.gates * units + 1:
            continue
        high = 8 if slots <= 8 else 4
        split = 256 // (SHARE_ACROSS * 64 // high)
        slowly = {4: 1.4, 8: 1.0}.get(slots, 1.1)  # loads from shared memory per product
        for cluster in (1, 2, 4):
            resident, blocks = CLUSTERS[cluster], -(-unit.width // (SHARE_ACROSS * units)) * cluster
            waves = -(-blocks // (resident * target.sms // CLUSTERS[1] * cluster))
            deep = -(-sum(unit.depths) // (32 * cluster * split)) * split  # K tiles, as the slowest group has them
            found.append((waves * (0.6 * slots / 8 * deep * slowly + 2), units, high, split, cluster))
    if not found:
        return {"share": 0}
    _, units, high, split, cluster = min(found)
    slots = -(-unit.gates * units // 4) * 4
    return {
        "units": units,
        "share": knob("share", (0, 64), 64),
        "share_from": knob("share_from", (0, 8, 16, 32), 32),
        "share_high": knob("share_high", (4, 8), high),
        "share_split": knob("share_split", (1, 2, 4), split),
        "share_cluster": knob("share_cluster", (1, 2, 4), cluster),
        "share_stages": knob(
            "share_stages", range(4, 17), min(16, target.shared_bytes // (128 * (64 + SHARE_ACROSS * slots) + 16))
        ),
    }
