"""Every cell of the zoo, compiled, is the oracle: over 200 steps within 1e-5 in float32 and 1e-12 in float64.

The quick tests take TINY, one cell for each kind of lowering, at a tiny size. Of the sweeps over cells and sizes, those
that are not slow take half of the cells in float32 at one size, and some cells otherwise. Sizes include 1, primes, and
numbers that are no multiple of a vector.
Weights and inputs are as `networks.network` draws them: see there for the two cells of which one parameter is scaled
down, because as it is drawn no float32 follows float64.
"""

from __future__ import annotations

from typing import Any

import pytest
from networks import arguments, check, compiled, constants, flags

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.oracle.tolerance import TABLE

NAMES = cells.names()
EVERY_CELL = pytest.mark.parametrize("name", NAMES)
SIZES = [(1, 33), (5, 7), (33, 1)]  # I, H
QUICK = ("lstm", "gru_reset_before", "lstm_layer_norm", "mlstm")  # between them every kind of group
TINY = (*QUICK, "lstm_projection", "sru", "delta_net")  # every kind of lowering
# A state that is turned at every step: its phase is off by as many roundings as there are steps, and a norm of what it
# reads makes 1e-4 of them after 200 steps, with or without recurrences over all time.
DRIFTS = {"retnet_rotary": 15}
STACKS = [
    {"num_layers": 3},
    {"bidirectional": True},
    {"num_layers": 3, "bidirectional": True},
]


def test_the_tolerance_is_that_of_the_issue() -> None:
    assert TABLE["float32"][0] == (200, 1e-5)


@pytest.mark.parametrize("name", [n if n in TINY else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_every_cell_compiles_at_a_tiny_size(name: str) -> None:
    net, module = compiled(name, 2, 3)
    check(net, module, 9, 2, **flags(9, 2))


def quick(first: bool, name: str, *more: object) -> Any:
    """A case that is slow unless it is among the first of its sweep or the cell is one of QUICK."""
    return pytest.param(name, *more, marks=() if first or name in QUICK else pytest.mark.slow)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "sizes"), [quick(i % 2 == 0 and s == SIZES[0], n, s) for i, n in enumerate(NAMES) for s in SIZES], ids=str
)
def test_float32(name: str, sizes: tuple[int, int]) -> None:
    net, module = compiled(name, *sizes)
    steps = DRIFTS.get(name, 200)
    for batch in (1, 7):
        check(net, module, steps, batch)
    check(net, module, steps, 33, **flags(steps, 33))
    if sizes == SIZES[0]:
        no_state_is_the_initial_one(net, module)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", [quick(number % 9 == 0, name) for number, name in enumerate(NAMES)])
def test_float64(name: str) -> None:
    net, module = compiled(name, 5, 7, dtype="float64")
    check(net, module, 200, 1)
    check(net, module, 200, 7, **flags(200, 7))


def no_state_is_the_initial_one(net: rnn.RNN, module: rnn.Module) -> None:
    (x, _), held = arguments(net, 3, 2), constants(net, 2)
    y, end = module(x, **held)
    same_y, same_end = module(x, module.init_state(2), **held)
    assert (y == same_y).all() and all((end[n] == same_end[n]).all() for n in end)
    expected, _ = rnn.reference(net)(x, **held)
    assert abs(y - expected).max() < 1e-5


@pytest.mark.broad
@pytest.mark.parametrize(
    "number",
    [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2],
    ids=["3 layers", "both ways", "3 layers both ways"],
)
@pytest.mark.parametrize("third", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_layers_and_directions(number: int, third: int) -> None:
    """Layer 0 reads another width than the others: two graphs share the code."""
    for name in NAMES[(number + third) % 3 :: 23 if third == 0 else 3]:
        net, module = compiled(name, 6, 5, **STACKS[number])
        check(net, module, 50, 3)
        check(net, module, 50, 3, **flags(50, 3))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(130, 130), (17, 64)], ids=str)
@EVERY_CELL
def test_float32_large(name: str, sizes: tuple[int, int]) -> None:
    net, module = compiled(name, *sizes)
    check(net, module, 1000, 3)
    check(net, module, 20, 130, **flags(20, 130))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(33, 1), (1, 33), (130, 130)], ids=str)
@EVERY_CELL
def test_float64_at_more_sizes(name: str, sizes: tuple[int, int]) -> None:
    net, module = compiled(name, *sizes, dtype="float64")
    check(net, module, 200, 7, **flags(200, 7))
    check(net, module, 1000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
@EVERY_CELL
def test_other_vectors(name: str, target: str) -> None:
    net, module = compiled(name, 5, 19, target)
    check(net, module, 200, 7, **flags(200, 7))
