"""Which axis of a sum vectors run along, and results of sums whose constants were laid out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.columns import Laid, columns_of, in_panels, turned
from tvm_rnn.surroundings.loops import loops_of
from tvm_rnn.surroundings.nest import Nest, nest_of, reads

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def convolution(steps: int | str, stride: int = 1, filters: int = 16) -> tuple[Nest, Any]:
    w = relax.const(random(filters, 3, 5))
    graph = graph_of([1, 3, steps], lambda x: relax.op.nn.conv1d(x, w, strides=stride))
    for function in loops_of([call.function for call in graph.calls]):
        parts = function.body.seq if isinstance(function.body, tirx.SeqStmt) else [function.body]
        for nest in map(nest_of, parts):
            if nest is not None and nest.summed:
                return nest, function.params[1]
    raise AssertionError("no sum")


@pytest.mark.parametrize(("steps", "stride", "filters"), ((8, 1, 16), (99, 2, 16), (8, 1, 3)))
def test_vectors_of_a_convolution_run_along_filters(steps: int, stride: int, filters: int) -> None:
    nest, weights = convolution(steps, stride, filters)
    whole = tirx.decl_buffer((5, 3, filters), "float32")
    laid = Laid(lambda buffer, axis: whole if buffer.same_as(weights) and axis == 0 else None)
    columns = columns_of(nest, 8, laid)
    assert int(columns.extent) == filters
    found = turned(nest, columns, laid)
    assert found is not None and found is not nest


def test_constants_in_panels_are_read_by_panel_and_column() -> None:
    nest, weights = convolution(8)
    pieces = tirx.decl_buffer((2, 5, 3, 8), "float32")
    laid = Laid(panels=lambda buffer, axis, width: pieces if buffer.same_as(weights) and width == 8 else None)
    found = in_panels(nest, nest.own[-1], laid, 8)
    assert found is not None
    (load,) = (own for own in reads(found[0].store.value, pieces))
    assert load.indices[0].same_as(found[1].panel) and load.indices[3].same_as(found[1].column)
    assert in_panels(nest, nest.own[-2], laid, 8) is None  # positions move x, which is no constant


@pytest.mark.broad
@pytest.mark.parametrize(("filters", "stride"), ((258, 1), (16, 2), (13, 3), (5, 1)))
def test_convolutions_of_few_positions(filters: int, stride: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w, b = random(filters, 3, 5), random(1, filters, 1)

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.nn.relu(relax.op.add(relax.op.nn.conv1d(x, relax.const(w), strides=stride), relax.const(b)))

    for steps in (5, 8, 12):
        x = random(2, 3, steps)
        y = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(w), stride=stride).numpy()
        folder = tmp_path / str(steps)
        folder.mkdir()
        found = compiled(graph_of([2, 3, steps], make), folder)(x)[0]
        np.testing.assert_allclose(found, np.maximum(y + b, 0), rtol=1e-4, atol=1e-5)
