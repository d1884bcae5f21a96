"""Loop nodes over time as the Scans that they are; and those that end early, or compute with the number of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from damaged_files import examples, survives
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import model_of, node
from onnx_scans import STEP, R, W, compared, simple_feeds

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, TvmRnnError

helper = onnx.helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
TAKEN = node("Gather", ["xs", "i"], ["x"], axis=0)
GO_ON = node("Identity", ["cond"], ["cond_out"])
COUNT = [  # the number of steps, as exporters make it
    node("Shape", ["xs"], ["shape"]),
    node("Gather", ["shape", "zero"], ["M"], axis=0),
    node("Sub", ["M", "one"], ["last"]),
]
CONSTANTS = {"W": W, "R": R, "zero": np.array(0, "i8"), "one": np.array(1, "i8"), "true": np.array(True)}


def loop(
    nodes: Sequence[Any] = (GO_ON, TAKEN, *STEP),
    trips: str = "M",
    condition: str = "true",
    constants: Mapping[str, Any] | None = None,
    inner: Mapping[str, Any] | None = None,
    before: Sequence[Any] = (),
    lengths: bool = False,
    x: Sequence[Any] = ("T", "B", 3),
) -> Any:
    """A model with a Loop over xs [T, B, 3] from h_0 [B, 4]. inner: constants of the body's own."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        list(nodes),
        "body",
        [value("i", INT64, []), value("cond", BOOL, []), value("h", FLOAT, ["B", 4])],
        [value("cond_out", BOOL, []), value("new_h", FLOAT, ["B", 4]), value("y", FLOAT, ["B", 4])],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (inner or {}).items()],
    )
    made = node("Loop", [trips, condition, "h_0"], ["h_n", "ys"], body=body)
    inputs = {"h_0": ("f4", ["B", 4]), "xs": ("f4", x)}
    inputs |= {"lengths": ("i8", ["B"])} if lengths else {}
    given = CONSTANTS | dict(constants or {})
    return model_of([*COUNT, *before, made], inputs, {"h_n": "f4", "ys": "f4"}, given)


def test_over_all_steps() -> None:
    net = compared(loop(), simple_feeds(), compiled=True)
    assert net.input_size == 3 and net.weights.keys() == {"W_l0", "R_l0"} and net.origin.layer == "Loop 'h_n'"
    compared(loop(condition=""), simple_feeds())


def test_the_first_steps_alone() -> None:
    model = loop(trips="three", constants={"three": np.array([3], "i8")})
    compared(model, simple_feeds())
    with pytest.raises(TvmRnnError):
        rnn.reference(rnn.from_onnx(model)).run(simple_feeds(2))


@pytest.mark.parametrize("own", [False, True])
def test_backwards(own: bool) -> None:
    """Step i takes x at M - 1 - i, of an M of the model or of the body's own."""
    last = {"last": np.array(4, "i8")} if own else {}
    nodes = [node("Sub", ["last", "i"], ["back"]), node("Gather", ["xs", "back"], ["x"], axis=0), GO_ON, *STEP]
    model = loop(nodes, inner=last)
    if own:
        del model.graph.node[2]  # a body may not have a name of the model's
    compared(model, simple_feeds())


def test_time_is_another_axis_and_more_than_one_thing_is_taken() -> None:
    nodes = [
        GO_ON,
        node("Gather", ["xs", "i"], ["x"], axis=1),
        node("Gather", ["table", "i"], ["extra"]),
        *STEP[:3],
        node("Add", ["sum", "extra"], ["more"]),
        node("Tanh", ["more"], ["new_h"]),
        STEP[-1],
    ]
    table = np.random.default_rng(4).normal(size=(5, 2, 4)).astype("f4")
    model = loop(nodes, trips="five", constants={"table": table, "five": np.array(5)}, x=["B", "T", 3])
    feeds = simple_feeds()
    net = compared(model, feeds | {"xs": feeds["xs"].swapaxes(0, 1).copy()}, compiled=True)
    assert net.input_size == 7


def test_rows_that_end() -> None:
    """By the number of the step: lengths, as in a Scan."""
    nodes = [
        *(GO_ON, TAKEN, *STEP[:3]),
        node("Tanh", ["sum"], ["next"]),
        node("Less", ["i", "lengths"], ["active"]),
        node("Unsqueeze", ["active", "axis"], ["column"]),
        node("Where", ["column", "next", "h"], ["new_h"]),
        node("Where", ["column", "next", "none"], ["y"]),
    ]
    inner = {"axis": np.array([1], "i8"), "none": np.array(0, "f4")}
    feeds = simple_feeds() | {"lengths": np.array([5, 2])}
    net = compared(loop(nodes, inner=inner, lengths=True), feeds, compiled=True)
    assert net.input_size == 3 and net.cell.output == "h"


def test_a_body_that_takes_no_step_of_anything() -> None:
    nodes = [GO_ON, node("Tanh", ["h"], ["next"]), node("MatMul", ["next", "R"], ["new_h"]), STEP[-1]]
    compared(loop(nodes), simple_feeds(), compiled=True)


WRONG: dict[str, dict[str, Any]] = {
    "it has no number of steps": {"trips": ""},
    "its condition 'false' is not always true": {"condition": "false", "constants": {"false": np.array(False)}},
    "computes the condition 'cond_out' to go on": {
        "nodes": [TAKEN, *STEP, node("Not", ["cond"], ["cond_out"])],
    },
    "its body computes with 'cond', the condition": {
        "nodes": [GO_ON, TAKEN, *STEP[:-1], node("Where", ["cond", "new_h", "h"], ["y"])],
    },
    "value 'sum' of its body is made twice": {"nodes": [GO_ON, TAKEN, *STEP, node("Tanh", ["h"], ["sum"])]},
    "Gather 'x' in its body": {"nodes": [GO_ON, node("Gather", ["nothing", "i"], ["x"], axis=0), *STEP]},
    "the shape of 'moved' is not known": {
        "before": [node("Transpose", ["xs"], ["moved"], perm=[0, 2, 1])],
        "nodes": [GO_ON, node("Gather", ["moved", "i"], ["x"], axis=0), *STEP],
    },
    "it has no axis 3": {"nodes": [GO_ON, node("Gather", ["xs", "i"], ["x"], axis=3), *STEP]},
    "its states and scan inputs are not all of one": {
        "nodes": [GO_ON, node("Gather", ["whole", "i"], ["x"], axis=0), *STEP],
        "constants": {"whole": np.ones((9, 2, 3), "i8")},
    },
    "'i', the number of the step": {
        "nodes": [GO_ON, TAKEN, *STEP[:-1], node("Cast", ["i"], ["t"], to=1), node("Mul", ["t", "h"], ["y"])],
    },
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_wrong_is_said(reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(loop(**WRONG[reason]))
    assert reason in str(caught.value) and "Loop 'h_n': " in str(caught.value)


def test_trips_without_end_are_not_folded() -> None:
    with pytest.raises(ConfigError, match=f"more than its budget[\\s\\S]*a constant of {1 << 62} elements"):
        rnn.from_onnx(loop(trips="huge", constants={"huge": np.array(1 << 62)}))


def test_bodies_that_do_not_fit() -> None:
    for change, reason in (
        (lambda made, body: body.input.pop(), "its body has 2 inputs and 3 outputs, it has 3 and 2"),
        (lambda made, body: body.output.pop(), "its body has 3 inputs and 2 outputs"),
        (lambda made, body: made.attribute.pop(), "it has no body"),
        (lambda made, body: body.sparse_initializer.add(), "sparse initializers"),
        (lambda made, body: body.input[0].type.tensor_type.shape.dim.add(), "the number of the step, with axes"),
    ):
        model = loop()
        made = model.graph.node[-1]
        change(made, made.attribute[0].g)
        with pytest.raises(ConfigError, match=reason):
            rnn.from_onnx(model)


WHOLE = loop(inner={"half": np.array(0.5, "f4")}).SerializeToString()
NAMES = ["", "i", "cond", "h", "x", "xs", "h_0", "M", "last", "true", "W", "new_h", "y", "cond_out", "nothing"]
OPS = ["Identity", "Sub", "Add", "Gather", "Constant", "Less", "Cast", "Loop", "Scan", "If", "Range", "MatMul", ""]


@st.composite
def mutations(draw: Any) -> bytes:
    """The model with nodes, declarations and counts changed."""
    model = onnx.load_from_string(WHOLE)
    made = model.graph.node[-1]
    body = made.attribute[0].g
    for _ in range(draw(st.integers(1, 4))):
        own = draw(st.sampled_from([made, *body.node, *model.graph.node]))
        kind = draw(st.integers(0, 6))
        names = own.output if kind == 1 else own.input
        if kind < 2 and names:
            names[draw(st.integers(0, len(names) - 1))] = draw(st.sampled_from(NAMES))
        elif kind == 2:
            own.op_type = draw(st.sampled_from(OPS))
        elif kind == 3:
            del own.input[draw(st.integers(0, len(own.input))) :]
        elif kind == 4:
            values = draw(st.sampled_from([list(body.input), list(body.output)]))
            draw(st.sampled_from(values)).name = draw(st.sampled_from(NAMES))
        elif kind == 5:
            info = draw(st.sampled_from([*body.input, *body.output])).type.tensor_type
            info.elem_type = draw(st.integers(0, 17))
            info.shape.dim.add().dim_value = draw(st.sampled_from([-1, 0, 2, 1 << 62]))
        else:
            tensor = draw(st.sampled_from(list(model.graph.initializer)))
            number = draw(st.sampled_from([-(2**62), -1, 0, 2, 2**31, 2**62]))
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(number), tensor.name))
    return model.SerializeToString()


@given(mutations())
@examples(200)
def test_changed_models(data: bytes) -> None:
    survives(data, lambda: simple_feeds(3))


@pytest.mark.slow
@given(mutations())
@examples(5000)
def test_many_changed_models(data: bytes) -> None:
    survives(data, lambda: simple_feeds(3))
