"""The pipeline of stages: how K is shared out, and what of it can start early."""

from __future__ import annotations

import re

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, lstm_step, made, variant_of

from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.gemm import group_kernels as module
from tvm_rnn.cuda.gemm.mma_sync import MmaTile
from tvm_rnn.schedule.schedule_template import best


def test_shared_memory_holds_the_pipeline_or_the_sums() -> None:
    assert MmaTile(128, stages=3, columns=128).shared_bytes == 3 * 256 * 128
    assert MmaTile(16, split=4, stages=2, columns=32, warps=1).shared_bytes == 2 * 48 * 128
    assert MmaTile(128, split=4, stages=2, columns=128).shared_bytes == 4 * 128 * 128 * 4
    assert MmaTile(128, stages=3, columns=128, pace=2).shared_bytes == 2 * 3 * 256 * 128


def test_the_tiles_of_two_operands_follow_each_other() -> None:
    text = text_of(made(hoisted(1, 64, [64, 200])).variants[-1].kernel)
    assert "v_" in text and text.count("async_cg_shared_global_16(") >= 4


def kernel_with(monkeypatch: pytest.MonkeyPatch, **record: int) -> Kernel:
    monkeypatch.setattr(module, "best", lambda unit, target, _: best(unit, target, record))
    found = made(lstm_step(512, 512), batches=(64,)).variants
    return next(variant.kernel for variant in found if variant.kernel.name.endswith("_few"))


def test_blocks_that_share_k_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_with(monkeypatch, few_columns=64, widest=64, few_cluster=2)
    assert kernel.cluster == 2
    text = text_of(kernel)
    assert "cluster_arrive" in text and "st_vec_shared__cluster" in text


def test_overlap_waits_for_the_kernel_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "griddepcontrol" not in text_of(kernel_with(monkeypatch))
    text = text_of(kernel_with(monkeypatch, overlap=1))
    assert text.index("launch_dependents") < text.index("griddepcontrol_wait")


@pytest.mark.parametrize(("size", "rows"), [("few", 16), ("share1", 64), ("mid", 256)])
def test_rows_that_are_given_are_multiplied_beside_the_kernel_before(size: str, rows: int) -> None:
    """Only what the epilogue reads waits then, in the kernel's text and for the compiler, which knows of no wait."""
    kernel = variant_of(made(lstm_step(64, 64), batches=(rows,), given=True), size).kernel
    text = text_of(kernel).split('extern "C"')[-1]
    *early, last = (found.start() for found in re.finditer("griddepcontrol_wait", text))
    places = [text.index("launch_dependents"), text.rindex("async_cg_shared"), last, text.index("ptx_ld_global")]
    assert kernel.shares and places == sorted(places) and early[0] > places[0]
    assert len(early) == len(re.findall(r"if \(given == 0\) {\s+\w*griddepcontrol_wait", text)) > 0
    assert kernel.scalars == (("rows", "int64"), ("given", "int32"))


@pytest.mark.parametrize(("size", "early"), [("share1", False), ("many", False), ("mid", True)])
def test_a_kernel_that_opens_does_so_when_what_came_before_has_ended(size: str, early: bool) -> None:
    """One that was launched early has to wait for that first."""
    kernel = variant_of(made(hoisted(4, 64, (64,)), opens=True), size).kernel
    text = text_of(kernel).split('extern "C"')[-1]
    assert text.count("launch_dependents") == 1 and ("griddepcontrol_wait" in text) == early
    assert not early or text.index("griddepcontrol_wait") < text.index("launch_dependents")
