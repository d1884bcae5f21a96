"""to_jax: what it refuses, a training loop, and the page on JAX, with Flax."""

from __future__ import annotations

import copy
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, WeightError

jax = pytest.importorskip("jax", reason="needs jax")
pytest.importorskip("jax_tvm_ffi", reason="needs jax-tvm-ffi")
PAGE = Path(__file__).resolve().parents[2] / "tutorials/site/pages/howto/jax.md"


def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="to_jax needs an RNN"):
        rnn.to_jax(object())  # type: ignore[arg-type]
    with pytest.raises(WeightError, match="no weights"):
        rnn.to_jax(rnn.RNN(rnn.cells.gru, 3, 4))
    for target in ("nvidia-h100", "aarch64" if platform.machine() == "x86_64" else "x86-64"):
        with pytest.raises(ConfigError, match="code for JAX runs on this machine's CPU"):
            rnn.to_jax(network("gru", 3, 4), target)
    monkeypatch.setitem(sys.modules, "jax_tvm_ffi", None)
    for name in ("layer", "primitives"):
        monkeypatch.delitem(sys.modules, f"tvm_rnn.jax_layer.{name}", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'jax>=0\.10' 'jax-tvm-ffi>=0\.1\.3'"):
        rnn.to_jax(network("gru", 3, 4))


def test_it_learns(layer: Any, x: np.ndarray) -> None:
    @jax.jit
    def step(weights: Any) -> Any:
        loss, d = jax.value_and_grad(lambda w: ((layer(w, x)[0][-1].sum(-1) - x.sum((0, 2))) ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.05 * g, weights, d), loss

    weights, losses = layer.weights, []
    for _ in range(60):
        weights, loss = step(weights)
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]
    y, _ = rnn.reference(copy.deepcopy(layer.net).load({n: np.asarray(w) for n, w in weights.items()}))(x)
    np.testing.assert_allclose(layer.compiled(weights)(x)[0], y, atol=1e-12)


@pytest.mark.broad
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part on Flax where that is installed."""
    parts = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    if find_spec("flax") is None:
        parts = parts[:-1]
    monkeypatch.chdir(tmp_path)
    jax.config.update("jax_enable_x64", False)
    found: dict[str, Any] = {}
    exec("\n".join(parts), found)
    assert found["d"]["readout"]["kernel"].shape == (8, 1) if "model" in found else found["d"]["W_l0"].any()
    assert rnn.load("gru.so")(np.ones((2, 1, 4), np.float32))[0].shape == (2, 1, 8)
