"""panels: every shape of tile, with every number of rows left over, computes the same."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cpu import lower_group
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.schedule import Config, Template, Unit, best

FEW, MANY = (1, 8, 1), ((1, 1, 1), (1, 4, 1), (2, 2, 1), (4, 4, 1), (8, 8, 1), (2, 8, 2), (3, 2, 2))
TILES = [FEW, (4, 1, 1), (8, 2, 1), (4, 4, 2), *(pytest.param(*tile, marks=pytest.mark.slow) for tile in MANY)]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("rows", "panels", "broad"), TILES)
def test_every_tile_with_every_rest(rows: int, panels: int, broad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def forced(unit: Unit, machine: rnn.Target) -> tuple[Template, Config]:
        record = {"rows": rows, "panels": panels, "broad": broad} if unit.kind == "gemm" else None
        return best(unit, machine, record)

    monkeypatch.setattr(lower_group, "best", forced)
    net = rnn.RNN(rnn.cells.gru_reset_before, 3, 69).init(rows)  # 5 panels of 16: no multiple of any choice but 1
    module = rnn.compile(net)
    assert {t["knobs"]["rows"] for t in module.manifest.templates if t["template"] == "gemm_cpu"} == {rows}
    rng = np.random.default_rng(panels)
    for batch in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17):
        x = rng.normal(size=(3, batch, 3)).astype("float32")
        y, state = module(x)
        expected, expected_state = rnn.reference(net)(x)
        assert_close(y, expected, "float32", 3)
        assert_close(state["h"], expected_state["h"], "float32", 3)


@pytest.mark.broad
def test_threads_share_panels_without_changing_a_bit() -> None:
    net = rnn.RNN(rnn.cells.lstm, 40, 130, num_layers=2).init()
    module = rnn.compile(net)
    x = np.random.default_rng(0).normal(size=(3, 9, 40)).astype("float32")
    results = []
    for threads in (1, 2, 3, 7):  # more than there are cores: a launch then waits for turns of the operating system
        module.threads = threads
        results.append(module(x)[0])
    assert all(np.array_equal(results[0], r) for r in results[1:])
