"""The barriers of a pipeline of stages: who is waited for, in one block and in a cluster."""

from __future__ import annotations

import re

import pytest
from compiled_kernels import text_of
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
