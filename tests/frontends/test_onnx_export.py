"""to_onnx: every cell of the zoo as ONNX Runtime runs it, standard operators where there are some, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import arguments, network
from onnx_models import onnx_runtime, random_case

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, InputError, WeightError
from tvm_rnn.frontends.onnx_cells import form_of
from tvm_rnn.oracle.tolerance import assert_close

STANDARD = ("lstm", "lstm_peephole", "gru", "gru_reset_before", "elman", "elman_relu")
QUICK = ("lstm_layer_norm", "mlstm", "augru", "lstm_projection", "lem", "gated_delta_net")
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in rnn.cells.names() if n not in (*STANDARD, *QUICK)]


def exported(net: rnn.RNN, folder: Path, **options: Any) -> Any:
    rnn.to_onnx(net, folder / "m.onnx", **options)
    return onnx.load(folder / "m.onnx")


def wide(name: str) -> int:
    """A size of the input that the cell takes with H = 5."""
    return 6 if "I" in rnn.cells.get(name).size_names else 5


def agrees(net: rnn.RNN, folder: Path, steps: int = 6) -> None:
    """Results are the oracle's, with and without lengths and initial states."""
    x, state = arguments(net, steps, 3)
    if not net.cell.constants:  # which are given among the states
        y, end = rnn.reference(net)(x)
        names = {f"{name}_n{i}": v for name, value in end.items() for i, v in _parts(value)}
        assert_close(onnx_runtime(exported(net, folder), x), {"y": y, **names}, net.dtype, steps)
    lengths = np.array([steps, 2, 4], "i4")
    y, end = rnn.reference(net)(x, state, lengths=lengths)
    feeds = {**x, "lengths": lengths, **{f"{n}_0{i}": v for n, value in state.items() for i, v in _parts(value)}}
    found = onnx_runtime(exported(net, folder, lengths=True, state=True), feeds)
    names = {f"{name}_n{i}": v for name, value in end.items() for i, v in _parts(value)}
    assert_close(found, {"y": y, **names}, net.dtype, steps)


def _parts(value: Any) -> list[tuple[str, Any]]:
    return [(f"_l{i}", part) for i, part in enumerate(value)] if isinstance(value, list) else [("", value)]


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("name", [*STANDARD, *QUICK, *SLOW])
def test_every_cell(name: str, tmp_path: Path) -> None:
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"reverse": True}):
        agrees(network(name, wide(name), 5, **options), tmp_path)


@pytest.mark.parametrize("name", STANDARD)
def test_standard_cells_are_standard_operators(name: str, tmp_path: Path) -> None:
    made = exported(network(name, 6, 5, num_layers=2), tmp_path)
    kinds = [n.op_type for n in made.graph.node]
    form = form_of(rnn.cells.get(name))
    assert form is not None and kinds.count(form.kind) == 2 and "Scan" not in kinds
    assert made.opset_import[0].version == 14
    kinds = [n.op_type for n in exported(network("mgu", 6, 5), tmp_path).graph.node]
    assert kinds.count("Scan") == 1


@pytest.mark.parametrize("seed", range(8))
def test_cells_that_came_from_onnx_go_back(seed: int, tmp_path: Path) -> None:
    """With every attribute that they came with, and the same weights."""
    case = random_case(seed + 100)
    net = rnn.from_onnx(case.model)
    again = rnn.from_onnx(exported(net, tmp_path))
    assert again.cell is net.cell and again.reverse == net.reverse
    for name, value in net.weights.items():
        np.testing.assert_array_equal(again.weights[name], value, strict=True)


def test_networks_of_torch_go_to_onnx_and_back_with_both_biases(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for layer in (torch.nn.LSTM(3, 4, 2), torch.nn.GRU(3, 4, bidirectional=True), torch.nn.RNN(3, 4)):
        again = rnn.from_onnx(exported(rnn.from_torch(layer), tmp_path))
        assert all(torch.equal(v, layer.state_dict()[k]) for k, v in rnn.state_dict(again).items())


def test_layers_of_other_sizes(tmp_path: Path) -> None:
    agrees(rnn.RNN(rnn.cells.gru, 3, [4, 5, 2], 3, bidirectional=True).init(1), tmp_path)
    agrees(rnn.RNN(rnn.cells.mgu, 3, [4, 2], 2).init(1), tmp_path)


@pytest.mark.parametrize("name", ["lstm", "mgu"])
def test_with_the_batch_first(name: str, tmp_path: Path) -> None:
    net = network(name, 6, 5, num_layers=2, bidirectional=True)
    net.batch_first = True
    x = {"x": np.random.default_rng(0).normal(size=(3, 7, 6)).astype("f4")}
    y, end = rnn.reference(net)(x, lengths=[7, 2, 4])
    feeds = {**x, "lengths": np.array([7, 2, 4], "i4")}
    found = onnx_runtime(exported(net, tmp_path, lengths=True), feeds)
    assert_close(found, {"y": y, **{f"{n}_n": value for n, value in end.items()}}, "float32", 7)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["lstm", "mgu"])
def test_other_dtypes(name: str, dtype: str, tmp_path: Path) -> None:
    """Checked by onnx; ONNX Runtime's CPU has its recurrent operators in float32 alone."""
    if (name, dtype) == ("mgu", "bfloat16"):
        with pytest.raises(ConfigError, match="Einsum lacks it"):
            exported(network(name, 6, 5, dtype=dtype), tmp_path)
        return
    made = exported(network(name, 6, 5, dtype=dtype), tmp_path)
    element = {"float64": 11, "float16": 10, "bfloat16": 16}[dtype]
    assert {v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)} == {element}
    if name == "mgu" and dtype == "float64":
        agrees(network(name, 6, 5, dtype=dtype), tmp_path)


def test_names_that_a_cell_has_taken(tmp_path: Path) -> None:
    @rnn.cell(states="y h")
    def taken(h_0: "I", lengths: "", y: "H", h: "H", *, W: "H I"):
        h = 0.5 * h + W @ h_0
        return lengths * h, h

    made = exported(rnn.RNN(taken, 3, 2).init(), tmp_path, lengths=True, state=True)
    assert [v.name for v in made.graph.input] == ["h_0", "lengths", "lengths_", "y_0", "h_0_"]
    assert [v.name for v in made.graph.output] == ["y", "y_n", "h_n"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 4)
    with pytest.raises(WeightError, match="no weights"):
        rnn.to_onnx(net, tmp_path / "m.onnx")
    no_path: Any = []
    with pytest.raises(ConfigError, match="writes to a path"):
        rnn.to_onnx(net, no_path)
    with pytest.raises(ConfigError, match="writes an RNN"):
        rnn.to_onnx("lstm", tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"a cell with constants[\s\S]*memory, mask[\s\S]*state=True"):
        rnn.to_onnx(rnn.RNN(rnn.cells.lstm_attention, 3, 4, S=2).init(), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="cannot be written"):
        rnn.to_onnx(net.init(), tmp_path / "none" / "m.onnx")
    assert not list(tmp_path.iterdir())
