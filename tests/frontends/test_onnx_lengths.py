"""Rows that end before others: what to_onnx writes with lengths comes back with them, and what is like it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import arguments, network
from onnx_models import onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.onnx_lengths import counts_steps
from tvm_rnn.network.model import Model
from tvm_rnn.network.program import NETWORK, Declared
from tvm_rnn.oracle.tolerance import assert_close


def written(path: Path, **options: Any) -> tuple[rnn.RNN, Any]:
    net = network("lem", 6, 5, **options)
    rnn.to_onnx(net, path, lengths=True, state=True)
    return net, onnx.load(path)


def scan_of(model: Any) -> tuple[Any, Any]:
    """Its Scan and the body."""
    scan = next(n for n in model.graph.node if n.op_type == "Scan")
    return scan, next(a.g for a in scan.attribute if a.name == "body")


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_become_the_networks(reverse: bool, tmp_path: Path) -> None:
    """Nothing of them is left in the cell; compiled, it is what ONNX Runtime computes."""
    net, model = written(tmp_path / "m.onnx", reverse=reverse)
    again = rnn.from_onnx(model)
    assert again.input_size == net.input_size and again.weights.keys() == net.weights.keys()
    (step,) = [step for step in again.program.steps if step.op == NETWORK]
    assert step.inputs[1] == "lengths" and "Range" not in {step.op for step in again.program.steps}
    x, state = arguments(net, 6, 3)
    feeds = {**x, "lengths": np.array([6, 0, 4], "i4"), **{f"{n}_0": v for n, v in state.items()}}
    assert_close(rnn.compile(again).run(feeds), onnx_runtime(model, feeds), "float32", 6)


@pytest.mark.broad
def test_layers_and_directions_compiled(tmp_path: Path) -> None:
    """A network each, with the same lengths."""
    net, model = written(tmp_path / "m.onnx", num_layers=2, bidirectional=True)
    x, state = arguments(net, 6, 3)
    feeds = {**x, "lengths": np.array([6, 2, 4], "i4"), **{f"{n}_0": v for n, v in state.items()}}
    again = rnn.from_onnx(model)
    assert isinstance(again, Model) and len(again.networks) == 4
    assert_close(rnn.compile(again).run(feeds), onnx_runtime(model, feeds), "float32", 6)


WRONG = {  # what is done to the body: its Less and its Wheres, those of the states first
    "stay what it was for rows that have ended, as 'lengths' says": lambda less, held: exchange(held[0], 1, 2),
    "does not become 0 for rows that have ended": lambda less, held: exchange(held[-1], 1, 2),
    "'x' is no list of lengths in int32": lambda less, held: less.input.__setitem__(1, "x"),
    "value 'nothing' is missing": lambda less, held: less.input.__setitem__(1, "nothing"),
    "value 'lengths' depends on what the model is given": lambda less, held: less.input.reverse(),
}


def exchange(own: Any, one: int, two: int) -> None:
    own.input[one], own.input[two] = own.input[two], own.input[one]


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_not_the_end_of_rows(reason: str, tmp_path: Path) -> None:
    """Its comparison alone does not say it: every result must be held, by the same lengths."""
    _, model = written(tmp_path / "m.onnx")
    _, body = scan_of(model)
    (less,) = [n for n in body.node if n.op_type == "Less"]
    WRONG[reason](less, [n for n in body.node if n.op_type == "Where"])
    with pytest.raises(ConfigError, match=reason):
        rnn.from_onnx(model)


def test_a_counter_that_counts_otherwise(tmp_path: Path) -> None:
    """From 1, or another way than the rows: numbers like any others, which a cell cannot have."""
    _, model = written(tmp_path / "m.onnx")
    scan, _ = scan_of(model)
    start = next(n for n in model.graph.node if n.op_type == "Range").input
    start[0] = start[2]
    with pytest.raises(ConfigError, match="are not all of one of float32"):
        rnn.from_onnx(model)
    _, model = written(tmp_path / "m.onnx")
    scan, _ = scan_of(model)
    next(a for a in scan.attribute if a.name == "scan_input_directions").ints[-1] = 1
    with pytest.raises(ConfigError, match="are not all of one of float32"):
        rnn.from_onnx(model)


def test_what_counts_steps() -> None:
    steps = Steps([Declared("count", "int64", ())], [])
    zero, one, two = (steps.keep(n) for n in (0, 1, 2))
    known = {"three": [0, 1, 2], "late": [1, 2, 3], "matrix": [[0, 1]]}
    assert {n: counts_steps(steps, steps.keep(v)) for n, v in known.items()} == {
        "three": True,
        "late": False,
        "matrix": False,
    }
    every = steps.emit("Range", [zero, "count", one], "n")
    assert counts_steps(steps, every) and not counts_steps(steps, "count")
    assert counts_steps(steps, steps.emit("Cast", [every], "n", dtype="int32"))
    for name in (
        steps.emit("Range", [one, "count", one], "n"),
        steps.emit("Range", [zero, "count", two], "n"),
        steps.emit("Range", [zero, "count", "count"], "n"),
        steps.emit("Cast", [every], "n", dtype="int8"),
        steps.emit("Neg", [every], "n"),
    ):
        assert not counts_steps(steps, name)
