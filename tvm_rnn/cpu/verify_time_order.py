"""The order of time is not a schedule's to change: a check of every function that walks it.

In: a lowered function. Out: nothing, or a PassError that names the loops.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_rnn.errors import PassError, message


def verify(func: tirx.PrimFunc) -> None:
    """Raise PassError unless every loop over time ("tile", "step") is serial and outside of every parallel loop."""
    problems: list[str] = []
    time = ("tile", "step")

    def inside(node: tirx.For) -> None:
        if node.loop_var.name in time:
            problems.append(f"loop over {node.loop_var.name} inside a parallel loop")

    def check(node: tirx.For) -> None:
        serial = node.kind == tirx.ForKind.SERIAL
        if node.loop_var.name in time and not serial:
            problems.append(f"loop over {node.loop_var.name} is not serial")
        if node.kind == tirx.ForKind.PARALLEL:
            tvm_ffi.structural_walk(node.body, (tirx.For, inside))

    tvm_ffi.structural_walk(func.body, (tirx.For, check))
    if problems:
        raise PassError(message("the order of time is broken", got=", ".join(problems), do="leave time to lower.py"))
