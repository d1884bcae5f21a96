"""Recurrences over all time on a GPU without one: modules beside the oracle, in one chunk of time and in several.

In: cells whose states are linear, all of them or some, in layers, both ways, in tiles of time. Out: the oracle's
outputs and last states, with lengths, resets and states given.
"""

from __future__ import annotations

from typing import Any

import emulator
import ml_dtypes
import numpy as np
import pytest
from linear_cells import OWN, exact

import tvm_rnn as rnn
from tvm_rnn import cell, sigmoid, tanh
from tvm_rnn.cuda.linear import segments, vector_scan
from tvm_rnn.cuda.plan import network as plan
from tvm_rnn.oracle.tolerance import assert_close

EXACT = {"bfloat16": ml_dtypes.bfloat16}


@cell(states="h c", output="h", initial={"c": 0.5})
def led(x: "I", h: "H", c: "H", *, W: "3 H I", R: "H H"):
    """A state with a product, led by a linear one that starts at 0.5."""
    f, u, g = W @ x
    c = sigmoid(f) * c + u
    return tanh(g + c + R @ h), c


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(vector_scan, "LEAST_SPAN", 3)  # chunks of few steps


def check(own: Any, dtype: str = "float32", steps: int = 41, width: int = 7, **options: Any) -> Any:
    """Plain calls of one step and of many, and ragged ones with resets, from a state that is given."""
    if isinstance(own, str):
        own = OWN[own][0] if own in OWN else rnn.cells.get(own)
    sizes = {axis: 2 for axis in ("N", "P") if axis in own.size_names}
    net = exact(rnn.RNN(own, 5 if "I" in own.size_names else width, width, dtype=dtype, **sizes, **options).init(2))
    module, rng = emulator.compile(net), np.random.default_rng(steps)
    for T, B, ragged in ((1, 2, False), (steps, 1, False), (steps, 3, True)):
        held = EXACT.get(dtype, dtype)
        x = rng.integers(-2, 3, (T, B, net.input_size)).astype(held)
        state = {name: rng.normal(size=v.shape).astype(held) for name, v in net.initial_state(B).items()}
        more: dict[str, Any] = {}
        if ragged:
            more = {"lengths": np.array([T, T // 2, 0]), "reset": rng.random((T, B)) < 0.1}
        y, last = module(x, state, **more)
        wide = {name: value.astype("float64") for name, value in state.items()}
        expected, states = rnn.reference(net)(x.astype("float64"), wide, **more)
        assert_close(np.asarray(y, "float64"), expected, dtype, T, "y")
        assert_close({n: np.asarray(v, "float64") for n, v in last.items()}, states, dtype, T, "states")
    return module


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("name", "options"), [("min_gru", {}), ("lru", {"reverse": True}), ("min_lstm", {})])
def test_chunks_that_are_read_once(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]) -> None:
    """Also where a GPU has that many blocks at once that a group has more chunks than warps wait for at once."""
    monkeypatch.setattr(vector_scan, "AWAITED", 50)
    check(name, steps=3 * 64 + 13, **options)


CELLS = ("min_gru", "min_lstm", "t_rnn", "rg_lru", "lru", "s5")
# Matrices in chunks where they are stored in 16 bits and written along one key, else step by step in one launch.
MATRICES = ("delta_net", "gated_delta_net", "gated_delta_net_conv", "mamba2", "mamba2_conv", "mlstm", "mlstm_capped")
MATRICES += ("retnet", "retnet_rotary", "rwkv7", "gla", "hgrn2", "delta_by_key", "corrected_twice")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "dtype"), [("min_gru", "float32"), ("gla", "float32"), ("corrected_twice", "float32")]
)
def test_cells(name: str, dtype: str) -> None:
    check(name, dtype)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MATRICES[1:])
def test_heads_in_registers(name: str) -> None:
    """Of 32 elements: what is made of them before and after the steps stays in a warp."""
    check(name, steps=9, width=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CELLS, *MATRICES])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_cell(name: str, dtype: str) -> None:
    check(name, dtype, steps=23)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gated_delta_net", "float16"),
        ("gla", "bfloat16"),
        ("retnet", "bfloat16"),
        ("hgrn2", "float16"),
        ("given_delta", "bfloat16"),
        ("delta_by_key", "bfloat16"),
        ("gated_delta_net_conv", "float16"),
    ],
)
def test_matrices(name: str, dtype: str) -> None:
    module = check(name, dtype, steps=75)  # a chunk, and a part of one
    assert "chunk_scan_cuda" in {row["template"] for row in module.manifest["templates"]}


@pytest.mark.slow
def test_matrices_in_float64() -> None:
    """One step after the other: kernels over all time compute in float32."""
    check("retnet", "float64", steps=9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("gated_delta_net", "bfloat16"), ("mlstm", "float16"), ("gla", "float16")])
def test_matrices_in_segments(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    monkeypatch.setattr(segments, "LEAST", 2)
    check(name, dtype, steps=4 * 64 + 5)


@pytest.mark.slow
def test_layers_both_ways() -> None:
    check("min_gru", num_layers=2, bidirectional=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_layers": 3}, {"reverse": True}, {"num_layers": 2, "reverse": True}])
def test_layers(options: dict[str, Any]) -> None:
    check("lru", **options)


@pytest.mark.slow
@pytest.mark.parametrize("own", ["lru", "led", "driven"])
def test_tiles_hand_states_on(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """A tile of an even and of an odd number of steps: of 16 for one row, of 5 for three."""
    monkeypatch.setattr(plan, "HOISTED_BYTES", 1 << 11)
    check(led if own == "led" else own)
