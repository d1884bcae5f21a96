"""Whole models: what goes in by name, what comes out, several networks in one file, and use without the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tvm_rnn as rnn
from tvm_rnn.errors import InputError, LoadError, WeightError
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import NETWORK, Declared, Program, Step
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime_model

WIDTH, H, T, B = 3, 4, 6, 2


@rnn.cell(states="h c")
def leaky(x: "I", h: "H", c: "H", *, W: "H I", R: "H H"):
    """Little to compile."""
    c = 0.5 * c + W @ x + R @ h
    return rnn.relu(c), c


def value(name: str, dtype: str, *shape: Any) -> Declared:
    return Declared(name, dtype, shape or None)


def small() -> rnn.RNN:
    """Two layers between a transposition and a sum over time; lengths, an initial h and a constant are there too."""
    net = rnn.RNN(leaky, WIDTH, [H, 2], 2).init(1)
    steps = (
        Step("Transpose", ("X",), ("x",), {"perm": [1, 0, 2]}, "turn"),
        Step(NETWORK, ("x", "n", "h", "", "", ""), ("y", "h0", "h1", "c0", "c1"), {"network": 0}, "RNN"),
        Step("ReduceSum", ("y", "axis"), ("s",), {"keepdims": 0}, "sum"),
        Step("MatMul", ("s", "W"), ("Y",), {}, "head"),
    )
    constants = {"axis": np.array([0]), "W": np.random.default_rng(0).normal(size=(2, 5)).astype("f4")}
    inputs = (value("X", "float32", "B", None, WIDTH), value("n", "int32", "B"), value("h", "float32", 1, "B", H))
    outputs = (value("Y", "float32", "B", 5), value("c1", "float32", 1, "B", 2))
    net.program = Program(inputs, outputs, steps, constants)
    return net


def two() -> Model:
    """Both directions below the reverse one alone."""
    nets = [
        rnn.RNN(rnn.cells.elman, WIDTH, H, bidirectional=True).init(1),
        rnn.RNN(leaky, 2 * H, 2, reverse=True),
    ]
    nets[1].init(2)
    steps = (
        Step(NETWORK, ("X", "", ""), ("a", "e"), {"network": 0}, "lower"),
        Step("Tanh", ("a",), ("z",), {}, "squash"),
        Step(NETWORK, ("z", "", "", ""), ("Y", "h", "c"), {"network": 1}, "upper"),
    )
    program = Program(
        (value("X", "float32", "T", "B", WIDTH),), (value("Y", "float32"), value("h", "float32")), steps, {}
    )
    return Model(nets, program, Origin("onnx", "two nodes"))


@pytest.fixture(scope="module")
def module() -> Any:
    return rnn.compile(small())


@pytest.fixture(scope="module")
def pair() -> Any:
    return rnn.compile(two())


def feeds(steps: int = T, batch: int = B) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    x = rng.normal(size=(batch, steps, WIDTH)).astype("f4")
    return {
        "X": x,
        "n": rng.integers(0, steps + 1, batch).astype("i4"),
        "h": rng.normal(size=(1, batch, H)).astype("f4"),
    }


@pytest.mark.parametrize(("steps", "batch"), [(T, B), (1, 1), (0, 3), (33, 7)])
def test_a_model_does_what_its_oracle_does(module: Any, steps: int, batch: int) -> None:
    given = feeds(steps, batch)
    found = module.run(given)
    assert found["Y"].shape == (batch, 5) and found["Y"].dtype == np.float32
    assert_close(found, rnn.reference(small()).run(given), "float32", max(steps, 1))


def test_the_network_alone_is_called_as_ever(module: Any) -> None:
    x = feeds()["X"].swapaxes(0, 1)
    assert_close(module(x), rnn.reference(small())(x), "float32", T)
    assert module.manifest.entry_points == ["sequence", "step", "init_state", "run"]


def test_a_file_keeps_all_of_it(module: Any, tmp_path: Path) -> None:
    module.export(tmp_path / "m.so")
    loaded = rnn.load(tmp_path / "m.so")
    np.testing.assert_array_equal(loaded.run(feeds())["Y"], module.run(feeds())["Y"])
    loaded.export(tmp_path / "again.so")
    np.testing.assert_array_equal(rnn.load(tmp_path / "again.so").run(feeds())["Y"], module.run(feeds())["Y"])


def test_results_are_new_arrays_of_the_kind_of_the_first_input(module: Any) -> None:
    given = feeds()
    first, second = module.run(given), module.run(given)
    first["Y"][:] = 0
    assert second["Y"].any() and first["Y"].flags.writeable
    torch = pytest.importorskip("torch")
    found = module.run({name: torch.from_numpy(v) for name, v in given.items()})
    assert all(isinstance(v, torch.Tensor) for v in found.values())
    np.testing.assert_array_equal(found["Y"].numpy(), second["Y"])
    lists = {**given, "n": given["n"].tolist()}
    np.testing.assert_array_equal(module.run(lists)["Y"], second["Y"])


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"X": None}, ["not the model's", "['n', 'h']", "['X', 'n', 'h']"]),
        ({"Z": np.zeros(1)}, ["'Z'"]),
        ({"X": np.zeros((B, T, WIDTH))}, ["X has the wrong dtype", "float64", "float32"]),
        ({"X": np.zeros((B, T, WIDTH + 1), "f4")}, ["X has the wrong shape", f"[B, any, {WIDTH}]"]),
        ({"X": np.zeros((B, WIDTH), "f4")}, ["X has the wrong shape"]),
        ({"n": np.zeros(B + 1, "i4")}, ["n does not fit X", f"B = {B + 1} in n", f"B = {B}, as in X"]),
        ({"n": np.full(B, T + 1, "i4")}, ["lengths out of range"]),
        ({"h": np.zeros((2, B, H), "f4")}, ["h has the wrong shape", f"[1, B, {H}]"]),
        ({"X": "text"}, ["X is not an array"]),
    ],
    ids=lambda value: None if isinstance(value, list) else ", ".join(value),
)
def test_inputs_that_do_not_fit(module: Any, changes: dict[str, Any], texts: list[str]) -> None:
    given = {name: v for name, v in {**feeds(), **changes}.items() if v is not None}
    with pytest.raises(InputError) as error:
        module.run(given)
    assert all(text in str(error.value) for text in texts), str(error.value)
    with pytest.raises(InputError, match="not the model's"):
        module.run([feeds()["X"]])


def test_what_cannot_be_computed_names_the_node() -> None:
    net = small()
    wrong = {name: value[:-1] if value.ndim == 2 else value for name, value in net.program.constants.items()}
    net.program = replace(net.program, constants=wrong)
    with pytest.raises(InputError, match=r"of this model cannot be computed.*'head'"):
        rnn.reference(net).run(feeds())


def test_initial_states_of_a_wrong_shape(module: Any) -> None:
    net = small()
    undeclared = (value("X", "float32"), value("n", "int32"), value("h", "float32"))
    net.program = replace(net.program, inputs=undeclared)
    with pytest.raises(InputError, match="initial h does not fit x"):
        rnn.reference(net).run({**feeds(), "h": np.zeros((1, B, H + 1))})


def test_a_module_without_a_model_cannot_run() -> None:
    net = rnn.RNN(rnn.cells.elman, 1, 1).init()
    with pytest.raises(InputError, match="no model around"):
        runtime_model.run(type("Fake", (), {"manifest": {}})(), {})
    with pytest.raises(InputError, match="no model around"):
        rnn.reference(net).run({})


def test_a_model_that_another_version_wrote() -> None:
    facts = small().program.facts()
    facts["steps"][0]["op"] = "Conv"
    fake = type("Fake", (), {"manifest": {"model": facts}, "_constants": small().program.arrays(), "path": "m.so"})()
    with pytest.raises(LoadError, match="Conv"):
        runtime_model.run(fake, {})


# --- several networks ------------------------------------------------------------------------------------------------


@pytest.mark.broad
def test_several_networks_do_what_their_oracle_does(pair: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f4")
    expected = rnn.reference(two()).run({"X": x})
    assert_close(pair.run({"X": x}), expected, "float32", T)
    pair.export(tmp_path / "two.so")
    loaded = rnn.load(tmp_path / "two.so")
    assert isinstance(loaded, rnn.Module) and len(loaded.networks) == 2
    assert_close(loaded.run({"X": x}), expected, "float32", T)
    assert_close(loaded.networks[0](x), rnn.reference(two().networks[0])(x), "float32", T)
    loaded.threads = 1
    assert loaded.threads == 1 and [m.threads for m in loaded.networks] == [1, 1]


@pytest.mark.broad
def test_several_networks_are_no_one_network(pair: Any) -> None:
    for call in (pair, pair.step, pair.init_state):
        with pytest.raises(InputError, match=r"mod\.run"):
            call(np.zeros((T, B, WIDTH), "f4"))
    manifest = pair.manifest
    assert [own.cell for own in manifest.networks] == ["elman", "leaky"] and "cell" not in manifest


def test_weights_of_several_networks(pair: Any, tmp_path: Path) -> None:
    module, model = pair, two()
    assert module.weights.keys() == model.weights.keys()
    x = np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f4")
    before = module.run({"X": x})["Y"]
    other = {name: (v / 2).astype("f4") for name, v in model.weights.items()}
    save_file(other, tmp_path / "w.safetensors")
    for source in (other, str(tmp_path / "w.safetensors")):
        module.load_weights(model.weights)
        module.load_weights(source)
        assert not np.allclose(module.run({"X": x})["Y"], before)
    for net, number in zip(model.networks, "01", strict=True):
        net.load({name[2:]: v for name, v in other.items() if name.startswith(number)})
    assert_close(module.run({"X": x}), rnn.reference(model).run({"X": x}), "float32", T)
    with pytest.raises(WeightError, match=r"missing \['0\.W_l0'\], unknown \['W_l0'\]"):
        module.load_weights({("W_l0" if name == "0.W_l0" else name): v for name, v in other.items()})
    with pytest.raises(WeightError, match="W_l0"):
        module.load_weights({**other, "1.W_l0": np.zeros(3, "f4")})
    assert_close(module.run({"X": x}), rnn.reference(model).run({"X": x}), "float32", T)
    module.load_weights(two().weights)


def test_weights_that_are_values_of_the_model() -> None:
    """The network's weights come with each call, and a call leaves nothing behind for the next one."""
    net = rnn.RNN(rnn.cells.elman, WIDTH, H)
    names = ("W_l0", "R_l0", "b_l0")
    step = Step(NETWORK, ("X", "", "", "W", "R", "b"), ("Y", "h"), {"network": 0, "weights": list(names)}, "RNN")
    inputs = (value("X", "float32"), *(value(n, "float32", *net.weight_shapes[f"{n}_l0"]) for n in "WRb"))
    net.program = Program(inputs, (value("Y", "float32"),), (step,), {})
    module, x = rnn.compile(net), np.ones((T, B, WIDTH), "f4")
    with pytest.raises(WeightError, match="no weights"):
        module(x)
    for seed in (1, 2, 1):
        own = rnn.RNN(rnn.cells.elman, WIDTH, H).init(seed)
        given = {"X": x, **{name[0]: v for name, v in own.weights.items()}}
        expected = {"Y": rnn.reference(own)(x)[0]}
        assert_close(module.run(given), expected, "float32", T)
        assert_close(rnn.reference(net).run(given), expected, "float32", T)


# --- small models ----------------------------------------------------------------------------------------------------


def reader() -> rnn.RNN:
    """Numbers that are looked up in a table, and two layers of leaky from a state that is given for one of them."""
    net = rnn.RNN(leaky, WIDTH, [H, H], 2).init(1)
    steps = (
        Step("Gather", ("table", "ids"), ("x",), {"axis": 0}, "look up"),
        Step(NETWORK, ("x", "", "", "h", "", ""), ("y", "h0", "h1", "c0", "c1"), {"network": 0}, "RNN"),
        Step("Tanh", ("y",), ("Y",), {}, "squash"),
    )
    inputs = (value("ids", "int64", "T", "B"), value("h", "float32", 1, "B", H))
    outputs = tuple(value(name, "float32") for name in ("Y", "h0", "h1", "c1"))
    table = np.random.default_rng(0).normal(size=(5, WIDTH)).astype("f4")
    net.program = Program(inputs, (*outputs, inputs[1]), steps, {"table": table})
    return net


def ids(steps: int, batch: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    return {"ids": rng.integers(0, 5, (steps, batch)), "h": rng.normal(size=(1, batch, H)).astype("f4")}


@pytest.fixture(scope="module")
def looked_up() -> Any:
    return rnn.compile(reader())


def is_ready(module: Any) -> bool:
    return any(isinstance(own, runtime_model.SmallCall) for own in module._model_plan.small.known.values())


def test_calls_of_shapes_that_were_there_go_without_steps(looked_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [rnn.reference(reader()).run(ids(steps)) for steps in (1, 4)]
    for _ in range(3):
        for steps, own in zip((1, 4), expected, strict=True):
            assert_close(looked_up.run(ids(steps)), own, "float32", steps)
    monkeypatch.delattr(runtime_model, "call_compiled")  # which steps need
    given = ids(4)
    first, second = looked_up.run(given), looked_up.run(given)
    assert list(first) == ["Y", "h0", "h1", "c1", "h"]
    first["Y"][:], first["h"][:] = 0, 0
    assert second["Y"].any() and given["h"].any() and second["h"].any()
    turned = {"ids": given["ids"][::-1][::-1], "h": np.asfortranarray(given["h"])}
    np.testing.assert_array_equal(looked_up.run(turned)["Y"], second["Y"])
    with pytest.raises(NameError, match="call_compiled"):
        looked_up.run(ids(3))


def test_what_is_wrong_with_inputs_is_said_of_small_calls_too(looked_up: Any) -> None:
    given = ids(1)
    for _ in range(3):
        expected = looked_up.run(given)["Y"]
    for wrong, text in (
        ({**given, "ids": given["ids"].astype("f4")}, "ids has the wrong dtype"),
        ({**given, "ids": given["ids"] + 9}, "cannot be computed"),
        ({**given, "h": given["h"][:, :, 1:]}, "h has the wrong shape"),
        ({"ids": given["ids"]}, "not the model's"),
        ({**given, "h": np.ma.masked_array(given["h"], given["h"] > 0)}, "masked"),
    ):
        for _ in range(3):
            with pytest.raises(InputError, match=text):
                looked_up.run(wrong)
    np.testing.assert_array_equal(looked_up.run(given)["Y"], expected)


def test_small_calls_follow_weights_and_threads(pair: Any) -> None:
    x = np.ones((T, B, WIDTH), "f4")
    first = [pair.run({"X": x})["Y"] for _ in range(3)]
    assert is_ready(pair)
    pair.load_weights({name: 2 * own for name, own in pair.weights.items()})
    other, model = pair.run({"X": x}), two()
    for net in model.networks:
        net.load({name: 2 * own for name, own in net.weights.items()})
    assert_close(other, rnn.reference(model).run({"X": x}), "float32", T)
    pair.threads = 2
    pair.networks[0](np.ones((9 * T, B, WIDTH), "f4"))  # takes more memory, and leaves that of before
    again = [pair.run({"X": x})["Y"] for _ in range(3)]
    pair.threads = None
    np.testing.assert_array_equal(again, [other["Y"]] * 3)
    pair.load_weights(two().weights)
    np.testing.assert_array_equal(pair.run({"X": x})["Y"], first[0])


def test_large_calls_go_step_by_step(pair: Any) -> None:
    x = np.ones((T, runtime_model.SMALL // (4 * T * WIDTH) + 1, WIDTH), "f4")
    found = [pair.run({"X": x})["Y"] for _ in range(3)]
    np.testing.assert_array_equal(found[1:], found[:1] * 2)
    assert runtime_model.UNFIT in pair._model_plan.small.known.values()


def test_threads_have_small_calls_of_their_own(looked_up: Any) -> None:
    given = [ids(steps, 2) for steps in (1, 2, 3, 1)]
    expected = [looked_up.run(own)["Y"] for own in given]

    def many(i: int) -> bool:
        return all(np.array_equal(looked_up.run(given[i])["Y"], expected[i]) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


def test_a_call_within_a_call_takes_no_memory_of_it(looked_up: Any) -> None:
    """As of a signal's handler."""
    given, inner = ids(2), list[Any]()
    for _ in range(3):
        expected = looked_up.run(given)
    again = {name: np.zeros_like(array) for name, array in given.items()}
    call = looked_up._model_plan.small.known[looked_up.threads, tuple(array.shape for array in given.values())]
    call.calls.insert(1, (lambda: inner.append(looked_up.run(again)), ()))
    found = looked_up.run(given)
    assert len(inner) == 1 and not np.array_equal(inner[0]["Y"], found["Y"])
    np.testing.assert_array_equal(found["Y"], expected["Y"])
    call.calls.pop(1)


# --- without the package ---------------------------------------------------------------------------------------------


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["module", "pair"])
def test_copied_files_are_enough(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    module = request.getfixturevalue(name)
    module.export(tmp_path / "m.so")
    given = feeds() if name == "module" else {"X": np.ones((T, B, WIDTH), "f4")}
    np.savez(tmp_path / "in.npz", **given)
    for file in ("runtime.py", "runtime_model.py"):
        shutil.copy(Path(rnn.__file__).parent / "runtime" / file, tmp_path)
    program = (
        "import sys, json, numpy as np; sys.modules.update(tvm=None, tvm_rnn=None, torch=None); import runtime;"
        "m = runtime.load('m.so'); y = m.run(dict(np.load('in.npz')))['Y'];"
        "print(json.dumps([y.shape, float(np.abs(y).sum())]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = module.run(given)["Y"]
    shape, total = json.loads(done.stdout)
    assert shape == list(expected.shape) and total == pytest.approx(float(np.abs(expected).sum()), rel=1e-5)
