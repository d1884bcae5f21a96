"""Tiles of sums whose operands a run gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graphs import compiled, graph_of
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.sum_tiles import is_multiple
from tvm_rnn.tir.index import int64


def test_multiples_are_known_numbers() -> None:
    assert is_multiple(int64(12), 4) and not is_multiple(int64(13), 4) and not is_multiple(tirx.Var("n", "int64"), 1)


def test_a_product_of_what_a_run_gives(tmp_path: Path) -> None:
    def make(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(x, relax.op.permute_dims(x))

    x = np.random.default_rng(0).uniform(-1, 1, (13, 5)).astype("f4")
    found = compiled(graph_of(["n", 5], make), tmp_path)(x)[0]
    np.testing.assert_allclose(found, x.astype("f8") @ x.T, rtol=1e-5, atol=1e-6)
