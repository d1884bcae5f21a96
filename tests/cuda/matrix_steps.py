"""Steps of matrix states for tests, on the emulator, beside the oracle."""

from __future__ import annotations

import functools

from emulated import Case, error, layer, run

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.matrix.block import SharedPlan
from tvm_rnn.cuda.matrix.kernel import kernel
from tvm_rnn.cuda.matrix.matrix_axes import matrix_shape
from tvm_rnn.cuda.matrix.matrix_step import MatrixStep, matrix_step
from tvm_rnn.cuda.training.add_entry_points import plan
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


def backward_of(cell: rnn.Cell, **sizes: int) -> Layout:
    """Of the same layer's backward pass, whose tape has states alone."""
    net = rnn.RNN(cell, 5, dtype="bfloat16", **sizes)
    passed = pipeline.passed(net, Options(target=resolve("nvidia-h200"), training="states", precision=net.dtype))
    return plan(passed, passed.options.target).backward.code[0].layout


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
