"""Which axis of a sum vectors run along, and results of sums whose constants were laid out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.columns import columns_of
from tvm_rnn.cpu.surroundings.nest import Nest, nest_of
from tvm_rnn.cpu.surroundings.schedule import loops_of

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def convolution(steps: int | str, stride: int = 1, filters: int = 16) -> tuple[Nest, Any]:
    w = relax.const(random(filters, 3, 5))
    graph = graph_of([1, 3, steps], lambda x: relax.op.nn.conv1d(x, w, strides=stride))
    (function,) = loops_of([call.function for call in graph.calls])
    nests = [nest for nest in map(nest_of, function.body.seq) if nest is not None and nest.summed]
    return nests[-1], function.params[1]


CASES = ((8, 1, 16, 16), (99, 1, 16, 95), (99, 2, 16, 16), (8, 1, 3, 4))


@pytest.mark.parametrize(("steps", "stride", "filters", "along"), CASES)
def test_few_positions_or_strides_leave_vectors_to_filters(steps: int, stride: int, filters: int, along: int) -> None:
    nest, weights = convolution(steps, stride, filters)
    turned = tirx.decl_buffer((3, 5, filters), "float32")
    laid, columns = columns_of(nest, 8, lambda buffer, axis: turned if buffer.same_as(weights) and axis == 0 else None)
    assert int(columns.extent) == along
    assert (laid is nest) == (along != filters)


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
