"""Where a GEMM's operands lie: rows of values in memory, and the orders of packed weights.

In: a weight node [(gates,) width, depth]. Out: `Pack`, which says for each element of a packed buffer which element of
the weight it is. The order decides which thread holds which result: all gates of a unit, and several consecutive
units, end in one thread, so that an epilogue needs no exchange and reads and writes vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128, Layout, offset
from tvm_rnn.graph.graph import Node, alike
from tvm_rnn.tir.expr import Expr

ROW_BYTES = 128  # of one column (gate of a unit) in one tile of K: as wide as a swizzled row of shared memory
CHUNK_BYTES = 16
CHUNKS = ROW_BYTES // CHUNK_BYTES
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Pack:
    """A weight in the order a kernel reads. index(i) -> (index into node, valid) for int64 position i; 0 where not
    valid. tf32: round to that format if possible (the hardware truncates). coded: elements are words of four e4m3 codes
    (`fp8.word`), of positions 4 i to 4 i + 3, for fragments of this precision; "": they are weights."""

    node: Node
    dtype: str
    elements: int
    index: Callable[[Expr], tuple[tuple[Expr, ...], Expr]]
    key: tuple[object, ...]
    tf32: bool = False
    coded: str = ""

    def serves(self, other: Pack) -> bool:
        """Whether the other one would be the same numbers: of the same parameters, of another form of the graph."""
        return self.key[1:] == other.key[1:] and alike(self.node, other.node)


def of_members(pack: Pack, node: Node) -> Pack:
    """Of members' parameters, one behind the other, each as `pack` has that of one. node: [N, *shape of one]."""

    def index(i: Expr) -> tuple[tuple[Expr, ...], Expr]:
        found, valid = pack.index(i % pack.elements)
        return (i // pack.elements, *found), valid

    count = node.shape[0]
    return replace(pack, node=node, elements=count * pack.elements, index=index, key=(node, "members", *pack.key[1:]))


def both(a: Expr, b: Expr) -> Expr:
    """a and b, of Python or NumPy numbers or TVM expressions."""
    if hasattr(a, "same_as"):
        from tvm import tirx

        return tirx.And(a, b)
    return a & b


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Fragments:
    """Columns in the order of tensor-core accumulators, K in tiles of 128 bytes, swizzled: [K tile][column][K].

    Columns come in blocks of 8 * span units with all gates: [unit block][gate][tile 0..span)[8]. A thread of a
    fragment holds columns 2q and 2q+1 of each tile of 8; unit 2 span q + 2 tile + e of the block is column 2q+e of a
    tile, so these are 2 * span consecutive units. columns is a multiple of every tile width in use.
    """

    gates: int
    width: int
    dtype: str
    span: int
    widest: int  # columns of the widest tile that reads it

    @property
    def block(self) -> int:
        """Columns of one block of units."""
        return 8 * self.span * self.gates

    @property
    def columns(self) -> int:
        blocks = ceil_div(self.width, 8 * self.span)
        return ceil_div(blocks * self.block, self.widest) * self.widest

    @property
    def deep(self) -> int:
        """Elements of K in a tile."""
        return ROW_BYTES // SIZES[self.dtype]

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return CHUNK_BYTES // SIZES[self.dtype]

    def tiles_deep(self, depth: int) -> int:
        return ceil_div(depth, self.deep)

    def unit(self, column: Expr) -> tuple[Expr, Expr]:
        """(gate, unit) of a column."""
        blocks = self.columns // self.block
        at = Layout(block=blocks, gate=self.gates, tile=self.span, quad=4, pair=2).coordinates(column)
        return at["gate"], offset(at, block=8 * self.span, quad=2 * self.span, tile=2, pair=1)

    def pack(self, node: Node, tf32: bool = False) -> Pack:
        depth = node.shape[-1]
        packed = Layout(tile=self.tiles_deep(depth), column=self.columns, chunk=CHUNKS, element=self.chunk)

        def index(i: Expr) -> tuple[tuple[Expr, ...], Expr]:
            at = packed.coordinates(i)
            at["chunk"] = SWIZZLE_128.piece(at["column"], at["chunk"])
            k = offset(at, tile=self.deep, chunk=self.chunk, element=1)
            gate, unit = self.unit(at["column"])
            return (gate, unit, k)[-len(node.shape) :], both(unit < self.width, k < depth)

        return Pack(node, self.dtype, packed.elements, index, (node, "fragments", self, depth, tf32), tf32)


@dataclass(frozen=True)
class Lanes:
    """Columns in the order of a thread's registers, for kernels without tensor cores: [K][column].

    K is padded to 128 bytes. A tile has 16 threads along its columns; each holds `units` consecutive units with all
    gates, in slots gate * units + unit that are padded to whole groups of 4: column = tile * 64 groups + group * 64 +
    thread * 4 + slot % 4.
    """

    gates: int
    width: int
    dtype: str
    units: int
    THREADS = 16

    @property
    def groups(self) -> int:
        """Groups of 4 columns of a thread."""
        return ceil_div(self.gates * self.units, 4)

    @property
    def tile(self) -> int:
        return 4 * self.THREADS * self.groups

    @property
    def tiles(self) -> int:
        return ceil_div(self.width, self.THREADS * self.units)

    @property
    def columns(self) -> int:
        return self.tiles * self.tile

    def pack(self, node: Node, tf32: bool = False) -> Pack:
        depth = node.shape[-1]

        deep = ROW_BYTES // SIZES[self.dtype]
        padded = ceil_div(depth, deep) * deep
        packed = Layout(k=padded, tile=self.tiles, group=self.groups, thread=self.THREADS, column=4)

        def index(i: Expr) -> tuple[tuple[Expr, ...], Expr]:
            at = packed.coordinates(i)
            slot, k = offset(at, group=4, column=1), at["k"]
            unit = offset(at, tile=self.THREADS, thread=1) * self.units + slot % self.units
            gate = slot // self.units
            inside = both(both(unit < self.width, gate < self.gates), k < depth)
            return (gate, unit, k)[-len(node.shape) :], inside

        return Pack(node, self.dtype, packed.elements, index, (node, "lanes", self, depth))
