"""Training of matrix states on a real GPU, each pass in one launch: the oracle's gradients, the same bits each time."""

from __future__ import annotations

import matrix_cells as own
import pytest
from derivatives import draw
from gpu_modules import gpu_module
from headed_cells import both_ways
from networks import flags
from on_gpu import calm, check_gradients

import tvm_rnn as rnn

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
KINDS: dict[str, tuple[rnn.Cell, str, dict[str, int]]] = {
    "m2rnn_8x64x64": (rnn.cells.m2rnn, "bfloat16", {"N": 8, "H": 64, "K": 64}),
    "m2rnn_3x24x40": (rnn.cells.m2rnn, "float16", {"N": 3, "H": 40, "K": 24, "num_layers": 2}),
    "m2rnn_4x32x48": (rnn.cells.m2rnn, "float32", {"N": 4, "H": 48, "K": 32, "bidirectional": True}),
    "fast_tanh_4x64x64": (own.fast_tanh, "bfloat16", {"N": 4, "K": 64, "V": 64}),
    "gated_24x20": (own.gated, "float16", {"K": 24, "V": 20}),
    "gated_24x40": (own.gated, "float16", {"K": 24, "V": 40}),
    "gated_60x33": (own.gated, "bfloat16", {"K": 60, "V": 33}),
    "keys_multiplied_3x20x9": (own.keys_multiplied, "float32", {"N": 3, "K": 20, "V": 9}),
    "shown_18x8": (own.shown, "float32", {"K": 18, "V": 8}),
    "both_ways_40x24": (both_ways, "bfloat16", {"K": 40, "V": 24, "H": 200}),
    "both_ways_9x20": (both_ways, "float32", {"K": 9, "V": 20, "H": 70}),
}


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_oracle_s_every_time(name: str, ragged: bool) -> None:
    cell, dtype, sizes = KINDS[name]
    net = calm(rnn.RNN(cell, 32, dtype=dtype, **sizes).init(seed=1))
    module = gpu_module(f"matrices_training_{name}_{dtype}", net, batch=[16], training=True)
    variant = module.manifest["variants"][0]
    for way in ("forward_train", "backward"):
        assert "matrix_on_chip" in {row["template"] for row in variant[way]["templates"]}, way
    for steps, batch in ((24, 16), (7, 5)):
        given = flags(steps, batch) if ragged else {}
        check_gradients(module, net, draw(net, steps, batch, **given))
