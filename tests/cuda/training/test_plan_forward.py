"""forward_train's program: what it writes to the tape, and what becomes of rows that have ended, emulated."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run
from training_plans import trained

from tvm_rnn import cell
from tvm_rnn.cuda.codegen.host_program import Pointer
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.training.plan_forward import Blank, blank_kernel
from tvm_rnn.cuda.training.tape_layout import kept_nodes

T, B, SIZE = 6, 3, 5


@cell(states="h", output="y")
def unread(x: "H", h: "H"):
    """Only the next step reads the new state."""
    return 0.5 * h + x, h * x


LENGTHS, RESET = np.array([6, 2, 0]), np.zeros((T, B), "u1")
RESET[3, 0] = RESET[1, 1] = RESET[4, 1] = 1  # the last one in a row's padding


def blanked(side: int) -> tuple[np.ndarray, np.ndarray]:
    """A kept value and a state, all ones at first, where resets begin with 7 and rows with 9."""
    values, states = np.ones((T, B, SIZE), "f4"), np.ones((T, B, SIZE), "f4")
    place, first = Place("float32", SIZE), Pointer("first", "float32") if side else None
    kernel = blank_kernel("k", [Blank(Pointer("a"), place, SIZE), Blank(Pointer("b"), place, SIZE, 7.0, first)], side)
    arrays = {"a0": values, "a1": states, "first1": np.full((B, SIZE), 9, "f4"), "lengths": LENGTHS, "reset": RESET}
    scalars = {"rows": T * B, "batch": B, "steps": T, "has_lengths": 1, "has_reset": 1, "start": 0, "after": 0}
    run(kernel, arrays, scalars, -(-T * B // (128 // SIZE)))
    assert (values == values[..., :1]).all() and (states == states[..., :1]).all()
    return values[..., 0], states[..., 0]


@pytest.mark.broad
def test_rows_end_and_begin_again() -> None:
    values, states = blanked(0)
    np.testing.assert_array_equal(values.T, [[1] * 6, [1, 1, 0, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(states.T, [[1, 1, 1, 7, 1, 1], [1, 7, 0, 0, 0, 0], [0] * 6])


@pytest.mark.slow
def test_back_in_time_a_row_begins_with_its_last_step() -> None:
    values, states = blanked(1)
    np.testing.assert_array_equal(values.T, [[1] * 6, [1, 1, 0, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(states.T, [[1, 1, 7, 1, 1, 9], [7, 9, 0, 0, 0, 0], [0] * 6])


def test_layers_hand_on_what_the_tape_keeps() -> None:
    net, plans = trained("gru", num_layers=2)
    program = plans.programs[0]
    assert program.inputs == 1 + len(net.cell.inputs)
    text = "\n".join(program.sequence.lines)
    assert "input[1]" in text
    lines = [line.strip() for line in program.sequence.lines]
    copies = [i for i, line in enumerate(lines) if line.startswith("RUN(copy(")]
    assert len(copies) == 1 and lines[copies[0] - 1] == "if (has_lengths || has_reset) {"  # else x is read where it is


def test_a_recurrence_writes_its_states_to_the_tape() -> None:
    _, plans = trained(unread, precision="bfloat16")
    (code,) = plans.forward.code
    (state,) = kept_nodes(code.graph)
    assert not code.layout.has_steps
    assert [target.kind for target in code.layout.targets(state, "before")] == ["kept"]
    assert any(argument.node is state for scan in code.scans for argument in scan.arguments)
    layout = trained("min_gru", precision="bfloat16")[1].forward.code[0].layout
    assert [target.kind for target in layout.targets(layout.graph.output, "before")] == ["kept", "output"]
