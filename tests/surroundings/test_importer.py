"""A model as a Relax module: several results of a node, sizes that are elements, what is to be looked at."""

from __future__ import annotations

import numpy as np
from onnx_models import model_of, node

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
