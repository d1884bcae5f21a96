"""The operations around networks: the ONNX standard's own tests of each, and empty and odd arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnx
import pytest

from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.onnx_nodes import KNOWN
from tvm_rnn.network.program import Program
from tvm_rnn.runtime.runtime_model import Plan
from tvm_rnn.runtime.runtime_ops import MOVES, OPERATIONS, reshaped

pytestmark = pytest.mark.filterwarnings("ignore")  # of onnx's own reference implementation
# What the standard tests and we refuse, by the reason that is given.
REFUSED = ("element type", "training", "casts to bfloat16", "it is no tensor", "'wrap'")


def arrays_of(values: Any) -> list[Any]:
    return [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]


def program_of(model: Any) -> Program:
    """The model's nodes as steps. Raises Unreadable for what is not supported."""
    from tvm_rnn.frontends.fields import Unreadable
    from tvm_rnn.frontends.onnx_file import Source
    from tvm_rnn.frontends.onnx_nodes import GraphSteps, add_node

    steps = GraphSteps(Source(model))
    if steps.problems:
        raise Unreadable(steps.problems[0])
    for node in model.graph.node:
        add_node(steps, node)
    return Program(tuple(steps.inputs), tuple(steps.outputs), tuple(steps.steps), steps.constants)


QUICK = ("slice", "softmax", "reshape", "split", "squeeze", "pad", "gather", "reducemean", "layernormalization", "mod")


@pytest.mark.parametrize("modules", [QUICK, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "every operation"])
def test_the_standards_own_tests(modules: tuple[str, ...]) -> None:
    """Whatever of ONNX's node tests is made of our operations, in float32 and all other dtypes."""
    from onnx.backend.test.case import node as cases

    tested: set[str] = set()
    for module in modules:  # to import all of them takes 8 s
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    for case in cases._NodeTestCases if modules else cases.collect_testcases(None):
        model, names = case.model, {n.op_type for n in case.model.graph.node}
        if not names <= KNOWN | {"Constant"} or model.functions:
            continue
        try:
            program = program_of(model)
        except Unreadable as reason:
            assert any(text in str(reason) for text in REFUSED), f"{case.name}: {reason}"
            continue
        plan = Plan(program.facts(), program.arrays())
        for given, expected in case.data_sets:
            feeds = dict(zip([i.name for i in model.graph.input], arrays_of(given), strict=True))
            found = plan.run(feeds, lambda values, attributes: [])
            for output, value in zip(model.graph.output, arrays_of(expected), strict=True):
                if value.dtype.name == "bfloat16":
                    continue  # ours are float32
                assert found[output.name].dtype == value.dtype, case.name
                np.testing.assert_allclose(found[output.name], value, case.rtol, case.atol, err_msg=case.name)
        tested |= names
    assert modules or tested - {"Constant"} == KNOWN - {"LengthsOfMask", "HoldLast"}
    assert tested >= {"Slice", "Softmax", "Reshape", "Split", "Squeeze", "Pad", "Gather", "ReduceMean"}


@pytest.mark.parametrize(
    ("shape", "to", "expected"),
    [
        ((2, 3, 4), [0, -1], (2, 12)),
        ((2, 3, 4), [4, 0, -1], (4, 3, 2)),
        ((0, 3, 2, 4), [0, 0, -1], (0, 3, 8)),  # of no steps, as torch exports what is between two layers
        ((5, 0, 4), [0, 0, -1], (5, 0, 4)),
        ((0,), [-1, 2], (0, 2)),
    ],
)
def test_sizes_that_are_left_open(shape: tuple[int, ...], to: list[int], expected: tuple[int, ...]) -> None:
    """Also of empty arrays, where NumPy refuses and the standard says nothing."""
    assert OPERATIONS["Reshape"]([np.zeros(shape), np.array(to)], {}).size == 0 or 0 not in shape
    found = reshaped(shape, to, False)
    assert np.prod(found) == np.prod(shape) and len(found) == len(to)
    if shape != (0,):
        assert found == expected


def test_shapes_that_are_none() -> None:
    for to in ([-1, -1], [-2, 3]):
        with pytest.raises(ValueError, match="is no shape"):
            reshaped((6,), to, False)
    with pytest.raises(ValueError):
        OPERATIONS["Split"]([np.zeros(5), np.array([2, 2])], {})
    with pytest.raises(ValueError, match="starts or ends"):
        OPERATIONS["Slice"]([np.zeros(5)], {})
    assert OPERATIONS["Reshape"]([np.zeros((0, 3)), np.array([3, 0])], {"allowzero": 1}).shape == (3, 0)


def test_softmax_of_old_versions_works_on_everything_from_an_axis_on() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    flat = OPERATIONS["Softmax"]([x.reshape(2, 12)], {})
    np.testing.assert_array_equal(OPERATIONS["Softmax"]([x], {"axis": 1, "flatten": 1}), flat.reshape(2, 3, 4))
    logs = OPERATIONS["LogSoftmax"]([x], {"axis": 1, "flatten": 1})
    np.testing.assert_allclose(np.exp(logs), flat.reshape(2, 3, 4), rtol=1e-12)


def test_infinities_come_as_words() -> None:
    assert (
        OPERATIONS["ConstantOfShape"]([np.array([2])], {"value": "-inf", "dtype": "float32"}).tolist() == [-np.inf] * 2
    )


def test_moves_change_no_value() -> None:
    assert OPERATIONS.keys() >= MOVES


def test_masks_as_lengths() -> None:
    mask = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
    lengths = OPERATIONS["LengthsOfMask"]([mask], {})
    assert lengths.dtype == np.int32 and lengths.tolist() == [3, 1, 0]
    x = np.arange(9.0).reshape(3, 3, 1)
    assert OPERATIONS["HoldLast"]([x, lengths], {})[..., 0].tolist() == [[0, 1, 2], [3, 3, 3], [6, 6, 6]]
    with pytest.raises(ValueError, match="at the end of a row"):
        OPERATIONS["LengthsOfMask"]([mask[:, ::-1]], {})
    assert OPERATIONS["HoldLast"]([x[:, :0], lengths], {}).shape == (3, 0, 1)
