"""Recurrences of vectors in chunks that are all on the GPU at once, on the emulator, beside the oracle's rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled_kernels import text_of
from vector_scans import KINDS, SIDES, errors, linear

from tvm_rnn.cuda.linear.vector_scan import VectorScan
from tvm_rnn.graph.graph import Node


def held(kind: str, side: int, rounds: int = 1) -> tuple[VectorScan, Node]:
    """Shared memory has that many rounds of a block, of up to eight operands."""
    scan, output = KINDS[kind](side)
    return replace(scan, kept=rounds * scan.round * scan.tile * 4 * 8), output


@pytest.mark.broad_after(2)
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "steps", "span", "rounds"), [(2, 31, 19, 2), (1, 29, 18, 0), (1, 27, 7, 1)])
@pytest.mark.parametrize("backwards", [False, True])
def test_chunks_against_the_oracle(kind: str, side: int, steps: int, span: int, rounds: int, backwards: bool) -> None:
    """Some rounds' operands are kept, none's, or one's; the last chunk, warp and round have fewer steps, or none."""
    assert errors(*held(kind, side, rounds), steps, span, backwards=backwards) < 3e-4


@pytest.mark.broad
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backwards", "side"), [(True, 2), (False, 1), (True, 1)])
def test_lengths_and_resets(kind: str, backwards: bool, side: int) -> None:
    assert errors(*held(kind, side), steps=29, span=8, mode="lr", backwards=backwards) < 3e-4


@pytest.mark.broad
@pytest.mark.parametrize(("steps", "span"), [(5, 2), (19, 8), (25, 24)])
@pytest.mark.parametrize("side", SIDES)
def test_any_number_of_steps_and_chunks(steps: int, span: int, side: int) -> None:
    assert errors(*linear(side), steps=steps, span=span) < 3e-5


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["linear", "maximum"])
def test_a_reset_ends_an_infinity(kind: str) -> None:
    assert errors(*held(kind, 1), steps=13, span=4, mode="ir") < 3e-4


def test_operands_are_on_their_way_while_memory_is_filled() -> None:
    """It may start early: it waits for the kernel before it when it has read all operands once."""
    scan, _ = held("linear", 2)
    text = text_of(replace(scan, job=replace(scan.job, early=True)).kernel("at_once", False))
    first, last = text.index("griddepcontrol_launch"), text.rindex("griddepcontrol_wait")
    assert first < text.index("ld_vec_global") < last < text.index("st_vec_relaxed")
    assert text.count("griddepcontrol_wait();") == 1
