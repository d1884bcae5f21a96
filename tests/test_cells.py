"""The zoo: every cell runs at odd sizes, says what it is, and is the layer of torch.nn that it claims to be."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import numpy as np
import pytest
from networks import constants

import tvm_rnn as rnn
from tvm_rnn import RNN, Cell, ConfigError, cells
from tvm_rnn.oracle.tolerance import assert_close

SIZES = {"P": 3, "depth": 2, "Y": 3, "X": 4, "S": 4, "A": 2}  # of the axes that are neither I nor H

EVERY_CELL = pytest.mark.parametrize("zoo_cell", cells.ZOO.values(), ids=lambda c: c.name)


def build(zoo_cell: Cell, input_size: int, hidden_size: int, **options: Any) -> RNN:
    extra = {name: SIZES[name] for name in zoo_cell.size_names if name in SIZES}
    return RNN(zoo_cell, input_size, hidden_size, **extra, **options).init(3)


def draw(net: RNN, steps: int, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {a.name: rng.normal(size=(steps, batch, *a.shape(net.layers[0].sizes))) for a in net.cell.inputs}


def test_the_zoo_is_complete() -> None:
    expected = """elman elman_relu lstm lstm_peephole lstm_projection lstm_layer_norm lstm_nig lstm_nfg lstm_nog
        lstm_niaf lstm_noaf lstm_np lstm_cifg lstm_fgr gru gru_reset_before mgu ugrnn janet indrnn rhn ligru fastgrnn
        multiplicative_lstm augru antisymmetric sru min_gru slstm mlstm lif alif plif"""
    assert set(expected.split()) <= set(cells.names())
    assert cells.names() == sorted(cells.ZOO)


def test_a_cell_is_found_by_name_and_as_attribute() -> None:
    for name in cells.names():
        assert cells.get(name) is getattr(cells, name) is cells.ZOO[name]
        assert cells.get(name).name == name
    with pytest.raises(ConfigError, match=r"no such cell[\s\S]*'lsmt'[\s\S]*gru, [\s\S]*did you mean 'lstm'"):
        cells.get("lsmt")
    with pytest.raises(AttributeError, match=r"no cell 'grru'[\s\S]*did you mean 'gru'"):
        _ = cells.grru


@EVERY_CELL
def test_docstring_has_paper_year_equations_and_order(zoo_cell: Cell) -> None:
    doc = zoo_cell.doc
    assert re.search(r"\b(19|20)\d\d\b", doc), "the year of the paper"
    for state in (s for s in zoo_cell.states if s.name not in zoo_cell.constants):
        assert re.search(rf"\b{state.name}'", doc), f"an equation for the new {state.name}"
    if zoo_cell.output not in (s.name for s in zoo_cell.states):
        assert re.search(rf"\b{zoo_cell.output} =", doc), f"an equation for the output {zoo_cell.output}"
    if any(re.match(r"[2-9] ", p.dims.text) for p in zoo_cell.params):
        assert re.search(r"[Oo]rder", doc), "the order of the gates"


@EVERY_CELL
def test_a_cell_is_a_few_lines(zoo_cell: Cell) -> None:
    (function,) = ast.parse(inspect.getsource(zoo_cell.function)).body
    assert isinstance(function, ast.FunctionDef)
    statements = function.body[1:]  # after the docstring
    assert (statements[-1].end_lineno or 0) - statements[0].lineno < 13


@pytest.mark.broad_after(60)
@EVERY_CELL
@pytest.mark.broad_after(len(cells.ZOO))
@pytest.mark.parametrize(("input_size", "hidden_size"), [(1, 7), (13, 3), (1, 1), (7, 1), (5, 11)])
def test_odd_sizes(zoo_cell: Cell, input_size: int, hidden_size: int) -> None:
    for options in ({}, {"num_layers": 2, "bidirectional": True, "dtype": "float64"}):
        net = build(zoo_cell, input_size, hidden_size, **options)
        for steps, batch in ((3, 1), (1, 2)):
            y, state = rnn.reference(net)(draw(net, steps, batch), **constants(net, batch))
            assert y.shape == (steps, batch, *net.output_shape)
            assert np.isfinite(y).all()
            for s in zoo_cell.states:
                shapes = [s.shape(layer.sizes) for layer in net.layers]
                alike, value = len(set(shapes)) == 1, state[s.name]  # rwkv7 keeps its input, as wide as the layer below
                lead = ((net.num_layers if alike else 1) * net.num_directions, batch)
                for part, shape in zip([value] if alike else value, shapes, strict=False):
                    assert part.shape == (*lead, *shape) and np.isfinite(part).all()


@EVERY_CELL
def test_special_values_stay_in_their_row(zoo_cell: Cell) -> None:
    """A row with NaN has NaN from that step on, whatever the gates do; other rows do not notice."""
    net = build(zoo_cell, 3, 4)
    x, held = draw(net, 5, 3), constants(net, 3)
    clean, _ = rnn.reference(net)(x, **held)
    first = next(iter(x.values()))
    for value in (np.nan, np.inf, -np.inf):
        first[2, 1, 0] = value
        y, _ = rnn.reference(net)(x, **held)
        assert_close(y[:, [0, 2]], clean[:, [0, 2]], "float64", 5)
        assert_close(y[:2], clean[:2], "float64", 5)
        if np.isnan(value):
            assert np.isnan(y[2:, 1]).all()


@EVERY_CELL
def test_initial_values_are_finite(zoo_cell: Cell) -> None:
    """The manifest is JSON, which has no name for infinity."""
    assert np.isfinite(list(zoo_cell.initial.values())).all()
    assert set(zoo_cell.initial) <= {"m", "re"}


def test_xlstm_stabiliser_holds_where_exponentials_do_not() -> None:
    for zoo_cell, gates in ((cells.slstm, "b_l0"), (cells.mlstm, "d_l0")):
        for shift in (-2000.0, 2000.0):
            net = build(zoo_cell, 3, 4, dtype="float64")
            net.weights[gates][0] += shift  # the input gate, exp(i)
            assert np.isfinite(rnn.reference(net)(draw(net, 6, 2))[0]).all()


@pytest.mark.parametrize("zoo_cell", [cells.slstm, cells.mlstm], ids=lambda c: c.name)
def test_xlstm_results_do_not_depend_on_where_the_stabiliser_begins(zoo_cell: Cell) -> None:
    net = build(zoo_cell, 3, 4, dtype="float64")
    x = draw(net, 6, 2)
    state = net.initial_state(2)
    state["m"] = np.zeros_like(state["m"])  # where the authors' code begins
    assert_close(rnn.reference(net)(x, state)[0], rnn.reference(net)(x)[0], "float64", 6)


def torch_layer(kind: str, layers: int, bidirectional: bool) -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(layers)
    options = {"num_layers": layers, "bidirectional": bidirectional, "dtype": torch.float64}
    return {
        "elman": lambda: torch.nn.RNN(5, 4, **options),
        "elman_relu": lambda: torch.nn.RNN(5, 4, nonlinearity="relu", **options),
        "lstm": lambda: torch.nn.LSTM(5, 4, **options),
        "lstm_projection": lambda: torch.nn.LSTM(5, 4, proj_size=3, **options),
        "gru": lambda: torch.nn.GRU(5, 4, **options),
    }[kind]()


def weights_of(layer: Any, kind: str) -> dict[str, np.ndarray]:
    """torch's packed matrices [G*H, K] with a gate axis; its two biases added, save where a GRU keeps one apart."""
    gates = {"elman": 1, "elman_relu": 1, "gru": 3}.get(kind, 4)
    lead = (4,) if gates == 1 else (gates, 4)
    result = {}
    for index in range(layer.num_layers):
        for end in ("", "_reverse") if layer.bidirectional else ("",):
            suffix = f"_l{index}{end}"
            own = {k: getattr(layer, f"{k}{suffix}").detach().numpy() for k in ("weight_ih", "weight_hh")}
            one, two = (getattr(layer, f"{k}{suffix}").detach().numpy() for k in ("bias_ih", "bias_hh"))
            result[f"W{suffix}"] = own["weight_ih"].reshape(*lead, -1)
            result[f"R{suffix}"] = own["weight_hh"].reshape(*lead, -1)
            result[f"b{suffix}"] = (one + two).reshape(lead)
            if kind == "gru":
                result[f"b{suffix}"][2] = one[8:]
                result[f"b_R{suffix}"] = two[8:]
            if kind == "lstm_projection":
                result[f"W_P{suffix}"] = getattr(layer, f"weight_hr{suffix}").detach().numpy()
    return result


@pytest.mark.peers
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["elman", "elman_relu", "lstm", "lstm_projection", "gru"])
def test_is_the_layer_of_torch(kind: str, layers: int, bidirectional: bool, ragged: bool) -> None:
    """y and the final state, from a given state, with the same weights in float64."""
    torch = pytest.importorskip("torch")
    layer = torch_layer(kind, layers, bidirectional)
    net = build(cells.get(kind), 5, 4, num_layers=layers, bidirectional=bidirectional, dtype="float64")
    net.load(weights_of(layer, kind))
    rng, steps, batch = np.random.default_rng(0), 9, 4
    x = rng.normal(size=(steps, batch, 5))
    state = {name: rng.normal(size=value.shape) for name, value in net.initial_state(batch).items()}
    lengths = np.array([4, 9, 1, 7])
    pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    given = torch.tensor(x)
    begin = tuple(torch.tensor(v) for v in state.values())
    with torch.no_grad():
        packed = pack(given, torch.tensor(lengths), enforce_sorted=False) if ragged else given
        y_torch, end = layer(packed, begin if len(begin) > 1 else begin[0])
    y, final = rnn.reference(net)(x, state, lengths=lengths if ragged else None)
    assert_close(y, (pad(y_torch, total_length=steps)[0] if ragged else y_torch).numpy(), "float64", steps)
    ends = end if isinstance(end, tuple) else (end,)
    assert_close(final, {name: e.numpy() for name, e in zip(state, ends, strict=True)}, "float64", steps)
