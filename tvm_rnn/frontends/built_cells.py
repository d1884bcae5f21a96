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
Apply = Callable[[int, Value, Values], Value]


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


def build_recurrent(
    name: str,
    doc: str,
    kind: str,
    apply: Apply,
    *,
    reset_after: bool = False,
    input_forget: bool = False,
    peepholes: bool = False,
    products: Callable[[Values], Value] | None = None,
    more: Mapping[str, str] | None = None,
) -> Cell:
    """An RNN, LSTM or GRU in our order of gates, i f g o or r z n, with functions of its own.

    apply: function number n of a value, as ONNX counts them: of the gates, of the candidate, of an LSTM's memory. It
    sees all arguments. reset_after: whether r multiplies a GRU's product of h, with a bias of its own, or h.
    input_forget: f is 1 - i. products: an LSTM's, [4, H], in the place of W @ x + R @ h. more: dims of further
    parameters, which functions read.
    """

    def rnn(v: Values) -> tuple[Value, ...]:
        return (apply(0, v["W"] @ v["x"] + v["R"] @ v["h"] + v["b"], v),)

    def lstm(v: Values) -> tuple[Value, ...]:
        i, forget, g, o = (products(v) if products else v["W"] @ v["x"] + v["R"] @ v["h"]) + v["b"]
        c = v["c"]
        p_i, p_f, p_o = v["p"] if peepholes else (None, None, None)
        i = apply(0, _seeing(i, p_i, c), v)
        forget = 1.0 - i if input_forget else apply(0, _seeing(forget, p_f, c), v)
        c = forget * c + i * apply(1, g, v)
        return apply(0, _seeing(o, p_o, c), v) * apply(2, c, v), c

    def gru(v: Values) -> tuple[Value, ...]:
        h = v["h"]
        r, z, n = v["W"] @ v["x"] + v["b"]
        u_r, u_z, *u_n = v["R"] @ h
        r, z = apply(0, r + u_r, v), apply(0, z + u_z, v)
        n = n + r * (u_n[0] + v["b_R"]) if reset_after else n + v["R_n"] @ (r * h)
        return ((1.0 - z) * apply(1, n, v) + z * h,)

    if kind == "LSTM":
        equations, own = lstm, {"W": "4 H I", "R": "4 H H", "b": "4 H", **({"p": "3 H"} if peepholes else {})}
    elif kind == "GRU":
        own = {"R": "3 H H", "b": "3 H", "b_R": "H"} if reset_after else {"R": "2 H H", "R_n": "H H", "b": "3 H"}
        equations, own = gru, {"W": "3 H I", **own}
    else:
        equations, own = rnn, {"W": "H I", "R": "H H", "b": "H"}
    states = {"h": "H", "c": "H"} if kind == "LSTM" else {"h": "H"}
    return build_cell(name, doc, {"x": "I"}, states, own | dict(more or {}), equations)


def _seeing(gate: Value, peephole: Value | None, memory: Value) -> Value:
    return gate if peephole is None else gate + peephole * memory
