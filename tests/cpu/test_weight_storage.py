"""storage: values in fewer bits are the nearest ones, and every cell computes with exactly these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import ConfigError
from tvm_rnn.compiler.link import generate
from tvm_rnn.cpu.weight_storage import STORAGES
from tvm_rnn.dtypes import rounded
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.target import host
from tvm_rnn.tir.statements import function, loop, sequence, store, variable

WIDENED = list(STORAGES)
# Halfway cases, subnormals, what overflows 16 bits, and what is no number.
SPECIAL = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 65519.0, 65520.0, 1e-7, 6e-8, 3e38, 3.4e38]
VALUES = np.array([*SPECIAL, *(-v for v in SPECIAL), np.inf, -np.inf, np.nan], "float32")


def through(name: str, values: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """decode(encode(value)) of each, compiled."""
    kind, n = STORAGES[name], variable("n")
    given = tirx.decl_buffer((variable("a"),), "float32", name="given")
    out = tirx.decl_buffer((variable("b"),), "float32", name="out")
    own = tirx.decl_buffer((1,), kind.dtype, name="own", scope="local")

    def one(i: Any) -> list[Any]:
        value = tirx.BufferLoad(given, [i])
        code = kind.encode(value, tirx.const(scale, "float32") if kind.scaled else None)
        return [store(own, tirx.IntImm("int64", 0), code), store(out, i, kind.decode(tirx.BufferLoad(own, [0])))]

    func = function("through", [n, given, out], sequence(tirx.AllocBuffer(own), loop("i", n, one)))
    found = tvm.runtime.tensor(np.full(len(values), 7.0, "float32"))
    generate(tvm.IRModule({"through": func}), host())["through"](len(values), tvm.runtime.tensor(values), found)
    result: np.ndarray = found.numpy()
    return result


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sixteen_bits_are_rounded_to_nearest_even(name: str) -> None:
    values = np.concatenate([VALUES, np.random.default_rng(0).normal(size=1000).astype("float32")])
    np.testing.assert_array_equal(through(name, values), rounded(values, name))


def test_eight_bits_are_rounded_to_nearest_even() -> None:
    values = np.array([0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.6, -127.0, 0.49], "float32")
    np.testing.assert_array_equal(through("int8", values * 0.25, 0.25), [0, 0, 2, 2, 0, -2, 127, -127, 0])


def as_stored(name: str, weight: np.ndarray) -> np.ndarray:
    """A matrix [..., rows, k] as it is read."""
    if name != "int8":
        return rounded(weight, name)
    scale = np.abs(weight).max(-1, keepdims=True) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1 / 127), scale)
    return (np.rint(weight / scale) * scale).astype("float32")


def stored_net(net: rnn.RNN, name: str, matrices: tuple[str, ...]) -> rnn.RNN:
    own = {key: as_stored(name, w) if key.split("_l")[0] in matrices else w for key, w in net.weights.items()}
    again = rnn.RNN(net.cell, net.layers[0].graph.inputs[0].shape[0], net.hidden_size, net.num_layers)
    return again.load(own)


@pytest.mark.broad
@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize(
    ("cell", "matrices"),
    [pytest.param("lstm", ("W", "R"), marks=pytest.mark.slow), ("gru_reset_before", ("W", "R", "R_n"))],
)
def test_the_oracle_of_stored_weights_agrees(name: str, cell: str, matrices: tuple[str, ...]) -> None:
    net = rnn.RNN(rnn.cells.get(cell), 7, 33, 2).init(3)
    net.weights["R_l0"][0, 5] = 0.0  # a row of zeros
    module = rnn.compile(net, weights=name)
    assert module.manifest.weight_dtype == name
    expected = rnn.reference(stored_net(net, name, matrices))
    for batch in (1, 2, 7, 16):
        x = np.random.default_rng(batch).normal(size=(9, batch, 7)).astype("float32")
        y, state = module(x)
        assert_close(y, expected(x)[0], "float32", 9)
        assert_close(state, expected(x)[1], "float32", 9)


@pytest.mark.broad
@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize(
    "cell", ["lstm_projection", *(pytest.param(c, marks=pytest.mark.slow) for c in ("lstm_layer_norm", "mlstm", "rhn"))]
)
def test_other_cells_are_near_their_float32(name: str, cell: str) -> None:
    sizes: dict[str, Any] = {"P": 5} if cell == "lstm_projection" else {"depth": 2} if cell == "rhn" else {}
    net = rnn.RNN(rnn.cells.get(cell), 12, 12, **sizes).init(1)
    x = np.random.default_rng(0).normal(size=(5, 3, 12)).astype("float32")
    error = np.abs(rnn.compile(net, weights=name)(x)[0] - rnn.reference(net)(x)[0]).max()
    assert 0 < error < {"bfloat16": 0.03, "float16": 3e-3, "int8": 0.1}[name]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", WIDENED)
def test_what_is_not_a_number_stays_in_its_unit(name: str) -> None:
    net = rnn.RNN(rnn.cells.elman, 4, 20).init(0)
    net.weights["W_l0"][3, 2] = np.nan
    y, _ = rnn.compile(net, weights=name)(np.ones((1, 2, 4), "float32"))
    assert np.isnan(y[0, :, 3]).all() and np.isfinite(np.delete(y[0], 3, axis=1)).all()


@pytest.mark.broad
def test_loading_other_weights_packs_them_again(tmp_path: Any) -> None:
    net = rnn.RNN(rnn.cells.gru, 6, 18)
    module = rnn.compile(net, weights="int8")
    for seed in (1, 2):
        net.init(seed)
        module.load_weights(net.weights)
        x = np.random.default_rng(seed).normal(size=(4, 2, 6)).astype("float32")
        assert np.abs(module(x)[0] - rnn.reference(net)(x)[0]).max() < 0.02
    path = tmp_path / "m.so"
    module.export(path)
    again = rnn.load(path)
    again.load_weights(net.weights)
    assert np.array_equal(again(x)[0], module(x)[0])


def test_training_keeps_the_dtype() -> None:
    with pytest.raises(ConfigError, match="weights"):
        rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 4), training=True, weights="int8")


def test_float16_needs_a_cpu_that_converts_it() -> None:
    net = rnn.RNN(rnn.cells.lstm, 4, 4)
    with pytest.raises(ConfigError, match=r"float16 weights need a CPU[\s\S]*x86-64, without F16C[\s\S]*bfloat16"):
        rnn.compile(net, "x86-64", weights="float16")
