"""Powers of two types, one-hot vectors and bits of another type, as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.surroundings.regions import Unsupported, read_graph

RNG = np.random.default_rng(0)


def run(
    nodes: list[onnx.NodeProto], given: dict[str, np.ndarray], outputs: dict[str, str], **constants: np.ndarray
) -> Any:
    declared = {name: (x.dtype.str[1:], [f"{name}{i}" for i in range(x.ndim)]) for name, x in given.items()}
    made = model_of(nodes, declared, outputs, constants, 26)
    return rnn.compile(rnn.from_onnx(made), progress=False).run(given)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("x", "y"), [("f", "i"), ("i", "f"), ("i", "i")])
def test_powers_of_two_types(x: str, y: str) -> None:
    given = {"f": RNG.uniform(0.5, 2, (3, 4)).astype("f4"), "i": RNG.integers(0, 7, (3, 1))}
    given = {name: given[name] for name in sorted({x, y})}
    found = run([node("Pow", [x, y], ["z"])], given, {"z": given[x].dtype.str[1:]})["z"]
    expected = given[x].astype("f8") ** given[y]
    np.testing.assert_allclose(found, expected if x == "f" else expected.astype("i8"), rtol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_vectors(axis: int) -> None:
    """An index from the end counts, one that is not there is nowhere; both values may be given."""
    i, both = np.array([[0, -1, 4], [5, -6, 2]]), np.array([-1.5, 2.5], "f4")
    found = run(
        [node("OneHot", ["i", "depth", "both"], ["y"], axis=axis)],
        {"i": i, "both": both},
        {"y": "f4"},
        depth=np.int64(5),
    )
    places = np.arange(5)
    expected = np.where((i[..., None] == places) | (i[..., None] == places - 5), both[1], both[0])
    np.testing.assert_array_equal(found["y"], np.moveaxis(expected, -1, axis))


@pytest.mark.broad
def test_the_same_bits() -> None:
    x = RNG.normal(size=(2, 3)).astype("f4")
    found = run([node("BitCast", ["x"], ["y"], to=6)], {"x": x}, {"y": "i4"})
    np.testing.assert_array_equal(found["y"], x.view("i4"))


def test_bits_of_another_number_are_an_error() -> None:
    with pytest.raises(Unsupported, match="bits of float32 as int64"):
        read_graph(model_of([node("BitCast", ["x"], ["y"], to=7)], {"x": ("f4", [3])}, {"y": "i8"}, {}, 26), "x")


@pytest.mark.broad
def test_ones_on_a_diagonal_in_another_type() -> None:
    found = run([node("EyeLike", ["x"], ["y"], dtype=1, k=-1)], {"x": np.ones((3, 5), "i4")}, {"y": "f4"})
    np.testing.assert_array_equal(found["y"], np.eye(3, 5, -1, "f4"))
