"""Scan nodes as cells: the standard's own tests, every layout, what to_onnx writes, and nodes that are wrong."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import arguments, network
from onnx_models import model_of, node, onnx_runtime, scan_of
from onnx_scans import R, W, compared, simple, simple_feeds

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, InputError
from tvm_rnn.frontends.onnx_cells import form_of
from tvm_rnn.network.model import Model
from tvm_rnn.oracle.tolerance import assert_close

QUICK = ("mgu", "lstm_layer_norm", "mlstm", "augru", "lem", "conv_lstm")
OTHERS = [name for name in rnn.cells.names() if name not in QUICK and form_of(rnn.cells.get(name)) is None]


# --- the standard's own tests, and what to_onnx writes ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_the_standards_own_tests() -> None:
    """Those of today's operator; their values have no batch."""
    importlib.import_module("onnx.backend.test.case.node.scan")
    from onnx.backend.test.case.node import _NodeTestCases

    cases = [case for case in _NodeTestCases if case.name.startswith("test_scan9")]
    assert len(cases) >= 1
    for case in cases:
        net = rnn.from_onnx(case.model)
        for runs in (rnn.reference(net), rnn.compile(net)):
            for inputs, expected in case.data_sets:
                found = runs.run(dict(zip([i.name for i in case.model.graph.input], inputs, strict=True)))
                for output, value in zip(case.model.graph.output, expected, strict=True):
                    np.testing.assert_allclose(found[output.name], value, case.rtol, case.atol, err_msg=case.name)
                    assert found[output.name].shape == value.shape


def parts(values: Any, name: str) -> dict[str, Any]:
    """A state by the names that to_onnx gives it."""
    return {f"{name}_l{i}": v for i, v in enumerate(values)} if isinstance(values, list) else {name: values}


def goes_and_comes_back(net: rnn.RNN, path: Path, name: str) -> None:
    """The oracle of the cell, that of what was read, and ONNX Runtime agree."""
    x, state = arguments(net, 6, 3)
    lengths = np.array([6, 2, 4], "i4")
    alone = [] if net.cell.constants else [(None, None)]  # constants are inputs as states are
    for given, ends in (*alone, (state, None), (state, lengths)):
        rnn.to_onnx(net, path, state=given is not None, lengths=ends is not None)
        feeds = dict(x) | ({"lengths": lengths} if ends is not None else {})
        for key, value in (given or {}).items():
            feeds |= parts(value, f"{key}_0")
        y, end = rnn.reference(net)(x, given, lengths=ends)
        expected = {"y": y}
        for key, value in end.items():
            expected |= parts(value, f"{key}_n")
        found = rnn.reference(rnn.from_onnx(path)).run(feeds)
        assert_close(found, expected, "float32", 6, name)
        assert_close(onnx_runtime(onnx.load(path), feeds), found, "float32", 6, name)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_what_to_onnx_writes_is_read(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    width = 6 if "I" in rnn.cells.get(name).size_names else 5
    goes_and_comes_back(network(name, width, 5, **options), tmp_path / "m.onnx", name)


def test_a_network_that_came_back_is_a_network(tmp_path: Path) -> None:
    """With the weights' names and values, a module of its own, and a way to ONNX again."""
    net = network("mgu", 6, 5)
    rnn.to_onnx(net, tmp_path / "m.onnx")
    again = rnn.from_onnx(tmp_path / "m.onnx")
    assert repr(again) == "<RNN onnx_scan I=6 layers=1 directions=1 float32>"
    assert again.weights.keys() == net.weights.keys()
    for name, value in net.weights.items():
        np.testing.assert_array_equal(again.weights[name], value, strict=True)
    x, _ = arguments(net, 4, 2)
    expected, _ = rnn.reference(net)(x)
    module = rnn.compile(again)
    assert_close({"y": module(x["x"])[0]}, {"y": expected}, "float32", 4)
    rnn.to_onnx(again, tmp_path / "again.onnx")
    found = rnn.reference(rnn.from_onnx(tmp_path / "again.onnx")).run(x)
    assert_close({"y": found["y"]}, {"y": expected}, "float32", 4)


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_a_body_with_weights_of_its_own() -> None:
    net = compared(simple(constants={}, inner={"W": W, "R": R}), simple_feeds(), compiled=True)
    assert net.weights.keys() == {"W_l0", "R_l0"} and net.cell.output == "h" and not net.reverse


@pytest.mark.broad_after(5)
@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("back_out", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_directions_and_axes(back: int, back_out: int, axis: int) -> None:
    """Of the scan input and of the scan output."""
    options = {"scan_input_directions": [back], "scan_output_directions": [back_out]}
    made = simple(**options, scan_input_axes=[axis], scan_output_axes=[axis])
    feeds = simple_feeds()
    feeds["xs"] = np.moveaxis(feeds["xs"], 0, axis)
    assert compared(made, feeds).reverse == bool(back)


@pytest.mark.broad
def test_many_inputs_outputs_and_states_of_any_rank() -> None:
    """Scan inputs that run against each other, matrices and scalars, a scan output that is not a state."""
    nodes = [
        node("Einsum", ["M", "x"], ["read"], equation="bij,bj->bi"),
        node("Unsqueeze", ["x", "one"], ["x.row"]),
        node("Unsqueeze", ["read", "two"], ["read.column"]),
        node("MatMul", ["read.column", "x.row"], ["outer"]),
        node("Mul", ["outer", "half"], ["outer.half"]),
        node("Add", ["outer.half", "A"], ["sum"]),
        node("Tanh", ["sum"], ["new_M"]),
        node("ReduceSum", ["read", "one"], ["total"], keepdims=0),
        node("Add", ["total", "t"], ["total.t"]),
        node("Sub", ["total.t", "s"], ["new_s"]),
        node("Identity", ["new_s"], ["scalar"]),
        node("Transpose", ["outer"], ["matrix"], perm=[0, 2, 1]),
    ]
    constants = {"one": np.array([1]), "two": np.array([2]), "half": np.array(0.5, "f4")}
    made = scan_of(
        nodes,
        {"M": ["B", 3, 3], "s": ["B"]},
        {"x": ["B", 3], "t": ["B"], "A": ["B", 3, 3]},
        ["scalar", "matrix"],
        constants,
        scan_input_directions=[1, 0, 1],
        scan_output_directions=[0, 1],
        scan_output_axes=[1, 2],
    )
    feeds = {"M_0": (2, 3, 3), "s_0": (2,), "xs": (5, 2, 3), "ts": (5, 2), "As": (5, 2, 3, 3)}
    own = np.random.default_rng(2)
    net = compared(made, {name: own.normal(size=shape).astype("f4") for name, shape in feeds.items()}, compiled=True)
    assert net.input_size == 13 and net.output_size == 10 and net.reverse


def test_no_scan_output() -> None:
    assert compared(simple(outputs=[]), simple_feeds()).output_size == 4


def test_one_row_alone() -> None:
    """A body whose values have no batch: x [3], h [4]."""
    nodes = [
        node("MatMul", ["x", "W"], ["xW"]),
        node("MatMul", ["R", "h"], ["Rh"]),
        node("ReduceMax", ["h"], ["top"], axes=[0], keepdims=0),
        node("Sum", ["xW", "Rh", "top"], ["sum"]),
        node("Tanh", ["sum"], ["new_h"]),
        node("Unsqueeze", ["sum", "zero"], ["y"]),
    ]
    constants = {"W": W, "R": R, "zero": np.array([0])}
    made = scan_of(nodes, {"h": [4]}, {"x": [3]}, ["y"], constants, scan_output_axes=[2])
    feeds = {"h_0": simple_feeds()["h_0"][0], "xs": simple_feeds()["xs"][:, 0]}
    compared(made, feeds, compiled=True)


def test_a_batch_that_comes_last() -> None:
    """Columns in place of rows, x [3, B], h [4, B]: all of them are one row, so B must be known."""
    nodes = [
        node("MatMul", ["W.T", "x"], ["Wx"]),
        node("MatMul", ["R", "h"], ["Rh"]),
        node("Add", ["Wx", "Rh"], ["sum"]),
        node("Tanh", ["sum"], ["new_h"]),
        node("Identity", ["sum"], ["y"]),
    ]
    options: dict[str, Any] = {"nodes": nodes, "constants": {"W.T": W.T.copy(), "R": R}}
    made = simple(**options, states={"h": [4, 2]}, inputs={"x": [3, 2]})
    compared(made, {name: value.swapaxes(-1, -2).copy() for name, value in simple_feeds().items()}, compiled=True)
    with pytest.raises(
        ConfigError, match=r"'h' in its body has shape \[4, \?\]: sizes other than the batch must be known"
    ):
        rnn.from_onnx(simple(**options, states={"h": [4, "B"]}, inputs={"x": [3, "B"]}))


@pytest.mark.parametrize("steps", [0, 1])
def test_few_steps(steps: int) -> None:
    module = rnn.compile(rnn.from_onnx(simple()))
    feeds = simple_feeds(steps)
    found = module.run(feeds)
    assert found["ys"].shape == (steps, 2, 4)
    if steps:
        assert_close(found, onnx_runtime(simple(), feeds), "float32", 1)
    else:
        np.testing.assert_array_equal(found["h_n"], feeds["h_0"])


@pytest.mark.parametrize("dtype", ["f8", "f2"])
def test_other_dtypes(dtype: str) -> None:
    net = rnn.from_onnx(simple(dtype=dtype, constants={"W": W.astype(dtype), "R": R.astype(dtype)}))
    assert net.dtype == np.dtype(dtype).name
    feeds = {name: value.astype(dtype) for name, value in simple_feeds().items()}
    expected = onnx_runtime(simple(), simple_feeds())
    assert_close(rnn.reference(net).run(feeds), expected, "float16" if dtype == "f2" else "float32", 5)


def test_among_other_nodes(tmp_path: Path) -> None:
    """A head behind it, weights that nodes before it make, and beside it a node of the standard's."""
    body = simple().graph.node[0]
    own = np.random.default_rng(3)
    constants = {
        "W.T": W.T.copy(),
        "R": R,
        "head": own.normal(size=(4, 2)).astype("f4"),
        "V": own.normal(size=(1, 5, 4)).astype("f4"),
        "U": own.normal(size=(1, 5, 5)).astype("f4"),
    }
    nodes = [
        node("Transpose", ["W.T"], ["W"]),
        body,
        node("MatMul", ["ys", "head"], ["scores"]),
        node("RNN", ["ys", "V", "U"], ["", "last"], hidden_size=5),
    ]
    inputs = {"h_0": ("f4", ["B", 4]), "xs": ("f4", ["T", "B", 3])}
    model = model_of(nodes, inputs, {"scores": "f4", "last": "f4", "h_n": "f4"}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    net = compared(model, simple_feeds())
    assert isinstance(net, Model) and [n.cell.name for n in net.networks] == ["onnx_scan", "elman"]
    assert net.networks[0].origin.layer == "Scan 'h_n'"


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_attributes_and_body_that_do_not_fit() -> None:
    for change, reason in (
        (lambda scan, body: body.input.pop(), "its body has 1 inputs and 2 outputs, it has 2 and 2"),
        (lambda scan, body: body.output.pop(), "its body has 2 inputs and 1 outputs"),
        (lambda scan, body: scan.attribute.pop(), "it has no body, or no num_scan_inputs"),
        (lambda scan, body: scan.input.__setitem__(0, ""), "an input is not given"),
        (lambda scan, body: body.sparse_initializer.add(), "sparse initializers"),
        (lambda scan, body: body.input[0].type.tensor_type.__setattr__("elem_type", 7), "'h_0' is float32"),
        (lambda scan, body: body.input[0].type.tensor_type.ClearField("shape"), "'h' in its body has shape"),
    ):
        model = simple()
        scan = model.graph.node[0]
        scan.attribute.sort(key=lambda a: a.name)  # num_scan_inputs last
        change(scan, next(a.g for a in scan.attribute if a.name == "body"))
        with pytest.raises(ConfigError, match=reason):
            rnn.from_onnx(model)


def test_inputs_that_do_not_fit() -> None:
    module = rnn.compile(rnn.from_onnx(simple()))
    with pytest.raises(InputError):
        module.run(simple_feeds() | {"xs": np.zeros((5, 2, 4), "f4")})
    with pytest.raises(InputError):
        module.run(simple_feeds() | {"h_0": np.zeros((3, 4), "f4")})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_torch_writes_for_a_scan_of_its_own(dynamic: bool, tmp_path: Path) -> None:
    """A cell that torch has no layer for: gates from one product, a split, sizes of the batch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from torch._higher_order_ops.scan import scan

    torch.manual_seed(0)
    W, R = torch.randn(6, 8) * 0.4, torch.randn(4, 8) * 0.4
    b = torch.randn(8) * 0.1

    class Minimal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W, self.R, self.b = (torch.nn.Parameter(value) for value in (W, R, b))

        def forward(self, x: Any, h: Any) -> Any:
            def step(h: Any, x: Any) -> Any:
                f, n = (x @ self.W + h @ self.R + self.b).chunk(2, 1)
                f = torch.sigmoid(f)
                h = f * h + (1 - f) * torch.nn.functional.layer_norm(torch.tanh(n), (4,))
                return h, torch.cat([h, f], 1)

            return scan(step, h, x, reverse=True)

    x, h = torch.randn(5, 3, 6), torch.randn(3, 4)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = (axes, {0: torch.export.Dim.DYNAMIC}) if dynamic else None
    torch.onnx.export(Minimal().eval(), (x, h), dynamic_shapes=shapes, dynamo=True).save(tmp_path / "m.onnx")
    net = rnn.from_onnx(tmp_path / "m.onnx")
    end, y = Minimal()(x, h)
    found = rnn.compile(net).run({"x": x.numpy(), "h": h.numpy()})
    expected = {name: value.detach().numpy() for name, value in zip(found, (end, y), strict=True)}
    assert_close(found, expected, "float32", 5)


@pytest.mark.parametrize("before", [False, True], ids=["inputs", "results"])
def test_a_body_whose_inputs_have_no_type(before: bool) -> None:
    """Types are those of the node's operands."""
    made = simple()
    (scan,) = (node for node in made.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in scan.attribute if attribute.HasField("g"))
    if before:
        made.graph.node.insert(0, node("Tanh", [scan.input[1]], ["moved"]))
        scan = next(own for own in made.graph.node if own.op_type == "Scan")
        scan.input[1] = "moved"
        (body,) = (attribute.g for attribute in scan.attribute if attribute.HasField("g"))
    feeds = simple_feeds()
    expected = rnn.reference(rnn.from_onnx(made)).run(feeds)
    for info in body.input:
        info.type.tensor_type.ClearField("elem_type")
    found = rnn.reference(rnn.from_onnx(made)).run(feeds)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
