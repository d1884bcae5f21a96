"""A module's network from its manifest: the graphs that were compiled, or the reason why there are none."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from networks import compiled

import tvm_rnn as rnn
from tvm_rnn import cell, explain, tanh
from tvm_rnn.compiler.stage_texts import CODE_STAGES
from tvm_rnn.explain.module import Looked, NotDrawn, remade
from tvm_rnn.graph.graph_text import layers_text
from tvm_rnn.network.rnn import equations_digest
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = "nvidia-h200"


@cell(states="h")
def mine(x: "I", h: "H", *, W: "H I", R: "H H"):
    return tanh(W @ x + 0.5 * (R @ h))


@cell(states="h", name="mine")
def other(x: "I", h: "H", *, W: "H I", R: "H H"):
    return tanh(W @ x + 0.25 * (R @ h))


@pytest.fixture(scope="module")
def module() -> Any:
    return rnn.compile(rnn.RNN(mine, 3, 5))


def texts(net: rnn.RNN, stages: Any) -> list[list[str]]:
    """Without the lines that begin graphs: the sizes there are in the order in which they were given."""
    every = [[name, *layers_text(layers).splitlines()] for name, layers in stages]
    return [[line for line in lines if not line.startswith("graph ")] for lines in every]


def test_the_graphs_are_those_that_were_compiled() -> None:
    net, own = compiled("gru", 4, 8)
    looked = remade(own.manifest)
    found, machine, stages = looked.net, looked.machine, looked.stages
    assert texts(found, stages) == texts(net, pipeline.run(net, resolve("llvm")))
    assert machine.mcpu == own.manifest.target.mcpu and equations_digest(found) == own.manifest.equations


@pytest.mark.broad
def test_options_of_the_compilation_are_kept() -> None:
    net = rnn.RNN(rnn.cells.lstm_projection, 6, [9, 7], 2, True, P=[4, 5])
    own = rnn.compile(net, "x86-64-v3", batch=[3], without=["hoist_gemms"])
    looked = remade(own.manifest)
    found, machine, stages = looked.net, looked.machine, looked.stages
    assert texts(found, stages) == texts(net, pipeline.run(net, machine, ["hoist_gemms"], [3]))
    assert machine.name == "x86-64-v3" and found.sizes == net.sizes


def test_cells_that_the_zoo_does_not_have(module: Any) -> None:
    with pytest.raises(NotDrawn, match="--cell FILE"):
        remade(module.manifest)
    assert remade(module.manifest, mine).net.cell is mine
    with pytest.raises(NotDrawn, match="it is not this module's"):  # another number in the same shapes
        remade(module.manifest, other)
    with pytest.raises(NotDrawn, match="it is not this module's"):
        remade(module.manifest, rnn.cells.lstm)


def test_a_cell_that_only_has_the_zoos_name(module: Any) -> None:
    with pytest.raises(NotDrawn, match="elman here has others or none"):
        remade({**module.manifest, "cell": "elman"})


def test_what_is_not_as_it_was(module: Any) -> None:
    old = {name: value for name, value in module.manifest.items() if name != "equations"}
    with pytest.raises(NotDrawn, match="version whose files do not say"):
        remade(old, mine)
    elsewhere = {**module.manifest, "target": {**module.manifest.target, "mcpu": "other"}}
    with pytest.raises(NotDrawn, match="compiled for other"):
        remade(elsewhere, mine)
    changed = copy.deepcopy(dict(module.manifest))
    changed["decisions"][1]["why"] = "a reason of another version"
    with pytest.raises(NotDrawn, match="decide otherwise"):
        remade(changed, mine)


def test_explain_says_why_there_are_no_pictures(module: Any) -> None:
    found = explain(module)
    assert found.looked == (None,) and "--cell" in found.facts["networks"][0]["not_drawn"]
    drawn = explain(module, cell=mine)
    assert drawn.looked[0] is not None and "not_drawn" not in drawn.facts["networks"][0]
    assert drawn.looked[0].code() == []


def test_code_is_made_when_it_is_asked_for() -> None:
    machine = resolve("x86-64-v4")
    own = passed(rnn.RNN(rnn.cells.elman, 3, 5), Options(machine, precision="float32"))
    looked = Looked(own.net, machine, own.stages, own.options)
    assert tuple(name for name, _ in looked.code()) == CODE_STAGES
    assert replace(looked, options=None).code() == []
