"""Cells made of a description in place of a user's function: arguments with their dims, and equations as a closure.

In: names, dims and a Python function of traced values, from the frontends. Out: a `Cell` like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from tvm_rnn.language.cell import Cell, cell
from tvm_rnn.language.trace import Value

Values = Mapping[str, Value]
Equations = Callable[[Values], tuple[Value, ...]]
Function = Callable[[Values, Value], Value]


def build_cell(
    name: str,
    doc: str,
    inputs: Mapping[str, str],
    states: Mapping[str, str],
    params: Mapping[str, str],
    equations: Equations,
    *,
    output: str | None = None,
) -> Cell:
    """A Cell. inputs, states, params: dims by name. equations: all arguments by name to the new states, in order.

    output: what the layer emits, as of @cell. Raises CellError as @cell does.
    """

    def step(*values: Value, **given: Value) -> tuple[Value, ...]:
        named = dict(zip([*inputs, *states], values, strict=True)) | given
        return equations(named)

    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    arguments = [inspect.Parameter(n, positional, annotation=dims) for n, dims in {**inputs, **states}.items()]
    arguments += [inspect.Parameter(n, keyword, annotation=dims) for n, dims in params.items()]
    vars(step)["__signature__"] = inspect.Signature(arguments)  # what @cell reads
    step.__name__, step.__doc__ = name, doc
    return cell(states=tuple(states), name=name, output=output)(step)


def build_gru(
    name: str, doc: str, gate: Function, candidate: Function, reset_after: bool, more: Mapping[str, str] | None = None
) -> Cell:
    """A GRU in our order of gates, r z n.

    gate, candidate: the activation functions of r and z, and of n, of all arguments and a value. reset_after: whether r
    multiplies the product of h, with a bias of its own, or h. more: dims of further parameters, which functions read.
    """

    def equations(v: Values) -> tuple[Value, ...]:
        h = v["h"]
        r, z, n = v["W"] @ v["x"] + v["b"]
        u_r, u_z, *u_n = v["R"] @ h
        r, z = gate(v, r + u_r), gate(v, z + u_z)
        n = n + r * (u_n[0] + v["b_R"]) if reset_after else n + v["R_n"] @ (r * h)
        return ((1.0 - z) * candidate(v, n) + z * h,)

    own = {"R": "3 H H", "b": "3 H", "b_R": "H"} if reset_after else {"R": "2 H H", "R_n": "H H", "b": "3 H"}
    params = {"W": "3 H I", **own, **(more or {})}
    return build_cell(name, doc, {"x": "I"}, {"h": "H"}, params, equations)
