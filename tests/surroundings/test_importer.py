"""A model as a Relax module: several results of a node, sizes that are elements, what is to be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.surroundings.importer import imported


def test_parts_are_values_of_their_own() -> None:
    made = imported(
        model_of([node("Split", ["x"], ["y", "z"], axis=1)], {"x": ("f4", ["B", 6])}, {"y": "f4", "z": "f4"})
    )
    assert "R.output" in made.module.script() and len(made.module["main"].ret_ty.fields) == 2
    assert not made.bounds and not made.demands and not made.numbers


def test_a_shape_that_is_an_input_names_sizes() -> None:
    made = imported(
        model_of([node("Reshape", ["x", "s"], ["y"])], {"x": ("f4", ["B", 6]), "s": ("i8", [3])}, {"y": "f4"})
    )
    assert [*made.numbers] == [1] and len(made.numbers[1]) == 3
    assert len(made.module["main"].params) == 3


def test_what_is_looked_at_is_one_more_output() -> None:
    model = model_of(
        [node("Gather", ["w", "i"], ["y"])], {"i": ("i8", ["N"])}, {"y": "f4"}, {"w": np.ones((4, 2), "f4")}
    )
    made = imported(model)
    assert [(int(own.low), int(own.high)) for own in made.bounds] == [(-4, 4)]
    assert len(made.module["main"].ret_ty.fields) == 2


def grouped(groups: int, wide: int, rows: int, channels: Any = None) -> Any:
    """A convolution of so many groups, of `wide` input channels and `rows` filters each, over [B, C, T, 7]."""
    rng = np.random.default_rng(0)
    known = {"w": rng.normal(size=(groups * rows, wide, 3, 2)).astype("f4"), "b": rng.normal(size=groups * rows)}
    known["b"] = known["b"].astype("f4")
    one = node("Conv", ["x", "w", "b"], ["y"], group=groups, pads=[1, 0, 1, 1], strides=[2, 1])
    return model_of([one], {"x": ("f4", ["B", channels or groups * wide, "T", 7])}, {"y": "f4"}, known)


@pytest.mark.parametrize(
    ("model", "count"),
    [(grouped(2, 8, 3), 2), (grouped(2, 7, 3), 1), (grouped(9, 8, 1), 1), (grouped(2, 8, 3, "C"), 1)],
)
def test_few_wide_groups_are_convolutions_of_their_own(model: Any, count: int) -> None:
    """Not so narrow ones, many, or channels whose number only a run shows."""
    assert imported(model).module.script().count("R.nn.conv2d(") == count


@pytest.mark.broad
def test_groups_are_onnx_runtimes() -> None:
    made, rng = grouped(3, 9, 5), np.random.default_rng(1)
    mod = rnn.compile(rnn.from_onnx(made))
    for rows, steps in ((1, 4), (3, 11)):
        feeds = {"x": rng.normal(size=(rows, 27, steps, 7)).astype("f4")}
        np.testing.assert_allclose(mod.run(feeds)["y"], onnx_runtime(made, feeds)["y"], rtol=1e-5, atol=2e-5)
