"""Forms of our own beside TVM's: sizes as numbers, sizes of different names, elements that are looked at."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.compiler.link import generate, link
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.errors import InputError
from tvm_rnn.runtime.runtime_model import call_compiled
from tvm_rnn.surroundings.evaluation import evaluated
from tvm_rnn.surroundings.regions import Unsupported, read_graph
from tvm_rnn.target import host

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype("f4")
N = np.array([5, 0, 2], "i4")
ODD = np.array([[0.0, -0.0, np.nan, 1.5], [np.inf, -np.inf, -2.5, 7.0], [-np.inf, -np.inf, -np.inf, -np.inf]], "f4")
W = np.array([[7, -7, 5, 0], [3, 3, -3, -2]], "i8").T.copy()
Case = tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]  # a node, inputs, constants


def shapes(*names: str) -> list[Any]:
    """What exporters write for a shape [B, T * 4]."""
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["B"], axis=0),
        node("Gather", ["shape", "one"], ["T"], axis=0),
        node("Mul", ["T", "four"], ["T4"]),
        node("Unsqueeze", ["B", "zero1"], ["B1"]),
        node("Unsqueeze", ["T4", "zero1"], ["T1"]),
        node("Concat", ["B1", "T1"], ["to"], axis=0),
    ]


KNOWN = {"zero": np.array(0), "one": np.array(1), "four": np.array(4), "zero1": np.array([0])}
CASES: dict[str, tuple[list[Any], dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "a shape that is computed": ([*shapes(), node("Reshape", ["x", "to"], ["y"])], {"x": X}, KNOWN),
    "a number of steps as an array": ([*shapes(), node("Identity", ["to"], ["y"])], {"x": X}, KNOWN),
    "a size in arithmetic": (
        [*shapes()[:3], node("Cast", ["T"], ["f"], to=1), node("Div", ["x", "f"], ["y"])],
        {"x": X},
        KNOWN,
    ),
    "a range of steps": ([*shapes()[:3], node("Range", ["zero", "T", "one"], ["y"])], {"x": X}, KNOWN),
    "zeros": ([*shapes(), node("ConstantOfShape", ["to"], ["y"])], {"x": X}, KNOWN),
    "as many more as there are": (
        [
            *shapes(),
            node("Concat", ["less", "to"], ["pads"], axis=0),
            node("Pad", ["x", "pads", "half", "axes"], ["y"]),
        ],
        {"x": X},
        {**KNOWN, "less": np.array([1, 2]), "half": np.float32(0.5), "axes": np.array([1, -1])},
    ),
    "sizes that are compared with a constant": (
        [*shapes(), node("Equal", ["to", "others"], ["y"])],
        {"x": X},
        {**KNOWN, "others": np.array([3, 8])},
    ),
    "without axes of one element": (
        [node("Unsqueeze", ["x", "zero1"], ["z"]), node("Squeeze", ["z"], ["y"])],
        {"x": X},
        KNOWN,
    ),
    "a shape that is given": ([node("Reshape", ["x", "s"], ["y"])], {"x": X, "s": np.array([5, 12])}, {}),
    "repeats that are given": ([node("Tile", ["x", "s"], ["y"])], {"x": X, "s": np.array([2, 1, 3])}, {}),
    "a larger shape that is given": (
        [node("Expand", ["x", "s"], ["y"])],
        {"x": X[:, :1], "s": np.array([3, 2, 1])},
        {},
    ),
    "sizes of different names": ([node("Add", ["x", "z"], ["y"])], {"x": X, "z": X[0, :, :1]}, {}),
    "sizes of one": ([node("Mul", ["x", "z"], ["y"])], {"x": X[:1], "z": X[:, 0, None]}, {}),
    "nothing and one": ([node("Add", ["x", "z"], ["y"])], {"x": X[:0], "z": X[:1]}, {}),
    "parts of other names": ([node("Concat", ["x", "z"], ["y"], axis=1)], {"x": X, "z": X[:, 1:3].copy()}, {}),
    "places": ([node("Gather", ["x", "i"], ["y"], axis=1)], {"x": X, "i": np.array([[4, -5], [0, -1]])}, {}),
    "lengths of a mask": ([node("LengthsOfMask", ["m"], ["y"])], {"m": np.arange(5) < N[:, None]}, {}),
    "the last step that counts": ([node("HoldLast", ["x", "n"], ["y"])], {"x": X, "n": N}, {}),
    "steps in reverse": (
        [node("ReverseSequence", ["x", "n"], ["y"], time_axis=1, batch_axis=0)],
        {"x": X, "n": N.astype("i8")},
        {},
    ),
    "a sum of several": ([node("Sum", ["x", "z", "x"], ["y"])], {"x": X, "z": X[0, :, :1]}, {}),
    "a mean of several": ([node("Mean", ["x", "z", "z"], ["y"])], {"x": X, "z": X[0, :, :1]}, {}),
    "slopes below zero": (
        [node("PRelu", ["x", "z"], ["y"])],
        {"x": ODD, "z": np.array([[0.25, -1, 2, 0.5]], "f4")},
        {},
    ),
    "products of rows of other names": (
        [node("MatMul", ["x", "z"], ["y"])],
        {"x": X, "z": X.transpose(0, 2, 1)[:, :, :2].copy()},
        {},
    ),
    "a product and a row": (
        [node("Gemm", ["x", "w", "z"], ["y"], alpha=0.5, beta=2.0, transB=1)],
        {"x": X[0], "z": X[1, :, :1].copy()},
        {"w": X[2]},
    ),
    **{
        f"{op} of odd numbers": ([node(op, ["x"], ["y"], **attributes)], {"x": ODD}, {})
        for op, attributes in (
            ("HardSigmoid", {"alpha": 0.3}),
            ("HardSwish", {}),
            ("Softsign", {}),
            ("ThresholdedRelu", {"alpha": 0.5}),
            ("Gelu", {}),
            ("Selu", {}),
            ("Sigmoid", {}),
            ("Softplus", {}),
        )
    },
    **{
        f"{op} of whole numbers": ([node(op, ["x", "a"], ["y"])], {"x": W.astype("i4")}, {"a": np.array([1])})
        for op in ("ReduceSumSquare", "ReduceL1", "ReduceL2")
    },
    "a layer's mean": (
        [node("LayerNormalization", ["x", "s"], ["y", "m", "d"], axis=1)],
        {"x": X},
        {"s": RNG.normal(size=(5, 4)).astype("f4")},
    ),
    "the largest of -inf": ([node("ReduceMax", ["x", "a"], ["y"])], {"x": ODD}, {"a": np.array([1])}),
    "the largest of nothing": ([node("ReduceMax", ["x", "a"], ["y"])], {"x": X[:, :0]}, {"a": np.array([1])}),
    "the smallest whole number of nothing": (
        [node("ReduceMin", ["x", "a"], ["y"])],
        {"x": W[:0]},
        {"a": np.array([0])},
    ),
    "NaN is no small number": ([node("Relu", ["x"], ["y"])], {"x": ODD}, {}),
    "NaN is no bound": ([node("Clip", ["x", "l", "h"], ["y"])], {"x": ODD}, {"l": np.float32(-1), "h": np.float32(2)}),
    "the larger of NaN": ([node("Max", ["x", "z"], ["y"])], {"x": ODD, "z": ODD[:, ::-1].copy()}, {}),
    "a remainder": ([node("Mod", ["x", "z"], ["y"])], {"x": W[:3], "z": np.array([[3, -3]])}, {}),
    "zeros of a remainder": (
        [node("Mod", ["x", "z"], ["r"]), node("Reciprocal", ["r"], ["y"])],
        {"x": np.array([0, -0.0, 0, -0.0], "f4"), "z": np.array([-2, 2, 2, -2], "f4")},
        {},
    ),
    "zeros of a remainder as C has it": (
        [node("Mod", ["x", "z"], ["r"], fmod=1), node("Reciprocal", ["r"], ["y"])],
        {"x": np.array([0, -0.0, 4, -4], "f4"), "z": np.array([-2, 2, -2, 2], "f4")},
        {},
    ),
    "a remainder as C has it": ([node("Mod", ["x", "z"], ["y"], fmod=1)], {"x": W[:3], "z": np.array([[3, -3]])}, {}),
    "a remainder of floats": (
        [node("Mod", ["x", "z"], ["y"])],
        {"x": np.array([[0, -0.0, -3, 3, -1, 1, np.inf, 1, 7.5]], "f4")},
        {"z": np.array([-2, 2, np.inf, np.inf, -np.inf, -np.inf, 2, 0, -2], "f4")},
    ),
    "sizes that are all known": ([node("Shape", ["s"], ["y"])], {"s": np.arange(6)}, {}),
    "the index of the last largest": (
        [node("ArgMax", ["x"], ["y"], axis=1, select_last_index=1)],
        {"x": X[..., :0].sum(-1)},
        {},
    ),
    "a quotient": ([node("Div", ["x", "z"], ["y"])], {"x": W[:3], "z": np.array([[3, -3]])}, {}),
    "whole numbers of floats": (
        [node("Cast", ["x"], ["h"], to=6), node("Cast", ["h"], ["y"], to=1)],
        {"x": np.array([2.9, -2.9, -0.0, 2147483520, -2147483648], "f4")},
        {},
    ),
    "half precision": ([node("Cast", ["x"], ["h"], to=10), node("Exp", ["h"], ["y"])], {"x": X}, {}),
}

# One of each kind: sizes, shapes, names that meet, places, lengths, nothing, numbers as IEEE has them.
QUICK = (
    *("a shape that is computed", "a range of steps", "a larger shape that is given", "sizes of different names"),
    *("a shape that is given", "parts of other names"),
    *("nothing and one", "places", "lengths of a mask", "the last step that counts", "steps in reverse"),
    *("the largest of nothing", "NaN is no bound", "a remainder", "half precision"),
)
OTHERS = tuple(name for name in CASES if name not in QUICK)


def model(name: str) -> Any:
    nodes, inputs, constants = CASES[name]
    declared = {
        n: (v.dtype.str[1:], [f"{n}{i}" for i in range(v.ndim)] if n != "s" else [*v.shape]) for n, v in inputs.items()
    }
    outputs = dict.fromkeys(nodes[-1].output, "f4")
    return model_of(nodes, declared, outputs, constants, 21)


def expected(name: str) -> list[np.ndarray]:
    """What the onnx package makes of it."""
    nodes, inputs, constants = CASES[name]
    values: dict[str, Any] = {**inputs, **constants}
    for own in nodes:
        given = {a.name: onnx.helper.get_attribute_value(a) for a in own.attribute}
        if "to" in given:
            given = {"dtype": {1: "float32", 6: "int32", 10: "float16"}[given["to"]]}
        made = evaluated(own.op_type, [values[n] for n in own.input], given, len(own.output))
        values.update(zip(own.output, made, strict=True))
    return [np.asarray(values[n]) for n in nodes[-1].output]


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Any:
    """A call of a case: all quick ones are in one library, all others in another."""
    call_of = functools.cache(lambda names: compiled(names, tmp_path_factory.mktemp("importer")))
    return lambda name, inputs: call_of(QUICK if name in QUICK else OTHERS)(name, inputs)


def compiled(names: tuple[str, ...], folder: Path) -> Any:
    made = {name: HostFunction(f"around_{i}", read_graph(model(name), name), 8) for i, name in enumerate(names)}
    functions = {key: value for own in made.values() for key, value in own.functions.items()}
    path = folder / "around.so"
    path.write_bytes(link(generate(tvm.IRModule(functions), host()), folder, host()))
    library = tvm.runtime.load_module(str(path))
    library["pool_install"]()  # libtvm_runtime's loader has put its own pool there
    module = type("Fake", (), {"_library": type("Fake", (), {"get_function": library.get_function})(), "threads": 2})()

    def call(name: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        own = made[name]
        attributes = {
            "function": own.name,
            "constants": len(own.given),
            "axes": [len(value.shape) for value in own.graph.outputs],
            "dtypes": [value.dtype for value in own.graph.outputs],
            "memory": list(own.works),
            "numbers": list(own.graph.numbers),
        }
        given = [*inputs.values(), *(value.array for value in own.given)]
        return call_compiled(module, given, attributes)

    return call


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.broad) for name in OTHERS)])
def test_forms(run: Any, name: str) -> None:
    found = run(name, CASES[name][1])
    for got, wanted in zip(found, expected(name), strict=True):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-2 if got.dtype == "f2" else 1e-5, atol=1e-6)


@pytest.mark.broad
def test_norms_and_bits_beside_numpy() -> None:
    """A norm of 0 leaves zeros; of bits that are all shifted out the sign is left."""
    nodes = [
        node("LpNormalization", ["x"], ["one"], p=1, axis=1),
        node("LpNormalization", ["x"], ["two"]),
        node("BitShift", ["i", "by"], ["left"], direction="LEFT"),
        node("BitShift", ["i", "by"], ["right"], direction="RIGHT"),
    ]
    declared = {"x": ("f4", ["B", "n"]), "i": ("i4", ["k"]), "by": ("i4", ["k"])}
    outputs = {"one": "f4", "two": "f4", "left": "i4", "right": "i4"}
    mod = rnn.compile(rnn.from_onnx(model_of(nodes, declared, outputs, {}, 28)), progress=False)
    x, i, by = X[0] * np.array([[1], [0], [-2], [3], [1]], "f4"), [5, -5, 1 << 30, -1, 7, -7], [1, 1, 2, 32, -1, -1]
    found = mod.run({"x": x, "i": np.array(i, "i4"), "by": np.array(by, "i4")})
    for name, power in (("one", 1), ("two", 2)):
        norm = np.linalg.norm(x.astype("f8"), power, axis=1, keepdims=True)
        np.testing.assert_allclose(found[name], x / np.where(norm == 0, 1, norm), rtol=1e-5)
    assert found["left"].tolist() == [10, -10, 0, 0, 0, 0] and found["right"].tolist() == [2, -3, 1 << 28, -1, 0, -1]


@pytest.mark.broad
def test_parts_of_no_element() -> None:
    nodes = [node("Split", ["x", "parts"], ["a", "b", "c"], axis=1)]
    declared, outputs = {"x": ("f4", ["B", 5])}, dict.fromkeys("abc", "f4")
    mod = rnn.compile(
        rnn.from_onnx(model_of(nodes, declared, outputs, {"parts": np.array([0, 5, 0])}, 18)), progress=False
    )
    found = mod.run({"x": X[:, :, 0]})
    np.testing.assert_array_equal(found["b"], X[:, :, 0])
    assert found["a"].shape == found["c"].shape == (3, 0)


@pytest.mark.broad
def test_floats_that_are_too_large_are_the_largest_whole_number(run: Any) -> None:
    """Of which the standard says nothing."""
    (found,) = run("whole numbers of floats", {"x": np.array([3e9, np.inf, -3e9, -np.inf], "f4")})
    assert found.tolist() == [2147483520, 2147483520, -2147483648, -2147483648]


WRONG: list[tuple[str, dict[str, np.ndarray], str]] = [
    ("without axes of one element", {"x": X[:1]}, "needed is x0 other than 1"),
    ("places", {"x": X, "i": np.array([[5, 0]])}, "an index of as many places as there are"),
    ("places", {"x": X, "i": np.array([[-6, 0]])}, "an index of as many places as there are"),
    ("lengths of a mask", {"m": np.array([[True, False, True]])}, "leaves out steps at the end"),
    ("the last step that counts", {"x": X, "n": np.array([6, 0, 0], "i4")}, "lengths of at most as many steps"),
    ("steps in reverse", {"x": X, "n": np.array([-1, 0, 0])}, "lengths of at most as many steps"),
    ("a shape that is given", {"x": X, "s": np.array([5, 13])}, "needed is"),
    ("a shape that is given", {"x": X, "s": np.array([-5, -12])}, "a size of 0 or more"),
    ("sizes of different names", {"x": X, "z": X[0, :2]}, "needed is"),
    ("parts of other names", {"x": X, "z": X[:2]}, "needed is x0 = z0"),
]


@pytest.mark.parametrize(("name", "inputs", "text"), WRONG, ids=[f"{n}: {t}" for n, _, t in WRONG])
def test_what_does_not_fit_is_said(run: Any, name: str, inputs: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(InputError, match=text):
        run(name, inputs)


NEVER = [
    ([node("Gather", ["x", "i"], ["y"], axis=1)], {"i": np.array([4])}, "4 < 4"),
    ([node("Reshape", ["x", "s"], ["y"])], {"s": np.array([-1, -1])}, "no shape"),
    ([node("Reshape", ["x", "s"], ["y"])], {"s": np.array([5, 5])}, "new shape"),
    ([node("Split", ["x", "s"], ["y", "z"], axis=1)], {"s": np.array([1, 2])}, "4 = 3"),
    ([node("QuantizeLinear", ["x", "s"], ["y"])], {"s": np.float16(1)}, "scales of float16"),
    ([node("Pad", ["x", "s"], ["y"], mode="reflect")], {"s": np.array([0, 4, 0, 0])}, "4 > 4"),
]


@pytest.mark.parametrize(("nodes", "constants", "text"), NEVER, ids=[t for _, _, t in NEVER])
def test_what_never_fits_is_said_when_it_is_read(nodes: Any, constants: Any, text: str) -> None:
    with pytest.raises(Unsupported, match=text):
        read_graph(model_of(nodes, {"x": ("f4", [3, 4])}, {"y": "f4"}, constants, 21), "x")
