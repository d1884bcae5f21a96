"""CMSIS-NN's LSTM: scales as it has them; what it lacks is said; its results are near the oracle's."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import cmsis_nn, cortex_m
from tvm_rnn.bench.peers.models import Unsupported

X = np.random.default_rng(0).normal(size=(40, 1, 3)).astype("f4")


@pytest.mark.parametrize("scale", [1.0, 0.75, 3e-7, 1 - 2**-40, 2.0**-15, 5.5])
def test_a_multiplier_is_the_scale(scale: float) -> None:
    whole, shift = map(int, cmsis_nn._multiplier(scale).split(", "))
    assert 2**30 <= whole < 2**31 and math.isclose(whole * 2.0 ** (shift - 31), scale, rel_tol=2**-30)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    lstm, gru = (rnn.RNN(getattr(rnn.cells, name), 3, 5).init(0) for name in ("lstm", "gru"))
    with pytest.raises(Unsupported, match="clone ARM-software/CMSIS-NN"):
        cmsis_nn.quantised(lstm, X, 8, tmp_path, tmp_path)
    (tmp_path / "Include").mkdir()
    (tmp_path / "Include" / "arm_nnfunctions.h").touch()
    with pytest.raises(Unsupported, match="LSTMs of one layer"):
        cmsis_nn.quantised(gru, X, 8, tmp_path, tmp_path)


def test_numbers_are_quantised_as_the_header_says(tmp_path: Path) -> None:
    (tmp_path / "Include").mkdir()
    (tmp_path / "Include" / "arm_nnfunctions.h").touch()
    own = cmsis_nn.quantised(rnn.RNN(rnn.cells.lstm, 3, 5).init(0), X, 16, tmp_path, tmp_path)
    assert own.x.dtype == np.int16 and np.abs(own.x).max() == 2**15 - 1 and own.scale == 2.0**-15
    text = (own.folder / "cmsis_nn.c").read_text()
    assert "int8_t W[4][15]" in text and "int64_t b[4][5]" in text and "STEP arm_lstm_unidirectional_s16" in text


@pytest.mark.peers
@pytest.mark.skipif("CMSIS_NN" not in os.environ, reason="CMSIS_NN: a folder with CMSIS-NN's sources")
@pytest.mark.parametrize("bits", [8, 16])
def test_it_is_near_the_oracle(bits: int, tmp_path: Path) -> None:
    if cortex_m.missing():
        pytest.skip(cortex_m.missing())
    net = rnn.RNN(rnn.cells.lstm, 3, 9).init(0)
    own = cmsis_nn.quantised(net, X, bits, tmp_path, os.environ["CMSIS_NN"])
    y, count = cortex_m.results(own.folder, {"x": own.x}, "cortex-m4", own.options, own.sources)
    expected = rnn.reference(net)(X)[0][:, 0]
    assert np.abs(y * own.scale - expected).max() < {8: 0.03, 16: 0.01}[bits] * np.abs(expected).max() and count > 0
