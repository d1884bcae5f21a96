"""wgmma kernels: clusters that share weights, two operands, what fits in shared memory, and results on the CPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, lstm_step, made, variant_of
from gemm_results import ROWS, check, few_blocks, list_of
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.gemm.group_kernels import Variant
from tvm_rnn.cuda.gemm.wgmma import STEPS, WgmmaProduct, WgmmaTile


def wide(precision: str, gates: int, width: int, *depths: int) -> Variant:
    return variant_of(made(hoisted(gates, width, depths), precision), "wide")


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bfloat16", "m64n256k16_f32_bf16_bf16"),
        ("float16", "m64n256k16_f32_f16_f16"),
        ("tf32", "m64n256k8_f32_tf32_tf32"),
    ],
)
def test_the_instruction_of_a_precision(precision: str, instruction: str) -> None:
    variant = wide(precision, 4, 256, 128)
    text = text_of(variant.kernel)
    assert instruction in text and "multicast__cluster" in text and "setmaxnreg" in text
    assert variant.kernel.cluster == 2 and variant.condition == "rows >= 128 && ((uintptr_t)x0 & 15) == 0"


def test_three_gates_and_two_operands() -> None:
    variant = wide("bfloat16", 3, 512, 64, 136)
    assert "m64n192k16" in text_of(variant.kernel)
    assert variant.condition.count("uintptr_t") == 2


def test_no_kernel_for_rows_that_are_not_aligned() -> None:
    names = [v.kernel.name for v in made(hoisted(4, 256, [33])).variants]
    assert names == ["kernel_many"]


def test_rows_of_4_byte_pieces_are_copied_piece_by_piece() -> None:
    variant = wide("bfloat16", 4, 256, 34)
    assert variant.condition == "rows >= 128 && ((uintptr_t)x0 & 3) == 0"
    assert "cp_async_ca_src_size_async_ca_shared_global_4" in text_of(variant.kernel)


@pytest.mark.parametrize("columns", [64, 128, 192, 256])
def test_the_pipeline_fits(columns: int) -> None:
    assert WgmmaTile(columns=columns).shared_bytes <= 227 << 10


def test_units_of_odd_widths_are_stored_with_what_rows_have_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    few_blocks(monkeypatch, 2)
    check("wide", "tf32", hoisted(4, 25, (29,)), 300, 2, spare=True, stride=3)


def test_rows_of_a_list_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles that have as many rows as there are, of one step and of several."""
    few_blocks(monkeypatch, 2)
    lengths = np.random.default_rng(0).integers(0, 5, 150)
    check("wide", "bfloat16", hoisted(1, 64, (64,)), 150, 2, list_of(lengths, 2, 1))


@pytest.mark.broad
@pytest.mark.parametrize(("precision", "width", "depth"), [("bfloat16", 64, 1160), ("tf32", 24, 580)])
def test_rows_of_a_list_where_blocks_share_k(precision: str, width: int, depth: int) -> None:
    """Clusters of blocks whose tile has no rows of the list have nothing to do."""
    lengths = np.random.default_rng(0).integers(0, 5, 150)
    group = hoisted(1, width, (depth,))
    knobs = made(group, precision, batches=(150,)).knobs
    assert knobs["tall"] >= 150
    if not knobs["wide_columns"]:
        assert not any(v.listed for v in made(group, precision, batches=(150,), listed=True).variants)
        return
    blocks = -(-150 // knobs["tall_rows"]) * -(-width // knobs["tall_columns"]) * knobs["tall_cluster"]
    check("tall", precision, group, 150, blocks, list_of(lengths, 2, 1), batches=(150,))


@pytest.mark.broad
@pytest.mark.parametrize(
    ("size", "precision", "depths", "first", "steps"),
    [("wide", "tf32", (40,), 1, 3), ("mid", "bfloat16", (72, 64), 0, 4), ("wide", "float16", (34,), 3, 1)],
)
def test_lists(
    size: str, precision: str, depths: tuple[int, ...], first: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some steps, and of none that has a row left."""
    few_blocks(monkeypatch, 4)
    lengths = np.random.default_rng(1).integers(0, 5, 70)
    for found in (list_of(lengths, first, steps), list_of(0 * lengths, first, steps)):
        check(size, precision, hoisted(4, 64, depths), 70 * steps, 4, found)


@pytest.mark.broad
def test_one_tile_of_k_and_several_items_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline runs over the end of an item: all stages that are in it must be announced in the end."""
    few_blocks(monkeypatch, 2)
    check("wide", "bfloat16", hoisted(2, 32, (64,)), rows=2 * ROWS * 3 - 70, blocks=2)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("size", "precision", "gates", "depths", "blocks"),
    [
        ("slim", "tf32", 4, (40,), 2),
        ("mid", "float16", 4, (40, 200), 2),
        ("wide", "tf32", 1, (72,), 4),
        ("wide", "bfloat16", 1, (66,), 4),
        ("many", "bfloat16", 1, (34,), 4),
    ],
)
def test_results(
    size: str, precision: str, gates: int, depths: tuple[int, ...], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_blocks(monkeypatch, blocks)
    check(size, precision, hoisted(gates, 64, depths), rows=3 * ROWS + 20, blocks=blocks)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("size", "gates", "width", "depth", "rows", "blocks"),
    [("slim", 4, 30, 54, 70, 4), ("mid", 4, 30, 54, 70, 2), ("wide", 3, 61, 136, 200, 4)],
)
def test_steps_of_more_rows_than_share_k(size: str, gates: int, width: int, depth: int, rows: int, blocks: int) -> None:
    check(size, "bfloat16", hoisted(gates, width, (depth,), "step"), rows, blocks, given=True)


def test_a_step_s_epilogue_loads_what_several_items_read_before_it_stores() -> None:
    """One after the other, loads took longer than the products."""
    kernel = variant_of(made(lstm_step(64, 64), batches=(256,)), "mid").kernel
    text = text_of(kernel).split('extern "C"')[-1]
    loads, stores = (
        [m.start() for m in re.finditer(word, text)] for word in (r"ptx_ld_\w*global", r"ptx_st_\w*global")
    )
    assert sum(at < stores[0] for at in loads) >= 5 * 8  # four gates and c of 8 items


def test_weights_are_fetched_while_the_kernel_before_still_runs() -> None:
    """Rows are not, nor what the epilogue reads."""
    kernel = variant_of(made(lstm_step(64, 64), batches=(256,)), "mid").kernel
    text = text_of(kernel).split('extern "C"')[-1]
    words = ("griddepcontrol_launch_dependents", "cp_async_bulk", "griddepcontrol_wait", "cp_async_cg")
    assert kernel.shares and sorted(words, key=text.index) == [*words] and text.count(words[2]) == 2


def script(dtype: str = "bfloat16", columns: int = 64, first: bool = False, **options: Any) -> tuple[str, str]:
    def body(w: Writer) -> None:
        I.cta_id([1])
        I.thread_id([128])
        arena = I.alloc_buffer((65536,), "uint8", scope="shared.dyn", align=1024)
        product = WgmmaProduct(w, arena, columns, dtype, **options)
        more = w["turn"] > 0 if first else None
        product.multiply(w["turn"] * 2048, tirx.const(0, "uint64"), 1024, more)
        product.wait(0)
        w.store(w["out"], product.acc[0, 0][0], 0)

    kernel = write("f", [("out", "float32")], [("turn", "int32")], body, threads=128)
    return kernel.func.script(), text_of(kernel)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bfloat16", "m64n64k16_f32_bf16_bf16"),
        ("float16", "m64n64k16_f32_f16_f16"),
        ("float32", "m64n64k8_f32_tf32_tf32"),
    ],
)
def test_the_instruction_of_a_dtype(dtype: str, name: str) -> None:
    _, cuda = script(dtype)
    assert name in cuda


def test_a_stage_is_four_steps_of_32_bytes_along_k() -> None:
    tir, _ = script()
    for step in range(STEPS):
        assert f"T.uint64({1024 + 2 * step})" in tir
    assert f"T.uint64({1024 + 2 * STEPS})" not in tir


def test_turned_operands_step_over_16_rows() -> None:
    tir, _ = script(turned=True)
    for step in range(STEPS):
        assert f"T.uint64({1024 + 128 * step})" in tir


def test_sums_begin_with_the_first_product() -> None:
    assert "T.float32(0.0)" not in script(first=True)[0]
    # The first step of a stage alone asks whether there are sums.
    assert script(first=True)[0].count("turn > 0") == 1 and "turn > 0" not in script()[0]
