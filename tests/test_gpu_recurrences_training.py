"""Training of recurrences over all time on a GPU without one: gradients beside the oracle's, in chunks and tiles.

In: cells whose states are linear, all of them or some, in layers, both ways, in parts of the time. Out: the oracle's
outputs, last states and gradients, with lengths, resets and states given; the same bits from one tape.
"""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import draw, named, oracle
from linear_cells import OWN, exact
from networks import flags
from test_gpu_recurrences import led

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, cast, check, error, gradients
from tvm_rnn import cell, sigmoid, tanh
from tvm_rnn.bench.suites import neurons
from tvm_rnn.cuda.layer.made_again import EVERY as EVERY_STEPS
from tvm_rnn.cuda.linear import vector_scan
from tvm_rnn.cuda.plan import network as plan
from tvm_rnn.cuda.training import plan_backward
from tvm_rnn.passes import parallelise_time
from tvm_rnn.runtime.runtime_cuda_training import CudaSegmentedTape
from tvm_rnn.runtime.runtime_memory import plan_of


@cell(states="h c", output="c")
def summing(x: "I", h: "H", c: "H", *, W: "2 H I", R: "H H"):
    """A state that goes step by step drives a linear one: forward neither leaves the loop, backward the linear one."""
    f, u = W @ x
    h = tanh(u + R @ h)
    return h, sigmoid(f) * c + h


@cell(states="v a", output="y")
def pushed(x: "H", v: "H", a: "H", *, tau: "H"):
    """Pointwise work alone: two states that read each other, and a parameter for each unit."""
    v = sigmoid(tau) * tanh(v) + x - a
    return v, 0.5 * a + 0.2 * tanh(v), v * a


@cell(states="v a", output="y")
def pushing(x: "H", v: "H", a: "H"):
    """The same without a parameter."""
    v = 0.9 * tanh(v) + x - a
    return v, 0.5 * a + 0.2 * tanh(v) * x, v * a


MINE = {"led": led, "driven": OWN["driven"][0], "summing": summing}
POINTWISE = {"pushed": pushed, "pushing": pushing}
OTHERS = {name: own for name, (own, _) in OWN.items()}
EVERY = {"dropout": 0.4, "zoneout": 0.2}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(vector_scan, "LEAST_SPAN", 3)  # chunks of few steps


def network(name: str, dtype: str = "float32", width: int = 7, **options: Any) -> rnn.RNN:
    own = MINE.get(name) or POINTWISE.get(name) or OTHERS.get(name) or neurons.CELLS.get(name) or rnn.cells.get(name)
    sizes = {axis: 2 for axis in ("N", "P") if axis in own.size_names}
    return exact(rnn.RNN(own, 5 if "I" in own.size_names else width, width, dtype=dtype, **sizes, **options).init(2))


def scans(module: Any) -> list[list[str]]:
    """What runs over all time in forward_train and in backward."""
    variant = module.manifest["variants"][0]
    return [
        [row["unit"] for row in variant[way]["templates"] if row["template"] == "vector_scan_cuda"]
        for way in ("forward_train", "backward")
    ]


PAIRS = [("min_gru", "bfloat16", 66)]  # two elements of a thread


def trained(name: str, dtype: str = "float32", steps: int = 41, width: int = 7) -> list[list[str]]:
    """Every result and gradient is the oracle's. Returns what runs over all time."""
    net = network(name, dtype, width)
    module = emulator.compile(net, training=True)
    check(net, module, dtype, steps)
    return scans(module)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("name", "dtype", "width"), [("min_gru", "float32", 7), ("lru", "bfloat16", 7), *PAIRS])
def test_gradients(name: str, dtype: str, width: int) -> None:
    assert all(trained(name, dtype, width=width))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["min_gru", "min_lstm", "t_rnn", "rg_lru", "lru", "s5", *MINE, "mlstm"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_gradients_of_every_cell(name: str, dtype: str) -> None:
    """Some states of the last ones stay in the loop, in either pass."""
    forward, backward = trained(name, dtype, steps=23)
    assert bool(forward) == (name != "summing") and bool(backward) == (name != "led")


MATRICES = {  # in 16 bits they are made again in whole parts, or in blocks of steps
    "gated_delta_net": "bfloat16",
    "rwkv7": "float16",
    "gla": "float16",
    "mlstm": "bfloat16",
    "retnet": "bfloat16",
    "mamba2": "bfloat16",
    "hgrn2": "float16",
    "delta_net": "float16",
    "corrected_twice": "bfloat16",
    "given_delta": "bfloat16",
    "gated_delta_net_conv": "float16",
    "mamba2_conv": "bfloat16",
}


def without_steps(module: Any) -> bool:
    """Whether matrices and what is made again of them go over all time, in both passes."""
    units = [
        row["unit"] for way in ("forward_train", "backward") for row in module.manifest["variants"][0][way]["templates"]
    ]
    recurrences, again = (sum(kind in unit for unit in units) for kind in ("scan_matrix", "rescan"))
    return recurrences == 2 * again > 0 and not any(unit.startswith("step ") for unit in units)


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("half", [False, True])
def test_matrices(name: str, half: bool) -> None:
    """Two parts of the time, in each of which a matrix is kept."""
    net = network(name, MATRICES[name] if half else "float32")
    module = emulator.compile(net, training=True)
    assert without_steps(module)
    check(net, module, net.dtype, 70)


@pytest.mark.slow
def test_matrices_in_layers_tiles_and_parts_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of the fewest steps that there are; then, of the same module, calls that go through time in parts."""
    monkeypatch.setattr(plan, "HOISTED_BYTES", 1 << 11)
    monkeypatch.setattr(plan_backward, "HOISTED_BYTES", 1 << 11)
    net = network("gated_delta_net", num_layers=2)
    module = emulator.compile(net, training=True)
    assert without_steps(module)
    check(net, module, net.dtype, 150, 2)
    in_parts(monkeypatch, net, module, 90, 2, (40,))


@pytest.mark.slow
def test_a_product_reads_a_feature_that_is_one_number() -> None:
    """What is kept as one number per row is float32; a product over all steps reads it in 16 bits."""
    net = network("lru", "bfloat16", width=1)
    check(net, emulator.compile(net, training=True), "bfloat16", 11)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["states", "values", "values:bfloat16"])
def test_what_is_kept(keep: str) -> None:
    net = network("min_gru")
    module = emulator.compile(net, training=True, keep=keep)
    for rows in ({}, flags(23, 3)):
        case = draw(net, 23, 3, **rows)
        found = gradients(net, module, case)[2]
        for name, value in oracle(net, case).items():
            assert error(found[name], value) < LIMITS["bfloat16" if "bfloat16" in keep else "float32"], name


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "reverse": True},
        {"num_layers": 3},
        {"width": 8, "num_layers": 2},  # y is a tape of states
        {"num_layers": 2, **EVERY},
    ],
    ids=["both", "reverse", "layers", "shared", "masks"],
)
@pytest.mark.parametrize("name", ["min_gru", "lru"])
def test_layers(name: str, options: dict[str, Any]) -> None:
    net = network(name, **options)
    module = emulator.compile(net, training=True)
    assert all(scans(module))
    more = {"seed": 7, "first_step": 3} if net.regularisers else {}
    for rows in ({}, flags(23, 3)):
        case = draw(net, 23, 3, **rows)
        case.training.update(more)
        y, _, found = gradients(net, module, case)
        assert error(y, rnn.reference(net, **case.training)(case.x, case.state, **rows)[0]) < LIMITS["float32"]
        for name, value in oracle(net, case).items():
            assert error(found[name], value) < LIMITS["float32"], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("brc", "float32", {"num_layers": 2, "bidirectional": True}),
        ("brc", "bfloat16", {"reverse": True}),
        ("indrnn", "float32", {"num_layers": 2}),
        ("lif_neuron", "float64", {}),  # a spike is a spike in either
    ],
)
def test_steps_without_products_are_one_launch(name: str, dtype: str, options: dict[str, Any]) -> None:
    """Forward no state is linear: a thread for each unit takes all steps, and keeps what backward reads."""
    net = network(name, dtype, **options)
    module = emulator.compile(net, training=True)
    forward = [row["template"] for row in module.manifest["variants"][0]["forward_train"]["templates"]]
    assert "scan_cuda" in forward
    for rows in ({}, flags(23, 3)):
        case = draw(net, 23, 3, **rows)
        y, _, found = gradients(net, module, case)
        assert error(y, rnn.reference(net)(case.x, case.state, **rows)[0]) < LIMITS[dtype]
        for key, value in oracle(net, case).items():
            assert error(found[key], value) < LIMITS[dtype], key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("lif_neuron", "float64", {}),
        ("pushed", "float32", {"num_layers": 2}),
        ("pushed", "bfloat16", {"reverse": True}),
        ("pushed", "float32", {"bidirectional": True}),
        ("pushed", "float32", {"width": 8, "zoneout": 0.2}),
    ],
)
def test_pointwise_steps_are_one_launch_backwards_too(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, options: dict[str, Any]
) -> None:
    """Where rows fill the GPU, which few do here: no recurrence over all time, and no launch for what the steps write
    themselves. Where masks are drawn, the steps are no launch."""
    monkeypatch.setattr(parallelise_time, "FILLING", 1)
    monkeypatch.setattr(plan_backward, "HOISTED_BYTES", 1 << 9)  # tiles of time hand gradients on
    net = network(name, dtype, **options)
    module = emulator.compile(net, training=True)
    for way in ("forward_train", "backward"):
        found = [row["template"] for row in module.manifest["variants"][0][way]["templates"]]
        assert ("scan_cuda" in found) == (not net.regularisers)
    if not net.regularisers:
        check(net, module, dtype, 23)
    else:
        case = draw(net, 23, 3)
        case.training.update(seed=7, first_step=3)
        found = gradients(net, module, case)[2]
        assert all(error(found[key], value) < LIMITS[dtype] for key, value in oracle(net, case).items())


@pytest.mark.slow_after(1)
@pytest.mark.slow_after(1)
@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "dtype", "options", "arrays"),
    [
        ("pushing", "float32", {"num_layers": 2}, 4),
        ("lif_neuron", "float64", {}, 1),
        ("pushing", "bfloat16", {}, 2),
        ("pushing", "float16", {"keep": "states"}, 0),
        ("pushing", "float32", {"reverse": True}, 0),
        ("pushing", "float32", {"bidirectional": True}, 0),
        ("pushed", "float32", {}, 0),
    ],
)
def test_values_are_made_again_from_states_before_some_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, options: dict[str, Any], arrays: int
) -> None:
    """Where that moves fewer bytes: the tape has states before each 16th step, or before more. Parts of the time that
    end within such a span, tiles of whole ones, rows that end and begin anew."""
    monkeypatch.setattr(parallelise_time, "FILLING", 1)
    monkeypatch.setattr(plan_backward, "HOISTED_BYTES", 1 << 9)
    options = dict(options)
    keep = options.pop("keep", None)
    net = network(name, dtype, **options)
    module = emulator.compile(net, training=True, keep=keep)
    every = [sizes[3] for sizes in module.manifest["tape"] if len(sizes) == 4]
    assert len(every) == arrays and all(steps in EVERY_STEPS for steps in every)
    for steps, batch in ((1, 2), (16, 2), (65, 3), (100, 3)) if arrays else ((23, 3),):
        for rows in ({}, flags(steps, batch)):
            case = draw(net, steps, batch, **rows)
            found = gradients(net, module, case)[2]
            for key, value in oracle(net, case).items():
                assert error(found[key], value) < LIMITS[dtype], (steps, rows.keys(), key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["driven"])
def test_tiles_hand_gradients_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(plan, "HOISTED_BYTES", 1 << 11)
    monkeypatch.setattr(plan_backward, "HOISTED_BYTES", 1 << 11)
    assert all(trained(name))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"bidirectional": True, "num_layers": 2}])
def test_parts_of_the_time(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Resets between two parts: what goes back in time begins anew there."""
    net = network("min_gru", **options)
    in_parts(monkeypatch, net, emulator.compile(net, training=True), 11, 3, (1, 4))


def in_parts(
    monkeypatch: pytest.MonkeyPatch, net: rnn.RNN, module: Any, steps: int, batch: int, segments: tuple[int, ...]
) -> None:
    """Gradients are the oracle's whatever part of the time a tape has room for."""
    from tests.test_gpu_training_segments import sizes

    for rows in ({}, flags(steps, batch), {"reset": np.random.default_rng(1).random((steps, batch)) < 0.4}):
        case = draw(net, steps, batch, **rows)
        wanted = oracle(net, case)
        for segment in segments:
            with monkeypatch.context() as patch:
                patch.setattr(module, "_in_parts", lambda own, T, B, _, s=segment: plan_of(sizes(module, T, B), s))
                found = gradients(net, module, case)[2]
                x = cast(case.x["x"], net.dtype)
                _, _, tape = module.forward_train(x, cast(case.state, net.dtype), **rows)
                assert isinstance(tape, CudaSegmentedTape)
                again = named(*module.backward(tape, cast(case.gy, net.dtype), cast(case.gstate, net.dtype)))
            for name, value in wanted.items():
                assert error(found[name], value) < LIMITS["float32"], (segment, name)
                assert np.array_equal(found[name], again[name])
