"""tile_layers_and_time: the order of the walk and the size of a tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.graph.graph import Tiling
from tvm_rnn.passes import pipeline

MAX_ROWS, MIN_ROWS = 512, 32
V4 = target.TABLE["x86-64-v4"]


def tiling(net: rnn.RNN, machine: target.Target = V4, without: tuple[str, ...] = ()) -> Tiling:
    found = pipeline.run(net, machine, without)[-1][1].graphs[0].tiling
    assert found is not None
    return found


@pytest.mark.parametrize(("both", "order"), [(False, "time-major"), (True, "layer-major")])
def test_a_backward_direction_needs_the_whole_sequence_first(both: bool, order: str) -> None:
    assert tiling(rnn.RNN(rnn.cells.lstm, 8, 16, 2, bidirectional=both)).order == order


def test_a_backward_graph_goes_layer_by_layer() -> None:
    layers = pipeline.run(rnn.RNN(rnn.cells.lstm, 512, 512, 2), V4, training=True)[-1][1]
    back = layers.graphs[0].backward
    assert back is not None and back.tiling is not None and back.tiling.order == "layer-major"
    unit = back.tiling.unit
    assert unit is not None and unit.width == 4 * 512 + 512  # four gates, d_x
    assert back.tiling.rows_per_tile == 256  # more than fit a cache


@pytest.mark.parametrize(("both", "order"), [(False, "time-major"), (True, "layer-major")])
def test_on_gpus_backward_graphs_take_tiles_through_all_layers(both: bool, order: str) -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 16, 2, bidirectional=both)
    layers = pipeline.run(net, target.resolve("nvidia-h200"), training=True)[-1][1]
    assert all(g.backward is not None and g.backward.tiling == Tiling(order, None) for g in layers.graphs)


def test_what_goes_to_the_tape_is_in_the_tile_as_well() -> None:
    net = rnn.RNN(rnn.cells.lstm, 512, 512, 2)
    plain, kept = (pipeline.run(net, V4, training=t)[-1][1].graphs[0] for t in (False, True))
    units = [graph.tiling.unit for graph in (plain, kept) if graph.tiling]
    assert units[0] is not None and units[1] is not None
    assert units[1].width == units[0].width + sum(n.shape[0] for n in kept.emitted) > units[0].width


def test_switched_off_there_is_one_tile_layer_by_layer() -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 16, 2)
    assert tiling(net, without=("tile_layers_and_time",)) == Tiling("layer-major", None)


def test_a_tile_fits_half_the_cache() -> None:
    """Weights that the level-2 cache holds are no reason for more rows."""
    net = rnn.RNN(rnn.cells.lstm, 256, 256)
    rows = tiling(net).rows_per_tile
    assert rows is not None and rows * (4 * 256 + 2 * 256) * 4 <= V4.l2_bytes // 2


def test_rows_stay_within_bounds() -> None:
    small = tiling(rnn.RNN(rnn.cells.elman, 1, 1)).rows_per_tile
    large = tiling(rnn.RNN(rnn.cells.lstm, 1, 4096), replace(V4, l2_bytes=1 << 17)).rows_per_tile
    assert (small, large) == (MAX_ROWS, MIN_ROWS)


def test_wider_elements_mean_fewer_rows() -> None:
    single, double = (tiling(rnn.RNN(rnn.cells.lstm, 128, 128, dtype=d)).rows_per_tile for d in ("float32", "float64"))
    assert single is not None and double is not None and double < single
