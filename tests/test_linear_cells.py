"""Cells that are linear in their states: two of our own from their equations alone, and the zoo's with heads, compiled.

In: cells of `linear_cells.py` and of the zoo, with and without heads, and keys of another size than values. Out:
agreement with the oracle, forward and backward; of our own, the oracle's with a loop in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_cells import OWN
from networks import check, compiled, flags

import tvm_rnn as rnn
from tests.cpu.training.test_add_entry_points import check as check_gradients
from tests.cpu.training.test_add_entry_points import trained
from tvm_rnn import cells
from tvm_rnn.oracle.tolerance import assert_close

SIZES = {"N": 2, "M": 3, "K": 5}
HEADS = [name for name in cells.names() if set(SIZES) & set(cells.get(name).size_names)]
QUICK = ("retnet",)
KEYS_ARE_INPUTS = ("given_delta",)  # K is I


def sized(name: str) -> tuple[Any, dict[str, int]]:
    """The cell, with sizes of the axes that it has of SIZES."""
    found = OWN[name][0] if name in OWN else cells.get(name)
    own = {} if name in KEYS_ARE_INPUTS else SIZES
    return found, {axis: size for axis, size in own.items() if axis in found.size_names}


@pytest.mark.parametrize("name", OWN)
def test_the_oracle_is_a_loop_in_numpy(name: str) -> None:
    own, step = OWN[name]
    rng, net = np.random.default_rng(1), rnn.RNN(own, 4, 6, dtype="float64")
    net.load({key: rng.normal(scale=0.7, size=shape) for key, shape in net.weight_shapes.items()})
    x = rng.normal(size=(7, 3, 4))
    y, final = rnn.reference(net)(x)
    weights = {key.removesuffix("_l0"): value for key, value in net.weights.items()}
    for row in range(3):
        states = [value[0, row] for value in net.initial_state(3).values()]
        for t in range(7):
            out, *states = step(weights, x[t, row], *states)
            assert_close(y[t, row], out, "float64", 7)
        for value, state in zip(final.values(), states, strict=True):
            assert_close(value[0, row], state, "float64", 7)


@pytest.mark.broad
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.broad) for n in (*OWN, *HEADS)]
)
def test_heads_compiled(name: str) -> None:
    own, sizes = sized(name)
    net, module = compiled(own, 3, 4, **sizes)
    check(net, module, 9, 2, **flags(9, 2))


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", [*OWN, *HEADS])
def test_gradients_of_heads(name: str) -> None:
    own, sizes = sized(name)
    net, module = trained(own, 3, 4, dtype="float64", **sizes)
    check_gradients(net, module, 9, 3)
    check_gradients(net, module, 9, 3, 1, **flags(9, 3))


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["gated_delta_net", "mlstm", "rwkv7"])
def test_layers_of_heads(name: str) -> None:
    """Layer 1 reads the heads of layer 0, side by side."""
    net, module = compiled(name, 3, (4, 5), num_layers=2, bidirectional=True, N=(2, 3))
    assert [layer.width for layer in net.layers] == [8, 15]
    check(net, module, 9, 2, **flags(9, 2))
