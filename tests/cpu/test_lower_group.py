"""emit: which loops run in parallel, and which unit a group is."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_group import PARALLEL_ELEMENTS, Emitter
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def parallel_loops(name: str, hidden: int) -> list[str]:
    net = rnn.RNN(rnn.cells.get(name), 8, hidden)
    func = Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run().module["sequence"]
    found: list[str] = []

    def visit(node: tirx.For) -> None:
        if node.kind == tirx.ForKind.PARALLEL:
            found.append(node.loop_var.name)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return found


def test_products_of_several_panels_are_shared_among_threads() -> None:
    assert parallel_loops("lstm", 128) == ["chunk", "worker"]  # of a step each thread has a part, in turns
    assert parallel_loops("lstm", 16) == []


def test_matrix_states_are_shared_when_they_are_large() -> None:
    assert "i" not in parallel_loops("mlstm", 32)
    assert "i" in parallel_loops("mlstm", 256) and PARALLEL_ELEMENTS <= 256 * 256


@pytest.mark.parametrize(("name", "gates", "depths"), [("lstm", 4, (8,)), ("gru", 3, (8,)), ("elman", 1, (8,))])
def test_units_of_the_input_product(name: str, gates: int, depths: tuple[int, ...]) -> None:
    net = rnn.RNN(rnn.cells.get(name), 8, 24)
    group = pipeline.run(net, V4)[-1][1].graphs[0].groups[0]
    unit = Emitter(V4, "float32", ())._unit(group)
    assert (unit.kind, unit.region, unit.gates, unit.width, unit.depths) == ("gemm", "before", gates, 24, depths)
