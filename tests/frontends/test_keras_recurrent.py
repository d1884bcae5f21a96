"""Keras's recurrent layers as layers of ours: directions, masks, states, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_files import cell_arrays

from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.keras_recurrent import Call, Model, Part, Value, bidirectional, recurrent
from tvm_rnn.network.program import NETWORK, Declared


def part(kind: str = "GRU", arrays: Any = None, **config: Any) -> Part:
    own = list(cell_arrays(3, 2, 4, 2).values()) if arrays is None else arrays
    return Part("p", kind, {"units": 4, **config}, own)


def model() -> Model:
    return Model(Steps([Declared("x", "float32", None), Declared("m", "bool", None)]))


def ops(made: Model) -> list[str]:
    return [step.op for step in made.steps.steps]


def test_one_layer_forward_and_backward() -> None:
    made = model()
    (value,) = recurrent(Call(made, part(return_sequences=True), [Value("x")]))
    assert ops(made) == ["Transpose", NETWORK, "Squeeze", "Transpose"]
    assert value == Value(made.steps.steps[-1].outputs[0]) and not made.layers[0].reverse
    made = model()
    recurrent(Call(made, part(return_sequences=True, go_backwards=True), [Value("x")]))
    assert ops(made) == ["Transpose", NETWORK, "Squeeze", "Transpose", "Slice"]
    assert made.layers[0].reverse and made.layers[0].biases[0][0].shape == (12,)


def test_the_same_mask_is_made_lengths_once_and_holds_the_last_step() -> None:
    made = model()
    (value,) = recurrent(Call(made, part(return_sequences=True), [Value("x", "m")]))
    assert value.mask == "m" and value.unheld and ops(made)[-1] == "HoldLast"
    own = list(cell_arrays(3, 4, 4, 2).values())
    (value,) = recurrent(Call(made, part(arrays=own, return_sequences=True, zero_output_for_mask=True), [value]))
    assert not value.unheld and ops(made).count("LengthsOfMask") == 1 and ops(made).count("HoldLast") == 1
    networks = [step for step in made.steps.steps if step.op == NETWORK]
    assert networks[0].inputs[1] == networks[1].inputs[1] == made.lengths["m"]


def test_states_in_and_out() -> None:
    made = model()
    given = part(return_state=True)
    given.states = [Value("x")]
    output, state = recurrent(Call(made, given, [Value("x")]))
    network = next(step for step in made.steps.steps if step.op == NETWORK)
    assert network.inputs[2] and output != state
    given.states = [Value("x"), Value("x")]
    with pytest.raises(Unreadable, match="called with 2 first states, expected 1"):
        recurrent(Call(model(), given, [Value("x")]))


def test_a_stateful_layer_has_its_state_as_input_and_output() -> None:
    made = model()
    recurrent(Call(made, part(stateful=True), [Value("x")]))
    assert made.steps.inputs[-1] == Declared("p.h", "float32", (1, "B", 4))
    assert [d.name for d in made.more_outputs] == ["p.h.next"]


def sides(**changes: Any) -> Part:
    layer = {"class_name": "GRU", "config": {"units": 4}}
    back = {"class_name": "GRU", "config": {"units": 4, "go_backwards": True}}
    arrays = [*cell_arrays(3, 2, 4, 2).values(), *cell_arrays(3, 2, 4, 2).values()]
    return Part("p", "Bidirectional", {"layer": layer, "backward_layer": back, **changes}, arrays)


def test_both_directions_are_one_layer_where_they_are_alike() -> None:
    made = model()
    assert len(bidirectional(Call(made, sides(), [Value("x")]))) == 1
    assert len(made.layers) == 1 and made.layers[0].directions == 2
    old = sides()
    old.config = {"layer": old.config["layer"]}  # as older files have it
    made = model()
    assert len(bidirectional(Call(made, old, [Value("x")]))) == 1 and made.layers[0].directions == 2
    other = {"class_name": "GRU", "config": {"units": 4, "go_backwards": True, "activation": "relu"}}
    made = model()
    assert len(bidirectional(Call(made, sides(backward_layer=other, merge_mode=None), [Value("x")]))) == 2
    assert [layer.reverse for layer in made.layers] == [False, True]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (part(arrays=[np.zeros((2, 12))] * 4), "its arrays have shapes|not all float32"),
        (part(arrays=[*cell_arrays(3, 2, 4, 2).values(), np.zeros(3, "f4")]), "it has 4 arrays, expected 3"),
        (part("RNN", cell=3), "its cell is 3"),
        (part("RNN", cell={"class_name": "MyCell", "config": {}}), "a cell 'MyCell' is none of"),
        (part("RNN", cell={"class_name": "StackedRNNCells", "config": {"cells": []}}), "it has no cells"),
        (part("RNN", cell={"class_name": "StackedRNNCells", "config": {"cells": [1]}}), "a cell ''"),
        (sides(merge_mode="max"), "merge_mode 'max'"),
        (sides(layer={"class_name": "RNN", "config": {}}), "it wraps 'RNN'"),
        (sides(layer={"class_name": "GRU", "config": {"units": 4, "go_backwards": True}}), "do not go forward"),
        (sides(layer={"class_name": "GRU", "config": {"units": 4, "stateful": True}}), "stateful layer in both"),
    ],
)
def test_what_is_refused(given: Part, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        (bidirectional if given.kind == "Bidirectional" else recurrent)(Call(model(), given, [Value("x")]))
