"""ONNX's RNN, LSTM and GRU nodes: their attributes, weights and states as a cell of ours with its own.

In: a node and the values that it reads, from `onnx.py`. Out: a `Recurrent`, one layer, and the steps around it that
turn ONNX's layouts into ours and back:

    theirs: X [T, B, I], Y [T, D, B, H], Y_h [D, B, H]; layout=1: [B, T, I], [B, T, D, H], [B, D, H]
    ours:   x [T, B, I], y [T, B, D*H],  h [D, B, H]
    gates:  theirs i o f c and z r h; ours i f g o and r z n; peepholes i o f and i f o

Weights that are no constants (the standard's own tests have them as inputs) go through the same steps at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.network.program import Step

from ..dtypes import summed
from .fields import Fields, Unreadable, Wrong, floats, integer, number, strings, text
from .folding import Recurrent, Steps, add_network, held_dtype_of, without_empty_rows
from .onnx_cells import DEFAULTS, FUNCTIONS, GATES, PARAMETERS, STATES, Activation, Form, cell_of
from .onnx_nodes import GraphSteps, attributes_of, label

if TYPE_CHECKING:
    from onnx import NodeProto

ORDER = {"RNN": [0], "LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}  # our gates among theirs
PEEPHOLES = [0, 2, 1]
DIRECTIONS = ("forward", "reverse", "bidirectional")
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
MOST_BROUGHT = 1 << 28  # elements of weights that a file only declares
DTYPES = ("float32", "float64", "float16", "bfloat16")
NOTHING: Mapping[str, str] = MappingProxyType({})


def read_recurrent(
    steps: GraphSteps, node: NodeProto, found: list[Recurrent], of_bytes: Mapping[str, str] = NOTHING
) -> None:
    """Add a recurrent node: its layer to `found`, its steps to `steps`. Raises Unreadable with all that is wrong.

    of_bytes: where W and R are bytes, constants [D, 4 H, 1] in the node's order of gates: W_scale, R_scale, and W_zero
    and R_zero where any differs from 0.
    """
    attributes = attributes_of(node, steps.source.opset)
    given = {name: value for name, value in zip(INPUTS, node.input, strict=False) if value}
    wrong, direction = Wrong(), text(attributes, "direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    form = _form(node.op_type, attributes, count, "P" in given, wrong)
    form = replace(form, quantised=bool(of_bytes), shifted="R_zero" in of_bytes)
    if direction not in DIRECTIONS:
        wrong.append(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    hidden_size = integer(attributes, "hidden_size") if "hidden_size" in attributes else None
    sizes = _sizes(steps, node.op_type, given, count, hidden_size, wrong)
    layout = integer(attributes, "layout", 0)
    if layout not in (0, 1):
        wrong.append(f"layout {layout} is neither 0 nor 1")
    wrong.check()
    assert sizes is not None
    (input_size, hidden), dtype = sizes, _dtype(steps, given)
    _check_values(steps, given, input_size, dtype)
    back, first = direction == "reverse", layout == 1
    layer = Recurrent(label(node), cell_of(form), input_size, hidden, back, dtype, [], batch_first=first)
    read = _Node(steps, form, {**given, **of_bytes}, layer)
    layer.params += [read.params(d) for d in range(count)]
    read.add(node.output, len(found))
    found.append(layer)


# --- attributes ------------------------------------------------------------------------------------------------------


def _form(kind: str, a: Fields, count: int, peepholes: bool, wrong: Wrong) -> Form:
    clip = number(a, "clip") if "clip" in a else None
    if clip is not None and not (clip > 0 and math.isfinite(clip)):
        wrong.append(f"clip {clip:g} is no threshold above 0")
    activations = _activations(kind, a, count, wrong)
    flags = bool(a.get("input_forget", 0)), bool(a.get("linear_before_reset", 0)), peepholes
    return Form(kind, activations, clip, *flags)


def _activations(kind: str, a: Fields, count: int, wrong: Wrong) -> tuple[tuple[Activation, ...], ...]:
    """One tuple per direction. Parameters are taken from the lists in the order of the functions that have any."""
    each = len(DEFAULTS[kind])
    names = strings(a, "activations")
    if kind == "RNN" and count == 1 and len(names) == 2:
        names = names[:1]  # the standard's default for RNN is a list for two directions
    if not names:
        return (DEFAULTS[kind],)
    known = {name.lower(): name for name in FUNCTIONS}
    strange = [name for name in names if name.lower() not in known]
    if strange or len(names) != each * count:
        wrong.extend(f"activation {name!r} is none of {', '.join(FUNCTIONS)}" for name in strange)
        if len(names) != each * count:
            wrong.append(f"it has {len(names)} activations, {kind} in {count} direction(s) has {each * count}")
        return (DEFAULTS[kind],)
    lists = [iter(floats(a, f"activation_{which}")) for which in ("alpha", "beta")]
    made = []
    for name in (known[name.lower()] for name in names):
        values = [next(own, default) for own, default in zip(lists, PARAMETERS.get(name, ()), strict=False)]
        for which, value in zip(("alpha", "beta"), values, strict=False):
            if value is None or not math.isfinite(value):
                wrong.append(f"activation {name} needs activation_{which}: a finite number for each")
        made.append(Activation(name, *(0.0 if value is None else float(value) for value in values)))
    return tuple(tuple(made[i : i + each]) for i in range(0, len(made), each))


# --- shapes ----------------------------------------------------------------------------------------------------------


def _sizes(
    steps: Steps, kind: str, given: dict[str, str], count: int, hidden: int | None, wrong: Wrong
) -> tuple[int, int] | None:
    """The sizes of input and state, by which the shapes of all weights are checked."""
    shapes = {}
    for name in ("W", "R", "B", "P"):
        if name in given:
            shape = steps.shape(given[name])
            if shape is None:
                wrong.append(f"{name} ({given[name]!r}) has no shape that is known before the model runs")
                return None
            shapes[name] = shape
    if len(shapes.get("W", ())) != 3 or len(shapes.get("R", ())) != 3:
        wrong.append(f"W has shape {list(shapes.get('W', ()))} and R {list(shapes.get('R', ()))}, both have three axes")
        return None
    gates, (_, _, H), (_, _, width) = GATES[kind], shapes["R"], shapes["W"]
    expected = {
        "W": (count, gates * H, width),
        "R": (count, gates * H, H),
        "B": (count, 2 * gates * H),
        "P": (count, 3 * H),
    }
    if hidden is not None and hidden != H:
        wrong.append(f"hidden_size is {hidden}, R is for {H}")
    if min(H, width) < 1:
        wrong.append(f"W {list(shapes['W'])} or R {list(shapes['R'])} is empty")
    brought = sum(math.prod(shape) for name, shape in shapes.items() if not steps.is_constant(given[name]))
    if brought > MOST_BROUGHT:
        wrong.append(f"weights that are inputs of the model have {brought} elements, at most {MOST_BROUGHT}")
    for name, shape in shapes.items():
        if shape != expected[name]:
            wrong.append(f"{name} has shape {list(shape)}, expected {list(expected[name])}")
    return width, H


def _dtype(steps: Steps, given: dict[str, str]) -> str:
    """The dtype of W, R, B and P, which is the network's."""
    found = {}
    for name in ("W", "R", "B", "P"):
        if name in given:
            value = steps.constant(given[name])
            found[name] = steps.dtypes.get(given[name]) or (value.dtype.name if value is not None else "unknown")
    if len({*found.values()}) > 1 or found["W"] not in DTYPES:
        text = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise Unreadable(f"its weights are not all of one of {', '.join(DTYPES)}: {text}")
    return found["W"]


def _check_values(steps: Steps, given: dict[str, str], input_size: int, dtype: str) -> None:
    """X, lengths and states, as far as the model declares them; the rest is seen when it runs."""
    ranks = {"X": 3, "sequence_lens": 1, "initial_h": 3, "initial_c": 3}
    for name in (name for name in ranks if name in given):
        value = given[name]
        steps.constant(value)
        kind, declared = steps.dtypes.get(value), steps.declared.get(value)
        expected = ("int32", "int64") if name == "sequence_lens" else (dtype,)
        if kind is not None and kind not in expected:
            raise Unreadable(f"{name} is {kind}, expected {expected[0]}")
        shape = None if declared is None else declared.shape
        wrong = shape is not None and len(shape) != ranks[name]
        if wrong or (name == "X" and shape and isinstance(shape[-1], int) and shape[-1] != input_size):
            raise Unreadable(
                f"{name} has shape {list(shape or ())}, expected {ranks[name]} axes"
                + f", the last of {input_size}" * (name == "X")
            )


# --- weights ---------------------------------------------------------------------------------------------------------


@dataclass
class _Node:
    """A node's steps: those that make its weights ours, and those around the network. given: its inputs by name."""

    steps: Steps
    form: Form
    given: dict[str, str]
    layer: Recurrent

    def params(self, direction: int) -> dict[str, str]:
        """The value of each of the cell's parameters; two biases are added to the layer's."""
        kind, H, width = self.form.kind, self.layer.hidden_size, self.layer.input_size
        G, order = GATES[kind], ORDER[kind]
        own = {name: self._take(self.given[name], [direction]) for name in "WRBP" if name in self.given}
        W = self._take(self._reshape(own["W"], [G, H, width]), order)
        R = self._take(self._reshape(own["R"], [G, H, H]), order)
        found = {"W": W, "R": R}
        if kind == "RNN":
            found = {"W": self._reshape(W, [H, width]), "R": self._reshape(R, [H, H])}
        if kind == "GRU" and not self.form.reset_after:
            found = {"W": W, "R": self._take(R, [0, 1]), "R_n": self._reshape(self._take(R, [2]), [H, H])}
        found |= self._biases(own.get("B"), G, order)
        if self.form.peepholes:
            found["p"] = self._take(self._reshape(own["P"], [3, H]), PEEPHOLES)
        for name in ("W_scale", "R_scale", "W_zero", "R_zero"):
            if name in self.given:
                one = self._take(self.given[name], [direction])
                found[name] = self._take(self._reshape(one, [G, H]), order)
        if len(self.form.activations) > 1:
            found["backward"] = self.steps.keep(float(direction), held_dtype_of(self.layer.dtype))
        return found

    def _biases(self, given: str | None, G: int, order: Sequence[int]) -> dict[str, str]:
        H, kind = self.layer.hidden_size, self.form.kind
        both = self.steps.keep(np.zeros((2, G, H)), held_dtype_of(self.layer.dtype))
        if given is not None:
            both = self._take(self._reshape(given, [2, G, H]), order, axis=1)
            value = self.steps.constant(both)
            if value is not None:
                self.layer.biases.append((value[0].reshape(-1), value[1].reshape(-1)))
        one, two = (self._reshape(self._take(both, [i]), [G, H]) for i in (0, 1))
        if kind == "GRU" and self.form.reset_after:
            joined = self._sum(self._take(one, [0, 1]), self._take(two, [0, 1]))
            b = self._emit("Concat", [joined, self._take(one, [2])], axis=0)
            return {"b": b, "b_R": self._reshape(self._take(two, [2]), [H])}
        b = self._sum(one, two)
        return {"b": self._reshape(b, [H]) if kind == "RNN" else b}

    def _sum(self, one: str, two: str) -> str:
        values = [self.steps.constant(name) for name in (one, two)]
        if values[0] is not None and values[1] is not None:
            summed(values[0], values[1], self.layer.dtype)  # which raises where it would be infinite
        return self._emit("Add", [one, two])

    def _take(self, value: str, indices: Sequence[int], axis: int = 0) -> str:
        return self._emit("Gather", [value, self.steps.keep(list(indices))], axis=axis)

    def _reshape(self, value: str, shape: Sequence[int]) -> str:
        return self._emit("Reshape", [value, self.steps.keep(list(shape))])

    def _emit(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
        return self.steps.emit(op, inputs, self.layer.node, **attributes)

    def _swapped(self, value: str) -> str:
        """Between [T, B, ...], or [D, B, ...], and the layout that has the batch first."""
        return self._emit("Transpose", [value], perm=[1, 0, 2]) if value and self.layer.batch_first else value

    def add(self, output: Sequence[str], number: int) -> None:
        """The network's step, and the steps between the node's inputs and outputs and the network's."""
        steps, layer, lengths = self.steps, self.layer, self.given.get("sequence_lens", "")
        states = STATES[self.form.kind]
        x = self._swapped(self.given["X"])
        begin = [self.given.get(f"initial_{state}", "") for state in states]
        begin = [self._swapped("" if value and steps.is_zero(value) else value) for value in begin]
        y, *ends = add_network(steps, layer, x, lengths, begin, number)
        wanted, results = dict(zip(("Y", "Y_h", "Y_c"), output, strict=False)), {}
        if wanted.get("Y"):
            perm = [1, 0, 2, 3] if layer.batch_first else [0, 2, 1, 3]
            split = self._reshape(y, [0, 0, layer.directions, layer.hidden_size])
            results["Y"] = self._emit("Transpose", [split], perm=perm)
        for state, value in zip(states, ends, strict=True):
            if wanted.get(f"Y_{state}"):
                value = without_empty_rows(steps, layer, value, lengths) if lengths else value
                results[f"Y_{state}"] = self._swapped(value)
        for name, value in results.items():
            steps.add(Step("Identity", (value,), (wanted[name],), {}, layer.node))
