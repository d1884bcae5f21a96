"""ensemble: many members in one network are each the network of one member, forward and backward."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import CellError, ConfigError, cells
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import assert_close

N, T, B, X, H = 3, 5, 2, 4, 7
NETS: dict[str, tuple[rnn.Cell, dict[str, Any]]] = {
    "elman": (cells.elman, {}),
    "gru, two layers": (cells.gru, {"num_layers": 2}),
    "lstm, two layers, both directions": (cells.lstm, {"num_layers": 2, "bidirectional": True}),
    "norms": (cells.lstm_layer_norm, {"reverse": True}),
    "matrices": (cells.mlstm, {}),
    "lem": (cells.lem, {}),
}


def members_of(array: np.ndarray, directions: int = 1) -> list[np.ndarray]:
    """[.., D*N, H] by member, directions joined."""
    parts = np.split(array, directions, 2)
    return [np.concatenate([part[:, :, m] for part in parts], -1) for m in range(N)]


@pytest.mark.parametrize("name", NETS)
def test_each_member_is_the_network_of_one(name: str) -> None:
    cell, options = NETS[name]
    net, one = (rnn.RNN(cell, X, H, dtype="float64", members=m, **options) for m in (N, None))
    assert net.input_shapes == {"x": (N, X)} and net.init(1).members == N
    x = np.random.default_rng(0).normal(size=(T, B, N, X))
    y, state = reference(net)(x)
    for m, own in enumerate(members_of(y, net.num_directions)):
        one.load({key: value[m] for key, value in net.weights.items()})
        expected, last = reference(one)(x[:, :, m])
        np.testing.assert_allclose(own, expected, rtol=1e-12, atol=1e-14)
        for key, value in last.items():
            np.testing.assert_allclose(state[key][:, :, m], value, rtol=1e-12, atol=1e-14)


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", ["elman", *(n for n in NETS if n not in ("elman", "matrices"))])
def test_gradients_of_compiled_members(name: str) -> None:
    cell, options = NETS[name]
    net, one = (rnn.RNN(cell, X, H, dtype="float64", members=m, **options) for m in (N, None))
    mod, alone = (rnn.compile(own, training=True, progress=False) for own in (net.init(1), one.init(0)))
    rng = np.random.default_rng(0)
    x, gy = rng.normal(size=(T, B, N, X)), rng.normal(size=(T, B, *net.output_shape))
    y, _, tape = mod.forward_train(x)
    assert_close(y, reference(net)(x)[0], "float64", T)
    gx, _, gw = mod.backward(tape, gy)
    for m, above in enumerate(members_of(gy, net.num_directions)):
        alone.load_weights({key: value[m] for key, value in net.weights.items()})
        _, _, tape = alone.forward_train(np.ascontiguousarray(x[:, :, m]))
        d_x, _, d_w = alone.backward(tape, np.ascontiguousarray(above))
        assert_close(gx[:, :, m], d_x, "float64", T)
        for key, value in d_w.items():
            assert_close(gw[key][m], value, "float64", T)


def test_masks_of_members_differ() -> None:
    net = rnn.RNN(cells.elman, X, H, 2, members=N, dropout=0.5, dtype="float64").init(0)
    weights = {name: np.repeat(value[:1], N, 0) for name, value in net.weights.items()}
    x = np.repeat(np.random.default_rng(0).normal(size=(T, B, 1, X)), N, 2)
    y, _ = reference(net.load(weights), seed=3)(x)
    assert not np.array_equal(y[:, :, 0], y[:, :, 1])


def test_what_has_no_members() -> None:
    @rnn.cell
    def rows(x: "I", h: "H", *, table: "9 H", W: "H I"):
        return rnn.tanh(rnn.take(table, x[0]) + h + W @ x)

    with pytest.raises(CellError, match=r"no members of this operation[\s\S]*take"):
        rnn.RNN(rows, 3, 4, members=2)
    for wrong in (0, 2.5, True):
        with pytest.raises(ConfigError, match="RNN: members"):
            rnn.RNN(cells.elman, X, H, members=wrong)


def test_pickles() -> None:
    cell = rnn.RNN(cells.gru, X, H, members=N).cell
    found = pickle.loads(pickle.dumps(cell))
    assert repr(found) == repr(cell) and found.trace({"I": 2, "H": 3, "members": 2}).output_shape == (2, 3)
