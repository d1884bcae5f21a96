"""Places of the largest and smallest elements, as NumPy has them; the last of equal ones, too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn

RNG = np.random.default_rng(0)


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("kind", "axis", "last"), [("f4", 2, False), ("f4", 0, True), ("i8", 1, False)])
def test_places(name: str, kind: str, axis: int, last: bool) -> None:
    attributes = {"axis": axis, "keepdims": int(last), "select_last_index": int(last)}
    made = model_of([node(name, ["x"], ["y"], **attributes)], {"x": (kind, ["T", "B", 9])}, {"y": "i8"}, {}, 17)
    x = RNG.integers(-3, 4, (7, 5, 9)).astype(kind)
    place = getattr(np, name.lower())
    expected = x.shape[axis] - 1 - place(np.flip(x, axis), axis, keepdims=True) if last else place(x, axis)
    found = rnn.compile(rnn.from_onnx(made), progress=False).run({"x": x})["y"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == "i8"


def test_of_nan_it_is_a_place_that_is_there() -> None:
    made = model_of([node("ArgMax", ["x"], ["y"])], {"x": ("f4", ["T", 9])}, {"y": "i8"}, {}, 17)
    x = np.full((4, 9), np.nan, "f4")
    assert rnn.compile(rnn.from_onnx(made), progress=False).run({"x": x})["y"].tolist() == [[0] * 9]


@pytest.mark.broad
@pytest.mark.parametrize(("name", "of_none"), [("ReduceMax", False), ("ReduceMin", True)])
def test_of_bools_whether_any_or_all_are(name: str, of_none: bool) -> None:
    made = model_of(
        [node(name, ["x", "axes"], ["y"])], {"x": ("?", ["T", "n"])}, {"y": "?"}, {"axes": np.array([1])}, 20
    )
    mod, x = rnn.compile(rnn.from_onnx(made), progress=False), RNG.integers(0, 2, (4, 3)).astype(bool)
    reduced = {"ReduceMax": np.any, "ReduceMin": np.all}[name]
    np.testing.assert_array_equal(mod.run({"x": x})["y"], reduced(x, 1, keepdims=True))
    assert mod.run({"x": x[:, :0]})["y"].tolist() == [[of_none]] * 4
