"""The operations of bundles: the ONNX standard's own tests of each, NumPy's results for odd arrays, refusals."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import pytest
from c_operations import OperationError, run

from tests.runtime.test_runtime_ops import QUICK, REFUSED, arrays_of, program_of
from tvm_rnn.bundle.encoding import BINARY, DTYPES, ENCODERS, REDUCTIONS, UNARY, Impossible, encode
from tvm_rnn.frontends.onnx_nodes import KNOWN
from tvm_rnn.module_file.schema import ModelStep
from tvm_rnn.runtime.runtime_ops import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore")  # of onnx's own reference implementation
RNG = np.random.default_rng(0)


def step(op: str, count: int = 1, **attributes: Any) -> dict[str, Any]:
    return {"op": op, "inputs": [], "outputs": [f"y{i}" for i in range(count)], "attributes": attributes, "node": op}


def test_every_operation_has_a_form_in_c() -> None:
    assert ENCODERS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_products_of_all_sizes_around_the_blocks(dtype: str) -> None:
    """Blocks are of 64 rows, 32 columns and 128 products."""
    for M, K, N in itertools.product((1, 5, 64, 66), (0, 1, 128, 131), (1, 32, 45)):
        a, b = (RNG.uniform(-9, 9, shape).astype(dtype) for shape in ((M, K), (K, N)))
        (found,) = run(step("MatMul"), [a, b])
        np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("modules", [QUICK, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "every operation"])
def test_the_standards_own_tests(modules: tuple[str, ...]) -> None:
    from onnx.backend.test.case import node as cases

    from tvm_rnn.frontends.fields import Unreadable

    tested: set[str] = set()
    for module in modules:
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    for case in cases._NodeTestCases if modules else cases.collect_testcases(None):
        names = {n.op_type for n in case.model.graph.node}
        if not names <= KNOWN | {"Constant"} or case.model.functions:
            continue
        try:
            facts = program_of(case.model).facts()
        except Unreadable as reason:
            assert any(text in str(reason) for text in REFUSED), f"{case.name}: {reason}"
            continue
        program = program_of(case.model)
        for inputs, outputs in case.data_sets:
            known: dict[str, Any] = {"": None, **program.constants}
            known |= dict(zip((d.name for d in program.inputs), arrays_of(inputs), strict=False))
            expected = arrays_of(outputs)
            if any(v is not None and v.dtype.name not in DTYPES for v in (*known.values(), *expected)):
                continue  # float16, unsigned and others: a bundle refuses them
            for own in facts["steps"]:
                found = run(own, [known.get(name) for name in own["inputs"]])
                known |= dict(zip(own["outputs"], found, strict=False))
                tested.add(own["op"])
            for declared, wanted in zip(program.outputs, expected, strict=False):
                got = known[declared.name]
                assert got.shape == wanted.shape and got.dtype == wanted.dtype, case.name
                np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6, err_msg=case.name)
    assert len(tested) > (8 if modules else 60)


ODD = [0.0, -0.0, 1.5, -2.5, 0.5, 100.0, -100.0, 1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_as_numpy_has_them(dtype: str) -> None:
    x = np.array(ODD, dtype)
    with np.errstate(all="ignore"):
        for name in UNARY:
            if name in OPERATIONS:
                expected = np.asarray(OPERATIONS[name]([x], {}))
                (found,) = run(step(name), [x])
                assert found.dtype == expected.dtype, name
                np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-12, err_msg=name)
        for name in BINARY:
            if name in OPERATIONS:
                logical = name in ("And", "Or", "Xor")
                a, b = (v > 0 if logical else v for v in (x[:, None], x[None, :]))
                expected = np.asarray(OPERATIONS[name]([a, b], {}))
                np.testing.assert_allclose(run(step(name), [a, b])[0], expected, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "shapes",
    [((), ()), ((), (7,)), ((4, 1), (1, 5)), ((2, 3, 1), (5,)), ((3, 0), (1,)), ((0, 3), (3,)), ((6, 9), (9,))],
)
def test_rows_of_floats(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (RNG.normal(size=shape).astype("f4") for shape in shapes)
    for name in ("Add", "Sub", "Mul", "Div"):
        (found,) = run(step(name), [a, b])
        assert found.shape == np.broadcast_shapes(*shapes)
        np.testing.assert_array_equal(found, OPERATIONS[name]([a, b], {}))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers(dtype: str) -> None:
    most = np.iinfo(dtype).max
    x = np.array([0, 1, -1, 5, -7, most, -most], dtype)
    for name in ("Abs", "Neg", "Sign", "Relu"):
        np.testing.assert_array_equal(run(step(name), [x])[0], OPERATIONS[name]([x], {}))
    with np.errstate(all="ignore"):
        for name in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "Div", "Mod"):
            b = x[x != 0] if name in ("Div", "Mod") else x
            expected = OPERATIONS[name]([x[:, None], b[None]], {})
            np.testing.assert_array_equal(run(step(name), [x[:, None], b[None]])[0], expected, err_msg=name)
        for name in REDUCTIONS:
            for own in (x[:5], x[:0].reshape(0, 3)):
                expected = OPERATIONS[f"Reduce{name}"]([own], {"keepdims": 0}) if own.size or name != "Mean" else None
                if expected is not None and name != "LogSumExp":
                    found = run(step(f"Reduce{name}", keepdims=0), [own])[0]
                    np.testing.assert_allclose(found, expected, err_msg=f"{name} {own}")
    lowest = np.array([np.iinfo(dtype).min], dtype)
    run(step("Div"), [lowest, np.array([-1], dtype)])  # no trap
    for name in ("Div", "Mod"):
        with pytest.raises(OperationError, match="divided by 0"):
            run(step(name), [x, np.zeros(1, dtype)])


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 2)), ((4,), (4,)), ((4,), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 2))]
)
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (RNG.normal(size=shape).astype("f4") for shape in shapes)
    (found,) = run(step("MatMul"), [a, b])
    assert found.shape == np.matmul(a, b).shape
    np.testing.assert_allclose(found, np.matmul(a, b), rtol=1e-5, atol=1e-6)


def test_masks_of_keras() -> None:
    mask = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(run(step("LengthsOfMask"), [mask])[0], [2, 0])
    with pytest.raises(OperationError, match="before steps that count"):
        run(step("LengthsOfMask"), [~mask])
    x, lengths = RNG.normal(size=(3, 4, 2)), np.array([4, 2, 0])
    np.testing.assert_array_equal(run(step("HoldLast"), [x, lengths])[0], OPERATIONS["HoldLast"]([x, lengths], {}))


X = np.ones((2, 3), "f4")
REFUSALS: list[tuple[dict[str, Any], list[Any], str]] = [
    (step("Add"), [X, np.ones(2, "f4")], "do not go together"),
    (step("Add"), [X], "input 1 is missing"),
    (step("Add"), [X, None], "input 1 is missing"),
    (step("MatMul"), [X, X], "a product over 3 and 2"),
    (step("MatMul"), [X, np.float32(1)], "a product of a number"),
    (step("Transpose", perm=[0, 0]), [X], "twice"),
    (step("Transpose", perm=[0]), [X], "1 axes of 2"),
    (step("Transpose", perm=[0, 5]), [X], "axis 5 of 2"),
    (step("Concat", axis=0), [X, np.ones((2, 2), "f4")], "sizes differ"),
    (step("Concat", axis=0), [X, np.ones(2, "f4")], "1 axes beside 2"),
    (step("Reshape"), [X, np.array([-1, -1])], "no shape"),
    (step("Reshape"), [X, np.array([4, -1])], "do not fill"),
    (step("Reshape"), [X, np.array([1 << 40, 1 << 40])], "too large"),
    (step("Reshape"), [X, np.zeros(4, "i8")], "not there"),
    (step("Reshape"), [X, np.ones(9, "i8")], "a list of 9"),
    (step("Squeeze", axes=[0]), [X], "has size 2"),
    (step("Unsqueeze", axes=[0, 0]), [X], "twice"),
    (step("Expand"), [X, np.array([2, 2])], "do not go together"),
    (step("Expand"), [X, np.array([1 << 40, 2, 3])], "no memory|too large"),
    (step("Slice"), [X, np.array([0]), np.array([1]), np.array([0]), np.array([0])], "step 0"),
    (step("Slice"), [X, np.array([0]), np.array([1, 2])], "starts or ends"),
    (step("Split", 2, split=[2, 2], axis=1), [X], "do not fill"),
    (step("Split", 2, num_outputs=0), [X], "0 parts"),
    (step("Gather"), [X, np.array([2])], "index 2 of 2"),
    (step("Gather"), [X, np.array([-3])], "index -3 of 2"),
    (step("Tile"), [X, np.array([-1, 1])], "negative"),
    (step("ConstantOfShape"), [np.array([1 << 40, 1 << 40])], "too large"),
    (step("Range"), [np.float64(0), np.float64(1), np.float64(0)], "without end"),
    (step("Range"), [np.float64(0), np.float64(np.nan), np.float64(1)], "without end"),
    (step("Pad"), [X, np.array([1, 1])], "2 pads for 2 axes"),
    (step("Pad"), [X, np.array([-1, 0, 0, 0])], "negative pad"),
    (step("Pad", mode="edge"), [X[:0], np.array([1, 0, 0, 0])], "no edge"),
    (step("ReverseSequence"), [X, np.array([9, 9, 9])], "length 9 of 2"),
    (step("ReverseSequence"), [X, np.array([1])], "lengths do not fit"),
    (step("ArgMax"), [X[:0]], "largest of nothing"),
    (step("Softmax", axis=4), [X], "axis 4"),
    (step("ReduceSum", axes=[7]), [X], "axis 7"),
    (step("BatchNormalization"), [X, *[np.ones(2, "f4")] * 4], "2 factors for 3"),
    (step("LayerNormalization"), [X, np.ones(2, "f4")], "does not fit"),
    (step("HoldLast"), [X, np.array([1])], "lengths do not fit"),
    (step("LengthsOfMask"), [np.ones(2, bool)], "1 axes"),
    (step("Clip"), [X, X], "limits that are arrays"),
]


@pytest.mark.parametrize(("own", "given", "text"), REFUSALS, ids=[f"{s['op']} {t}" for s, _, t in REFUSALS])
def test_what_does_not_fit_is_said(own: dict[str, Any], given: list[Any], text: str) -> None:
    with pytest.raises(OperationError, match=text):
        run(own, given)


def test_what_has_no_form() -> None:
    for own in (
        step("Cast", dtype="float16"),
        step("ConstantOfShape", dtype="uint8"),
        step("Pad", mode="wrap"),
        step("Unknown"),
        {**step("Add"), "inputs": ["x"] * 257},
    ):
        with pytest.raises(Impossible):
            encode(ModelStep(**own), ())
