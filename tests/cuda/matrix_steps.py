"""Steps of matrix states for tests, on the emulator, beside the oracle."""

from __future__ import annotations

import functools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from emulated import Case, decoded, encoded, error, layer, run

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.matrix.block import SharedPlan
from tvm_rnn.cuda.matrix.kernel import kernel
from tvm_rnn.cuda.matrix.matrix_axes import matrix_shape
from tvm_rnn.cuda.matrix.matrix_step import MatrixStep, matrix_step
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.graph.graph import Node
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

REGISTERS = 65536
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-5}


def layout_of(cell: rnn.Cell, dtype: str = "float32", **sizes: int) -> Layout:
    """A layer of a cell with 5 inputs."""
    net = rnn.RNN(cell, 5, dtype=dtype, **sizes).init(2)
    (graph,) = pipeline.run(net, resolve("nvidia-h200"))[-1][1].graphs
    return Layout(graph, dtype, Weights(graph, 0, dtype), dtype)


def backward_layer(cell: rnn.Cell, dtype: str = "bfloat16", **sizes: int) -> Layer:
    """The same layer's backward pass, whose tape has states alone."""
    net = rnn.RNN(cell, 5, dtype=dtype, **sizes)
    passed = pipeline.passed(net, Options(target=resolve("nvidia-h200"), training="states", precision=net.dtype))
    return plan(passed, passed.options.target).backward.code[0]


def backward_of(cell: rnn.Cell, **sizes: int) -> Layout:
    return backward_layer(cell, **sizes).layout


def step_of(layout: Layout) -> MatrixStep:
    """Of a layer without heads, or of one head."""
    return matrix_step(layout, matrix_shape(state.shape for state in layout.graph.states))


@functools.cache
def plan_of(of: tuple[str, int, str], registers: int = REGISTERS) -> SharedPlan:
    """Of a zoo cell without heads."""
    _, layout = layer(*of)
    return SharedPlan(step_of(layout), layout.precision, registers)


def matrix_error(
    case: Case, reverse: bool = False, lengths: bool = False, reset: bool = False, registers: int = REGISTERS
) -> float:
    """As `emulated.scan_error`, of a kernel of matrix states. registers: of a multiprocessor."""
    plan = plan_of(case.of, registers)
    step = plan.step
    made = kernel("k", plan, case.net.cell.initial if lengths or reset else None)
    arrays = case.arrays(step.read_nodes, step.param_nodes, step.layout.rows)
    scalars = {"steps": case.steps, "reverse": int(reverse), "batch": case.batch}
    scalars |= {"start": case.start, "total": case.total, "has_lengths": int(lengths), "has_reset": int(reset)}
    run(made, arrays, scalars, case.batch)
    return error(case, arrays, reverse, lengths, reset)


def gradient_error(cell: rnn.Cell, sizes: dict[str, int], ended: bool) -> float:
    """Of what backward accumulates, relative, beside sums of what a kernel without that stores. ended: rows end before
    the last step; there all that is read is NaN."""
    regime = backward_layer(cell, **sizes).on_chip
    assert regime is not None and regime.plan.step.accumulated
    plain = replace(regime.plan.step, accumulated=())
    steps, batch, rng = 5, 3, np.random.default_rng(1)
    ends = np.array([5, 3, 0] if ended else [5, 5, 5])
    live = np.arange(steps)[:, None] < ends
    arrays = _backward_arrays(plain, live, rng)
    scalars = {
        "steps": steps,
        "reverse": 1,
        "batch": batch,
        "start": 0,
        "total": steps,
        "has_lengths": 1,
        "has_reset": 0,
    }
    arrays |= {"lengths": ends, "reset": np.zeros((steps, batch), np.uint8)}
    arrays |= {f"parts_{n}": np.full((batch, *own.node.shape), np.nan, np.float32) for n, own in _sums(regime.plan)}
    plans = {"plain": SharedPlan(plain, "bfloat16", REGISTERS), "beside": regime.plan}
    for name, own in plans.items():
        run(kernel(name, own, {} if ended else None), arrays, scalars, batch * plain.layout.heads)
    worst = 0.0
    for n, own in _sums(regime.plan):
        operands = [_of_every_step(plain, arrays, node) for node in (own.left, own.right)]
        a, b = (np.where(live[..., None, None, None], operand, 0.0) for operand in operands)
        expected = np.einsum("tbnki,tbnkj->bnij", a, b).reshape(arrays[f"parts_{n}"].shape)
        gap = np.linalg.norm(arrays[f"parts_{n}"] - expected)
        worst = max(worst, float(gap / np.linalg.norm(expected)))
    return worst


def _sums(plan: SharedPlan) -> Any:
    return enumerate(plan.step.accumulated)


def _backward_arrays(step: MatrixStep, live: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What a kernel reads, and NaN where it writes."""
    rows, heads, layout = live.size, step.layout.heads, step.layout
    found = {"y": np.zeros(1, np.float32)}
    for n, node in enumerate(step.param_nodes):
        found[f"param_{n}"] = 0.3 * rng.normal(size=layout.of_layer(node).shape).astype(np.float32)
    for n, node in enumerate(step.read_nodes):
        place = layout.rows(node)
        values = np.where(live.reshape(-1, 1), rng.normal(size=(rows, place.row_stride)), np.nan)
        found[f"read_{n}"] = encoded(values, place.dtype)
    for n, state in enumerate(step.states):
        shape = (live.shape[1], heads, *state.shape)
        found |= {f"old_{n}": rng.normal(size=shape).astype(np.float32), f"new_{n}": np.full(shape, np.nan, np.float32)}
    for own in step.kept:
        found[own.pointer] = encoded(np.full((rows, own.place.row_stride), np.nan), own.place.dtype)
    return found


def _of_every_step(step: MatrixStep, arrays: dict[str, np.ndarray], node: Node) -> np.ndarray:
    """[T, B, heads, rows, columns] of a matrix that is read, or was stored."""
    left = next((own for own in step.kept if own.node is node), None)
    name, place = (
        (left.pointer, left.place) if left else (f"read_{step.read_nodes.index(node)}", step.layout.rows(node))
    )
    values = decoded(arrays[name], place.dtype)[:, : step.layout.heads * prod(node.shape)]
    return values.reshape(5, 3, step.layout.heads, *node.shape)
