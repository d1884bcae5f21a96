"""How long a product by wgmma takes in tiles of some shape: what `gemm_cuda` chooses shapes for few tiles by.

In: a product, rows, a tile's shape, a GPU. Out: microseconds. Fitted to kernels alone, one after the other in a CUDA
graph on an H200: 11 to 93 K tiles, 24 to 4536 columns, 256 to 6100 rows, in both sizes of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tvm_rnn.schedule.schedule_template import Unit
from tvm_rnn.target import Target

TALL, LINE = 128, 128  # rows of a tile, bytes of a row's K tile
LEAST_US, COLUMN_US = 0.3, 0.0029  # of a K tile of 16-bit numbers: at least, and of each column by 128 rows
TF32_US, TF32_COLUMN_US = 0.28, 0.0018  # of one of tf32, whose rows are rounded
START_US, SHARED_START_US = 2.5, 3.0  # of a kernel, and of one whose blocks may share K
ITEM_US = 0.1  # of an epilogue: a row of a lane, and a block of 4 units with all gates
SUM_US = 0.013  # of a column whose sums go through shared memory, as much again where they come from other blocks
AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of so many blocks, with a multiprocessor for each of 132


@dataclass(frozen=True)
class Product:
    """columns: units with all their gates; deep: K tiles; tf32: whether rows are rounded."""

    columns: int
    deep: int
    gates: int
    tf32: bool

    @staticmethod
    def of(unit: Unit) -> Product:
        """That of a unit, on tensor cores."""
        tf32 = unit.dtype == "tf32"
        deep = sum(ceil(depth * (4 if tf32 else 2) / LINE) for depth in unit.depths)
        return Product(unit.gates * unit.width, deep, unit.gates, tf32)


@dataclass(frozen=True)
class Shape:
    """rows, columns of a block; parts: blocks of a cluster, which share K; None: there is no such kernel, a block goes
    through all of K and has one tile after the other. pairs: of two blocks, one below the other, each fetches half of
    the weights."""

    columns: int
    rows: int = TALL
    parts: int | None = None
    pairs: bool = False


def tiles_of(product: Product, rows: int, shape: Shape) -> int:
    """Blocks, or clusters of blocks that share K."""
    down = ceil(rows / (2 * shape.rows)) * 2 if shape.pairs else ceil(rows / shape.rows)
    return down * ceil(product.columns / shape.columns)


def tiles_us(product: Product, rows: int, shape: Shape, target: Target) -> float:
    """Microseconds of a launch."""
    parts, broad = shape.parts or 1, shape.columns * shape.rows / TALL
    turns = ceil(tiles_of(product, rows, shape) / (AT_ONCE[parts] * target.sms // AT_ONCE[1]))
    stage = TF32_US + TF32_COLUMN_US * broad if product.tf32 else max(LEAST_US, COLUMN_US * broad)
    each = ceil(product.deep / parts) * stage
    if shape.parts is None:
        return START_US + turns * (each + shape.columns / (4 * product.gates) * ITEM_US)
    return SHARED_START_US + turns * (each + SUM_US * shape.columns * (1 + (parts > 1)))
