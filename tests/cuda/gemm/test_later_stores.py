"""Results that wait in registers: for which products, when they are stored, and that all of them are."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, made, variant_of
from gemm_results import ROWS, check, few_blocks


@pytest.mark.parametrize(
    ("precision", "gates", "width", "spare", "waits"),
    [
        ("bfloat16", 4, 64, False, True),
        ("bfloat16", 3, 65, False, False),  # stored one by one
        ("bfloat16", 3, 65, True, True),
        ("tf32", 4, 64, False, False),  # more registers than there are
    ],
)
def test_vectors_of_16_bits_wait(precision: str, gates: int, width: int, spare: bool, waits: bool) -> None:
    stride = 7 if width == 65 else 0
    group = hoisted(gates, width, (72 - stride,))
    kernel = variant_of(made(group, precision, spare=spare, stride=stride), "wide").kernel
    text = text_of(kernel).split('extern "C"')[-1]
    _, store, behind = text.partition("ptx_st_vec_global")
    assert ("wgmma_wait" in behind) == waits and bool(store) == (width == 64 or spare)


def test_a_step_s_results_do_not_wait() -> None:
    """It has one tile at most."""
    texts = {
        region: text_of(variant_of(made(hoisted(4, 64, (64,), region)), "wide").kernel) for region in ("before", "step")
    }
    assert texts["before"].count("ptx_st_vec_global") > texts["step"].count("ptx_st_vec_global")


@pytest.mark.parametrize(
    ("gates", "width", "depth", "blocks", "stride"), [(2, 32, 64, 2, 0), (4, 64, 328, 2, 0), (3, 61, 136, 4, 3)]
)
def test_all_results_are_stored(
    gates: int, width: int, depth: int, blocks: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks with several tiles, with one, and with none, of fewer and of more K tiles than turns that store."""
    few_blocks(monkeypatch, blocks)
    for rows in (130, 5 * ROWS + 20):
        group = hoisted(gates, width, (depth - stride,))
        check("wide", "bfloat16", group, rows, blocks, spare=bool(stride), stride=stride)
