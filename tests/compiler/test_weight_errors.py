"""weight_errors: a module with weights in fewer bits says how far it is from float64, while these are its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cli.console import print_rich
from tvm_rnn.compiler.weight_errors import weight_error
from tvm_rnn.explain.tables import manifest_page


def test_the_manifest_and_inspect_say_it_until_weights_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = rnn.RNN(rnn.cells.gru, 6, 18).init(1)
    module = rnn.compile(net, weights="int8")
    error = module.manifest.weight_error
    assert 1e-5 < error < 2e-2 and error == weight_error(net, module)
    module.export(tmp_path / "m.so")
    again = rnn.load(tmp_path / "m.so")
    assert again.manifest.weight_error == error
    print_rich(manifest_page("m.so", again.manifest, again.weights, 1))
    assert f"error {error:.1e}" in capsys.readouterr().out
    again.load_weights(net.weights)
    assert "weight_error" not in again.manifest


def test_without_weights_or_fewer_bits_there_is_none() -> None:
    net = rnn.RNN(rnn.cells.elman, 6, 18)
    assert "weight_error" not in rnn.compile(net, weights="bfloat16").manifest
    assert "weight_error" not in rnn.compile(net.init(0)).manifest


def test_what_is_no_number_is_none() -> None:
    net = rnn.RNN(rnn.cells.elman, 6, 18).init(0)
    net.weights["W_l0"][0, 0] = np.nan
    assert rnn.compile(net, weights="bfloat16").manifest.weight_error is None
