"""Elements at places that another array has, beside NumPy: along an axis, and along the first axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, TvmRnnError

HOW = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
Arrays = dict[str, np.ndarray]


def elements(data: np.ndarray, places: np.ndarray, updates: np.ndarray, axis: int, reduction: str) -> np.ndarray:
    """One update after the other."""
    found, combine = data.copy(), HOW[reduction]
    for at in np.ndindex(*places.shape):
        own = (*at[:axis], int(places[at]), *at[axis + 1 :])
        found[own] = updates[at] if combine is None else combine(found[own], updates[at])
    return found


def slices(data: np.ndarray, places: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """One update after the other."""
    found, combine = data.copy(), HOW[reduction]
    for at in np.ndindex(*places.shape[:-1]):
        own = tuple(places[at])
        found[own] = updates[at] if combine is None else combine(found[own], updates[at])
    return found


def run(op: str, arrays: Arrays, names: list[list[Any]], constants: Arrays | None = None, **how: Any) -> np.ndarray:
    """The operator, compiled for sizes of these names; its oracle agrees to the last bit."""
    given = {name: (value.dtype.str[1:], sizes) for (name, value), sizes in zip(arrays.items(), names, strict=True)}
    own = [node(op, ["x", "i", "u"], ["y"], **how)]
    net = rnn.from_onnx(model_of(own, given, {"y": arrays["x"].dtype.str[1:]}, constants or {}, 18))
    found: np.ndarray = np.asarray(rnn.compile(net, progress=False).run(arrays)["y"])
    np.testing.assert_array_equal(found, np.asarray(rnn.reference(net).run(arrays)["y"]))
    return found


@pytest.mark.broad_after(8)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["f4", "i8"])
def test_elements(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    reduction = rng.choice([*HOW])
    shape = rng.integers(2, 6, rng.integers(1, 4))
    axis = int(rng.integers(len(shape)))
    few = np.array([rng.integers(1, n + 1) for n in shape])
    few[axis] = rng.integers(1, 9)  # several for one place
    x = rng.integers(-4, 5, shape).astype(kind)
    i, u = rng.integers(-shape[axis], shape[axis], few), rng.integers(-4, 5, few).astype(kind)
    named = [[f"{name}{n}" for n in range(len(shape))] for name in "xii"]
    found = run("ScatterElements", {"x": x, "i": i, "u": u}, named, axis=axis, reduction=reduction)
    np.testing.assert_array_equal(found, elements(x, i, u, axis, reduction))


@pytest.mark.broad_after(4)
@pytest.mark.parametrize("seed", range(8))
def test_slices(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    reduction = rng.choice([*HOW])
    shape = rng.integers(2, 6, rng.integers(1, 4))
    depth = int(rng.integers(1, len(shape) + 1))
    lead = tuple(rng.integers(0, 5, rng.integers(0, 3)))
    x = rng.integers(-4, 5, shape).astype("f4")
    i = np.stack([rng.integers(-n, n, lead) for n in shape[:depth]], -1)
    u = rng.integers(-4, 5, (*lead, *shape[depth:])).astype("f4")
    named = [[f"x{n}" for n in range(len(shape))], [*(f"i{n}" for n in range(len(lead))), depth]]
    named.append([*named[1][:-1], *named[0][depth:]])
    found = run("ScatterND", {"x": x, "i": i, "u": u}, named, reduction=reduction)
    np.testing.assert_array_equal(found, slices(x, i, u, reduction))


def test_of_nan_the_largest_is_nan() -> None:
    x, i, u = np.array([1, np.nan, 3], "f4"), np.array([0, 1, 2]), np.array([np.nan, 2, 4], "f4")
    found = run("ScatterND", {"x": x, "i": i[:, None], "u": u}, [["n"], ["m", 1], ["m"]], reduction="max")
    np.testing.assert_array_equal(found, np.array([np.nan, np.nan, 4], "f4"))


def test_of_constants_it_is_a_constant() -> None:
    arrays = {"x": np.zeros(4, "f4"), "i": np.array([-1, 1]), "u": np.array([2, 3], "f4")}
    own = [node("ScatterElements", ["x", "i", "u"], ["s"]), node("Add", ["s", "z"], ["y"])]
    net = rnn.from_onnx(model_of(own, {"z": ("f4", ["n", 4])}, {"y": "f4"}, arrays, 18))
    assert [step.op for step in net.program.steps] == ["Add"]
    z = np.ones((2, 4), "f4")
    np.testing.assert_array_equal(rnn.compile(net).run({"z": z})["y"], z + np.array([0, 3, 0, 2]))


@pytest.mark.parametrize(
    ("i", "u", "what"),
    [
        (np.array([0, 4]), np.ones(2, "f4"), "index of as many places"),
        (np.array([-5, 0]), np.ones(2, "f4"), "index of as many places"),
        (np.array([0, 1]), np.ones(3, "f4"), "="),
    ],
)
def test_what_does_not_fit_is_an_error(i: np.ndarray, u: np.ndarray, what: str) -> None:
    names: list[list[Any]] = [["n"], ["m"], ["k"]]
    with pytest.raises(TvmRnnError, match=what):
        run("ScatterElements", {"x": np.zeros(4, "f4"), "i": i, "u": u}, names)


def test_sizes_that_cannot_fit_are_refused() -> None:
    given = {"x": ("f4", [4, 2]), "i": ("i8", [3, 3]), "u": ("f4", [3, 3])}
    own = model_of([node("ScatterElements", ["x", "i", "u"], ["y"])], given, {"y": "f4"}, {}, 18)
    with pytest.raises(ConfigError, match="3 <= 2"):
        rnn.compile(rnn.from_onnx(own))


def test_what_lies_at_places_along_the_first_axes() -> None:
    own = [node("GatherND", ["x", "i"], ["y"], batch_dims=1)]
    shapes = {"x": ("f4", ["B", "T", 3, 2]), "i": ("i8", ["B", "n", 2])}
    mod = rnn.compile(rnn.from_onnx(model_of(own, shapes, {"y": "f4"}, {}, 13)), progress=False)
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 2)).astype("f4")
    places = np.array([[[0, 2], [-1, -3], [4, 0]], [[1, 1], [-5, 0], [3, -1]]])
    expected = np.stack([x[b][places[b, :, 0], places[b, :, 1]] for b in range(2)])
    np.testing.assert_array_equal(mod.run({"x": x, "i": places})["y"], expected)
    for bad in (5, -6, 1 << 40):
        places[1, 2, 0] = bad
        with pytest.raises(TvmRnnError, match="an index"):
            mod.run({"x": x, "i": places})
    with pytest.raises(TvmRnnError):
        mod.run({"x": x[:1], "i": places})
