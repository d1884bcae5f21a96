"""Layers of heads, all steps in one launch: the oracle's, run by emulator.py."""

from __future__ import annotations

import emulator
import headed_cells as own
import pytest
from test_emulator import check

CASES = {
    **own.SMALL,
    "norm-float16": own.small(own.normed, "float16", D=16),
    "normed_together-float32": own.small(own.normed_together, "float32", D=8),
}
BROAD = ("lstm-odd",)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", [n if n in BROAD else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_against_the_oracle(name: str) -> None:
    """With lengths and resets, from given states; 3 rows of 8, and 3 heads."""
    layer = CASES[name]
    net = layer.net(7)
    module = emulator.compile(net, batch=[layer.rows], precision=layer.precision)
    assert any(row["template"].startswith("persistent") for row in module.manifest.templates)
    check(net, module, layer.precision or layer.dtype, rows=layer.rows)


@pytest.mark.slow
def test_more_rows_than_one_group_of_blocks_has() -> None:
    net = CASES["lstm-bfloat16"].net(7)
    check(net, emulator.compile(net, batch=[3]), "bfloat16", rows=11)
