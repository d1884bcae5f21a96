"""Bodies of Scan nodes: what is wrong with one is said, all of it at once, and no damage to one does any harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from damaged_files import changed_bytes, cut, examples, survives
from hypothesis import given
from hypothesis import strategies as st
from networks import arguments, network
from onnx_models import node, onnx_runtime
from onnx_scans import STEP, R, W, compared, simple, simple_feeds

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.onnx_scan_body import counts_steps
from tvm_rnn.network.model import Model
from tvm_rnn.network.program import NETWORK, Declared
from tvm_rnn.oracle.tolerance import assert_close

GRAPH_IN_IT = onnx.helper.make_graph([], "inner", [], [])
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "operator set": ("Scan of operator set 8", {"opset": 8}),
    "no state": ("0 states and 1 scan inputs", {"states": {}, "nodes": [node("Tanh", ["x"], ["y"])]}),
    "reads what is given": (
        "'xs' depends on what the model is given",
        {"nodes": [node("Add", ["h", "xs"], ["new_h"]), *STEP[-1:]]},
    ),
    "reads what is not there": ("value 'q' is missing", {"nodes": [node("Add", ["h", "q"], ["new_h"]), *STEP[-1:]]}),
    "a cycle": ("value 'new_h' is missing, or made later", {"nodes": [node("Add", ["h", "new_h"], ["new_h"])]}),
    "made twice": ("is made twice", {"nodes": [*STEP, node("Tanh", ["h"], ["sum"])]}),
    "other dtype": ("'W', which its body reads, is float64", {"constants": {"W": W.astype("f8"), "R": R}}),
    "no size": ("'x' in its body has shape [?, ?]", {"inputs": {"x": ["B", "I"]}}),
    "no axis": ("has no axis for the batch", {"states": {"h": []}}),
    "other shape": (
        "output 'new_h' of its body has [3] for each row, expected numbers of shape [4]",
        {"nodes": [node("Tanh", ["x"], ["new_h"]), *STEP[-1:]]},
    ),
    "truth": ("has truth values", {"nodes": [*STEP[:-1], node("Less", ["h", "h"], ["y"])]}),
    "no batch": ("output 'y' of its body does not have the batch", {"nodes": [*STEP[:-1], node("Tanh", ["R"], ["y"])]}),
    "If": (
        "If 'y' in its body: operator If is not supported",
        {"nodes": [*STEP[:-1], node("If", ["h"], ["y"], then_branch=GRAPH_IN_IT, else_branch=GRAPH_IN_IT)]},
    ),
    "two at once": (
        "Det 'y' in its body: operator Det is not supported; Loop 'z' in its body: operator Loop",
        {"nodes": [*STEP[:-1], node("Det", ["h"], ["y"]), node("Loop", ["", ""], ["z"])]},
    ),
    "direction": ("scan_input_directions is [2]", {"scan_input_directions": [2]}),
    "axis": ("has no axis 3", {"scan_input_axes": [3]}),
    "output axis": ("a scan output has 3 axes, and no axis -4", {"scan_output_axes": [-4]}),
    "too many axes": ("scan_output_axes is [0, 0], expected 1 numbers", {"scan_output_axes": [0, 0]}),
    "huge": ("sizes other than the batch must be known", {"states": {"h": ["B", 1 << 40]}}),
    "huge inputs": ("elements for each row", {"inputs": {"x": ["B", 1 << 24], "z": ["B", 1 << 24]}}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    reason, options = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(simple(**options))
    assert "Scan 'h_n'" in str(caught.value) or name == "no state"
    assert reason in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    """Of the inputs, of nodes that can be looked at in spite of it, and of outputs; whatever reading is meant."""
    nodes = [*STEP[:-1], node("Det", ["q"], ["y"]), node("Loop", ["", ""], ["z"])]
    inputs = {"x": ["B", "I"], "z": ["B", "J"]}
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(simple(nodes=nodes, inputs=inputs, inner={"big": np.zeros(3, "f8")}))
    for reason in ("'x' in its body has shape [?, ?]", "'z' in its body has shape [?, ?]", "Det 'y'", "operator Loop"):
        assert reason in str(caught.value)
    nodes = [*STEP, node("Det", ["h"], ["z"]), node("Tanh", ["q"], ["u"]), node("Tanh", ["R"], ["v"])]
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(simple(nodes=nodes, outputs=["y", "z", "v"]))
    for reason in (
        "Det 'z' in its body",
        "Tanh 'u' in its body: value 'q' is missing",
        "'v' of its body does not have",
    ):
        assert reason in str(caught.value)


def test_what_is_wrong_with_one_row_alone() -> None:
    """Read as what it is: nothing of a batch that nobody meant."""
    nodes = [node("MatMul", ["R", "h"], ["Rh"]), node("Det", ["x"], ["y"]), node("Tanh", ["Rh"], ["new_h"])]
    with pytest.raises(ConfigError, match=r"Scan 'h_n': Det 'y' in its body: operator Det is not supported\n"):
        rnn.from_onnx(simple(nodes=nodes, states={"h": [4]}, inputs={"x": [4]}))


@pytest.mark.broad
def test_long_bodies_end() -> None:
    """Without recursion, and without walking twice over what is read twice."""
    nodes = [node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(300)]
    nodes = [node("Mul", ["h", "zero"], ["v0"]), *nodes, node("Add", ["v300", "x"], ["new_h"]), STEP[-1]]
    compared(
        simple(nodes=nodes, inputs={"x": ["B", 4]}, constants={"zero": np.array(0, "f4")}),
        simple_feeds() | {"xs": np.ones((5, 2, 4), "f4")},
    )
    nodes = [node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    nodes = [node("Add", ["h", "x"], ["v0"]), *nodes, node("Neg", ["v3000"], ["new_h"]), STEP[-1]]
    assert rnn.from_onnx(simple(nodes=nodes, inputs={"x": ["B", 4]})).input_size == 4


def test_names_that_are_no_names_of_python() -> None:
    """Of weights and states: as near to them as may be, each once."""
    names = {"W": "class", "R": "9.layer/R_l0_reverse"}
    nodes = [node(n.op_type, [names.get(i, i) for i in n.input], n.output) for n in STEP]
    net = compared(simple(nodes=nodes, constants={"class": W, names["R"]: R}), simple_feeds())
    assert net.weights.keys() == {"vclass_l0", "v9_layer_R_l0"}


# --- damage ----------------------------------------------------------------------------------------------------------

WHOLE = simple(constants={"R": R}, inner={"W": W, "axes": np.array([0, -1], "i8")}).SerializeToString()


@pytest.mark.parametrize("end", cut(WHOLE))
def test_a_file_that_was_cut_short(end: int) -> None:
    survives(WHOLE[:end], lambda: simple_feeds(3))


@given(changed_bytes(WHOLE))
@examples(200)
def test_changed_bytes(data: bytes) -> None:
    survives(data, lambda: simple_feeds(3))


NAMES = ["", "x", "h", "W", "R", "xW", "hR", "sum", "new_h", "y", "axes", "xs", "h_0", "h_n", "ys", "nothing"]
OPS = [
    "Add",
    "MatMul",
    "Gemm",
    "Einsum",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "Reshape",
    "Expand",
    "Transpose",
    "Shape",
]
OPS += ["Squeeze", "Unsqueeze", "ReduceSum", "Softmax", "Where", "Less", "Cast", "Pow", "Clip", "LayerNormalization"]
OPS += ["ConstantOfShape", "Range", "Tile", "Scan", "Loop", "If", "LSTM", "Constant", ""]
NUMBERS = [-(2**62), -7919, -1, 0, 1, 2, 3, 4, 5, 2**24, 2**31, 2**62]
ATTRIBUTES = [
    onnx.helper.make_attribute("perm", [1, 0]),
    onnx.helper.make_attribute("axis", -(2**62)),
    onnx.helper.make_attribute("axes", [2**62]),
    onnx.helper.make_attribute("to", 10),
    onnx.helper.make_attribute("equation", "bi,ij->bj"),
    onnx.helper.make_attribute("num_outputs", 2**40),
    onnx.helper.make_attribute("value", onnx.TensorProto(dims=[2**62], data_type=1)),
    onnx.helper.make_attribute("body", onnx.helper.make_graph([], "empty", [], [])),
]
LISTS = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
Draw = Any


def change_node(draw: Draw, scan: Any, body: Any) -> None:
    chosen = draw(st.sampled_from([scan, *body.node]))
    kind = draw(st.integers(0, 5))
    names = chosen.output if kind == 1 else chosen.input
    if kind < 2 and names:
        names[draw(st.integers(0, len(names) - 1))] = draw(st.sampled_from(NAMES))
    elif kind == 2:
        chosen.op_type = draw(st.sampled_from(OPS))
    elif kind == 3:
        chosen.attribute.append(draw(st.sampled_from(ATTRIBUTES)))
    elif kind == 4:
        del chosen.input[draw(st.integers(0, len(chosen.input))) :]
    elif body.node:
        del body.node[draw(st.integers(0, len(body.node) - 1))]


def change_value(draw: Draw, scan: Any, body: Any) -> None:
    """What the body says of its inputs and outputs."""
    values = [body.input, body.output][draw(st.integers(0, 1))]
    at, kind = draw(st.integers(0, len(values) - 1)), draw(st.integers(0, 4))
    tensor = values[at].type.tensor_type
    if kind == 0:
        values[at].name = draw(st.sampled_from(NAMES))
    elif kind == 1:
        tensor.elem_type = draw(st.integers(0, 25))
    elif kind == 2:
        tensor.shape.dim.add().dim_value = draw(st.sampled_from(NUMBERS))
    elif kind == 3:
        for dim in tensor.shape.dim:
            dim.dim_value = draw(st.sampled_from(NUMBERS))
    else:
        del values[at]


def change_attribute(draw: Draw, scan: Any, body: Any) -> None:
    if draw(st.booleans()):
        name, values = draw(st.sampled_from(LISTS)), draw(st.lists(st.sampled_from(NUMBERS), max_size=2))
        scan.attribute.append(onnx.helper.make_attribute(name, values, attr_type=onnx.AttributeProto.INTS))
    else:
        next(a for a in scan.attribute if a.name == "num_scan_inputs").i = draw(st.sampled_from(NUMBERS))


def change_tensor(draw: Draw, scan: Any, body: Any) -> None:
    tensor, kind = draw(st.sampled_from(list(body.initializer))), draw(st.integers(0, 2))
    if kind == 0:
        tensor.dims[draw(st.integers(0, len(tensor.dims) - 1))] = draw(st.sampled_from(NUMBERS))
    elif kind == 1:
        tensor.data_type = draw(st.integers(0, 25))
    else:
        numbers = draw(st.lists(st.sampled_from(NUMBERS), max_size=4))
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(numbers, "i8"), tensor.name))


@st.composite
def mutations(draw: Draw) -> bytes:
    """The model with its Scan changed in a way that still parses."""
    model = onnx.load_from_string(WHOLE)
    (scan,) = model.graph.node
    body = next(a.g for a in scan.attribute if a.name == "body")
    changes = [change_node, change_node, change_node, change_value, change_attribute, change_tensor]
    for _ in range(draw(st.integers(1, 4))):
        change = draw(st.sampled_from(changes))
        if change is not change_value or (body.input and body.output):
            change(draw, scan, body)
    if draw(st.integers(0, 9)) == 0:
        model.opset_import[0].version = draw(st.sampled_from([1, 8, 9, 11, 13, 18, 22]))
    return model.SerializeToString()


@pytest.mark.broad
@given(mutations())
@examples(300)
def test_changed_models(data: bytes) -> None:
    survives(data, lambda: simple_feeds(3))


@pytest.mark.slow
@given(mutations())
@examples(5000)
def test_many_changed_models(data: bytes) -> None:
    survives(data, lambda: simple_feeds(3))


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


NO_ENDS = {  # what is done to the body: its Less and its Wheres, those of the states first
    "stay what it was for rows that have ended, as 'lengths' says": lambda less, held: exchange(held[0], 1, 2),
    "does not become 0 for rows that have ended": lambda less, held: exchange(held[-1], 1, 2),
    "'x' is no list of lengths in int32": lambda less, held: less.input.__setitem__(1, "x"),
    "value 'nothing' is missing": lambda less, held: less.input.__setitem__(1, "nothing"),
    "value 'lengths' depends on what the model is given": lambda less, held: less.input.reverse(),
}


def exchange(own: Any, one: int, two: int) -> None:
    own.input[one], own.input[two] = own.input[two], own.input[one]


@pytest.mark.parametrize("reason", NO_ENDS)
def test_what_is_not_the_end_of_rows(reason: str, tmp_path: Path) -> None:
    """Its comparison alone does not say it: every result must be held, by the same lengths."""
    _, model = written(tmp_path / "m.onnx")
    _, body = scan_of(model)
    (less,) = [n for n in body.node if n.op_type == "Less"]
    NO_ENDS[reason](less, [n for n in body.node if n.op_type == "Where"])
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
