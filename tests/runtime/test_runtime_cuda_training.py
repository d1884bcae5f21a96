"""Training on a GPU beside the oracle without a GPU: the real kernels and host programs, run by emulator.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulator
import ml_dtypes
import numpy as np
import pytest
from derivatives import Case, draw, named, oracle
from networks import flags, network
from persistent_layers import geometry_of, two_groups

import tvm_rnn as rnn
from tests.cpu.training.test_add_entry_points import normed
from tests.oracle.test_reference import restless
from tvm_rnn.cuda.model import choose_regime
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.errors import InputError
from tvm_rnn.runtime.runtime_cuda_training import CudaTrainingModule, tape_bytes

EXACT = {"bfloat16": ml_dtypes.bfloat16}
# Relative error in the Euclidean norm, of results and of every gradient.
LIMITS = {"bfloat16": 2e-2, "float16": 4e-3, "tf32": 2e-3, "float32": 1e-5, "float64": 1e-12}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def cast(value: Any, dtype: str) -> Any:
    if isinstance(value, dict):
        return {name: cast(part, dtype) for name, part in value.items()}
    if isinstance(value, list):
        return [cast(part, dtype) for part in value]
    return np.asarray(value).astype(EXACT.get(dtype, dtype))


def error(got: Any, expected: np.ndarray) -> float:
    difference = np.asarray(got, np.float64) - expected
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(expected)), 1e-30))


def gradients(net: rnn.RNN, module: Any, case: Case) -> tuple[Any, Any, dict[str, Any]]:
    """y, the last states, and all gradients."""
    x = cast(case.x, net.dtype)
    given = x if len(x) > 1 else next(iter(x.values()))
    y, state, tape = module.forward_train(given, cast(case.state, net.dtype), **case.rows, **case.training)
    return y, state, named(*module.backward(tape, cast(case.gy, net.dtype), cast(case.gstate, net.dtype)))


def check(net: rnn.RNN, module: Any, precision: str, steps: int = 5, batch: int = 3) -> None:
    for rows in ({}, flags(steps, batch)):
        case = draw(net, steps, batch, **rows)
        y, state, found = gradients(net, module, case)
        expected, last = rnn.reference(net)(case.x, case.state, **rows)
        assert error(y, expected) < LIMITS[precision]
        for name, value in last.items():
            for one, other in zip(*(v if isinstance(v, list) else [v] for v in (state[name], value)), strict=True):
                assert error(one, other) < LIMITS[precision], name
        wanted = oracle(net, case)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert error(found[name], value) < LIMITS[precision], name


@pytest.mark.slow
def test_gradients_and_what_a_tape_is_for() -> None:
    """The smallest network: every gradient, twice from one tape; tapes of others, or of other weights, are refused."""
    net = network("elman", 4, 4, dtype="float64")
    module = emulator.compile(net, training=True)
    assert isinstance(module, CudaTrainingModule)
    check(net, module, "float64", 4, 2)
    case = draw(net, 4, 2)
    y, _, tape = module.forward_train(case.x["x"], case.state)
    assert tape.nbytes == 0 and "4 steps of 2 rows" in repr(tape)  # backward reads y, which is the state
    (device,) = module._devices.values()
    assert device.parts["forward_train"].packed and not device.parts["sequence"].packed  # nobody made a plain call
    assert module.forward_train(case.x["x"], case.state, lengths=[4, 3])[2].nbytes > 0  # y has zeros behind the ends
    first, second = (named(*module.backward(tape, case.gy, case.gstate)) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    none = named(*module.backward(tape))
    assert all(not np.any(value) for value in none.values())
    with pytest.raises(InputError, match="not a tape"):
        module.backward(y)
    with pytest.raises(InputError, match="gradient of y has the wrong shape"):
        module.backward(tape, case.gy[1:])
    with pytest.raises(InputError, match="not the module's"):
        module.backward(tape, case.gy, {})
    module.load_weights(net.weights)
    with pytest.raises(InputError, match="other weights"):
        module.backward(tape)
    check(net, module, "float64", 1, 1)
    for size in ((0, 2), (3, 0)):
        empty = draw(net, *size)
        found = gradients(net, module, empty)[2]
        assert found.keys() == oracle(net, empty).keys() and not np.any(found["W_l0"])
        np.testing.assert_array_equal(found["state h 0"], empty.gstate["h"])


CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "lstm-float32": ("lstm", 40, {"dtype": "float32"}),
    "lstm-tf32": ("lstm", 16, {"dtype": "float32", "precision": "tf32"}),
    "lstm-bfloat16": ("lstm", 16, {"dtype": "bfloat16", "num_layers": 2}),
    "gru-bfloat16": ("gru", 8, {"dtype": "bfloat16", "bidirectional": True}),
    "gru-reverse": ("gru", 8, {"dtype": "bfloat16", "reverse": True}),
    "gru-float16": ("gru_reset_before", 7, {"dtype": "float16", "reverse": True}),
    "norm-float16": ("lstm_layer_norm", 24, {"dtype": "float16"}),
    "matrices-float32": ("mlstm", 9, {"dtype": "float32"}),
    "inputs-float32": ("augru", 9, {"dtype": "float32", "num_layers": 2}),
    "exponents-float16": ("slstm", 16, {"dtype": "float16"}),
    "restless-float64": (restless, 5, {"dtype": "float64", "bidirectional": True, "num_layers": 2}),
    "scans-bfloat16": ("sru", 16, {"dtype": "bfloat16"}),
    "quotients-float32": (normed, 5, {"dtype": "float32"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracle_s(name: str) -> None:
    cell, width, options = CASES[name]
    precision = options.get("precision")
    net = network(cell, width, width, **{key: value for key, value in options.items() if key != "precision"})
    check(net, emulator.compile(net, training=True, precision=precision), precision or net.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm-values", "gru-states"])
def test_narrow_tapes(name: str) -> None:
    """Results of forward are those of other tapes, bit for bit; gradients are off by what gates were rounded."""
    cell, keep = name.split("-")
    net = network(cell, 7, 8, dtype="float32")
    whole, narrow = (emulator.compile(net, training=True, keep=kind) for kind in (keep, f"{keep}:bfloat16"))
    assert narrow.manifest["memory"]["keep"] == f"{keep}:bfloat16"
    for rows in ({}, flags(9, 3)):
        case = draw(net, 9, 3, **rows)
        (y, state, found), (same, ends, _) = (gradients(net, module, case) for module in (narrow, whole))
        np.testing.assert_array_equal(y, same)
        assert all(np.array_equal(value, ends[key]) for key, value in state.items())
        for key, value in oracle(net, case).items():
            assert error(found[key], value) < LIMITS["bfloat16"] / 4, key
    first, second = (tape_bytes(module.manifest, 400, 3, False) for module in (narrow, whole))
    assert first < 0.7 * second if cell == "lstm" else first == second  # whose only state products read


@pytest.mark.slow
@pytest.mark.parametrize("cell", rnn.cells.names())
def test_gradients_of_every_cell(cell: str) -> None:
    net = network(cell, 7, 7, dtype="float32")
    check(net, emulator.compile(net, training=True), "float32")


@pytest.mark.slow
def test_runtime_files_alone(tmp_path: Path) -> None:
    """Beside a .so, without the package."""
    net = network("elman", 4, 4)
    emulator.compile(net, training=True).export(tmp_path / "m.so")
    package = Path(rnn.__file__).parent / "runtime"
    for name in (
        "runtime",
        "runtime_cuda",
        "runtime_cuda_training",
        "runtime_training",
        "gpu_arrays",
    ):
        shutil.copy(package / f"{name}.py", tmp_path)
    code = (
        "import numpy as np, runtime\n"
        "m = runtime.load('m.so')\n"
        "y, _, tape = m.forward_train(np.ones((3, 2, 4), 'f4'))\n"
        "assert m.backward(tape, y)[2]['W_l0'].shape == (4, 4)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"FAKE_GPUS": "90"})


def forced(monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> None:
    """Every layer's steps, in both passes, run in that geometry."""

    def choose(layout: Any, target: Any, precision: str, batches: Any, initial: Any, *_: Any) -> list[Any]:
        geometry = geometry_of(choose_regime.step_of(layout), precision, **knobs)
        name = f"persistent_{layout.weights.number}"
        time = two_groups(geometry, target)
        return [choose_regime.Persistent(layout, geometry, "forced", name, None, time, 0.0, initial)]

    monkeypatch.setattr(steps, "choose", choose)


POOLED = {"exchange": "grid", "ctas": 4, "rows": 32, "warps_k": 4, "ring": 3, "together": 2, "pace": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "precision", "knobs"),
    [
        ("gru", "bfloat16", {"exchange": "grid", "ctas": 2, "rows": 16, "warps_k": 2, "register_words": 160}),
        ("lstm", "tf32", {"exchange": "grid", "ctas": 3, "rows": 8, "warps_u": 2, "warps_k": 2, "shared_words": 999}),
        ("lstm", "float16", {"exchange": "cluster", "ctas": 2, "rows": 16, "warps_n": 2, "shared_words": 9999}),
        ("gru", "float32", {"exchange": "cluster", "ctas": 2, "rows": 8, "warps_k": 2, "shared_words": 9999}),
        # Clusters share K; in the backward pass sums of two products, one after the other.
        ("gru_reset_before", "bfloat16", {**POOLED, "apart": 0}),
        ("lstm", "bfloat16", POOLED),
        # Several phases read one input, which a grid copies early.
        ("gru_reset_before", "bfloat16", {"exchange": "grid", "ctas": 2, "rows": 16, "register_words": 160}),
    ],
)
def test_persistent_geometries(cell: str, precision: str, knobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, **knobs)
    net = network(cell, 32, 32, dtype="float32" if precision == "tf32" else precision)
    module = emulator.compile(net, training=True, precision=precision if precision == "tf32" else None)
    assert module.manifest.variants[0]["backward"]["templates"][0]["template"] == "forced"
    check(net, module, precision, batch=11)
