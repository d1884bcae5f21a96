"""tiles_us: what was measured is predicted within a quarter."""

from __future__ import annotations

import pytest
from persistent_layers import GPU

from tvm_rnn.cuda.model.tile_time import Product, Shape, tiles_of, tiles_us
from tvm_rnn.schedule.schedule_template import Unit

LSTM_326 = Product.of(Unit("gemm", "before", "tf32", 4, 326, (2960,)))
GRU_1044 = Product.of(Unit("gemm", "step", "tf32", 3, 1044, (1044,)))
GRU_1512 = Product.of(Unit("gemm", "step", "tf32", 3, 1512, (1512,)))


def test_blocks_of_a_product() -> None:
    assert (LSTM_326.columns, LSTM_326.deep) == (1304, 93)
    assert tiles_of(LSTM_326, 390, Shape(128)) == 4 * 11 == tiles_of(LSTM_326, 390, Shape(128, pairs=True))
    assert tiles_of(LSTM_326, 390, Shape(128, 64)) == 7 * 11


@pytest.mark.parametrize(
    ("product", "rows", "shape", "measured"),
    [
        (LSTM_326, 390, Shape(128), 47.3),
        (LSTM_326, 390, Shape(128, parts=2), 29.2),
        (LSTM_326, 390, Shape(192, parts=4), 23.4),
        (GRU_1044, 305, Shape(96), 17.8),
        (GRU_1044, 305, Shape(144, parts=2), 16.5),
        (GRU_1512, 288, Shape(192, pairs=True), 32.1),
        (GRU_1512, 288, Shape(120, parts=1), 28.5),
        (GRU_1512, 288, Shape(192, 64, 1), 28.6),
    ],
)
def test_what_was_measured(product: Product, rows: int, shape: Shape, measured: float) -> None:
    assert tiles_us(product, rows, shape, GPU) == pytest.approx(measured, rel=0.25)
