"""A gemm group: operands of any alignment; what its epilogue reads, and vectors where all addresses allow them."""

from __future__ import annotations

import re

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, lstm_step, made

from tvm_rnn.cuda.gemm.problem import read_nodes
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Group


def text(group: Group, precision: str, stride: int = 0, align: int = 16) -> str:
    return text_of(made(group, precision, stride, align).variants[-1].kernel)


def test_values_are_read_in_order_of_use() -> None:
    found = read_nodes(lstm_step(16, 16), lambda n: Place("float32", 16) if n.leaf and n.op != "param" else None)
    assert [n.name for n in found] == ["g0", "g1", "g2", "g3", "c"]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("precision", "width", "stride", "align", "vector"),
    [
        ("bfloat16", 64, 0, 16, "v4_b32"),
        ("bfloat16", 64, 4, 16, "v2_b32"),
        ("bfloat16", 64, 2, 16, "global_b32"),
        ("bfloat16", 64, 0, 8, "v2_b32"),
        ("bfloat16", 64, 1, 16, None),
        ("bfloat16", 65, 0, 16, None),
        ("bfloat16", 36, 0, 16, "v2_b32"),  # pieces of a lane's 8 units, the last of which are 4
        ("bfloat16", 66, 0, 16, "global_b32"),
        ("tf32", 64, 0, 16, "v4_f32"),
        ("float32", 64, 0, 16, "v4_f32"),
        ("float64", 64, 0, 16, None),
    ],
)
def test_stores_are_as_wide_as_addresses_allow(
    precision: str, width: int, stride: int, align: int, vector: str | None
) -> None:
    found = text(hoisted(4, width), precision, stride, align)
    stores = {w for w in ("v4_b32", "v2_b32", "v4_f32", "v2_f32") if f"st_vec_global_{w}" in found}
    if "st_global_b32" in found:
        stores.add("global_b32")
    assert stores == ({vector} if vector else set()), found[:200]


@pytest.mark.parametrize(
    ("precision", "width", "stride", "vector"),
    [("bfloat16", 65, 7, "v4_b32"), ("bfloat16", 65, 3, None), ("tf32", 25, 3, "v4_f32"), ("tf32", 26, 1, None)],
)
def test_rows_with_room_to_spare_are_stored_in_vectors(
    precision: str, width: int, stride: int, vector: str | None
) -> None:
    """Where they have room for the last span, and begin at multiples of 16 bytes."""
    own = made(hoisted(4, width), precision, spare=True, stride=stride).variants[-1].kernel
    found = {w for w in ("v4_b32", "v4_f32") if f"st_vec_global_{w}" in text_of(own)}
    assert found == ({vector} if vector else set())


def test_the_last_units_are_computed_with_the_others() -> None:
    """A lane has one store for each of its sums: no branch of its own for units that are alone."""
    odd = text(hoisted(1, 65), "bfloat16")
    sums = max(int(size) for size in re.findall(r"float \w+\[(\d+)\]", odd))
    assert "< (int64_t)64" in odd and odd.count("((nv_bfloat16)") == sums


def test_a_product_that_is_stored_itself() -> None:
    group = hoisted(4, 64)
    assert group.root is not None
    alone = Group("gemm", "before", 0, group.root, (group.root,), (group.root,))
    assert "st_vec_global_v4_b32" in text(alone, "bfloat16")


def test_both_ways_to_read_an_operand_are_in_one_kernel() -> None:
    aligned, odd = (text_of(made(hoisted(1, 8, [k])).variants[-1].kernel) for k in (64, 33))
    assert "& (uint64_t)15" in aligned and "async_cg_shared_global_16" in aligned and "st_vec_shared" in aligned
    assert "async_cg_shared_global_16" in odd and "st_vec_shared" in odd  # its weights, and its rows
