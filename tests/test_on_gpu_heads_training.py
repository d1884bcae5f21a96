"""Training of layers of heads on a real GPU: the oracle's gradients, memory poisoned, the same bits each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import headed_cells as own
import pytest
from derivatives import Case, draw
from gpu_modules import gpu_module
from networks import flags
from on_gpu import check_gradients

import tvm_rnn as rnn

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
ONE_LAUNCH = ("persistent", "matrix_on_chip")  # heads that share a matrix are rows of one
KINDS = {
    **own.WIDE,
    **own.COUPLED,
    **own.ALONE,
    "lstm_6x128": own.Layer(own.lstm, "bfloat16", 16, {"N": 6, "D": 128}),
    "gru_5x24": own.Layer(own.gru, "float16", 3, {"N": 5, "D": 24, "num_layers": 2}),
    "lstm_3x9": own.Layer(own.lstm, "float32", 20, {"N": 3, "D": 9, "bidirectional": True}),
}


def headed(name: str) -> Any:
    """The module, and its network."""
    net = KINDS[name].net(32)
    return gpu_module(f"heads_training_{name}", net, batch=[KINDS[name].rows], training=True), net


def fitting_case(net: rnn.RNN, case: Case, batch: int) -> Case:
    """States that belong together, as a normaliser and what it divides; and small inputs: where they are large, what
    they are rounded to decides which side of a stabiliser's maximum has the gradient."""
    before = draw(net, 8, batch, seed=1)
    x = {name: (0.25 * value).astype(value.dtype) for name, value in case.x.items()}
    return replace(case, x=x, state=rnn.reference(net)(before.x)[1])


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_oracle_s_every_time(name: str, ragged: bool) -> None:
    module, net = headed(name)
    variant, rows = module.manifest["variants"][0], KINDS[name].rows
    for way in ("forward_train", "backward")[: 1 if name in own.ALONE else 2]:
        assert any(row["template"].startswith(ONE_LAUNCH) for row in variant[way]["templates"]), way
    for steps, batch in ((24, rows), (7, rows + 5)):
        given = flags(steps, batch) if ragged else {}
        check_gradients(module, net, fitting_case(net, draw(net, steps, batch, **given), batch))
