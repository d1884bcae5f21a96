"""hypothesis: random cells against torch, which runs the same Python function: results and gradients, in float64.

In: `random_equations`, `torch_equations`. The oracle is compared in quick tests; compiled code, which takes seconds
to make, in 20 cells of the broad tests, and in a thousand of the slow ones. Half of the cells are
given values that tie: multiples of one half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from derivatives import Case, draw, each, named, oracle
from hypothesis import given
from hypothesis import strategies as st
from networks import flags
from random_equations import Equations, equations

import tvm_rnn as rnn
from tests.test_random import PASSES, examples
from tvm_rnn.oracle.tolerance import assert_close

pytest.importorskip("torch")
run = pytest.importorskip("torch_equations").run
pytestmark = pytest.mark.peers

T, B = 4, 3
FORMS = {
    "cell": equations(),
    "num_layers": st.integers(1, 2),
    "bidirectional": st.booleans(),
    "ties": st.booleans(),
    "ragged": st.booleans(),
    "seed": st.integers(0, 99),
}


def problem(
    cell: Equations, num_layers: int, bidirectional: bool, ties: bool, ragged: bool, seed: int
) -> tuple[rnn.RNN, Case]:
    """A network with weights, and a call of it. Values that tie are multiples of one half, in -1..1."""
    net = cell.net("float64", num_layers, bidirectional)
    ties = ties and cell.may_tie
    case = draw(net, T, B, seed, **(flags(T, B, seed) if ragged else {}))
    rng = np.random.default_rng(seed)

    def tame(value: np.ndarray) -> np.ndarray:
        return rng.integers(-2, 3, value.shape) / 2.0 if ties else rng.uniform(-1, 1, value.shape)

    for values in (case.x, case.state):
        values.update({name: each(value, tame) for name, value in values.items()})
    if ties:
        net = net.load({name: np.round(2 * value) / 2 for name, value in net.weights.items()})
    return net, case


def oracle_is_torch(cell: Equations, **form: Any) -> None:
    net, case = problem(cell, **form)
    results, gradients = run(cell.source, net, case)
    assert_close(rnn.reference(net)(case.x, case.state, **case.rows), results, "float64", 2000)
    assert_close(oracle(net, case), gradients, "float64", 2000, "gradients")


def compiled_is_torch(cell: Equations, without: set[str], keep: str, **form: Any) -> None:
    net, case = problem(cell, **form)
    module: Any = rnn.compile(net, training=True, without=without, keep=keep)
    results, gradients = run(cell.source, net, case)
    assert_close(module(case.x, case.state, **case.rows), results, "float64", 2000)
    y, last, tape = module.forward_train(case.x, case.state, **case.rows)
    assert_close((y, last), results, "float64", 2000, "result of training")
    assert_close(named(*module.backward(tape, case.gy, case.gstate)), gradients, "float64", 2000, "gradients")


COMPILED = FORMS | {"without": PASSES, "keep": st.sampled_from(["values", "states"])}


@examples(15, same=True)
@given(**FORMS)
def test_few(**form: Any) -> None:
    oracle_is_torch(**form)


@pytest.mark.broad
@examples(150, same=True)
@given(**FORMS)
def test_more(**form: Any) -> None:
    oracle_is_torch(**form)


@pytest.mark.slow
@examples(5000, same=False)
@given(**FORMS | {"cell": equations(most=30)})
def test_many(**form: Any) -> None:
    oracle_is_torch(**form)


@pytest.mark.slow
@examples(20, same=True)
@given(**COMPILED)
def test_more_compiled(**form: Any) -> None:
    compiled_is_torch(**form)


@pytest.mark.slow
@examples(1000, same=False)
@given(**COMPILED)
def test_a_thousand_compiled(**form: Any) -> None:
    compiled_is_torch(**form)
