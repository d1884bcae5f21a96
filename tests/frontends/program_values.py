"""A program without networks on arrays, for tests: each step by the onnx package's reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_rnn.network.program import Program
from tvm_rnn.runtime.runtime_model import Plan
from tvm_rnn.surroundings.evaluation import evaluated


def ran(program: Program, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The program's outputs by name."""
    plan = Plan(program.facts(), program.arrays())
    return plan.run(inputs, lambda step, given: evaluated(step["op"], given, step["attributes"], len(step["outputs"])))
