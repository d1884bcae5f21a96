"""What a state_dict of torch's says, in part, in excess, or wrongly: one error with all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, TvmRnnError, WeightError
from tvm_rnn.frontends.torch_names import Form, locate, places, prefixes, read_form, select


def zeros(form: Form, prefix: str = "") -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": np.zeros(shape, np.float32) for name, shape in form.shapes().items()}


FORM = Form("LSTM", 3, 4, num_layers=2, bidirectional=True)


@pytest.mark.parametrize(
    "form",
    [
        FORM,
        Form("LSTM", 3, 4, proj_size=2),
        Form("GRU", 3, 4, bias=False),
        Form("GRU", 1, 1, single=True),
        Form("RNN", 2, 5, nonlinearity="relu"),
        Form("RNN", 2, 5, num_layers=3),
    ],
)
def test_names_and_shapes_lead_back_to_the_form(form: Form) -> None:
    arrays: Any = {name: (value, "float32") for name, value in zeros(form).items()}
    for kind in (form.kind, f"{form.kind}Cell", *([None] if form.kind != "RNN" else [])):
        assert read_form(arrays, kind, "", form.nonlinearity)[0] == form
    if form.kind == "RNN":
        assert read_form(arrays, f"RNN_{form.nonlinearity.upper()}", "", "tanh")[0] == form


def test_everything_that_does_not_fit_is_named() -> None:
    arrays = zeros(FORM, "a.")
    del arrays["a.bias_hh_l1"], arrays["a.weight_ih_l1_reverse"]
    arrays |= {"a.weight_hh_l1": np.zeros((16, 5), np.float32), "a.scale": np.zeros(3, np.float32)}
    with pytest.raises(WeightError) as error:
        rnn.from_torch(arrays)
    for text in (
        "missing: a.bias_hh_l1[16]",
        "missing: a.weight_ih_l1_reverse[16, 8]",
        "unknown: a.scale",
        "a.weight_hh_l1: shape [16, 5], expected [16, 4]",
        "torch.nn.LSTM of input_size 3 and 4 units",
    ):
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"weight_hh_l0": np.zeros((5, 4), "f4")}, None, "the shapes do not tell the kind"),
        ({"weight_hh_l0": np.zeros(16, "f4")}, None, r"weight_hh_l0: shape \[16\]"),
        ({"weight_hh_l0": np.zeros((16, 0), "f4")}, "LSTM", "no axis of 0"),
        ({"weight_hr_l0": np.zeros((2, 4), "f4")}, "GRU", "only an LSTM has a projection"),
        ({"weight_ih_l9999": np.zeros((16, 4), "f4")}, "LSTM", "for 10000 layers"),
        ({"weight_ih_l" + "9" * 5000: np.zeros((16, 4), "f4")}, "LSTM", "unknown"),
        ({}, "LTSM", "did you mean 'LSTM'"),
        ({"bias_ih_l0": np.zeros(16, "f8")}, "LSTM", "float32, float64"),
        ({"bias_ih_l0": np.zeros(16, "i8")}, "LSTM", "bias_ih_l0 has an unsupported dtype"),
    ],
)
def test_wrong_arrays(changes: dict[str, np.ndarray], kind: str | None, text: str) -> None:
    with pytest.raises(TvmRnnError, match=text):
        rnn.from_torch({**zeros(FORM), **changes}, kind)


def test_a_plain_rnn_is_not_guessed() -> None:
    with pytest.raises(ConfigError, match='kind="RNN", nonlinearity="relu"'):
        rnn.from_torch(zeros(Form("RNN", 3, 4)))
    with pytest.raises(ConfigError, match="did you mean 'relu'"):
        rnn.from_torch(zeros(Form("RNN", 3, 4)), "RNN", nonlinearity="rely")


def test_which_names_are_meant() -> None:
    names = ["b.weight_ih_l0", "b.bias_ih_l0", "b.c.other", "c.x"]
    assert select(names, None) == (names[:2], "b.") and select(names, "b") == (names[:2], "b.")
    with pytest.raises(WeightError, match=r"c\.x"):
        select(names[2:], None)
    with pytest.raises(WeightError, match="nothing"):
        select([], None)


def test_where_weights_are() -> None:
    names, inner = {"b.weight_ih_l0": 1, "x": 2}, {"weight_hh": 3}
    assert places(names) == {"": names} and prefixes(["weight_hh", *names]) == ["", "b."]
    whole: dict[str, object] = {"a": {0: names}, "c": inner, "lists": [names]}
    assert places(whole) == {"['a'][0]": names, "['c']": inner} and places(whole, depth=1) == {"['c']": inner}
    assert locate(whole, "b") == ("['a'][0]", names) and locate(whole, "") == ("['c']", inner)
    with pytest.raises(ConfigError, match=r"checkpoint\['a'\]\[0\]: 'b\.'"):
        locate(whole, "d")


NAMES = st.sampled_from([*FORM.shapes(), "weight_ih", "weight_hr_l0", "weight_ih_l7", "x"])
SHAPES = st.lists(st.sampled_from([0, 1, 3, 4, 8, 12, 16]), max_size=3).map(tuple)


@given(st.dictionaries(NAMES, SHAPES), st.sampled_from([None, "LSTM", "GRU", "RNN"]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_arrays_are_a_network_or_an_error_of_ours(shapes: Any, kind: str | None, whole: bool) -> None:
    arrays = (zeros(FORM) if whole else {}) | {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    try:
        net = rnn.from_torch(arrays, kind)
    except TvmRnnError:
        return
    assert net.weights.keys() == net.weight_shapes.keys()
