"""Gradients that are stored: of inputs, added up, with 0 where rows have ended, emulated; of parameters, from sums."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from emulated import decoded, encoded, run
from training_plans import trained

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import EACH, THREADS
from tvm_rnn.cuda.training.gradient_kernels import FinishKernels, InputGradient
from tvm_rnn.graph.graph import Node, make


def finish_of(cell: str, **options: object) -> FinishKernels:
    return trained(cell, **options)[1].backward.backs[0].finish


def test_gates_are_joined() -> None:
    finish = finish_of("lstm")
    assert list(finish.kernels) == [("gradient", 0), ("gradient", 1), ("gradient", 2)]
    made, rng = finish.kernels["gradient", 1], np.random.default_rng(0)
    arrays = {}
    for argument in made.arguments:
        size = prod(argument.node.shape)
        arrays[argument.name] = rng.normal(size=size).astype("f4") if argument.role == "read" else np.empty(size, "f4")
    run(made.kernel, arrays, {"rows": 1}, -(-4 * 64 // 128))
    parts = [arrays[a.name] for a in made.arguments if a.role == "read"]
    np.testing.assert_array_equal(arrays[made.arguments[-1].name], np.concatenate(parts))


def test_what_is_made_of_parameters_is_differentiated_once() -> None:
    """antisymmetric: the product's weight is R - R^T - gamma I."""
    finish = finish_of("antisymmetric")
    names = [kernel.kernel.name for kernel in finish.kernels.values()]
    assert len(names) == len(set(names)) and len(finish.graph.weight_gradients) == len(finish.graph.params)


def test_gradients_that_are_sums_as_they_lie() -> None:
    """An LSTM's gates, in the order of its parameters; not what is computed of sums."""
    finish = finish_of("lstm")
    assert sorted(finish.joined().values()) == [0, 1, 2]
    for nodes, number in finish.joined().items():
        assert (len(nodes), *nodes[0].shape) == finish.graph.weight_gradients[number].shape
    assert 1 not in finish_of("antisymmetric").joined().values()


def test_they_are_made_there_and_not_copied() -> None:
    plan = trained("lstm")[1].backward
    assert not [line for line in plan.program.sequence.lines if "finish_gradient" in line]
    assert [line for line in trained("antisymmetric")[1].backward.program.sequence.lines if "finish_gradient" in line]


def test_what_packing_has_made_is_read_there() -> None:
    """Of fastrnn's scalars: 1 - sigmoid(alpha) is made by packing; no launch reads what it writes."""
    _, plans = trained("fastrnn", precision="float32")
    lines = [line for line in plans.programs[1].sequence.lines if "_finish_" in line]
    given = [line.split(", ")[1:-1] for line in lines]  # behind the kernel, before its number
    assert sum("_value" in line for line in lines) == 2 and len(given) == 2 + 3  # W and R are sums
    assert all(len(own) >= 2 and own[-1] not in own[:-1] for own in given)
    assert ["packed" in "".join(own) for own in given[-2:]] == [True, True]


T, B, SIZE = 4, 3, 6


@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rows_that_have_ended_get_nothing(dtype: str, add: int) -> None:
    a, b = (Node("input", shape=(SIZE,), name=name) for name in "ab")
    places = {a: Place(dtype, 8), b: Place(dtype, SIZE)}
    gradient = InputGradient("give", make("mul", a, b), dtype, places.get, dtype)
    rng = np.random.default_rng(0)
    values = [encoded(rng.normal(size=(T * B, places[n].row_stride)), dtype) for n in gradient.read]
    there = encoded(rng.normal(size=(T * B, SIZE)), dtype)
    arrays = {f"r{i}": value for i, value in enumerate(values)}
    arrays |= {"into": there.copy(), "lengths": np.array([9, 11, 7])}
    scalars = {"rows": T * B, "batch": B, "start": 8, "has_lengths": 1, "add": add}
    run(gradient.kernel, arrays, scalars, 1)
    x, y = (decoded(value, dtype)[:, :SIZE].reshape(T, B, SIZE) for value in values)
    expected = x * y * (np.arange(8, 12)[:, None] < np.array([9, 11, 7]))[..., None]
    expected = expected + add * decoded(there, dtype).reshape(T, B, SIZE)
    np.testing.assert_allclose(decoded(arrays["into"], dtype).reshape(T, B, SIZE), expected, rtol=1e-2, atol=1e-2)


def test_zeros_read_nothing() -> None:
    gradient = InputGradient(
        "give", Node("const", shape=(1,), value=np.zeros(1)), "float32", lambda node: None, "float32"
    )
    assert gradient.read == []


@pytest.mark.broad
def test_what_is_put_together_is_read_part_by_part() -> None:
    """Of many elements: several of a thread, and of a row several blocks."""
    sizes = [150, EACH * THREADS - 20, 37]
    parts = [Node("input", shape=(size,), name=f"p{i}") for i, size in enumerate(sizes)]
    root = make("concat", *parts, axis=-1)
    own = InputGradient(
        "give", root, "float32", lambda n: Place("float32", prod(n.shape)) if n in parts else None, "float32"
    )
    rows, rng = 3, np.random.default_rng(0)
    arrays = {f"r{i}": rng.normal(size=(rows, size)).astype("f4") for i, size in enumerate(sizes)}
    expected = np.concatenate([arrays[f"r{i}"] for i in range(3)], 1)
    arrays |= {"into": np.full((rows, sum(sizes)), np.nan, "f4"), "lengths": np.zeros(1, "i8")}
    scalars = {"rows": rows, "batch": rows, "start": 0, "has_lengths": 0, "add": 0}
    run(own.kernel, arrays, scalars, rows * 2)
    np.testing.assert_array_equal(arrays["into"], expected)
