"""Matrix states with a nonlinearity on a real GPU, against the oracle: outputs poisoned, the same bits each time."""

from __future__ import annotations

import matrix_cells as own
import pytest
from gpu_modules import gpu_module
from headed_cells import both_ways
from on_gpu import calm, check_calls

import tvm_rnn as rnn

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
KINDS: dict[str, tuple[rnn.Cell, str, dict[str, int]]] = {
    "m2rnn_8x64x64": (rnn.cells.m2rnn, "bfloat16", {"N": 8, "H": 64, "K": 64}),
    "m2rnn_3x24x40": (rnn.cells.m2rnn, "float16", {"N": 3, "H": 40, "K": 24}),
    "m2rnn_2x128x96": (rnn.cells.m2rnn, "bfloat16", {"N": 2, "H": 96, "K": 128}),
    "m2rnn_4x32x48": (rnn.cells.m2rnn, "float32", {"N": 4, "H": 48, "K": 32}),
    "fast_tanh_4x64x64": (own.fast_tanh, "bfloat16", {"N": 4, "K": 64, "V": 64}),
    "gated_24x40": (own.gated, "float16", {"K": 24, "V": 40}),
    "keys_multiplied_3x20x9": (own.keys_multiplied, "bfloat16", {"N": 3, "K": 20, "V": 9}),
    "shown_18x8": (own.shown, "float32", {"K": 18, "V": 8}),
    "both_ways_40x24": (both_ways, "bfloat16", {"K": 40, "V": 24, "H": 200}),
    "both_ways_9x20": (both_ways, "float32", {"K": 9, "V": 20, "H": 70}),
}


@pytest.mark.parametrize("name", KINDS)
def test_against_the_oracle(name: str) -> None:
    cell, dtype, sizes = KINDS[name]
    net = calm(rnn.RNN(cell, 32, dtype=dtype, **sizes).init(seed=1))
    module = gpu_module(f"matrices_{name}_{dtype}", net, batch=[16])
    assert "matrix_on_chip" in {row["template"] for row in module.manifest.templates}
    check_calls(module, net, ((1, 3, False), (37, 16, True), (200, 16, False)))
