"""All layers of a network in one persistent kernel: a wave.

In: of each of its graphs a geometry and a layout, and which graph every layer has. Out: a `Kernel`. Its pointers are
those of every layer's own kernel, one layer after the other; its groups of blocks take turns with the layers. Layers of
one graph run the same code, with the pointers of their number.

Blocks wait for those of the layer below, so all layers are on the GPU at once: one cooperative grid, which the driver
places whole or not at all. Launches of their own, one for each layer, would overlap in CUDA graphs alone.

Rewrite: for layer: for t: step  -->  one launch; each layer on blocks of its own, a step behind the layer below

Source: Diamos et al. 2016, "Persistent RNNs"; the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import cast

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.kernel_writer import Argument, Kernel, Writer, write
from tvm_rnn.cuda.codegen.poison import POISON
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.regime import MASK_POINTERS
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32, wide

from .geometry import Geometry
from .kernel import COOPERATIVE, KernelBody, enter, of_head, pointers, scalars

FOLLOWS = "follows"  # the scalar of a layer's own kernel that its number says here


@dataclass(frozen=True)
class Member:
    """What layers of one graph share. Geometries of all members differ in their steps alone."""

    geometry: Geometry
    layout: Layout


def wave_kernel(
    name: str, members: Sequence[Member], of_layer: Sequence[int], initial: Mapping[str, float] | None = None
) -> Kernel:
    """The kernel of a wave. of_layer: each layer's member. The scalar "teams" counts the groups of blocks of all
    layers. initial: what states are after a reset, for a kernel that knows lengths and resets; None for one that does
    not."""
    geometry, layers, masked = members[0].geometry, len(of_layer), initial is not None
    shared_bytes = max(member.geometry.shared_bytes for member in members)
    every = [(_of(p, n), dtype) for n, i in enumerate(of_layer) for p, dtype in _pointers(members[i])]

    def body(k: Writer) -> None:
        with I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):  # else ptxas may stop at 128 registers, and spill
            block = enter(k, geometry, shared_bytes)
            layer = k.keep(tirx.floormod(block.group, layers))
            block = replace(block, group=tirx.floordiv(block.group, layers))
            for number, member in enumerate(members):
                mine = [n for n, index in enumerate(of_layer) if index == number]
                with k.when(_one_of(layer, mine)) if len(members) > 1 else nullcontext():
                    own = _of_layers(k, member, layer, mine)
                    place = of_head(own, member.geometry, member.layout, block)
                    KernelBody(own, member.geometry, member.layout, initial, place).emit()

    with flavour(geometry.precision):
        return write(
            name,
            [*every, *(MASK_POINTERS if masked else ())],
            [scalar for scalar in scalars(geometry, members[0].layout, masked) if scalar[0] != FOLLOWS],
            body,
            threads=geometry.block_threads,
            attributes=COOPERATIVE,
            shared_bytes=shared_bytes,
            cluster=geometry.cluster,
            resident=True,
            shares=True,  # one layer's blocks read what those of another one write
        )


def unwritten_rows(name: str, place: Place, width: int) -> Kernel:
    """What rows of a layer's output are before a wave in which layers look for words that are written: POISON, and 0
    behind what a row has, which nobody writes."""
    words = place.row_stride * ITEM_BYTES[place.dtype] // 4

    def body(w: Writer) -> None:
        row, word, inside = elements(w, words)
        with w.when(inside):
            value = tirx.Select(word * 4 < width * ITEM_BYTES[place.dtype], uint32(POISON), uint32(0))
            w.store(w["rows_of_words"], value, row * words + wide(word))

    return write(name, [("rows_of_words", "uint32")], [("rows", "int64")], body, threads=THREADS)


def _pointers(member: Member) -> list[tuple[str, str]]:
    return pointers(member.geometry, member.layout)


def _of(pointer: str, layer: int) -> str:
    return f"{pointer}_of_{layer}"


def _one_of(layer: Expr, numbers: Sequence[int]) -> Expr:
    return reduce(tirx.Or, [tirx.EQ(layer, number) for number in numbers])


def _of_layers(k: Writer, member: Member, layer: Expr, numbers: Sequence[int]) -> Writer:
    """What the body of a layer's own kernel sees, where the block's layer is one of those."""
    own = Writer(dict(k.arguments))
    for name, _ in _pointers(member):
        own.arguments[name] = _chosen([k[_of(name, number)] for number in numbers], layer, numbers)
    own.arguments[FOLLOWS] = cast("Argument", k.keep(tirx.Cast("int32", tirx.NE(layer, 0))))
    return own


def _chosen(arrays: Sequence[Argument], layer: Expr, numbers: Sequence[int]) -> Argument:
    """The array of the block's layer."""
    if len(arrays) == 1:
        return arrays[0]
    address = tirx.reinterpret("uint64", arrays[-1].data)
    for array, number in zip(arrays[-2::-1], numbers[-2::-1], strict=True):
        address = tirx.Select(tirx.EQ(layer, number), tirx.reinterpret("uint64", array.data), address)
    place = I.bind(tirx.reinterpret("handle", address))
    chosen: Argument = I.decl_buffer(arrays[0].shape, arrays[0].dtype, data=place)
    return chosen
