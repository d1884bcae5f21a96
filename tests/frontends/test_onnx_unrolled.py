"""Cells that were written once for every step, found again as one Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_file import Source
from tvm_rnn.frontends.onnx_unrolled import with_scans

RNG = np.random.default_rng(0)
WIDTH, DEPTH, STEPS = 5, 3, 6
WEIGHTS = {
    "w": RNG.normal(size=(2 * WIDTH, DEPTH)).astype("f4"),
    "r": RNG.normal(size=(2 * WIDTH, WIDTH)).astype("f4"),
    "b": RNG.normal(size=(2 * WIDTH,)).astype("f4"),
}


def step(t: int, x: str, h: str, c: str) -> list[Any]:
    """A cell with two states: c' = c * sigmoid(a) + u, h' = tanh(c')."""
    return [
        node("Gemm", [h, "r", "b"], [f"rh{t}"], transB=1),
        node("Gemm", [x, "w"], [f"wx{t}"], transB=1),
        node("Add", [f"rh{t}", f"wx{t}"], [f"s{t}"]),
        node("Split", [f"s{t}"], [f"a{t}", f"u{t}"], axis=1, num_outputs=2),
        node("Sigmoid", [f"a{t}"], [f"g{t}"]),
        node("Mul", [c, f"g{t}"], [f"m{t}"]),
        node("Add", [f"m{t}", f"u{t}"], [f"c{t}"]),
        node("Tanh", [f"c{t}"], [f"h{t}"]),
    ]


def unrolled(order: list[int], change: int = -1) -> Any:
    """All steps of x in an order, joined. change: a step that is another one."""
    nodes, h, c, known = list[Any](), "h", "c", {**WEIGHTS, "axis": np.array([0])}
    for t, place in enumerate(order):
        known[f"place{t}"] = np.array(place)
        nodes += [node("Gather", ["x", f"place{t}"], [f"x{t}"], axis=0), *step(t, f"x{t}", h, c)]
        if t == change:
            nodes[-1].op_type = "Sigmoid"
        nodes.append(node("Unsqueeze", [f"h{t}", "axis"], [f"o{t}"]))
        h, c = f"h{t}", f"c{t}"
    nodes.append(node("Concat", [f"o{t}" for t in range(len(order))], ["y"], axis=0))
    nodes.append(node("Identity", [c], ["last"]))
    return model_of(
        nodes,
        {"x": ("f4", ["T", "B", DEPTH]), "h": ("f4", ["B", WIDTH]), "c": ("f4", ["B", WIDTH])},
        {"y": "f4", "last": "f4"},
        known,
        opset=18,
    )


def scans(model: Any) -> list[Any]:
    return [own for own in with_scans(Source(model)).model.graph.node if own.op_type == "Scan"]


def expected(order: list[int], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, w = list[np.ndarray](), {name: value.astype("f8") for name, value in WEIGHTS.items()}
    for place in order:
        a, u = np.split(h @ w["r"].T + w["b"] + x[place] @ w["w"].T, 2, axis=1)
        c = c / (1 + np.exp(-a)) + u
        h = np.tanh(c)
        found.append(h)
    return np.stack(found), c


ORDERS = {"in order": [*range(STEPS)], "backwards": [*range(STEPS)][::-1]}


@pytest.mark.parametrize("order", [pytest.param(v, id=k) for k, v in ORDERS.items()])
def test_equal_steps_are_a_scan(order: list[int]) -> None:
    (scan,) = scans(unrolled(order))
    assert len(scan.input) == 3 and len(scan.output) == 3
    (back,) = [own.ints for own in scan.attribute if own.name == "scan_input_directions"]
    assert [*back] == [int(order[0] != 0)]


@pytest.mark.broad
@pytest.mark.parametrize("order", [pytest.param(v, id=k) for k, v in ORDERS.items()])
def test_a_scan_computes_what_the_copies_did(order: list[int]) -> None:
    mod = rnn.compile(rnn.from_onnx(unrolled(order)))
    assert len(mod.manifest["states"]) == 2
    for batch in (1, 4):
        x, h, c = (RNG.normal(size=s).astype("f4") for s in ((STEPS, batch, DEPTH), *[(batch, WIDTH)] * 2))
        found, (y, last) = mod.run({"x": x, "h": h, "c": c}), expected(order, x, h, c)
        np.testing.assert_allclose(found["y"], y, 1e-5, 1e-5)
        np.testing.assert_allclose(found["last"], last, 1e-5, 1e-5)
    x = x[:-1]  # a step is missing that the file reads
    with pytest.raises(rnn.TvmRnnError):
        mod.run({"x": x, "h": h, "c": c})


def test_steps_that_are_not_alike_stay() -> None:
    assert scans(unrolled([0, 1, 2, 3, 5, 4])) == []  # in no order
    assert scans(unrolled([0, 1, 2])) == []  # too few
    assert scans(unrolled([*range(STEPS)], change=3)) == []
    assert scans(unrolled([*range(STEPS)], change=STEPS - 1)) == []
    model = unrolled([*range(STEPS)])
    model.graph.node[-2].input[0] = "o1"  # not all steps, in order
    whole = with_scans(Source(model)).model.graph
    assert {"Scan", "Gather", "Concat"} <= {own.op_type for own in whole.node}


def test_a_step_is_read_by_others_too() -> None:
    model = unrolled([*range(STEPS)])
    model.graph.node[-1].input[0] = "h2"
    whole = with_scans(Source(model)).model.graph
    (made,) = [own for own in whole.node if "h2" in own.output]
    assert made.op_type == "Gather"
    onnx.shape_inference.infer_shapes(with_scans(Source(model)).model, strict_mode=True)
