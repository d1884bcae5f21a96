"""predict_steps: more work never takes less time, and what was measured is predicted within a quarter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from persistent_layers import GPU, layout_of

from tvm_rnn.cuda.model.launched_step_time import hidden_us, predict_steps
from tvm_rnn.target import resolve


def us(cell: str, hidden: int, precision: str, batch: int, target: str = "") -> float:
    return predict_steps(layout_of(cell, hidden, precision), precision, batch, resolve(target) if target else GPU)


@pytest.mark.parametrize("precision", ["bfloat16", "tf32", "float32", "float64"])
def test_more_rows_never_take_less_time(precision: str) -> None:
    times = [us("lstm", 2048, precision, batch) for batch in (1, 16, 64, 128, 256, 1024)]
    assert all(a <= b for a, b in pairwise(times)) and times[-1] > times[0] > 0


def test_a_tile_takes_its_time_however_few_of_its_rows_are_there() -> None:
    """Without tensor cores: of 16 rows, of 64 whose K is shared out, of 64."""
    times = {batch: us("lstm", 512, "float32", batch) for batch in (1, 16, 33, 64, 65, 128, 129)}
    assert times[1] == times[16] < times[33] == times[64] < times[65] == times[128] < times[129]


def test_few_tiles_that_share_k_take_less_time() -> None:
    """GRU 1044 in tf32: of 192 rows blocks share K, of 320 no kernel does."""
    assert us("gru", 1044, "tf32", 192) < 0.9 * us("gru", 1044, "tf32", 320)


def test_each_kernel_costs_a_launch() -> None:
    assert us("gru_reset_before", 64, "bfloat16", 1) > us("gru", 64, "bfloat16", 1)


def test_a_first_step_s_products_are_hidden_where_kernels_begin_early() -> None:
    """That is not so on an A100, without tensor cores, and where a step's product reads what the step computes."""
    layout = layout_of("lstm", 512, "bfloat16")
    assert 0 < hidden_us(layout, "bfloat16", 64, GPU) < predict_steps(layout, "bfloat16", 64, GPU)
    assert hidden_us(layout, "bfloat16", 64, resolve("nvidia-a100")) == 0
    assert hidden_us(layout_of("lstm", 512, "float32"), "float32", 64, GPU) == 0


def test_another_gpu() -> None:
    """Nothing shares K there."""
    assert us("lstm", 2048, "bfloat16", 64, "nvidia-a100") > us("lstm", 2048, "bfloat16", 64)


@pytest.mark.parametrize(
    ("cell", "hidden", "precision", "batch", "measured"),
    [
        ("lstm", 2048, "bfloat16", 1, 8.7),
        ("lstm", 2048, "bfloat16", 64, 9.6),
        ("lstm", 2048, "bfloat16", 128, 13.5),
        ("gru", 2048, "bfloat16", 64, 8.4),
        ("gru", 2048, "bfloat16", 128, 10.9),
        ("lstm", 2048, "tf32", 1, 18.6),
        ("lstm", 2048, "tf32", 128, 24.7),
        ("gru", 2048, "tf32", 64, 14.7),
        ("gru", 1024, "bfloat16", 72, 7.8),  # by tiles of a quarter of the columns
        ("lstm", 512, "tf32", 256, 9.4),
        ("lstm", 1024, "bfloat16", 256, 11.8),
        ("gru", 1024, "bfloat16", 256, 9.9),
        ("lstm", 2048, "bfloat16", 256, 19.0),
        ("lstm", 2048, "bfloat16", 512, 34.4),
        ("gru", 2048, "bfloat16", 256, 17.0),
        ("lstm", 1312, "tf32", 128, 20.4),
        ("elman", 1478, "tf32", 320, 16.5),  # by tiles whose blocks share K
        ("lstm", 2560, "bfloat16", 64, 14.8),
        ("lstm", 2560, "tf32", 64, 31.2),
        ("lstm", 2560, "float32", 64, 152.0),
        ("lstm", 1001, "bfloat16", 256, 24.0),  # whose epilogue reads one element after the other
        ("gru", 2741, "bfloat16", 279, 48.9),
    ],
)
def test_what_was_measured(cell: str, hidden: int, precision: str, batch: int, measured: float) -> None:
    assert us(cell, hidden, precision, batch) == pytest.approx(measured, rel=0.25)


def test_tiles_of_one_gate_take_longer_than_predicted() -> None:
    """Their epilogues are broader: the one that was measured where blocks share K of 16-bit numbers."""
    assert us("elman", 2600, "bfloat16", 300) == pytest.approx(19.4, rel=0.35)
