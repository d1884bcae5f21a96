"""reduction_tiles: which axes a tile has, and that rows and vectors that fill no tile are there too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headed_cells import lstm

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.reduction_tiles import Shape, tile_shape
from tvm_rnn.graph.graph import runs_along
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def shapes(cell: rnn.Cell, batch: int | None, accumulators: int = 24, **sizes: int) -> set[Shape]:
    """Of all products of a step whose vectors run along the result's last axis."""
    net = rnn.RNN(cell, 8, **sizes)
    code = Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).code[0]

    class Known:
        """Where parameters are, the same for all rows."""

        @staticmethod
        def read(node: object) -> object:
            return type("Array", (), {"row_stride": 0}) if node in code.packed.names else None

    roots = [g.root for g in code.graph.groups if g.kind == "reduce" and g.region == "step" and g.root is not None]
    own = [r for r in roots if r.op == "einsum" and not runs_along(r)]
    assert own
    known: Any = Known
    return {tile_shape(r, known, 16, accumulators, batch) for r in own}


def test_a_parameter_s_vector_serves_rows_of_the_batch() -> None:
    assert shapes(lstm, 16, N=3, D=64) == {Shape(None, 4, 4)}
    assert shapes(lstm, 1, N=3, D=64) == {Shape(None, 1, 4)}
    assert shapes(lstm, 16, accumulators=12, N=3, D=16) == {Shape(None, 8, 1)}


def test_or_rows_of_a_matrix() -> None:
    assert Shape(1, 6, 4) not in shapes(rnn.cells.m2rnn, 16, N=2, K=64, H=64)  # 6 does not divide 64
    assert Shape(1, 4, 4) in shapes(rnn.cells.m2rnn, 16, N=2, K=64, H=64)


@pytest.mark.broad
@pytest.mark.parametrize(("cell", "sizes"), [(lstm, {"N": 3, "D": 41}), (rnn.cells.m2rnn, {"N": 2, "K": 9, "H": 35})])
def test_against_the_oracle(cell: rnn.Cell, sizes: dict[str, int]) -> None:
    """Rows that fill tiles of 8, 4, 2 and 1; vectors that are not full."""
    net = rnn.RNN(cell, 5, **sizes).init(1)
    module = rnn.compile(net, batch=[16])
    for batch in (1, 15, 16, 22):
        x = np.random.default_rng(batch).normal(size=(3, batch, 5)).astype("float32")
        assert_close(module(x)[0], rnn.reference(net)(x)[0], "float32", 3)
