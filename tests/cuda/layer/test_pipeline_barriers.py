"""The barriers of a pipeline of stages: who is waited for, in one block and in a cluster."""

from __future__ import annotations

import re

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, made, variant_of
from row_products import operand

from tvm_rnn.cuda.training.weight_gradient_wgmma import PackedWeightGradientTile


def text(**options: int) -> str:
    left, right = (operand(name, 130, 130, "bfloat16") for name in "ab")
    return text_of(PackedWeightGradientTile("bfloat16", 128, 128, **options).kernel("t", [left], right))


@pytest.mark.parametrize("stages", [4, 5])
def test_every_stage_has_two_barriers(stages: int) -> None:
    """One that its copies complete, and one that the warps of both blocks do which multiply."""
    made = re.findall(r"    tvm_builtin_ptx_mbarrier_init\w*\(.*, \(uint\)(\d+)\);", text(stages=stages))
    assert len(made) == 2 * stages
    assert sorted(map(int, made)) == [1] * stages + [2 * 2 * 4] * stages


def test_blocks_of_a_cluster_tell_each_other() -> None:
    assert "mapa" in text() and "barrier_cluster" in text()
    assert "mapa" not in text(cluster=1) and "barrier_cluster" not in text(cluster=1)


@pytest.mark.parametrize(("size", "precision"), [("share1", "tf32"), ("wide", "bfloat16"), ("mid", "tf32")])
def test_copies_tell_their_stage_and_nobody_waits_for_them_before(size: str, precision: str) -> None:
    """Each thread's copies are an arrival; who copies waits for them behind the last stage alone."""
    body = text_of(variant_of(made(hoisted(4, 64, (200,)), precision), size).kernel)
    counts = re.findall(r"    tvm_builtin_ptx_mbarrier_init\w*\(.*, \(uint\)(\d+)\);", body)
    assert "129" in counts, "128 threads that copy rows, and the bulk copy of weights"
    assert body.count("arrive_noinc") >= 1
    waits = re.findall(r"wait_group_(\d+)\(\)", body[: body.index("wgmma_commit_group")])
    assert [n for n in waits if n != "0"] == []
