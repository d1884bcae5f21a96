"""tile_layers_and_time: the order of the walk and the size of a tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_rnn as rnn
from tvm_rnn import pipeline, target
from tvm_rnn.graph import Tiling

MAX_ROWS, MIN_ROWS = 512, 32
V4 = target.TABLE["x86-64-v4"]


def tiling(net: rnn.RNN, machine: target.Target = V4, without: tuple[str, ...] = ()) -> Tiling:
    found = pipeline.run(net, machine, without)[-1][1].graphs[0].tiling
    assert found is not None
    return found


@pytest.mark.parametrize(("both", "order"), [(False, "time-major"), (True, "layer-major")])
def test_a_backward_direction_needs_the_whole_sequence_first(both: bool, order: str) -> None:
    assert tiling(rnn.RNN(rnn.cells.lstm, 8, 16, 2, bidirectional=both)).order == order


def test_switched_off_there_is_one_tile_layer_by_layer() -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 16, 2)
    assert tiling(net, without=("tile_layers_and_time",)) == Tiling("layer-major", None)


def test_a_tile_fits_half_the_cache() -> None:
    net = rnn.RNN(rnn.cells.lstm, 512, 512)
    rows = tiling(net).rows_per_tile
    assert rows is not None and rows * (4 * 512 + 2 * 512) * 4 <= V4.l2_bytes // 2


def test_rows_stay_within_bounds() -> None:
    small = tiling(rnn.RNN(rnn.cells.elman, 1, 1)).rows_per_tile
    large = tiling(rnn.RNN(rnn.cells.lstm, 8, 4096), replace(V4, l2_bytes=1)).rows_per_tile
    assert (small, large) == (MAX_ROWS, MIN_ROWS)


def test_wider_elements_mean_fewer_rows() -> None:
    single, double = (tiling(rnn.RNN(rnn.cells.lstm, 512, 512, dtype=d)).rows_per_tile for d in ("float32", "float64"))
    assert single is not None and double is not None and double < single
