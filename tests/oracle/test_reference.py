"""The oracle: lengths, resets, states, empty sequences and batches, layers of different sizes, and what it refuses."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import RNN, InputError, WeightError, cell, cells, sigmoid, softmax, tanh
from tvm_rnn.oracle.reference import Draws
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime_random

T, B = 7, 5


@cell(states="h c", initial={"h": 0.5, "c": -2.0}, output="y")
def restless(x: "I", h: "H", c: "2 H", *, W: "H I", R: "H H", V: "2 H H"):
    """A cell whose states begin at other values than 0, differ in shape, and whose output is no state."""
    h = tanh(W @ x + R @ h + c[0] * sigmoid(c[1]))
    c = 0.5 * c + V @ h
    return h, c, h + c[1]


NETS: dict[str, dict[str, Any]] = {
    "lstm": {"cell": cells.lstm},
    "bidirectional": {"cell": cells.lstm, "num_layers": 2, "bidirectional": True},
    "restless": {"cell": restless, "num_layers": 2},
    "restless both ways": {"cell": restless, "num_layers": 2, "bidirectional": True},
    "sizes per layer": {"cell": restless, "num_layers": 3, "bidirectional": True, "hidden_size": [4, 2, 3]},
    "slstm": {"cell": cells.slstm, "num_layers": 2},
    "augru": {"cell": cells.augru, "bidirectional": True},
    "reverse": {"cell": restless, "num_layers": 2, "reverse": True},
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> RNN:
    return RNN(**{"input_size": 3, "hidden_size": 4, **NETS[request.param]}).init(1)


def draw(net: RNN, steps: int = T, batch: int = B, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    shapes = [a.shape(net.layers[0].sizes) for a in net.cell.inputs]
    arrays = tuple(rng.normal(size=(steps, batch, *shape)) for shape in shapes)
    return arrays if len(arrays) > 1 else arrays[0]


def some_state(net: RNN, batch: int = B) -> Any:
    rng = np.random.default_rng(9)
    return each(net.initial_state(batch), lambda a: rng.uniform(0.1, 1.0, a.shape))


def each(value: Any, change: Any) -> Any:
    """`change` applied to every array of x, or of a state."""
    if isinstance(value, dict):
        return {name: each(part, change) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(each(part, change) for part in value)
    return change(value)


def row_of(value: Any, b: int) -> Any:
    return each(value, lambda a: a[:, b : b + 1])


def join(*states: Any) -> Any:
    """States of several rows side by side."""
    if isinstance(states[0], dict):
        return {name: join(*(s[name] for s in states)) for name in states[0]}
    if isinstance(states[0], list):
        return [join(*parts) for parts in zip(*states, strict=True)]
    return np.concatenate(states, axis=1)


@pytest.mark.parametrize("lengths", [[3, 7, 0, 1, 7], [0, 0, 0, 0, 0], [7, 7, 7, 7, 7], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("given", [False, True], ids=["no state", "state"])
def test_lengths_are_each_row_alone(net: RNN, lengths: list[int], given: bool) -> None:
    x, state = draw(net), some_state(net) if given else None
    y, final = rnn.reference(net)(x, state, lengths=np.array(lengths))
    own = []
    for b, n in enumerate(lengths):
        alone = each(row_of(x, b), lambda a, n=n: a[:n])
        y_b, final_b = rnn.reference(net)(alone, row_of(state, b) if state else None)
        assert_close(y[:n, b], y_b[:, 0], "float64", T)
        assert not y[n:, b].any()
        own.append(final_b)
    assert_close(final, join(*own), "float64", T)


@pytest.mark.parametrize("where", [[3], [0], [1, 2, 6], [0, 4, 5]])
def test_resets_are_segments_run_separately(where: list[int]) -> None:
    """One layer, both directions: forward the first segment has the given state, in reverse the last one has it."""
    net = RNN(restless, 3, 4, bidirectional=True).init(2)
    x, state = draw(net, batch=1), some_state(net, 1)
    mask = np.zeros((T, 1), bool)
    mask[where] = True
    y, final = rnn.reference(net)(x, state, reset=mask)
    edges = [0, *[t for t in where if t], T]
    fresh = net.initial_state(1)
    finals = []
    for start, stop in pairwise(edges):
        forward = state if start == 0 and 0 not in where else fresh
        backward = state if stop == T else fresh
        begin = {name: np.concatenate([forward[name][:1], backward[name][1:]]) for name in state}
        y_part, end = rnn.reference(net)(x[start:stop], begin)
        assert_close(y[start:stop], y_part, "float64", T)
        finals.append(end)
    expected = {name: np.concatenate([finals[-1][name][:1], finals[0][name][1:]]) for name in state}
    assert_close(final, expected, "float64", T)


def test_resets_are_per_row_and_go_with_lengths(net: RNN) -> None:
    rng = np.random.default_rng(4)
    x, state, lengths = draw(net), some_state(net), np.array([7, 2, 5, 0, 6])
    mask = (rng.random((T, B)) < 0.3) & (np.arange(T)[:, None] < lengths)
    y, final = rnn.reference(net)(x, state, lengths=lengths, reset=mask)
    own = []
    for b, n in enumerate(lengths):
        alone = each(row_of(x, b), lambda a, n=n: a[:n])
        y_b, final_b = rnn.reference(net)(alone, row_of(state, b), reset=mask[:n, b : b + 1])
        assert_close(y[:n, b], y_b[:, 0], "float64", T)
        own.append(final_b)
    assert_close(final, join(*own), "float64", T)


def test_with_the_batch_first(net: RNN) -> None:
    """Calls and gradients are those with time first, turned."""
    first, x, state = copy.copy(net), draw(net), some_state(net)
    first.batch_first = True
    rows = {"lengths": np.arange(B) % (T + 1), "reset": np.random.default_rng(0).random((T, B)) < 0.2}
    if net.cell.constants:
        del rows["reset"]
    turned = {**rows, "reset": rows["reset"].T} if "reset" in rows else rows
    swapped = each(x, lambda a: a.swapaxes(0, 1))
    y, last = rnn.reference(net)(x, state, **rows)
    own, after = rnn.reference(first)(swapped, state, **turned)
    assert_close((own.swapaxes(0, 1), after), (y, last), "float64", T)
    gx, gstate, gweights = rnn.reference(net).gradients(x, state, y, **rows)
    found, *rest = rnn.reference(first).gradients(swapped, state, own, **turned)
    assert_close((each(found, lambda a: a.swapaxes(0, 1)), *rest), (gx, gstate, gweights), "float64", T)
    with pytest.raises(InputError, match=r"wrong shape[\s\S]*\[B, T"):
        rnn.reference(first)(each(x, lambda a: a[0]))


def test_a_reset_everywhere_forgets_the_state() -> None:
    net = RNN(restless, 3, 4, 2).init(0)
    x, mask = draw(net), np.ones((T, B), bool)
    y, _ = rnn.reference(net)(x, some_state(net), reset=mask)
    for t in range(T):
        assert_close(y[t], rnn.reference(net)(x[t : t + 1])[0][0], "float64", 1)


@pytest.mark.parametrize(
    "forward", [name for name, how in NETS.items() if not {"bidirectional", "reverse"} & how.keys()]
)
def test_step_by_step_is_the_sequence(forward: str) -> None:
    net = RNN(**{"input_size": 3, "hidden_size": 4, **NETS[forward]}).init(1)
    x, state = draw(net), some_state(net)
    y, final = rnn.reference(net)(x, state)
    for t in range(T):
        y_t, state = rnn.reference(net)(each(x, lambda a, t=t: a[t : t + 1]), state)
        assert_close(y_t[0], y[t], "float64", T)
    assert_close(state, final, "float64", T)


def test_no_state_is_the_initial_state(net: RNN) -> None:
    x = draw(net)
    assert_close(rnn.reference(net)(x), rnn.reference(net)(x, net.initial_state(B)), "float64", T)


def test_nothing_given_is_changed(net: RNN) -> None:
    x, state, mask = draw(net), some_state(net), np.eye(T, B, dtype=bool)
    before = each({"x": x, "state": state}, np.copy)
    rnn.reference(net)(x, state, reset=mask)
    assert_close({"x": x, "state": state}, before, "float64", T)


@pytest.mark.parametrize(("steps", "batch"), [(0, 4), (3, 0), (0, 0), (1, 1)])
def test_empty_sequences_and_batches(net: RNN, steps: int, batch: int) -> None:
    state = some_state(net, batch)
    y, final = rnn.reference(net)(draw(net, steps, batch), state)
    assert y.shape == (steps, batch, net.output_size) and y.dtype == np.float64
    assert each(final, np.shape) == each(state, np.shape)
    if steps == 0:
        assert_close(final, state, "float64", 1)


def test_layers_of_different_sizes_have_lists_of_states() -> None:
    net = RNN(restless, 3, [4, 2], num_layers=2, bidirectional=True).init(0)
    y, final = rnn.reference(net)(draw(net))
    assert y.shape == (T, B, 4)
    assert [part.shape for part in final["h"]] == [(2, B, 4), (2, B, 2)]
    assert [part.shape for part in final["c"]] == [(2, B, 2, 4), (2, B, 2, 2)]


def test_inputs_by_position_name_and_keyword() -> None:
    net = RNN(cells.augru, 3, 4).init(0)
    x, a = draw(net)
    run = rnn.reference(net)
    for other in (run([x, a]), run({"a": a, "x": x}), run(x, a=a), run({"x": x}, a=a)):
        assert_close(other, run((x, a)), "float64", T)


def test_torch_tensors_are_read() -> None:
    torch = pytest.importorskip("torch")
    net = RNN(cells.gru, 3, 4).init(0)
    x = draw(net)
    lengths = torch.tensor([7, 1, 0, 3, 3])
    expected = rnn.reference(net)(x, lengths=lengths.numpy(), reset=np.eye(T, B, dtype=bool))
    assert_close(
        rnn.reference(net)(torch.tensor(x), lengths=lengths, reset=torch.eye(T, B, dtype=torch.bool)),
        expected,
        "float64",
        T,
    )
    with pytest.raises(InputError, match=r"input x is not an array of numbers[\s\S]*requires grad"):
        rnn.reference(net)(torch.tensor(x, requires_grad=True))


def test_nan_and_infinity_reach_only_their_row() -> None:
    net = RNN(cells.lstm, 3, 4, 2, bidirectional=True).init(0)
    x = draw(net)
    clean, _ = rnn.reference(net)(x)
    x[2, 1, 0], x[3, 2, 1] = np.nan, np.inf
    y, state = rnn.reference(net)(x)
    assert np.isnan(y[:, 1]).all() and np.isnan(state["h"][:, 1]).any()
    assert_close(y[:, [0, 3, 4]], clean[:, [0, 3, 4]], "float64", T)
    assert not np.isnan(y[:, 2]).any()


def wrong_calls(net: RNN, x: np.ndarray, state: dict[str, Any]) -> dict[str, Any]:
    run: Any = rnn.reference(net)
    return {
        r"input x has the wrong shape[\s\S]*got: +\[7, 5, 4\][\s\S]*\[T, B, 3\]": lambda: run(np.ones((T, B, 4))),
        r"input x has the wrong shape[\s\S]*got: +\[7, 3\]": lambda: run(np.ones((T, 3))),
        r"input x is not an array of numbers": lambda: run("text"),
        r"input x is not an array of numbers[\s\S]*complex128": lambda: run(np.ones((2, 1, 3), complex)),
        r"input x is not an array of numbers[\s\S]*MaskedArray": lambda: run(np.ma.ones((2, 1, 3))),
        r"inputs do not fit the cell[\s\S]*got: +x, b[\s\S]*expected: +x": lambda: run(x, b=x),
        r"inputs do not fit the cell[\s\S]*got: +y": lambda: run({"y": x}),
        r"lengths does not fit x[\s\S]*int64 \[4\][\s\S]*integers of shape \[5\]": lambda: run(x, lengths=[1, 2, 3, 4]),
        r"lengths does not fit x[\s\S]*float64 \[5\]": lambda: run(x, lengths=np.ones(B)),
        r"lengths are out of range[\s\S]*0 to 7": lambda: run(x, lengths=[1, 2, 3, 4, 8]),
        r"lengths are out of range[\s\S]*-1": lambda: run(x, lengths=[1, 2, 3, 4, -1]),
        r"reset does not fit x[\s\S]*bool \[5, 7\][\s\S]*\[7, 5\]": lambda: run(x, reset=np.ones((B, T), bool)),
        r"reset does not fit x[\s\S]*float64 \[7, 5\]": lambda: run(x, reset=np.ones((T, B))),
        r"state is not the cell's[\s\S]*\['h'\][\s\S]*\['h', 'c'\]": lambda: run(x, {"h": state["h"]}),
        r"state is not the cell's[\s\S]*'d'": lambda: run(x, {**state, "d": state["h"]}),
        r"state is not the cell's[\s\S]*tuple": lambda: run(x, tuple(state)),
        r"state h has the wrong shape[\s\S]*\(1, 4, 4\)[\s\S]*\(1, 5, 4\)": lambda: run(x, some_state(net, 4)),
        r"state c has the wrong form[\s\S]*got: +list": lambda: run(x, {"h": state["h"], "c": [state["c"]]}),
    }


@pytest.mark.parametrize("number", range(16))
def test_refused(number: int) -> None:
    net = RNN(cells.lstm, 3, 4).init(0)
    pattern, call = list(wrong_calls(net, draw(net), some_state(net)).items())[number]
    with pytest.raises(InputError, match=pattern):
        call()


def test_refused_with_two_inputs_or_two_sizes() -> None:
    run = rnn.reference(RNN(cells.augru, 3, 4).init(0))
    x, a = draw(run.net)
    with pytest.raises(InputError, match=r"got: +x, a, one more\n"):
        run((x, a, a))
    with pytest.raises(InputError, match=r"got: +x\n"):
        run(x)
    with pytest.raises(InputError, match=r"input a has the wrong shape[\s\S]*same T and B"):
        run((x, a[:-1]))
    net = RNN(cells.elman, 3, [4, 2], num_layers=2).init(0)
    with pytest.raises(InputError, match=r"state h has the wrong form[\s\S]*ndarray[\s\S]*a list"):
        rnn.reference(net)(draw(net), {"h": np.zeros((2, B, 4))})


def test_weights_must_be_there_and_fit() -> None:
    net = RNN(cells.elman, 3, 4)
    with pytest.raises(WeightError, match=r"no weights[\s\S]*net.init"):
        rnn.reference(net)
    net.init(0).weights["R_l0"] = np.zeros((4, 5), np.float32)
    with pytest.raises(WeightError, match=r"R_l0: shape \[4, 5\], expected \[4, 4\]"):
        rnn.reference(net)


NET = rnn.RNN(rnn.cells.lstm, 3, 4, num_layers=2, bidirectional=True, dropout=0.5, zoneout=0.3, weight_drop=0.25).init(
    0
)


def test_masks_are_of_step_layer_direction_and_name() -> None:
    nodes = NET.layers[1].training.nodes()
    found = Draws(5, first_step=100).masks(nodes, (1, 1), 6, 7)
    assert sorted(node.attrs["stream"] for node in found) == ["dropout", "zoneout.c", "zoneout.h"]
    for node, value in found.items():
        stream, keep = node.attrs["stream"], node.attrs["keep"]
        assert keep == (0.5 if stream == "dropout" else 0.3)
        words = runtime_random.key(5, stream, 1, 1)
        np.testing.assert_array_equal(value, runtime_random.mask(words, keep, 6, node.shape[0], 107))
    assert Draws(5).masks(NET.layers[1].graph.nodes(), (1, 1), 6, 7) == {}


def test_weights_are_dropped_once_per_call_and_scaled() -> None:
    factors = Draws(5).factors(NET)
    assert list(factors) == ["R_l0", "R_l0_reverse", "R_l1", "R_l1_reverse"]
    for name, factor in factors.items():
        assert factor.shape == NET.weights[name].shape and {*np.unique(factor)} == {0.0, 1.0 / 0.75}
    own = list(factors.values())
    assert all((a != b).any() for i, a in enumerate(own) for b in own[:i])
    dropped = Draws(5).weights(NET)
    for name, value in NET.weights.items():
        np.testing.assert_array_equal(dropped[name], value * factors.get(name, 1.0))
    assert all((Draws(6).factors(NET)[name] != factor).any() for name, factor in factors.items())


@cell(constants="memory gain")
def reading(x: "I", h: "H", memory: "S M", gain: "", *, W: "H I", C: "H M", q: "M"):
    """Attention with one query, and a constant without axes."""
    return tanh(gain * (W @ x) + C @ (memory.T @ softmax(memory @ q)) + h)


def given(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {"memory": rng.normal(size=(batch, 4, 2)), "gain": rng.normal(size=batch)}


def test_constants_are_given_once_for_all_steps_layers_and_directions() -> None:
    net = RNN(reading, 3, 6, 2, bidirectional=True, S=4, M=2).init(0)
    x, constants, rows = np.random.default_rng(0).normal(size=(T, B, 3)), given(B), {"lengths": [T, 1, 2, T, 0]}
    y, last = rnn.reference(net)(x, **constants, **rows)
    held = {n: np.broadcast_to(v, (4, *v.shape)) for n, v in constants.items()}
    again = rnn.reference(net)(x, net.initial_state(B) | held, **rows)
    assert np.array_equal(y, again[0]) and np.array_equal(last["h"], again[1]["h"])
    assert all(np.array_equal(last[name], held[name]) for name in held)
    later = rnn.reference(net)(x, last, **constants)
    assert np.array_equal(later[0], rnn.reference(net)(x, last)[0])


def test_gradients_of_constants_are_sums_over_time() -> None:
    """Beside torch's of the same function; a row that has ended adds nothing."""
    torch = pytest.importorskip("torch")
    net = RNN(reading, 3, 6, S=4, M=2, dtype="float64").init(0)
    x, constants, lengths = np.random.default_rng(0).normal(size=(T, B, 3)), given(B), [T, 1, 2, T, 0]
    gy = np.random.default_rng(1).normal(size=(T, B, 6))
    _, found, _ = rnn.reference(net).gradients(x, None, gy, lengths=lengths, **constants)
    memory, gain = (torch.tensor(v, requires_grad=True) for v in constants.values())
    W, C, q = (torch.tensor(v) for v in net.weights.values())
    h, loss = torch.zeros(B, 6, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for t in range(T):
        read = (torch.softmax(memory @ q, -1)[:, None] @ memory)[:, 0] @ C.T
        h = torch.tanh(gain[:, None] * (torch.tensor(x[t]) @ W.T) + read + h)
        loss = loss + (torch.tensor(gy[t]) * h)[torch.tensor(lengths) > t].sum()
    loss.backward()
    assert np.allclose(found["memory"][0], memory.grad) and np.allclose(found["gain"][0], gain.grad)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gain": None}, "the constant gain is not given"),
        ({"memory": np.zeros((B, 2, 4))}, "the constant memory has the wrong shape"),
        ({"memory": np.zeros((B + 1, 4, 2))}, "has the wrong shape"),
        ({"memory": "all"}, "the constant memory is not an array of numbers"),
        ({"other": np.zeros(B)}, "the inputs do not fit the cell"),
        ({"reset": np.zeros((T, B), bool)}, "reset= does not go with constants"),
    ],
)
def test_constants_that_do_not_fit(change: dict[str, Any], text: str) -> None:
    net = RNN(reading, 3, 6, S=4, M=2).init(0)
    arguments = {name: value for name, value in {**given(B), **change}.items() if value is not None}
    with pytest.raises(InputError, match=text):
        rnn.reference(net)(np.zeros((T, B, 3)), **arguments)


def test_constants_of_another_shape_in_each_layer() -> None:
    @cell(constants="m")
    def wide(x: "I", h: "H", m: "H", *, W: "H I"):
        return tanh(W @ x + m + h)

    with pytest.raises(rnn.ConfigError, match="every layer is given the same m"):
        RNN(wide, 3, [4, 5], num_layers=2)
