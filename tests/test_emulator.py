"""GPU modules beside the oracle without a GPU: the real kernels and host program, run by emulator.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import e4m3
import emulator
import ml_dtypes
import numpy as np
import pytest
from networks import SPIKING, fitting
from persistent_layers import geometry_of, two_groups

import tvm_rnn as rnn
from tvm_rnn.cuda.gemm import group_kernels
from tvm_rnn.cuda.model import choose_regime
from tvm_rnn.cuda.model.choose_geometry import ChosenGeometry
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan import wave
from tvm_rnn.network.program import NETWORK, Declared, Program, Step
from tvm_rnn.options import PASS_NAMES

T, B = 5, 11
# Relative error in the Euclidean norm.
LIMITS = {"bfloat16": 1e-2, "float16": 2e-3, "tf32": 1e-3, "float32": 1e-5, "float64": 1e-12}
EXACT = {"bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def network(cell: str, width: int, dtype: str, inputs: int = 12, **sizes: Any) -> rnn.RNN:
    net = rnn.RNN(getattr(rnn.cells, cell), input_size=inputs, hidden_size=width, dtype=dtype, **sizes)
    net.init(seed=1)
    return net


def sizes_of(cell: str) -> dict[str, int]:
    """Of axes that are neither I nor H."""
    sizes = {"P": 9, "depth": 2, "Y": 3, "X": 4, "S": 4, "A": 2}
    return {axis: size for axis, size in sizes.items() if axis in rnn.cells.get(cell).size_names}


def check(net: rnn.RNN, mod: Any, precision: str, rows: int = B, count: int = T) -> None:
    """y and the last states, of plain calls, ragged batches and restarts."""
    rng = np.random.default_rng(0)
    every = [emulator.arrays(rng, count, rows, *shape) for shape in net.input_shapes.values()]
    cast = [x.astype(EXACT.get(net.dtype, net.dtype)) for x in every]
    given, x = (cast[0], every[0]) if len(every) == 1 else (tuple(cast), tuple(every))
    held = {name: emulator.arrays(rng, rows, *shape) for name, shape in net.constant_shapes.items()}
    near = {name: value.astype(EXACT.get(net.dtype, net.dtype)) for name, value in held.items()}
    lengths = rng.integers(0, count + 1, rows)
    for more in ({}, {"lengths": lengths, "reset": rng.random((count, rows)) < 0.3}):
        more = fitting(net, more)
        y, state = mod(given, **near, **more)
        expected, last = rnn.reference(net)(x, **held, **more)
        assert error(y, expected) < LIMITS[precision]
        for name, value in state.items():
            assert error(value, last[name]) < LIMITS[precision], name


def error(got: Any, expected: np.ndarray) -> float:
    """What float16 cannot hold (an initial state of -1e30 that nothing has touched) is infinite there."""
    values = np.asarray(got, np.float64)
    held = np.isfinite(values) | (np.abs(expected) < np.finfo(np.float16).max)
    difference = (values - expected)[held]
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected[held]), 1e-30))


def forced(monkeypatch: pytest.MonkeyPatch, exchange: str, **knobs: int) -> None:
    """Every layer runs in that geometry."""

    def choose(layout: Any, target: Any, precision: str, batches: Any, initial: Any, *_: Any) -> list[Any]:
        geometry = geometry_of(choose_regime.step_of(layout), precision, exchange, **knobs)
        time = two_groups(geometry, target)
        return [choose_regime.Persistent(layout, geometry, "forced", "forced", None, time, 0.0, initial)]

    monkeypatch.setattr(steps, "choose", choose)


GEOMETRIES = {
    "cluster, rows shared, weights in shared memory": (
        ("lstm", 64, "bfloat16", None),
        {"ctas": 2, "rows": 16, "warps_u": 2, "warps_n": 2, "warps_k": 2, "register_words": 32, "shared_words": 4096},
    ),
    "cluster in float32, two passes": (
        ("gru_reset_before", 40, "float32", None),
        {"ctas": 2, "rows": 16, "warps_k": 2, "passes": 2, "register_words": 32, "shared_words": 4096},
    ),
    "block, rows and K shared": (
        ("gru_reset_before", 40, "bfloat16", None),
        {"rows": 16, "warps_u": 2, "warps_n": 2, "warps_k": 2, "register_words": 160, "shared_words": 4096},
    ),
    "block, in float32, sums over units": (
        ("lstm_layer_norm", 24, "float32", None),
        {"warps_u": 3, "warps_k": 2, "register_words": 32, "shared_words": 4096},
    ),
    "grid, a pipeline, clusters of two": (
        ("lstm", 64, "bfloat16", None),
        {"ctas": 4, "rows": 8, "warps_u": 2, "warps_k": 4, "register_words": 8, "ring": 2, "together": 2},
    ),
    "grid, a pipeline, in tf32": (
        ("gru_reset_before", 40, "float32", "tf32"),
        {"ctas": 3, "rows": 16, "warps_u": 2, "warps_k": 4, "register_words": 16, "shared_words": 8, "ring": 3},
    ),
    "grid, clusters share K": (
        ("lstm", 64, "float32", "tf32"),
        {"ctas": 8, "rows": 32, "warps_k": 4, "register_words": 8, "ring": 3, "together": 2, "pace": 1},
    ),
    "grid, two passes": (
        ("gru", 64, "float16", None),
        {"ctas": 2, "rows": 16, "warps_k": 2, "passes": 2, "register_words": 32, "shared_words": 256},
    ),
    "grid, polled": (
        ("gru", 96, "float32", "tf32"),
        {"ctas": 3, "rows": 8, "warps_u": 2, "warps_k": 2, "polled": 1, "register_words": 160},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_persistent_geometry_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell, width, dtype, precision), knobs = GEOMETRIES[name]
    forced(monkeypatch, name.split()[0].strip(","), **knobs)
    net = network(cell, width, dtype)
    check(net, emulator.compile(net, batch=[B], precision=precision), precision or dtype)


SHORT: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "one layer": ("elman", 40, "bfloat16", {}),
    "gates": ("lstm", 40, "bfloat16", {}),
    "a stack": ("gru", 40, "float32", {"num_layers": 2}),
    "both directions": ("gru_reset_before", 40, "bfloat16", {"num_layers": 2, "bidirectional": True}),
    "rows that products read copies of": ("lstm", 37, "bfloat16", {"num_layers": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_calls_of_a_few_steps_go_step_by_step(name: str) -> None:
    """On both sides of the limit, with states given, ragged batches and restarts: what one call leaves the next may
    begin with, whichever way it goes."""
    cell, width, dtype, form = SHORT[name]
    net = network(cell, width, dtype, **form)
    exact = EXACT.get(dtype, dtype)
    module, rng = emulator.compile(net, least=3, batch=[B]), np.random.default_rng(0)
    assert {row.get("least_steps") for row in module.manifest.templates if "most" in row} >= {3}
    state = {key: emulator.arrays(rng, *value.shape) for key, value in module.init_state(B).items()}
    for count in (1, 2, 3, 4):
        x = emulator.arrays(rng, count, B, 12)
        masks: dict[str, Any] = {"lengths": rng.integers(0, count + 1, B), "reset": rng.random((count, B)) < 0.3}
        for more in ({}, {"lengths": masks["lengths"]}, masks):
            given = {key: value.astype(exact) for key, value in state.items()}
            y, last = module(x.astype(exact), given, **more)
            expected, after = rnn.reference(net)(x, state, **more)
            assert error(y, expected) < LIMITS[dtype], (count, more.keys())
            assert all(error(last[key], value) < LIMITS[dtype] for key, value in after.items())


@pytest.mark.broad
def test_states_that_are_read_before_the_step_before_has_written_them_are_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If every one of a few steps is told that its states are there, as only the first one's are."""
    launch = steps.launch

    def given(host: Any, work: Any, pointers: Any, rows: Any) -> None:
        launch(host, work, pointers, replace(rows, given="true") if rows.given else rows)

    monkeypatch.setattr(steps, "launch", given)
    module = emulator.compile(network("gru", 24, "bfloat16"), least=9, batch=[67])
    with pytest.raises(rnn.DeviceError):
        module(emulator.arrays(np.random.default_rng(0), 3, 67, 12).astype(ml_dtypes.bfloat16))
    assert "reads before griddepcontrol.wait what a launch before it writes" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["cluster", "grid"])
def test_what_whole_rounds_leave_of_a_batch_runs_in_a_smaller_kernel(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 rows 16 in one round of two groups; 4 by the kernel for up to 8 rows, which has a product of its own."""

    def choose(layout: Any, target: Any, precision: str, batches: Any, initial: Any, *_: Any) -> list[Any]:
        def made(name: str, most: int | None, warps: int) -> Any:
            shape = {"ctas": 2, "rows": 8, "warps_u": 2, "warps_n": 1, "warps_k": warps, "register_words": 64}
            geometry = geometry_of(choose_regime.step_of(layout), precision, exchange, **shape)
            time = two_groups(geometry, target)
            return choose_regime.Persistent(layout, geometry, "forced", name, most, time, 0.0, initial)

        return [made("small", 8, 2), made("large", None, 1)]

    monkeypatch.setattr(steps, "choose", choose)
    net = network("lstm", 32, "bfloat16")
    mod = emulator.compile(net)
    check(net, mod, "bfloat16", rows=20)
    check(net, mod, "bfloat16", rows=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "inputs"),
    [("float64", 7, 5), *(pytest.param(d, 33, 7, marks=pytest.mark.slow) for d in ("float64", "float32", "bfloat16"))],
)
def test_rows_of_odd_lengths(dtype: str, width: int, inputs: int) -> None:
    """No row begins at a multiple of 16 bytes."""
    net = network("elman", width, dtype, inputs)
    check(net, emulator.compile(net, batch=[B]), dtype)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "dtype"), [pytest.param("gru", "float32", marks=pytest.mark.slow), ("lstm", "float64")]
)
def test_step_by_step_with_equal_sizes(cell: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Input and recurrent weights of one shape: once they shared a packed buffer."""
    monkeypatch.setattr(steps, "choose", lambda *_: [])
    net = network(cell, 40, dtype, inputs=40)
    check(net, emulator.compile(net, batch=[3]), dtype, rows=3)


@pytest.mark.slow
def test_weights_in_8_bits() -> None:
    """Made of what the user gives: in the file, later, and where a row is not finite; in a wave."""
    net = network("gru", 16, "bfloat16", num_layers=2, inputs=16)
    mod = emulator.compile(net, batch=[B], weights="float8_e4m3")
    assert mod.manifest.weight_dtype == "float8_e4m3"
    units = [row["unit"] for row in mod.manifest.templates if row["template"] == "persistent_cluster_cuda"]
    assert "2 layers in a wave" in units[0] and len(units) > 1
    check(e4m3.network(net), mod, "bfloat16")
    other = net.init(seed=2)
    mod.load_weights(other.weights)
    check(e4m3.network(other), mod, "bfloat16")
    other.weights["W_l1"][1, 3, 5] = np.inf
    mod.load_weights(other.weights)
    y, _ = mod(emulator.arrays(np.random.default_rng(0), T, B, 16).astype(ml_dtypes.bfloat16))
    assert np.flatnonzero(np.isnan(np.asarray(y[0], np.float32)).any(0)).tolist() == [3]


@pytest.mark.slow
def test_weights_in_8_bits_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that read 16-bit weights multiply by the same numbers."""
    monkeypatch.setattr(steps, "choose", lambda *_: [])
    net = network("elman", 24, "float16")
    mod = emulator.compile(net, batch=[B], weights="float8_e4m3")
    check(e4m3.network(net), mod, "float16")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("cell", [n for n in rnn.cells.names() if n not in SPIKING])
def test_every_cell_with_weights_in_8_bits(cell: str, precision: str) -> None:
    net = network(cell, 17, precision, inputs=7, **sizes_of(cell))
    check(e4m3.network(net), emulator.compile(net, batch=[3], weights="float8_e4m3"), precision, rows=3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32", "float32", "float64"])
@pytest.mark.parametrize("cell", rnn.cells.names())
def test_every_cell_as_chosen(cell: str, precision: str) -> None:
    if cell in SPIKING and precision in ("bfloat16", "float16", "tf32"):
        pytest.skip("rounding turns spikes over")
    dtype = "float32" if precision == "tf32" else precision
    net = network(cell, 17, dtype, inputs=7, **sizes_of(cell))
    check(net, emulator.compile(net, batch=[3], precision=precision), precision, rows=3)


@rnn.cell(states="h v")
def places(x: "I", h: "H", v: "H", *, W: "H I", R: "H H"):
    """Orders and sums along an axis, views of it, and spikes."""
    z = W @ x + R @ h
    ranked = rnn.sort(z, descending=True) + rnn.cumsum(z)[::-1] + rnn.cumprod(rnn.tanh(z)) + 0.1 * rnn.argmax(z)
    y = rnn.tanh(ranked) + rnn.concat([rnn.topk(z, 3)[0], z[[0, 2, 4, 3]], z[::2][1:3]]) % 0.7 + rnn.logsumexp(z)
    return 0.1 * y + rnn.floor(z) * rnn.one_hot(rnn.argmax(-z), 9), rnn.fast_sigmoid_spike(0.9 * v + z)


@pytest.mark.slow
def test_orders_and_spikes() -> None:
    net = rnn.RNN(places, 5, 9, dtype="float64").init(seed=2)
    check(net, emulator.compile(net, batch=[3]), "float64", rows=3)


@rnn.cell
def looking_up(x: "I", h: "H", *, E: "I D", W: "H D", R: "H H", S: "H H", b: "H"):
    """Rows of tables at places of the input, before all steps, and of the state, inside of each."""
    place = rnn.argmax(h)
    return rnn.tanh(W @ E[rnn.argmax(x)] + R @ S[place] + 0.5 * h + b[place] * S[place])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_rows_of_tables(dtype: str) -> None:
    net = rnn.RNN(looking_up, 5, 9, D=4, dtype=dtype).init(seed=2)
    check(net, emulator.compile(net, batch=[3]), dtype, rows=3)


@pytest.mark.broad
def test_constants() -> None:
    """Attention over a memory, which every step reads where the call has put it."""
    net = network("lstm_attention", 9, "float32", inputs=5, S=3)
    check(net, emulator.compile(net, batch=[3]), "float32", rows=3)


HEADS = {"N": 2, "M": 3, "K": 5}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("cell", [n for n in rnn.cells.names() if set(HEADS) & set(rnn.cells.get(n).size_names)])
def test_every_cell_with_heads(cell: str, precision: str) -> None:
    sizes = {axis: size for axis, size in HEADS.items() if axis in rnn.cells.get(cell).size_names}
    net = network(cell, 9, precision, inputs=7, **sizes)
    check(net, emulator.compile(net, batch=[3]), precision, rows=3)


WAVES = {
    "clusters": ("lstm", 32, "bfloat16", None, {"num_layers": 2, "inputs": 16}),
    "clusters of layers of one size": ("gru", 64, "float16", None, {"num_layers": 2, "inputs": 64}),
    "tf32": ("lstm_peephole", 32, "float32", "tf32", {"num_layers": 2, "inputs": 12}),
    "norms of inputs": ("lstm_layer_norm", 32, "bfloat16", None, {"num_layers": 2, "inputs": 24}),
    "an odd width": ("lstm", 27, "bfloat16", None, {"num_layers": 3, "inputs": 9}),
    "an even width": ("gru", 30, "float16", None, {"num_layers": 2, "inputs": 11}),
    "products of a long input before it": ("elman", 21, "bfloat16", None, {"num_layers": 2, "inputs": 1401}),
    "an odd width in tf32": ("elman", 31, "float32", "tf32", {"num_layers": 3, "inputs": 5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clusters", *(pytest.param(n, marks=pytest.mark.slow) for n in list(WAVES)[1:])])
def test_layers_in_a_wave(name: str) -> None:
    cell, width, dtype, precision, sizes = WAVES[name]
    net = network(cell, width, dtype, **sizes)
    mod = emulator.compile(net, batch=[B], precision=precision)
    assert any("layers in a wave" in row["unit"] for row in mod.manifest.templates)
    for count in (T, 2):
        check(net, mod, precision or dtype, count=count)


@pytest.mark.slow
@pytest.mark.parametrize("done", range(len(PASS_NAMES)))
def test_passes_that_are_left_out_change_no_result(done: int) -> None:
    """One more at a time, as the ablation has them: layers one after the other, and no wave in any of them."""
    net = network("lstm", 32, "bfloat16", num_layers=3, inputs=16)
    mod = emulator.compile(net, batch=[B], without=PASS_NAMES[done:])
    assert not any("layers in a wave" in row["unit"] for row in mod.manifest.templates)
    check(net, mod, "bfloat16")


@pytest.mark.slow
def test_a_gpu_without_room_for_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers run one after the other."""
    monkeypatch.setenv("FAKE_BLOCKS", "0")
    net = network("lstm", 32, "bfloat16", num_layers=2, inputs=16)
    mod = emulator.compile(net, batch=[B])
    assert any("layers in a wave" in row["unit"] for row in mod.manifest.templates)
    check(net, mod, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 29])
def test_a_wave_in_a_grid(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def best(step: Any, *_: Any) -> ChosenGeometry:
        geometry = geometry_of(
            step, "bfloat16", "grid", 2, 16, warps_u=1, warps_k=2, register_words=64, shared_words=192, ahead=1
        )
        return ChosenGeometry(0.5, "persistent_grid_cuda", geometry, "forced")

    monkeypatch.setattr(wave, "choose_geometry", best)
    net = network("gru_reset_before", width, "bfloat16", inputs=16, num_layers=2)
    mod = emulator.compile(net, batch=[B])
    assert any("layers in a wave" in row["unit"] for row in mod.manifest.templates)
    check(net, mod, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("staged", [0, 1])
def test_a_batch_in_several_waves(staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row more than a launch takes is one more launch, of the wave for the fewest rows; lengths and resets too."""

    def best(step: Any, part: Any, precision: str, batch: int, *_: Any) -> ChosenGeometry:
        knobs = {"warps_u": 1, "warps_k": 2, "register_words": 64, "shared_words": 192, "ahead": 1}
        if staged and batch > 8:
            knobs |= {"warps_u": 4, "staged": 1, "register_words": 32, "shared_words": 1 << 20}
        geometry = geometry_of(step, "bfloat16", "grid", 2, 8 if batch <= 8 else 16, **knobs)
        return ChosenGeometry(0.01, "persistent_grid_cuda", geometry, "forced")

    monkeypatch.setattr(wave, "choose_geometry", best)
    monkeypatch.setattr(wave, "resident_groups", lambda geometry, part: 1)
    net = network("lstm" if staged else "gru_reset_before", 61 if staged else 29, "bfloat16", inputs=128, num_layers=2)
    mod = emulator.compile(net, batch=[8, 16, 48])
    rows = [row for row in mod.manifest.templates if "layers in a wave" in row["unit"]]
    assert [row["most"] for row in rows] == [8, 48]
    for batch in (17, 33, 48):
        check(net, mod, "bfloat16", rows=batch)


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 61])
def test_a_wave_of_staged_operands(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of two graphs that look for the values of the layer below; two groups of rows."""

    def best(step: Any, *_: Any) -> ChosenGeometry:
        knobs = {"warps_u": 4, "warps_k": 2, "staged": 1, "register_words": 32, "shared_words": 1 << 20, "ahead": 1}
        geometry = geometry_of(step, "bfloat16", "grid", 2, 8, **knobs)
        return ChosenGeometry(0.5, "persistent_staged_cuda", geometry, "forced")

    monkeypatch.setattr(wave, "choose_geometry", best)
    net = network("lstm", width, "bfloat16", inputs=128, num_layers=3)
    mod = emulator.compile(net, batch=[B])
    assert any("3 layers in a wave" in row["unit"] for row in mod.manifest.templates)
    check(net, mod, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_a_wave_in_strict_float32(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that only fill up a block, blocks of K that end early, a slice of rows past the batch."""

    def best(step: Any, *_: Any) -> ChosenGeometry:
        geometry = geometry_of(step, "float32", "grid", 2, 8, warps_k=2, register_words=0, polled=1, fma=2)
        return ChosenGeometry(0.5, "persistent_fma_cuda", geometry, "forced")

    monkeypatch.setattr(wave, "choose_geometry", best)
    net = network(cell, 12, "float32", inputs=20, num_layers=3)
    mod = emulator.compile(net, batch=[B])
    assert any("3 layers in a wave" in row["unit"] for row in mod.manifest.templates)
    check(net, mod, "float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "width", "shape"),
    [
        pytest.param("lstm", 40, {"units": 5, "high": 4, "split": 2, "cluster": 2}, marks=pytest.mark.slow),
        pytest.param("lstm", 72, {"units": 2, "high": 8, "split": 4, "cluster": 1}, marks=pytest.mark.slow),
        ("gru", 33, {"units": 4, "high": 4, "split": 2, "cluster": 4}),
        pytest.param("lstm", 144, {"units": 1, "high": 8, "split": 4, "cluster": 2}, marks=pytest.mark.slow),
    ],
)
def test_large_steps_in_float32(cell: str, width: int, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that shares K over blocks and warps, at sizes that an emulator can take."""
    knobs = {"units": shape["units"], "share": 64, "share_from": 0, "share_stages": 4}
    knobs |= {f"share_{name}": value for name, value in shape.items() if name != "units"}
    found = group_kernels.best

    def best(unit: Any, target: Any, record: Any = None) -> Any:
        template, own, _ = found(unit, target, {"units": shape["units"]} if unit.region == "step" else None)
        return template, {**own, **knobs} if unit.region == "step" else own, "forced"

    monkeypatch.setattr(steps, "choose", lambda *_: [])
    monkeypatch.setattr(group_kernels, "best", best)
    net = network(cell, width, "float32", inputs=24)
    check(net, emulator.compile(net, batch=[B]), "float32")


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "precision", "shape"),
    [
        ("lstm", "bfloat16", {"columns": 64, "cluster": 2, "kept": 50}),
        pytest.param("gru", "tf32", {"columns": 48, "cluster": 2, "overlap": 1}, marks=pytest.mark.slow),
        pytest.param("lstm", "float16", {"columns": 64, "cluster": 4, "along": 2}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("rows", [B, pytest.param(70, marks=pytest.mark.slow)])
def test_large_steps(
    cell: str, precision: str, shape: dict[str, int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels that share K over a cluster, at sizes that an emulator can take."""
    knobs = {"share": 128, "share_from": 0, "share_bytes": 120_000}
    knobs |= {f"share_{name}": value for name, value in {"along": 1, "kept": 0, "overlap": 2, **shape}.items()}
    found = group_kernels.best

    def best(unit: Any, target: Any, record: Any = None) -> Any:
        template, own, _ = found(unit, target, record)
        return template, {**own, **knobs} if unit.region == "step" else own, "forced"

    monkeypatch.setattr(steps, "choose", lambda *_: [])
    monkeypatch.setattr(group_kernels, "best", best)
    net = network(cell, 72, "float32" if precision == "tf32" else precision, inputs=24)
    check(net, emulator.compile(net, batch=[rows], precision=precision), precision, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_reverse_direction_and_a_whole_model(dtype: str) -> None:
    """Layers of the reverse direction alone, with a softmax behind them that the runtime computes."""
    net = network("gru", 32, dtype, num_layers=2, reverse=True)
    network_step = Step(NETWORK, ("x", "n", "", ""), ("y", "h0", "h1"), {"network": 0})
    steps = (network_step, Step("Softmax", ("y",), ("p",), {"axis": -1}))
    inputs = (Declared("x", dtype, ("T", "B", 12)), Declared("n", "int32", ("B",)))
    net.program = Program(inputs, (Declared("p", dtype, None),), steps, {})
    mod = emulator.compile(net)
    check(net, mod, dtype)
    given = {"x": emulator.arrays(np.random.default_rng(0), T, B, 12).astype(dtype), "n": np.full(B, 3, "i4")}
    found = mod.run(given)["p"]
    assert found.dtype == dtype and error(found, rnn.reference(net).run(given)["p"]) < LIMITS[dtype]


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("cell", "width", "dtype", "precision", "sizes"),
    [
        ("lstm", 18, "bfloat16", "bfloat16", {"inputs": 13}),
        ("gru", 24, "float32", "tf32", {"num_layers": 2}),
        ("elman", 10, "float32", "float32", {"bidirectional": True}),
    ],
)
def test_a_first_step_from_no_states(
    cell: str, width: int, dtype: str, precision: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is multiplied with states that are 0; what is infinite or NaN in a parameter shows all the same."""
    net = network(cell, width, dtype, **sizes)
    mod = emulator.compile(net, batch=[B], **({} if precision == dtype else {"precision": precision}))
    assert mod.manifest.variants[0].tells_starts
    told, launch = [], type(mod)._launch
    monkeypatch.setattr(
        type(mod), "_launch", lambda self, p, a, s, y, rest: told.append(rest[-1]) or launch(self, p, a, s, y, rest)
    )
    check(net, mod, precision, count=1)
    assert told == [1, 1]
    mod(
        emulator.arrays(np.random.default_rng(2), 1, B, *net.input_shapes["x"]).astype(EXACT.get(dtype, dtype)),
        mod.init_state(B),
    )
    assert told.pop() == 0
    name = next(name for name in net.weights if name.startswith("R"))
    net.weights[name].flat[5] = np.inf
    mod.load_weights(net.weights)
    x = emulator.arrays(np.random.default_rng(4), 1, B, *net.input_shapes["x"])
    y, _ = mod(x.astype(EXACT.get(dtype, dtype)))
    expected, _ = rnn.reference(net)(x)
    np.testing.assert_array_equal(np.isnan(np.asarray(y, np.float64)), np.isnan(expected))
    assert told.pop() == 0 and np.isnan(expected).any()
