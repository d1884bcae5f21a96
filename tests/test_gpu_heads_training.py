"""Training of layers of heads in persistent kernels: the oracle's gradients, run by emulator.py."""

from __future__ import annotations

from typing import Any

import emulator
import headed_cells as own
import pytest

from tests.runtime.test_runtime_cuda_training import check

CASES = {
    **own.SMALL,
    "normed_together-bfloat16": own.small(own.normed_together, "bfloat16", D=16),
    "coupled-bfloat16": own.small(own.coupled, "bfloat16", D=16, P=24),
}
BROAD = ("lstm-bfloat16",)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def persistent(module: Any) -> list[bool]:
    variant = module.manifest["variants"][0]
    ways = (variant[way]["templates"] for way in ("forward_train", "backward"))
    return [any(row["template"].startswith("persistent") for row in rows) for rows in ways]


@pytest.mark.broad
@pytest.mark.parametrize("name", [n if n in BROAD else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_against_the_oracle(name: str) -> None:
    layer = CASES[name]
    net = layer.net(7)
    module = emulator.compile(net, batch=[layer.rows], precision=layer.precision, training=True)
    assert persistent(module) == [True, True]
    check(net, module, layer.precision or layer.dtype)
