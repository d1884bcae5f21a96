"""compile_times: the zoo and large cells, each in a size of its own."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites import large_cells
from tvm_rnn.bench.suites.compile_times import networks


def test_every_cell_of_the_zoo_and_of_papers() -> None:
    found = networks()
    assert found.keys() == {*rnn.cells.ZOO, *large_cells.CELLS}
    assert found["rwkv7"].num_layers == 2 and not any(net.weights for net in found.values())


def test_names_choose() -> None:
    assert list(networks("lif, dnc")) == ["lif", "dnc"]
    with pytest.raises(rnn.ConfigError, match="did you mean 'lstm'"):
        networks("lstmm")
