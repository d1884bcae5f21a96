"""Layers of heads on a real GPU, against the oracle: outputs poisoned, the same bits each time."""

from __future__ import annotations

import headed_cells as own
import pytest
from gpu_modules import gpu_module
from on_gpu import check_calls

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
KINDS = {
    **own.WIDE,
    **{name: layer for name, layer in own.COUPLED.items() if len(layer.cell.inputs) == 1},
    "layer_norm_72": own.ALONE["layer_norm_72"],
    "lstm_6x128": own.Layer(own.lstm, "float16", 16, {"N": 6, "D": 128}),
    "norm_5x24": own.Layer(own.normed, "float32", 3, {"N": 5, "D": 24}),
    "lstm_3x9": own.Layer(own.lstm, "float32", 40, {"N": 3, "D": 9}),
}


@pytest.mark.parametrize("name", KINDS)
def test_against_the_oracle(name: str) -> None:
    layer = KINDS[name]
    net, rows = layer.net(32), layer.rows
    module = gpu_module(f"heads_{name}_{layer.dtype}", net, batch=[rows])
    assert any(row["template"].startswith("persistent") for row in module.manifest.templates)
    check_calls(module, net, ((1, 3, False), (37, rows, True), (300, rows, False), (20, rows + 9, True)))
