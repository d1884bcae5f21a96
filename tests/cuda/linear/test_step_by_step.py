"""Linear recurrences step by step, on the emulator, beside a float64 loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import decoded, encoded, rounded, run
from linear_steps import Steps, recurrence

from tvm_rnn.cuda.layer.pointers import Argument, Place
from tvm_rnn.cuda.linear import step_by_step
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED
from tvm_rnn.cuda.linear.step_by_step import STATES
from tvm_rnn.graph.graph import Node, constant, make


def error(case: Steps, ahead: int = 1, dtype: str = "float32") -> float:
    """Of a kernel's run, with states in memory of that dtype."""
    found = step_by_step.Steps("k", case.own, ahead, dtype, case.reverse, case.every)
    case.before = rounded(case.before, dtype).astype("f8")
    arrays = case.arrays()
    for name in STATES:
        arrays[name] = encoded(arrays[name], dtype)
    scalars = {"steps": case.steps, "batch": case.batch, **case.masks}
    run(found.kernels[case.masked], arrays, scalars, found.blocks(case.batch))
    arrays["state_out"] = decoded(arrays["state_out"], dtype)
    return case.error(arrays)


def made(case: Steps) -> tuple[step_by_step.Makes, dict[str, np.ndarray]]:
    """What makes all operands but one, twice what lies in other arrays, and these arrays."""
    values, given, arrays = dict[str, Node](), dict[Argument, Place](), case.arrays()
    for number, (name, rows) in enumerate(list(case.rows.items())[1:]):
        node = Node("input", shape=(rows.stride,))
        values[name] = make("mul", node, constant(2.0, 1))
        argument = Argument(f"given_{number}", "read", node)
        given[argument] = Place(rows.dtype, rows.stride)
        arrays[argument.name] = encoded(decoded(arrays.pop(name), rows.dtype) / 2, rows.dtype)
    return step_by_step.Makes(values, given), arrays


CASES: dict[str, dict[str, Any]] = {
    "attention": {"decay": 0},
    "gated delta": {"erase": DECAYED, "value_scale": True, "log_decay": True},
    "own vector": {"erase": BEFORE, "own": True, "values": 40, "keys": 20},
    "old and new": {"reads": (BEFORE, AFTER), "erase": DECAYED, "group": 2},
    "keys last": {"erase": DECAYED, "keys_last": True, "keys": 140, "values": 36},
    "by key": {"erase": DECAYED, "decay": 24, "keys": 24},
    "by key, logs": {"decay": 20, "keys": 20, "log_decay": True, "keys_last": True},
    "odd": {"erase": DECAYED, "keys": 17, "values": 33},
    "few keys, last": {"keys": 6, "values": 40, "keys_last": True, "decay": 6},
    "half a warp, last": {"keys": 64, "values": 32, "keys_last": True, "erase": BEFORE, "reads": (BEFORE, AFTER)},
    "eight lanes, last": {"keys": 29, "values": 35, "keys_last": True},
    "whole": {"keys": 32, "values": 32, "erase": BEFORE, "group": 2},
    "float32, last": {"keys": 32, "values": 32, "precision": "float32", "keys_last": True, "others": ("vector",)},
    "float32, two more": {"precision": "float32", "others": ("vector", "value"), "keys": 17, "decay": 17},
    "scaled": {"others": ("scaled",), "keys_last": True, "scale": 0.6, "reads": (BEFORE, AFTER)},
    "scaled, erased": {"erase": DECAYED, "own": True, "value_scale": True, "scale": 1.4},
    "all erased": {"others": ("vector", "vector"), "erase": BEFORE, "keys_last": True, "reads": (BEFORE, AFTER)},
}


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    own = recurrence(**CASES[name])
    assert error(Steps(own, 3, decays=(0.0, 0.9))) < 4e-3


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["keys last", "odd", "gated delta", "float32, two more"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_operands_that_are_made_where_they_are_read(name: str, ahead: int) -> None:
    case = Steps(recurrence(**CASES[name]), 3, decays=(0.5, 0.9))
    makes, arrays = made(case)
    found = step_by_step.Steps("k", case.own, ahead, makes=makes)
    assert not {name for name, _ in found.kernels[0].pointers} & {*makes.values}
    run(found.kernels[0], arrays, {"steps": 3, "batch": case.batch}, found.blocks(case.batch))
    assert case.error(arrays) < 4e-3


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("whole", "bfloat16"), ("odd", "float16"), ("keys last", "float16"), ("few keys, last", "bfloat16")],
)
def test_states_of_16_bits(name: str, dtype: str) -> None:
    own = recurrence(**CASES[name])
    assert error(Steps(own, 3, decays=(0.0, 0.9)), dtype=dtype) < 4e-3 + {"bfloat16": 2**-8, "float16": 2**-11}[dtype]


@pytest.mark.broad
@pytest.mark.parametrize("steps", [9, 1, 3, 4, 8])
def test_loads_ahead(steps: int) -> None:
    own = recurrence(1, decay=16, others=("vector",), reads=(AFTER,))
    assert error(Steps(own, steps, decays=(0.0, 0.9)), 4) < 4e-3


@pytest.mark.broad
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_states_before_parts_of_the_time(reverse: bool, masked: bool) -> None:
    own = recurrence(1, others=("vector",), reads=(AFTER, BEFORE), precision="float32", keys_last=True)
    more: dict[str, Any] = {"reverse": reverse, "every": 8}
    if masked:
        more |= {"lengths": np.array([21, 9]), "reset": np.random.default_rng(1).random((21, 2)) < 0.2}
    assert error(Steps(own, 21, **more), 4) < 4e-3


@pytest.mark.broad
@pytest.mark.parametrize("ahead", [1, 3])
def test_lengths_and_resets(ahead: int) -> None:
    own = recurrence(1, erase=BEFORE, reads=(AFTER, BEFORE))
    reset = np.random.default_rng(1).random((7, 3)) < 0.3
    assert error(Steps(own, 7, 3, lengths=np.array([0, 3, 7]), reset=reset), ahead) < 4e-3
