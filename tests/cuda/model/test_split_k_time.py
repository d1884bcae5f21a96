"""predict_pooled: what was measured is predicted within a fifth; more to read or to multiply takes more time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from persistent_layers import GPU, step

from tvm_rnn.cuda.model.persistent_step_time import able_to_run, predict
from tvm_rnn.cuda.model.split_k_time import pooled_product
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled


def team(name: str, hidden: int, precision: str = "bfloat16", **knobs: Any) -> Pooled:
    knobs = {"together": 2, "ring": 3, "pace": 2, "warps_k": 4, **knobs}
    return Pooled(step(name, hidden, precision), precision, "grid", **knobs)


LSTM = {"ctas": 108, "warps_u": 3, "register_words": 64}
GRU = {"ctas": 118, "warps_u": 3, "register_words": 96, "rows": 32}
MEASURED = [
    (11.4, 64, team("lstm", 2560, rows=64, shared_words=48, **LSTM)),
    (12.2, 64, team("lstm", 2560, rows=64, shared_words=16, **{**LSTM, "pace": 3})),
    (8.25, 16, team("lstm", 2560, rows=32, shared_words=72, **{**LSTM, "register_words": 72})),
    (7.12, 32, team("gru", 2816, shared_words=120, **GRU)),
    (7.59, 32, team("gru", 2816, shared_words=136, apart=0, **GRU)),
    (11.44, 64, team("lstm", 2560, rows=64, shared_words=80, apart=0, **LSTM)),
    (15.76, 64, team("lstm", 3072, rows=64, shared_words=80, apart=0, **{**LSTM, "ctas": 128})),
    (9.96, 128, team("lstm", 2048, ctas=128, rows=128, warps_u=2, register_words=80, shared_words=120, apart=0)),
    (10.4, 128, team("lstm", 2048, ctas=128, rows=128, warps_u=2, register_words=80, shared_words=104, pace=1)),
    (5.79, 64, team("lstm", 2048, ctas=128, rows=64, warps_u=2, register_words=128, shared_words=128)),
    (9.03, 128, team("gru", 2048, ctas=128, rows=128, warps_u=2, register_words=96, shared_words=160)),
    (17.64, 64, team("lstm", 3072, rows=64, shared_words=48, **{**LSTM, "ctas": 128})),
    (12.52, 64, team("lstm", 2048, "tf32", ctas=128, rows=64, warps_u=2, register_words=128, shared_words=104)),
]


@pytest.mark.parametrize(("us", "batch", "made"), MEASURED, ids=range(len(MEASURED)))
def test_what_was_measured(us: float, batch: int, made: Pooled) -> None:
    assert predict(made, batch, GPU) == pytest.approx(us, rel=1 / 5)
    assert able_to_run(made, GPU)


def test_what_takes_longer() -> None:
    made = MEASURED[0][2]
    (phase,) = made.shares

    def us(**changes: int) -> float:
        return pooled_product(replace(made, **changes), phase, 1900.0)

    least = us()
    assert least < us(shared_words=0) < us(shared_words=0, register_words=0)
    assert least < us(rows=128) and us(rows=32) < least < us(apart=0) and least < us(pace=1)
