"""Whole models in bundles: classifiers and taggers with heads, several networks, inputs that do not fit."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from programs import build, run

import tvm_rnn as rnn
from tests.bundle.test_engine import BAD_ARGUMENT, OK, Library
from tvm_rnn.bundle.encoding import DTYPES
from tvm_rnn.errors import ConfigError
from tvm_rnn.network.program import NETWORK, Declared, Program, Step
from tvm_rnn.oracle.tolerance import assert_close

RNG = np.random.default_rng(0)
NAMES = {code: name for name, code in DTYPES.items()}


class Array(ctypes.Structure):
    """NAME_array of the header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 8),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


def array_of(value: np.ndarray) -> Array:
    return Array(value.ctypes.data, (ctypes.c_int64 * 8)(*value.shape), value.ndim, DTYPES[value.dtype.name])


def numpy_of(array: Array) -> np.ndarray:
    shape, dtype = tuple(array.shape)[: array.rank], np.dtype(NAMES[array.dtype])
    data = ctypes.string_at(array.data, int(np.prod(shape, dtype=int)) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def ran(library: Library, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    inputs = [np.array(value, order="C") for value in inputs]
    given, made = (Array * len(inputs))(*map(array_of, inputs)), (Array * outputs)()
    assert library.of("run", given, made) == OK, library.error
    return [numpy_of(array) for array in made]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    words = ["" if word == "-" else word for word in inputs.split()]
    return onnx.helper.make_node(op, words, outputs.split(), name=outputs.split()[0], **attributes)


def tagger(cells: tuple[str, ...] = ("GRU", "RNN")) -> Any:
    """Embedded words through networks that differ, and a softmax over each step; lengths and a first state."""
    nodes, constants, x = [node("Gather", "E words", "e")], {"E": RNG.normal(size=(9, 3)).astype("f4")}, "e"
    for i, kind in enumerate(cells):
        rows, width = {"GRU": 12, "RNN": 4}[kind], 3 if i == 0 else 4
        for name, columns in (("W", width), ("R", 4)):
            constants[f"{name}{i}"] = RNG.uniform(-0.5, 0.5, (1, rows, columns)).astype("f4")
        first = "h0" if i == 0 else "-"
        nodes.append(node(kind, f"{x} W{i} R{i} - n {first}", f"y{i} k{i}", hidden_size=4))
        nodes += [node("Squeeze", f"y{i} one", f"s{i}"), node("Tanh", f"s{i}", f"t{i}")]
        x = f"t{i}"
    constants |= {"V": RNG.normal(size=(4, 2)).astype("f4"), "one": np.array([1])}
    nodes += [
        node("MatMul", f"{x} V", "z"),
        node("Softmax", "z", "p", axis=-1),
        node("ArgMax", "z", "tag", axis=-1, keepdims=0),
    ]
    info = onnx.helper.make_tensor_value_info
    inputs = [info("words", 7, ["T", "B"]), info("n", 6, ["B"]), info("h0", 1, [1, "B", 4])]
    outputs = [info("p", 1, None), info("tag", 7, None), info("h0_last", 1, None)]
    nodes.append(node("Identity", "h0", "h0_last"))
    values = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, values)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of two networks, compiled, and its bundle."""
    folder = tmp_path_factory.mktemp("two")
    onnx.save(tagger(), folder / "m.onnx")
    module = rnn.compile(rnn.from_onnx(folder / "m.onnx"))
    module.export(bundle=folder / "two")
    return module, folder / "two"


def feeds(T: int, B: int) -> dict[str, np.ndarray]:
    n = RNG.integers(0, T + 1, B).astype("i4")
    return {"words": RNG.integers(0, 9, (T, B)), "n": n, "h0": RNG.normal(size=(1, B, 4)).astype("f4")}


@pytest.mark.broad
@pytest.mark.parametrize("sizes", [(5, 3), (1, 1), (0, 2), (3, 0), (64, 2)], ids=str)
def test_a_model_of_two_networks(two: tuple[Any, Path], sizes: tuple[int, int]) -> None:
    module, bundle = two
    given = feeds(*sizes)
    expected = module.run(given)
    found = ran(Library(bundle), list(given.values()), 3)
    for value, wanted in zip(found, expected.values(), strict=True):
        assert value.shape == wanted.shape and value.dtype == wanted.dtype
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.broad
def test_an_output_is_an_input_of_the_next_run(two: tuple[Any, Path]) -> None:
    """h0_last is h0 as it was given: the memory of a run's outputs is needed until the next run has made its own."""
    given, library = feeds(5, 3), Library(two[1])
    inputs, outputs = (Array * 3)(*map(array_of, given.values())), (Array * 3)()
    for _ in range(4):
        assert library.of("run", inputs, outputs) == OK, library.error
        np.testing.assert_array_equal(numpy_of(outputs[2]), given["h0"])
        inputs[2] = outputs[2]


@pytest.mark.broad
def test_runs_of_the_same_sizes_take_no_memory(two: tuple[Any, Path], tmp_path: Path) -> None:
    program = build(Path(__file__).parent / "run_memory.c", tmp_path / "run_memory", two[1], "-rdynamic", "-std=gnu99")
    first, same, other, again = map(int, run(program, two[1]).split())
    assert first and other and not same and not again


@pytest.mark.broad
def test_its_networks_can_be_called_alone(two: tuple[Any, Path]) -> None:
    module, bundle = two
    x, h = RNG.normal(size=(4, 1, 3)).astype("f4"), np.empty((1, 1, 4), "f4")
    library, y = Library(bundle), np.empty((4, 1, 4), "f4")
    assert library.of("n0_init_state", 1, h) == OK
    for t in range(4):
        assert library.of("n0_step", 1, x[t].copy(), h, y[t]) == OK, library.error
    np.testing.assert_allclose(y, module.networks[0](x)[0], rtol=1e-6, atol=1e-7)


@pytest.mark.broad
def test_examples_of_a_model(two: tuple[Any, Path], tmp_path: Path) -> None:
    module, bundle = two
    given, words = feeds(5, 2), []
    for name, value in given.items():
        value.tofile(tmp_path / name)
        words += [tmp_path / name, "x".join(map(str, value.shape))]
    expected = module.run(given)
    for source in ("example.c", "example.cpp"):
        program = build(bundle / source, tmp_path / "program", bundle)
        lines = run(program, bundle, *words).decode().splitlines()
        at = lines.index("p 5x2x2")
        assert lines[at + 11] == "tag 5x2" and lines[at + 17] == "h0_last 1x2x4"
        printed = np.array([line.split() for line in lines[at + 1 : at + 11]], "f8").reshape(5, 2, 2)
        np.testing.assert_allclose(printed, expected["p"], rtol=1e-5, atol=1e-6)
        assert b"shape" in run(program, bundle, *words[:1], "9x9", *words[2:], code=1) or source == "example.c"
    program = build(bundle / "example.c", tmp_path / "program", bundle)
    assert b"two_run: p50 " in run(program, bundle, "--time", 50, *words)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"words": np.zeros((5, 3), "i4")}, "words has dtype 1, not 2"),
    ({"words": np.zeros(5, "i8")}, "words has 1 axes, not 2"),
    ({"n": np.zeros(4, "i4")}, "n has size 4 along axis 0, words has 3 there"),
    ({"h0": np.zeros((2, 3, 4), "f4")}, "h0 has size 2 along axis 0, not 1"),
    ({"words": np.full((5, 3), 9)}, "an index of as many places"),
    ({"n": np.full(3, 6, "i4")}, "'y0'.*: lengths: 6 for row 0, not 0 to 5"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[text[:24] for _, text in WRONG])
def test_inputs_that_do_not_fit(two: tuple[Any, Path], changes: dict[str, Any], text: str) -> None:
    import re

    library, given = Library(two[1]), {**feeds(5, 3), **changes}
    arrays = (Array * 3)(*map(array_of, given.values()))
    assert library.of("run", arrays, (Array * 3)()) == BAD_ARGUMENT
    assert re.search(text, library.error), library.error


def test_arrays_that_are_none(two: tuple[Any, Path]) -> None:
    library, given = Library(two[1]), feeds(5, 3)
    for change in ({"data": None}, {"rank": -1}, {"rank": 99}, {"shape": (ctypes.c_int64 * 8)(5, -3)}):
        arrays = (Array * 3)(*map(array_of, given.values()))
        for name, value in change.items():
            setattr(arrays[0], name, value)
        assert library.of("run", arrays, (Array * 3)()) == BAD_ARGUMENT, change
    assert library.of("run", None, None) == BAD_ARGUMENT
    assert library("run", None, None, None) == BAD_ARGUMENT and "no handle" in library.error


@pytest.mark.broad
def test_what_a_bundle_cannot_do_is_said_all_at_once(tmp_path: Path) -> None:
    model = tagger(("RNN",))
    model.graph.node.extend([node("Cast", "z", "u", to=2), node("Cast", "z", "i", to=3)])
    for name, code in (("u", 2), ("i", 3)):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, code, None))
    module = rnn.compile(rnn.from_onnx(model))
    with pytest.raises(ConfigError, match=r"'u': uint8[\s\S]*'i': int8"):
        module.export(bundle=tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model whose network's weights are its inputs, compiled, and its bundle: there are no weights in its file."""
    net, names = rnn.RNN(rnn.cells.lstm, 3, 7, bidirectional=True), list(GIVEN)
    inputs = (Declared("X", "float32", ("T", "B", 3)), Declared("n", "int64", ("B",)))
    inputs += tuple(Declared(name, "float32", None) for name in GIVEN)  # whose shapes only the network knows
    step = Step(NETWORK, ("X", "n", "", "", *names), ("Y", "h", "c"), {"network": 0, "weights": names}, "LSTM")
    outputs = tuple(Declared(name, "float32", None) for name in ("Y", "c"))
    net.program = Program(inputs, outputs, (step,), {})
    module, folder = rnn.compile(net), tmp_path_factory.mktemp("weightless") / "bare"
    module.export(bundle=folder)
    return module, folder


GIVEN = rnn.RNN(rnn.cells.lstm, 3, 7, bidirectional=True).weight_shapes


@pytest.mark.broad
def test_weights_that_are_inputs(weightless: tuple[Any, Path]) -> None:
    """Each run has its own; another handle on the same code is not disturbed."""
    module, bundle = weightless
    library, x, n = Library(bundle), RNG.normal(size=(5, 2, 3)).astype("f4"), np.array([5, 2])
    other = Library(bundle)
    assert library("share", library.handle, ctypes.byref(other.handle)) == OK
    for seed, own in ((1, library), (2, other), (3, library), (2, other)):
        weights = rnn.RNN(rnn.cells.lstm, 3, 7, bidirectional=True).init(seed).weights
        given = {"X": x, "n": n, **weights}
        found, expected = ran(own, list(given.values()), 2), module.run(given)
        for value, wanted in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    header = (bundle / "bare.h").read_text()
    assert "only bare_run has them" in header and "bare_sequence" not in header and "bare_step" not in header
    assert not (bundle / "stream.c").exists()


@pytest.mark.broad
def test_weights_of_another_shape(weightless: tuple[Any, Path]) -> None:
    _, bundle = weightless
    library, weights = Library(bundle), {name: np.zeros(shape, "f4") for name, shape in GIVEN.items()}
    last = list(weights)[-1]
    arrays = [np.zeros((2, 1, 3), "f4"), np.array([2]), *weights.values()]
    assert library.of("run", (Array * len(arrays))(*map(array_of, arrays)), (Array * 2)()) == OK, library.error
    for wrong in (weights[last].reshape(-1, 1), weights[last][:-1].copy(), weights[last].astype("f8")):
        arrays[-1] = wrong
        assert library.of("run", (Array * len(arrays))(*map(array_of, arrays)), (Array * 2)()) == BAD_ARGUMENT
        assert "weight 5 of the network" in library.error or f"{last} has dtype 4, not 3" in library.error


def test_examples_of_a_model_without_weights(weightless: tuple[Any, Path], tmp_path: Path) -> None:
    module, bundle = weightless
    weights = rnn.RNN(rnn.cells.lstm, 3, 7, bidirectional=True).init(5).weights
    given, words = {"X": RNG.normal(size=(4, 1, 3)).astype("f4"), "n": np.array([4]), **weights}, []
    for name, value in given.items():
        value.tofile(tmp_path / name)
        words += [tmp_path / name, "x".join(map(str, value.shape))]
    lines = run(build(bundle / "example.c", tmp_path / "program", bundle), bundle, *words).decode().splitlines()
    at = lines.index("Y 4x1x14")
    printed = np.array([line.split() for line in lines[at + 1 : at + 5]], "f8")
    np.testing.assert_allclose(printed, module.run(given)["Y"][:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("precision", (None, "float32"))
def test_a_model_of_16_bits(precision: str | None, tmp_path: Path) -> None:
    """Where the model says float16, the bundle takes and gives that, or floats where that is the precision."""
    net = rnn.RNN(rnn.cells.gru, 3, 7, dtype="float16").init(seed=2)
    steps = (
        Step("Mul", ("X", "k"), ("x",), {}, "scale"),
        Step(NETWORK, ("x", "", ""), ("y", "h"), {"network": 0}, "GRU"),
        Step("Cast", ("y",), ("Y",), {"dtype": "float16"}, "out"),
    )
    inputs, k = (Declared("X", "float16", ("T", "B", 3)),), np.array([0.5, 1, 2], "f2")
    net.program = Program(inputs, (Declared("Y", "float16", None),), steps, {"k": k})
    module = rnn.compile(net, precision=precision)
    module.export(bundle=tmp_path / "half")
    kind = precision or "float16"
    x = RNG.normal(size=(6, 2, 3)).astype("f2").astype(kind)
    (found,) = ran(Library(tmp_path / "half"), [x], 1)
    assert found.dtype == kind
    np.testing.assert_array_equal(found, module.run({"X": x})["Y"])
    assert_close(found.astype("f4"), rnn.reference(net).run({"X": x})["Y"], kind, 6)
    assert f"X: {kind} [T][B][3]" in (tmp_path / "half" / "half.h").read_text()


@pytest.mark.broad
def test_examples_print_numbers_of_16_bits(tmp_path: Path) -> None:
    """All kinds of them: subnormal, the largest, infinite, none."""
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node("Neg", "x", "y")], "g", [info("x", 10, ["n"])], [info("y", 10, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    rnn.compile(rnn.from_onnx(model)).export(bundle=tmp_path / "half")
    x = np.array([0, 1, -2.5, 6e-8, 6.1e-5, 3e-5, 65504, np.inf, -np.inf, np.nan], "f2")
    x.tofile(tmp_path / "x")
    for source in ("example.c", "example.cpp"):
        program = build(tmp_path / "half" / source, tmp_path / "program", tmp_path / "half")
        _, *lines = run(program, tmp_path / "half", tmp_path / "x", "10").decode().splitlines()
        np.testing.assert_array_equal(np.array(" ".join(lines).split(), "f4"), -x.astype("f4"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_nodes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of one node with any attributes, as ONNX Runtime computes them."""
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "frontends")  # what the frontends' tests share
    from onnx_models import random_case

    case = random_case(seed)
    module = rnn.compile(rnn.from_onnx(case.model))
    module.export(bundle=tmp_path / "node")
    feeds = [case.feeds[item.name] for item in module.manifest.model.inputs]
    names = [item.name for item in module.manifest.model.outputs]
    found = ran(Library(tmp_path / "node"), feeds, len(names))
    expected = case.expected()
    assert_close(found, [expected[name] for name in names], "float32", case.steps, str(case.attributes))


@pytest.mark.broad
def test_a_convolution_before_a_network(tmp_path: Path) -> None:
    def random(*shape: int) -> np.ndarray:
        return RNG.uniform(-0.5, 0.5, shape).astype("f4")

    nodes = [
        node("Conv", "x k b", "c", pads=[1, 1]),
        node("AveragePool", "c", "p", kernel_shape=[2], strides=[2]),
        node("Transpose", "p", "t", perm=[2, 0, 1]),
        node("GRU", "t W R", "y last", hidden_size=3),
    ]
    known = {"k": random(4, 2, 3), "b": random(4), "W": random(1, 9, 4), "R": random(1, 9, 3)}
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["B", 2, "T"])],
        [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("last", "p")],
        [onnx.numpy_helper.from_array(value, name) for name, value in known.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    module = rnn.compile(rnn.from_onnx(model))
    module.export(bundle=tmp_path / "conv")
    library = Library(tmp_path / "conv")
    for shape in ((1, 2, 2), (2, 2, 37), (3, 2, 0), (0, 2, 8)):
        x = random(*shape)
        expected = module.run({"x": x})
        for value, wanted in zip(ran(library, [x], 2), expected.values(), strict=True):
            assert value.shape == wanted.shape
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_sizes_of_different_names_are_compared(tmp_path: Path) -> None:
    info = onnx.helper.make_tensor_value_info
    filters = onnx.numpy_helper.from_array(RNG.normal(size=(4, 2, 3)).astype("f4"), "k")
    inputs = [info("x", 1, ["B", 2, "T"]), info("z", 1, ["frames", 5])]
    graph = onnx.helper.make_graph(
        [node("Conv", "x k", "c"), node("MatMul", "c z", "y")], "g", inputs, [info("y", 1, None)], [filters]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    module = rnn.compile(rnn.from_onnx(model))
    module.export(bundle=tmp_path / "sizes")
    library = Library(tmp_path / "sizes")
    x, z = (RNG.normal(size=shape).astype("f4") for shape in ((2, 2, 9), (7, 5)))
    np.testing.assert_allclose(ran(library, [x, z], 1)[0], module.run({"x": x, "z": z})["y"], rtol=1e-5, atol=1e-6)
    for frames in (6, 8):
        other = np.ones((frames, 5), "f4")
        given, made = (Array * 2)(array_of(x), array_of(other)), (Array * 1)()
        assert library.of("run", given, made) == BAD_ARGUMENT
        assert "needed is T - 2 = frames" in library.error
        assert f"got [2, 2, 9] [{frames}, 5]: check the shapes of the inputs" in library.error


@pytest.mark.broad
def test_whole_numbers_of_16_bits_inside_of_a_model(tmp_path: Path) -> None:
    """Quantised products: weights of bytes less a zero point of 0 need more than 8 bits."""
    w = RNG.integers(0, 256, (6, 5)).astype(np.uint8)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("MatMulInteger", "q w zero none", "whole"),
        node("Cast", "whole", "sums", to=1),
        node("Mul", "sums scale", "y"),
    ]
    info = onnx.helper.make_tensor_value_info
    values = [onnx.numpy_helper.from_array(v, n) for n, v in {"w": w, "none": np.array(0, np.uint8)}.items()]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, ["B", 6])], [info("y", 1, ["B", 5])], values)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    module = rnn.compile(rnn.from_onnx(model))
    module.export(bundle=tmp_path / "bundle")
    x = RNG.normal(size=(7, 6)).astype("f4")
    (expected,) = module.run({"x": x}).values()
    np.testing.assert_array_equal(ran(Library(tmp_path / "bundle"), [x], 1)[0], expected)
    assert_close({"y": expected}, rnn.reference(rnn.from_onnx(model)).run({"x": x}), "float32", 1)
