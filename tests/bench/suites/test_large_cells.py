"""large_cells: cells from papers; what is compiled is what their equations say."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.large_cells import CELLS

SMALL = {
    "hyper_lstm": (5, 6, {"G": 4, "E": 3}),
    "conv_lstm_shifted": (2 * 9, 3, {"C": 2, "Y": 3, "X": 3}),
    "phased_lstm": (3, 5, {}),
    "dnc": (4, 6, {"S": 5, "A": 3, "N": 2}),
}


def drawn(name: str, steps: int = 4) -> tuple[rnn.RNN, np.ndarray]:
    inputs, hidden, sizes = SMALL[name]
    net = rnn.RNN(CELLS[name], inputs, hidden, **sizes).init(0)
    return net, np.random.default_rng(0).normal(size=(steps, 2, inputs)).astype("float32")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CELLS)
def test_they_compile_to_what_they_say(name: str) -> None:
    net, x = drawn(name)
    np.testing.assert_allclose(rnn.compile(net)(x)[0], rnn.reference(net)(x)[0], rtol=1e-4, atol=1e-5)


def test_every_cell_is_known_in_a_small_size() -> None:
    assert SMALL.keys() == CELLS.keys()


def test_a_phased_unit_moves_while_it_is_open_alone() -> None:
    net, x = drawn("phased_lstm", 3)
    # A period of e^3: at 0 the unit opens, at 1 it is open, at 15 it is closed but for its leak.
    own = {"tau_l0": 3.0, "shift_l0": 0.0, "ratio_l0": 0.0, "leak_l0": 0.0}
    net.load({**net.weights, **{k: np.full_like(net.weights[k], v) for k, v in own.items()}})
    x[:, :, 0] = np.array([0.0, 1.0, 15.0])[:, None]
    first, second, third = rnn.reference(net)(x)[0]
    assert not first.any() and second.all() and (third == second).all()


def test_a_memory_is_written_where_it_is_free() -> None:
    net, x = drawn("dnc")
    _, states = rnn.reference(net)(x)
    (usage, precedence, written), links = np.moveaxis(states["v"][0], 1, 0)[:3], states["L"][0]
    assert ((usage > 0) & (usage < 1)).all() and not np.diagonal(links, axis1=1, axis2=2).any()
    assert (
        (written.sum(-1) <= 1 + 1e-9).all()
        and (precedence.sum(-1) <= 1 + 1e-9).all()
        and (links.sum(-1) <= 1 + 1e-9).all()
    )
