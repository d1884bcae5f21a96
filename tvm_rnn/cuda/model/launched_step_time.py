"""How long a step takes that runs as one launch per group: to compare with persistent kernels.

In: a layer's layout, a precision, a batch size and a GPU. Out: microseconds per step. Measured on an H200 (driver 580,
CUDA 13.0) where weights are 8 to 105 MB, B is 1 to 128, without the hoisted product:

    shared K       LSTM 2048 bf16 B=1, 64, 128: 8.7, 9.6, 13.5; tf32 18.6, 19.2, 24.7
                   LSTM 2560 B=64 bf16 14.8, tf32 31.2
    wgmma          B=256 bf16 LSTM 1024 11.8, 2048 19.0, GRU 1024 9.9, 2048 17.0; LSTM 512 tf32 8.8
                   B=512 LSTM 2048 bf16 34.4; B=128 LSTM 1312 tf32 20.4; B=200 LSTM 1500 fp16 17.4
    shared K of more rows    elman 1478 tf32 B=320 16.5, 2600 bf16 B=300 19.4; GRU 2741 bf16 B=279 48.9
    few_* tiles    LSTM 1024 bf16 B=64: 6.5 for 64 rows; 2048: 25 for 128 rows; float32 2560 B=64: 152
    skinny_* tiles   float32 B=1, 16, 32: LSTM 512 with its input 6.4, 6.4, 9.0; 512 -> 32,000 18.7, 23, 39
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from tvm_rnn.cuda.gemm.group_kernels import multiplies_early, unit_of
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.rowwise.chained_groups import chained_groups
from tvm_rnn.graph.graph import Group
from tvm_rnn.schedule.schedule_template import Config, Unit, best
from tvm_rnn.target import Target

from .tile_time import Product, Shape, tiles_of, tiles_us

LAUNCH_US = 2.0  # a kernel after the one before, in a graph
STATE_COPIES_US = 2 * LAUNCH_US  # in and out, which persistent kernels do without
WEIGHTS_US, WEIGHTS_US_PER_MB = 5.3, 0.1  # a kernel that reads weights once, from L2
MEMORY_US_PER_MB = 0.2  # more, for what L2 does not hold from step to step
L2_MB_PER_US = 5.2  # all that all multiprocessors read
GROUP_US = 1.5  # from the copy of a stage of K until it is multiplied
FFMA_PER_US = 11e6  # by kernels for few rows
SHARED_ROWS = 64  # of a tile whose K is shared out, without tensor cores
TALL, LINE = 128, 128  # rows of a tile of wgmma, bytes of a row's stage
WGMMA_US = 0.0029  # a stage, per column of such a tile: what tensor cores take, all of them at work
BLOCK_MB_PER_US = 0.11  # what a multiprocessor reads at most; what many read at the same time L2 gives them at once
ITEM_US, GATE_US = 0.17, 0.07  # of its epilogue: a row and a block of units of a lane, and each of their gates
ODD_ITEM_US = 1.5  # where rows are odd, and a lane's two units no vector: LSTM 1001 bf16 B=256, 24 us a step
MEGA = 1e6


def predict_steps(layout: Layout, precision: str, batch: int, target: Target) -> float:
    """Microseconds per step for B = batch rows."""
    us = 0.0
    for groups in chained_groups(layout.graph.groups):
        if groups[0].region == "step":
            gemm = groups[0].kind == "gemm"
            us += _product(groups[0], precision, batch, target) if gemm else LAUNCH_US
    return us


def first_us(layout: Layout, precision: str, batch: int, steps: int, target: Target) -> float:
    """Microseconds of what is done before the steps of a call: products of inputs, for all of their rows."""
    us = 0.0
    for groups in chained_groups(layout.graph.groups):
        if groups[0].region == "before":
            gemm = groups[0].kind == "gemm"
            us += _product(groups[0], precision, steps * batch, target) if gemm else LAUNCH_US
    return us


def hidden_us(layout: Layout, precision: str, batch: int, target: Target) -> float:
    """Microseconds of a call's first step that its hoisted products hide: those of its own product."""
    chains = chained_groups(layout.graph.groups)
    for (before, *_), (own, *_) in pairwise(chains):
        if multiplies_early(before, own, layout.graph.states, precision, target):
            return max(0.0, _product(own, precision, batch, target) - LAUNCH_US)
    return 0.0


def _product(group: Group, precision: str, batch: int, target: Target) -> float:
    unit = unit_of(group, precision, ())
    knobs = best(unit, target).knobs
    size = {"float64": 8, "float32": 4, "tf32": 4}.get(precision, 2)
    columns, depth = unit.gates * unit.width, sum(unit.depths)
    weights = columns * depth * size / MEGA
    held = 0.65 * target.l2_bytes / MEGA
    read = WEIGHTS_US + WEIGHTS_US_PER_MB * weights + MEMORY_US_PER_MB * max(0.0, weights - held)
    if batch <= knobs.get("share", 0) and "share_columns" in knobs:
        cluster = knobs["share_cluster"]
        blocks = ceil(columns / knobs["share_columns"]) * cluster
        return max(read, (weights + blocks * batch * depth / cluster * size / MEGA) / L2_MB_PER_US)
    if shape := _tall(knobs, batch):
        turns = ceil(tiles_of(own := Product.of(unit), batch, shape) / target.sms * (shape.parts or 1))
        odd = turns * shape.columns / (4 * unit.gates) * (ODD_ITEM_US - ITEM_US) if unit.width % 2 else 0.0
        return max(read if weights > held else 0.0, tiles_us(own, batch, shape, target) + odd)
    if "units" in knobs:
        return LAUNCH_US + max(read, _whole_tiles(knobs, batch) * columns * depth / FFMA_PER_US)
    if knobs["wide_columns"] and batch >= knobs["wide"]:
        return max(read if weights > held else 0.0, _wgmma(unit, knobs, batch, target, size))
    return max(read if weights > held else 0.0, _tiles(unit, knobs, batch, target, size))


def _tall(knobs: Config, batch: int) -> Shape | None:
    """The tile of kernels whose blocks share K, where one is for so many rows."""
    for name in ("tall", "taller"):
        if knobs.get(f"{name}_from", 1) <= batch <= knobs.get(name, 0):
            return Shape(knobs[f"{name}_columns"], knobs[f"{name}_rows"], knobs[f"{name}_cluster"])
    return None


def _whole_tiles(knobs: Config, batch: int) -> int:
    """Rows that kernels without tensor cores multiply for so many. A tile takes its time however few of its rows are
    there: LSTM 512 with its input, H200, 13 us for 1 to 32 rows in a tile of 64, 6.9 for 1 and for 16 in one of 16."""
    if batch <= knobs["skinny"]:
        rows = knobs["skinny_rows"] // (2 if batch <= knobs["skinny_half"] else 1)
    elif knobs["share"] and batch <= knobs["share"]:
        rows = SHARED_ROWS
    else:
        rows = knobs["few_rows"] if batch <= knobs["few"] else knobs["many_rows"]
    return ceil(batch / rows) * rows


def _tiles(unit: Unit, knobs: Config, batch: int, target: Target, size: int) -> float:
    """Tiles of mma.sync: stages of K one after the other, as many of them under way as there are places."""
    kind, names = "few" if batch <= knobs["few"] else "many", ("rows", "columns", "pace", "stages", "blocks")
    rows, columns, pace, stages, blocks = (knobs[f"{kind}_{name}"] for name in names)
    tiles = ceil(batch / rows) * ceil(unit.gates * unit.width / columns)
    groups = ceil(sum(ceil(depth * size / 128) for depth in unit.depths) / pace)
    return LAUNCH_US + ceil(tiles / (target.sms * blocks)) * groups * GROUP_US / (stages - 1)


def _wgmma(unit: Unit, knobs: Config, batch: int, target: Target, size: int) -> float:
    """Tiles of wgmma, of which a pair shares its weights; where they would be few, of a part of the columns, alone."""
    part = next((part for size, part in (("slim", 4), ("mid", 2)) if batch < knobs[size]), 1)
    columns, pair = knobs["wide_columns"] // part, 2 if part == 1 else 1
    tiles = ceil(batch / (TALL * pair)) * pair * ceil(unit.gates * unit.width / columns)
    each = (TALL + columns / pair) * LINE / MEGA
    stage = max(columns * WGMMA_US, each / BLOCK_MB_PER_US)
    stages = sum(ceil(depth * size / LINE) for depth in unit.depths)
    items = columns / (4 * unit.gates)
    item = ODD_ITEM_US if unit.width % 2 else ITEM_US + GATE_US * unit.gates
    return LAUNCH_US + GROUP_US + ceil(tiles / target.sms) * (stages * stage + items * item)
