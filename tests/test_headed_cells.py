"""Cells that nobody wrote before, compiled: blocks of unequal coupling; a matrix and a vector that read each other."""

from __future__ import annotations

from typing import Any

import headed_cells as own
import pytest
from networks import network

import tvm_rnn as rnn
from tests.cpu.training.test_add_entry_points import check

CELLS: dict[str, tuple[rnn.Cell, dict[str, int]]] = {
    "both_ways": (own.both_ways, {"K": 3, "V": 5}),
    "coupled": (own.coupled, {"N": 3, "D": 7, "P": 5}),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", CELLS)
def test_both_passes_are_the_oracle_s(name: str) -> None:
    cell, sizes = CELLS[name]
    net: Any = network(cell, 4, 6, dtype="float64", **sizes)
    module = rnn.compile(net, training=True)
    check(net, module, 5, 3)
    check(net, module, 4, 3, lengths=[4, 0, 2])
