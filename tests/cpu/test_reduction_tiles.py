"""reduction_tiles: which axes a tile has, and that rows and vectors that fill no tile are there too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headed_cells import lstm
from tvm import tirx
from tvm.sym import Analyzer

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.reduction_tiles import ReductionTiles, Shape, tile_shape
from tvm_rnn.cpu.workspace import Array, strides_of
from tvm_rnn.graph.graph import reduced_axes, runs_along
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.schedule.schedule_template import Unit
from tvm_rnn.tir.index import int64

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


def test_tiles_of_rows_ask_for_the_vectors_that_come_next() -> None:
    """Every line of them, each by one tile; more tiles than lines ask for the last one again."""
    net = rnn.RNN(lstm, 8, N=3, D=64)
    code = Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).code[0]
    groups = [g for g in code.graph.groups if g.kind == "reduce" and g.region == "step" and g.root is not None]
    group = next(g for g in groups if g.root is not None and g.root.op == "einsum")
    root = group.root
    assert root is not None
    parameter = next(arg for arg in root.args if arg in code.packed.names)
    strides = strides_of(parameter.shape, 16)[0]
    array = Array("packed", int64(160), 0, strides, parameter.shape)
    places: Any = type("Known", (), {"read": staticmethod(lambda node: array if node is parameter else None)})
    unit = Unit("reduce", "step", "float32", 1, 64, (), 1, (16,), "")
    none: Any = None
    tiles = ReductionTiles(group, unit, int64(16), places, 16, none, {}, Shape(None, 4, 4), 1)
    turn = tirx.Var("k0", "int64")
    head = [int64(1)] * (len(root.shape) - 1)

    def asked(tile: int, k: int) -> int:
        (place,) = tiles._coming([*head, int64(0)], int64(tile), turn)
        analyzer = Analyzer()
        analyzer.bind(turn, int64(k))
        return int(analyzer.simplify(place))

    letters, rest = root.attrs["spec"].split("->")[0].split(",")[0], root.attrs["spec"].split("->")[1]
    fixed = dict.fromkeys(rest[:-1], 1)
    ((reduced, depth),) = reduced_axes(root)
    wanted = {
        160 + sum(s * {**fixed, reduced: k, rest[-1]: unit}[t] for t, s in zip(letters, strides, strict=True))
        for k in range(depth)
        for unit in range(0, 64, 16)
    }
    found = [asked(tile, k) for tile in range(4) for k in range(depth)]
    assert sorted(found) == sorted(wanted)
    assert asked(7, 5) == asked(3, 5)
    assert not tiles._coming([*head, int64(0)], int64(0), tirx.Var("lane", "int64"))


@pytest.mark.broad
@pytest.mark.parametrize(("cell", "sizes"), [(lstm, {"N": 3, "D": 41}), (rnn.cells.m2rnn, {"N": 2, "K": 9, "H": 35})])
def test_against_the_oracle(cell: rnn.Cell, sizes: dict[str, int]) -> None:
    """Rows that fill tiles of 8, 4, 2 and 1; vectors that are not full."""
    net = rnn.RNN(cell, 5, **sizes).init(1)
    module = rnn.compile(net, batch=[16])
    for batch in (1, 15, 16, 22):
        x = np.random.default_rng(batch).normal(size=(3, batch, 5)).astype("float32")
        assert_close(module(x)[0], rnn.reference(net)(x)[0], "float32", 3)
