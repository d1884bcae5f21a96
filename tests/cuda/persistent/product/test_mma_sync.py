"""Products by mma.sync: the instructions that a geometry asks for, where each weight is read from and packed."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from emulated import check_packed_once
from persistent_layers import TENSOR_CORES, configured, geometry_of, layout_of, step, text_of, unit_of

from tvm_rnn.cuda.layer.phases import Diagonal
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import MMA, Geometry

COPIES = 2  # of the loop's body: even and odd steps


def geometry(name: str, hidden: int, precision: str, **knobs: Any) -> Geometry:
    knobs = {"exchange": "cluster", "ctas": 1, "rows": 8, **knobs}
    return geometry_of(step(name, hidden, precision), precision, **knobs)


def text(made: Geometry, name: str, hidden: int) -> str:
    return text_of(persistent.kernel("k", made, layout_of(name, hidden, made.precision)))


def calls(code: str, instruction: str) -> int:
    """How often the kernel's body, not the function's definition, uses a PTX instruction."""
    body = code[code.index("{") :]
    return len(re.findall(rf"\b\w*{instruction}\w*\(", body))


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("precision", TENSOR_CORES)
@pytest.mark.parametrize(
    ("name", "hidden", "knobs"),
    [
        ("lstm", 64, {"ctas": 2}),
        ("lstm", 64, {"ctas": 2, "warps_k": 2}),
        ("gru", 40, {"rows": 16, "passes": 2}),
        ("gru_reset_before", 64, {"warps_u": 2, "rows": 16}),
    ],
)
def test_every_fragment_is_multiplied_once(name: str, hidden: int, knobs: dict[str, int], precision: str) -> None:
    made = geometry(name, hidden, precision, **knobs)
    expected = sum(s.kblocks * 2 * made.m_tiles(p) * made.tiles for p, s in made.weights)
    assert calls(text(made, name, hidden), "mma_sync") == COPIES * expected


@pytest.mark.broad
def test_without_tensor_cores() -> None:
    code = text(geometry("lstm", 32, "float32", ctas=2), "lstm", 32)
    assert not calls(code, "mma_sync") and "__shfl_xor_sync" in code


@pytest.mark.parametrize(
    ("register_words", "shared_words", "places"),
    [(1000, 0, (8, 0, 0)), (32, 1000, (4, 4, 0)), (0, 1000, (0, 8, 0)), (0, 0, (0, 0, 8)), (16, 16, (2, 2, 4))],
)
def test_weights_are_read_from_where_they_are(
    register_words: int, shared_words: int, places: tuple[int, int, int]
) -> None:
    made = geometry("elman", 256, "bfloat16", ctas=16, register_words=register_words, shared_words=shared_words)
    ((phase, share),) = made.weights
    assert (share.registers, share.shared, share.streamed) == places and made.m_tiles(phase) == 1, share
    code = text(made, "elman", 256)
    pieces = 2 * made.m_tiles(phase)
    # Registers are loaded once; shared memory is filled by one loop; the rest is loaded in every step.
    loads = share.registers * pieces + bool(share.shared) + COPIES * share.streamed * pieces
    assert calls(code, "ld_vec_global_nc_v4") == loads


def test_parts_of_k_meet_in_shared_memory() -> None:
    one, four = (text(geometry("lstm", 128, "bfloat16", ctas=4, warps_k=n), "lstm", 128) for n in (1, 4))
    assert not calls(one, "bar_arrive") and not calls(one, "ld_vec_shared_v4_f32")
    # One batch tile: the first of four warps sums it, the others store theirs and go on.
    assert calls(four, "bar_sync") and calls(four, "bar_arrive") == COPIES * 3


def test_weights_have_the_order_of_the_kernels_pointers() -> None:
    made = geometry("gru_reset_before", 40, "bfloat16")
    pointers = persistent.pointers(made, layout_of("gru_reset_before", 40))
    assert [n for n, _ in pointers if n.startswith("weight_")] == [f"weight_{i}" for i in range(len(made.weights))]
    assert [phase.root for phase, _ in made.weights] == [p.root for p in made.step.phases if p.kind == "gemm"]


def test_every_precision_has_an_instruction_or_none() -> None:
    assert set(MMA) == set(TENSOR_CORES)


@pytest.mark.parametrize(("precision", "stored"), [("bfloat16", ""), ("tf32", ""), ("float16", "float8_e4m3")])
@pytest.mark.parametrize(("name", "hidden"), [("lstm", 64), ("gru", 40), ("elman", 33)])
def test_every_weight_is_packed_once(name: str, hidden: int, precision: str, stored: str) -> None:
    geometry = {"ctas": 2, "rows": 8, "warps_u": 2, "warps_k": 2}
    made = geometry_of(step(name, hidden, precision), precision, "grid", **geometry, stored=stored)
    check_packed_once(made)


def smaller(found: Any) -> int:
    """A number, or the smaller of two."""
    return min(int(found.a), int(found.b)) if hasattr(found, "a") else int(found)


@pytest.mark.parametrize(("hidden", "units"), [(128, 32), (96, 16), (120, 40), (72, 12), (256, 64)])
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_of_heads_a_warp_multiplies_its_own(hidden: int, units: int, precision: str) -> None:
    """Every block of K that is not 0 for one of its units, and of wide layers fewer than all."""
    (phase,), fewer = (own := step("elman", hidden, precision)).phases, []
    operands = tuple(replace(o, diagonal=None if o.given else Diagonal(units, units)) for o in phase.operands)
    own = replace(own, phases=(replace(phase, operands=operands),))
    for ctas, warps_u, warps_k in product((1, 3, 4), (1, 2, 4), (1, 2)):
        made = geometry_of(own, precision, "cluster", ctas, 8, warps_u=warps_u, warps_k=warps_k)
        for operand in (o for o in operands if o.diagonal):
            blocks, all_blocks = made.operand_blocks(operand), made.depth_blocks(operand.source)
            fewer.append(blocks < all_blocks)
            assert blocks % warps_k == 0
            for cta, warp in product(range(ctas), range(warps_u)):
                first = smaller(made.first_block(operand, cta, warp))
                begin = cta * made.units(hidden) + warp * 8 * made.blocks(hidden)
                heads = {unit // units for unit in range(begin, begin + 8 * made.blocks(hidden)) if unit < hidden}
                wanted = {k // made.block_k for head in heads for k in range(head * units, head * units + units)}
                assert wanted <= {*range(first, first + blocks)} and first + blocks <= all_blocks
    assert any(fewer)


@pytest.mark.parametrize(("cell", "hidden"), [("elman", 264), ("gru", 384)])
def test_more_than_one_warp_of_a_cluster_has_cells(cell: str, hidden: int) -> None:
    """Sixteen blocks of one warp of units and four parts of K were predicted the quickest, and took twice as long."""
    unit = unit_of(cell, hidden, "float16", 1)
    config, _ = configured("persistent_cluster_cuda", unit)
    assert config["warps_u"] == 2 and config["warps_k"] < 4
