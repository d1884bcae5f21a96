"""passed: each form of a network's graphs is made when it is asked for, and by whom the passes were handed in."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Layers
from tvm_rnn.options import Options
from tvm_rnn.passes.passed import Passed
from tvm_rnn.passes.pipeline import passed, run
from tvm_rnn.target import GPUS

GPU = GPUS["nvidia-h200"]
NET = rnn.RNN(rnn.cells.lstm, 8, 16, num_layers=2)


def noted(options: Options) -> tuple[Passed, list[Options]]:
    own, seen = passed(NET, options), list[Options]()

    def pipeline(net: rnn.RNN, options: Options, starts: bool = False) -> list[tuple[str, Layers]]:
        seen.append(options)
        return own.pipeline(net, options, starts)

    return Passed(NET, options, pipeline), seen


def test_inference_runs_once_and_when_it_is_asked_for() -> None:
    own, seen = noted(Options(GPU, training="states"))
    assert seen == []
    assert own.run() is own.layers is own.stages[-1][1]
    assert [options.training for options in seen] == [False]


def test_training_has_backward_graphs() -> None:
    own, seen = noted(Options(GPU))
    assert all(graph.backward is not None for graph in own.training("states")[-1][1].graphs)
    assert all(graph.backward is None for graph in own.layers.graphs)
    assert [options.training for options in seen] == ["states", False]


def test_in_a_wave_products_of_inputs_are_part_of_the_step_and_nobody_hears_of_it() -> None:
    own, _ = noted(Options(GPU))
    with recording() as told:
        layers = own.in_wave
    assert told == [] and layers is own.in_wave
    assert all("hoist_gemms" not in graph.applied for graph in layers.graphs)
    assert {group.region for graph in layers.graphs for group in graph.groups if group.kind == "gemm"} == {"step"}


def test_in_training_too() -> None:
    own, seen = noted(Options(GPU))
    with recording() as told:
        graphs = own.in_step("states").graphs
    assert told == [] and graphs
    assert all(graph.backward is not None and "hoist_gemms" not in graph.applied for graph in graphs)
    assert [options.training for options in seen] == ["states"]


def test_the_passes_are_those_of_the_pipeline() -> None:
    own = passed(NET, Options(GPU, (4,), ("combine_gemms",)))
    assert [name for name, _ in own.stages] == [name for name, _ in run(NET, GPU, ("combine_gemms",), (4,))]
