"""writers: cells that take a token and give the next one."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import Point, network, select
from tvm_rnn.bench.suites.writers import CELLS


@pytest.mark.parametrize("name", CELLS)
def test_a_token_becomes_a_token(name: str) -> None:
    net = network(Point(name, 1, 4, 3, 2, "float32", sizes=(("V", 5),))).init(0)
    assert net.tokens == 5 and bool(net.draws) == (name == "lstm_sample") and name not in rnn.cells.names()
    tokens, _, _ = rnn.reference(net).generate(3, prompt=[[4, 0]], seed=1)
    assert tokens.shape == (3, 2) and tokens.min() >= 0 and tokens.max() < 5


def test_their_names_are_alternatives() -> None:
    points = [Point(name, 1, 4, 3, batch, "float32") for name in (*CELLS, "lstm") for batch in (1, 2)]
    assert [p.cell for p in select(points, ",".join([*CELLS, "b2"]))] == [*CELLS]
