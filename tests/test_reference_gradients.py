"""The oracle's gradients: lengths, resets, chunks of time, empty sequences, forms of results, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from derivatives import Case, assert_slopes, draw, named, oracle
from networks import flags, network

import tvm_rnn as rnn
from tests.oracle.test_reference import NETS, restless, row_of
from tvm_rnn import RNN, InputError, cells
from tvm_rnn.oracle.tolerance import assert_close

T, B = 6, 4


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> RNN:
    options = {"input_size": 3, "hidden_size": 4, **NETS[request.param]}
    return RNN(**options, dtype="float64").init(1)


def gradients(net: RNN, case: Case, **rows: Any) -> Any:
    return rnn.reference(net).gradients(case.x, case.state, case.gy, case.gstate, **{**case.rows, **rows})


@pytest.mark.broad_after(2)
def test_they_are_slopes(net: RNN) -> None:
    """Layers, directions, lengths and resets, states that begin elsewhere than at 0, inputs that every layer reads."""
    assert_slopes(net, draw(net, T, B))
    assert_slopes(net, draw(net, T, B, 1, **flags(T, B)))


def test_results_have_the_forms_of_what_they_are_gradients_of(net: RNN) -> None:
    case = draw(net, T, B)
    gx, gstate, gweights = gradients(net, case)
    x, several = case.x, len(net.cell.inputs) > 1
    assert isinstance(gx, dict) == several
    for name, value in (gx if several else {"x": gx}).items():
        assert value.shape == x[name].shape and value.dtype == np.float64
    assert list(gweights) == list(net.weight_shapes)
    assert {n: g.shape for n, g in gweights.items()} == net.weight_shapes
    assert list(gstate) == list(case.state)
    for name, value in case.state.items():
        shapes = [v.shape for v in value] if isinstance(value, list) else value.shape
        assert ([v.shape for v in gstate[name]] if isinstance(value, list) else gstate[name].shape) == shapes


def test_rows_are_alone(net: RNN) -> None:
    """Each row's gradients are those of a batch of one with as many steps; weights' gradients are the sums."""
    lengths = np.array([6, 0, 1, 4])
    case = draw(net, T, B)
    reset = flags(T, B, 3)["reset"]
    whole = named(*gradients(net, case, lengths=lengths, reset=reset))
    total = {name: np.zeros(shape) for name, shape in net.weight_shapes.items()}
    for b, n in enumerate(lengths):
        x = {name: v[:n, b : b + 1] for name, v in case.x.items()}
        own = Case(x, row_of(case.state, b), case.gy[:n, b : b + 1], row_of(case.gstate, b))
        found = named(*gradients(net, own, reset=reset[:n, b : b + 1]))
        for name, value in found.items():
            if name in total:
                total[name] += value
            elif name in x:
                assert_close(whole[name][:n, b : b + 1], value, "float64", T, name)
                assert not whole[name][n:, b].any()
            else:
                assert_close(whole[name][:, b : b + 1], value, "float64", T, name)
    assert_close({name: whole[name] for name in total}, total, "float64", T)


def test_chunks_with_carried_states_are_the_whole() -> None:
    """What truncated back-propagation is made of: here nothing is cut off, so the gradients are those of all steps."""
    net = RNN(restless, 3, 4, 2, dtype="float64").init(1)
    case, run = draw(net, T, B), rnn.reference(net)
    expected = oracle(net, case)
    _, middle = run({n: v[:2] for n, v in case.x.items()}, case.state)
    late = run.gradients({n: v[2:] for n, v in case.x.items()}, middle, case.gy[2:], case.gstate)
    early = run.gradients({n: v[:2] for n, v in case.x.items()}, case.state, case.gy[:2], late[1])
    found = named(np.concatenate([early[0], late[0]]), early[1], {n: early[2][n] + late[2][n] for n in net.weights})
    assert_close(found, expected, "float64", T)


def test_a_reset_lets_no_gradient_through(net: RNN) -> None:
    """A reset of all rows before step 2: what comes before has no part in what comes after, and the reverse. The first
    state is that of step 0, in reverse that of the last step."""
    case = draw(net, T, B)
    mask = np.zeros((T, B), bool)
    mask[2] = True
    gy = case.gy.copy()
    gy[:2] = 0.0
    gx, gstate, _ = rnn.reference(net).gradients(case.x, case.state, gy, None, reset=mask)
    if not net.bidirectional or net.num_layers == 1:  # else a layer above carries it over in the other direction
        for value in gx.values() if isinstance(gx, dict) else [gx]:
            assert not value[:2].any() and value[2:].any()
        for name, value in gstate.items():
            forward = [part[0] for part in value] if isinstance(value, list) else value[:: net.num_directions]
            assert any(part.any() for part in forward) == net.reverse, name


def test_padding_counts_nothing_whatever_it_holds(net: RNN) -> None:
    case = draw(net, T, B)
    lengths = np.array([6, 2, 0, 5])
    clean = named(*gradients(net, case, lengths=lengths))
    padded = np.arange(T)[:, None] >= lengths
    for value in (*case.x.values(), case.gy):
        value[padded] = np.nan
    for name in case.state:
        for part in case.state[name] if isinstance(case.state[name], list) else [case.state[name]]:
            part[:, 2] = np.nan  # a row of no steps
    assert_close(named(*gradients(net, case, lengths=lengths)), clean, "float64", T)


def test_no_gradient_is_a_gradient_of_zeros(net: RNN) -> None:
    case, run = draw(net, T, B), rnn.reference(net)
    zero = {n: [0.0 * p for p in v] if isinstance(v, list) else 0.0 * v for n, v in case.gstate.items()}
    for given, same in (((None, case.gstate), (0.0 * case.gy, case.gstate)), ((case.gy, None), (case.gy, zero))):
        first, second = (run.gradients(case.x, case.state, *pair) for pair in (given, same))
        assert_close(named(*first), named(*second), "float64", T)
    assert all(not g.any() for g in named(*run.gradients(case.x, case.state)).values())


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_empty_sequences_and_batches(net: RNN, steps: int, batch: int) -> None:
    case = draw(net, steps, batch)
    found = oracle(net, case)
    assert all(found[name].shape == value.shape for name, value in case.x.items())
    if steps == 0 or batch == 0:
        assert all(not found[name].any() for name in net.weights)
        assert_close(
            named(0, case.gstate, {}) | {"x": 0}, named(0, gradients(net, case)[1], {}) | {"x": 0}, "float64", 1
        )


def test_nothing_given_is_changed(net: RNN) -> None:
    case, copy = draw(net, T, B, **flags(T, B)), draw(net, T, B, **flags(T, B))
    oracle(net, case)
    for one, other in ((case.x, copy.x), (case.state, copy.state), (case.gstate, copy.gstate)):
        assert_close(one, other, "float64", T)
    assert (case.gy == copy.gy).all() and (case.rows["reset"] == copy.rows["reset"]).all()


def test_nan_stays_in_its_row() -> None:
    net = network("lstm", 3, 4, num_layers=2, dtype="float64")
    case = draw(net, T, B)
    clean = oracle(net, case)
    case.x["x"][3, 1, 0] = np.nan
    found = oracle(net, case)
    assert np.isnan(found["x"][:, 1]).any() and np.isnan(found["W_l0"]).all()
    others = [0, 2, 3]
    assert_close(found["x"][:, others], clean["x"][:, others], "float64", T)


def test_refused() -> None:
    net = network("lstm", 3, 4, dtype="float64")
    case, run = draw(net, T, B), rnn.reference(net)
    wrong = {
        r"the gradient of y has the wrong shape[\s\S]*\(6, 4, 3\)[\s\S]*\(6, 4, 4\)": (case.gy[..., :3], None),
        r"the gradient of y is not an array of numbers": ("text", None),
        r"gradient of state is not the cell's[\s\S]*\['h'\][\s\S]*\['h', 'c'\]": (None, {"h": case.state["h"]}),
        r"the gradient of state c has the wrong shape": (None, {**case.state, "c": case.state["c"][:, :2]}),
    }
    for pattern, (gy, gstate) in wrong.items():
        with pytest.raises(InputError, match=pattern):
            run.gradients(case.x, case.state, gy, gstate)


def test_inputs_by_keyword() -> None:
    net = network("augru", 3, 4, dtype="float64")
    case, run = draw(net, T, B), rnn.reference(net)
    x, a = case.x.values()
    first = run.gradients(x, case.state, case.gy, case.gstate, a=a)
    second = run.gradients((x, a), case.state, case.gy, case.gstate)
    assert list(first[0]) == ["x", "a"] and cells.augru is net.cell
    assert_close(named(*first), named(*second), "float64", T)
