"""Keras's recurrent layers as layers of ours with steps around them: SimpleRNN, LSTM, GRU, Bidirectional, RNN of cells.

In: a layer's config and arrays, and the values that it is called with, from `keras_layers.py`. Out: `Recurrent`s, and
values: theirs are [B, T, ...], ours [T, B, ...].

A mask becomes lengths. go_backwards is our reverse direction, whose y they write in order of processing: flipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.network.program import Declared

from .fields import Fields, Unreadable, integer, items, mapping
from .folding import Recurrent, Steps, add_network, without_empty_rows
from .keras_cells import GATES, cell_of, form_of, parameters

Array = np.ndarray
Config = Fields
LAST = -(2**31)  # the end of a slice that goes backwards through all


@dataclass(frozen=True)
class Value:
    """A value [B, ...] of a model. mask: the value that says which steps count, "" for all. unheld: the same value with
    anything in steps that do not count, for layers that do not look at these."""

    name: str
    mask: str = ""
    unheld: str = ""


@dataclass
class Part:
    """A layer of a model. states: first states that it is called with. options: what else it is called with, of layers
    that look at it."""

    name: str
    kind: str
    config: Config
    arrays: list[Array]
    states: list[Value] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass
class Model:
    """A model in the making: its steps, its recurrent layers, the dtype of its numbers, lengths that masks became."""

    steps: Steps
    dtype: str = "float32"
    layers: list[Recurrent] = field(default_factory=list)
    lengths: dict[str, str] = field(default_factory=dict)
    more_outputs: list[Declared] = field(default_factory=list)


@dataclass(frozen=True)
class Call:
    """A layer of a model, called with values."""

    model: Model
    part: Part
    inputs: Sequence[Value]

    @property
    def x(self) -> Value:
        return self.inputs[0]

    @property
    def config(self) -> Config:
        return self.part.config

    def emit(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.model.steps.emit(op, inputs, self.part.label, **attributes)

    def whole(self, *numbers: int) -> str:
        """A list of whole numbers as a constant."""
        return self.model.steps.keep(list(numbers))

    def numbers(self, value: ArrayLike) -> str:
        """An array or a number as a constant, in the model's dtype."""
        return self.model.steps.keep(value, self.model.dtype)

    def swapped(self, value: str) -> str:
        """[T, B, I] of [B, T, I], and the other way round."""
        return self.emit("Transpose", value, perm=[1, 0, 2])

    def lengths(self) -> str:
        """How many steps count, of the mask; the same value for the same mask."""
        mask, known = self.x.mask, self.model.lengths
        if mask and mask not in known:
            known[mask] = self.emit("LengthsOfMask", mask)
            self.model.steps.dtypes[known[mask]] = "int32"
        return known.get(mask, "")


@dataclass(frozen=True)
class Run:
    """What one pass over a sequence gives: y [T, B, W], each last state [D, B, H], lengths, and its layer."""

    y: str
    states: tuple[str, ...]
    lengths: str
    layer: Recurrent


def recurrent(call: Call) -> list[Value]:
    """SimpleRNN, LSTM, GRU, or RNN of one cell or several. Returns the output, and the last states if it gives them."""
    part, cells = call.part, _cells(call.part)
    run, states, offset = None, list[str](), 0
    back = bool(part.config.get("go_backwards", False))
    above = call.swapped(call.x.unheld or call.x.name)
    for kind, config in cells:
        count = 3 if config.get("use_bias", True) else 2
        arrays = part.arrays[offset : offset + count]
        offset += count
        begin = part.states if len(cells) == 1 else []
        run = _run(call, [Part(part.name, kind, config, arrays)], above, back, [[s] for s in begin])
        above = run.y
        states += [call.emit("Squeeze", state, call.whole(0)) for state in run.states]
    if len(part.arrays) > offset:
        raise Unreadable(f"it has {len(part.arrays)} arrays, expected {offset}")
    if part.states and len(cells) > 1:
        raise Unreadable("first states of stacked cells are not supported")
    assert run is not None
    output = _output(call, run, back)
    return [output, *map(Value, states)] if part.config.get("return_state") else [output]


def _cells(part: Part) -> list[tuple[str, Config]]:
    """The kind and config of each cell, bottom first."""
    if part.kind in GATES:
        return [(part.kind, part.config)]
    cell = mapping(part.config.get("cell"))
    if not isinstance(cell.get("config"), Mapping):
        raise Unreadable(f"its cell is {part.config.get('cell')!r:.60}")
    stacked = cell.get("class_name") == "StackedRNNCells"
    cells = []
    for one in map(mapping, items(mapping(cell["config"]).get("cells")) if stacked else [cell]):
        name, config = str(one.get("class_name", "")), one.get("config")
        if name.removesuffix("Cell") not in GATES or not isinstance(config, Mapping):
            raise Unreadable(f"a cell {name!r} is none of SimpleRNNCell, LSTMCell, GRUCell: write it as a cell of ours")
        cells.append((name.removesuffix("Cell"), config))
    if not cells:
        raise Unreadable("it has no cells")
    return cells


def _run(call: Call, directions: Sequence[Part], x: str, back: bool, begin: Sequence[Sequence[Value]]) -> Run:
    """One layer in one direction, or in both. begin: for each state its first value in each direction, or nothing."""
    model, label = call.model, call.part.label
    params, biases, sizes = [], [], set()
    for own in directions:
        if any(a.dtype.name != model.dtype for a in own.arrays):
            raise Unreadable(f"its arrays are not all {model.dtype}")
        found, pair = parameters(form_of(own.kind, own.config), own.config, own.arrays)
        params.append({name: model.steps.keep(value, model.dtype) for name, value in found.items()})
        biases += [] if pair is None else [(pair[0], pair[1])]
        sizes.add((found["W"].shape[-1], integer(own.config, "units")))
    ((width, units),) = sizes
    cell = cell_of(form_of(directions[0].kind, directions[0].config))
    layer = Recurrent(label, cell, width, units, back, model.dtype, params, biases, True)
    first, named = _first_states(call, layer, begin)
    lengths = call.lengths()
    y, *ends = add_network(model.steps, layer, x, lengths, first, len(model.layers))
    model.layers.append(layer)
    ends = [without_empty_rows(model.steps, layer, end, lengths) if lengths else end for end in ends]
    for name, end in zip(named, ends, strict=False):
        model.steps.add_named("Identity", [end], f"{name}.next", label)
        model.more_outputs.append(Declared(f"{name}.next", model.dtype, None))
    return Run(y, tuple(ends), lengths, layer)


def _first_states(call: Call, layer: Recurrent, begin: Sequence[Sequence[Value]]) -> tuple[list[str], list[str]]:
    """Each state's first value [D, B, H]: as called with; inputs of the model for a stateful layer, whose names are
    returned too; else none."""
    names = [state.name for state in layer.cell.states]
    if call.config.get("stateful") and not begin:
        named = [f"{call.part.name}.{name}" for name in names]
        for name in named:
            call.model.steps.declare(Declared(name, layer.dtype, (layer.directions, "B", layer.hidden_size)))
        return named, named
    if not begin:
        return [""] * len(names), []
    if len(begin) != len(names) or any(len(own) != layer.directions for own in begin):
        got, expected = sum(map(len, begin)), len(names) * layer.directions
        raise Unreadable(f"it is called with {got} first states, expected {expected}")
    found = []
    for own in begin:
        parts = [call.emit("Unsqueeze", value.name, call.whole(0)) for value in own]
        found.append(parts[0] if len(parts) == 1 else call.emit("Concat", *parts, axis=0))
    return found, []


def _output(call: Call, run: Run, back: bool) -> Value:
    """All steps, or the last one; theirs repeat the last step that counts where the mask has ended."""
    if not call.config.get("return_sequences"):
        return Value(call.emit("Squeeze", run.states[0], call.whole(0)))
    y, mask = call.swapped(run.y), call.x.mask
    if back:
        return Value(call.emit("Slice", y, call.whole(-1), call.whole(LAST), call.whole(1), call.whole(-1)), mask)
    if not run.lengths or call.config.get("zero_output_for_mask"):
        return Value(y, mask)
    return Value(call.emit("HoldLast", y, run.lengths), mask, y)


# --- both directions -------------------------------------------------------------------------------------------------


def bidirectional(call: Call) -> list[Value]:
    """A wrapped layer in both directions: one layer of ours where they are alike, else two."""
    part, sides, half = call.part, list[Part](), len(call.part.arrays) // 2
    for side, arrays in (("layer", part.arrays[:half]), ("backward_layer", part.arrays[half:])):
        wrapped = mapping(part.config.get(side))
        kind, config = str(wrapped.get("class_name", "")), wrapped.get("config")
        if side == "backward_layer" and part.config.get(side) is None:  # older files leave it out where it is a copy
            kind, config = sides[0].kind, {**sides[0].config, "go_backwards": True}
        if kind not in GATES or not isinstance(config, Mapping):
            raise Unreadable(f"it wraps {kind!r}, which is none of {', '.join(GATES)}")
        sides.append(Part(part.name, kind, config, arrays))
    forward, backward = (side.config for side in sides)
    if forward.get("go_backwards") or not backward.get("go_backwards"):
        raise Unreadable("its layers do not go forward and backward")
    if forward.get("stateful") or backward.get("stateful"):
        raise Unreadable("a stateful layer in both directions is not supported")
    y, states = _both(call, sides)
    sequences = bool(forward.get("return_sequences"))
    merged = _merge(call, y if sequences else [own[0] for own in states])
    found = [Value(name, call.x.mask if sequences else "") for name in merged]
    return found + [Value(name) for own in states if forward.get("return_state") for name in own]


def _both(call: Call, sides: Sequence[Part]) -> tuple[list[str], list[list[str]]]:
    """y [B, T, H] and the last states [B, H] of each direction."""
    above, half = call.swapped(call.x.unheld or call.x.name), len(call.part.states) // 2
    begin = call.part.states[:half], call.part.states[half:]
    if len({(form_of(side.kind, side.config), str(side.config.get("units"))) for side in sides}) == 1:
        run = _run(call, sides, above, False, [list(pair) for pair in zip(*begin, strict=True)])
        y, H = call.swapped(run.y), run.layer.hidden_size
        parts = [call.emit("Slice", y, call.whole(at), call.whole(at + H), call.whole(2)) for at in (0, H)]
        places = [call.model.steps.keep(d) for d in (0, 1)]
        return parts, [[call.emit("Gather", state, d, axis=0) for state in run.states] for d in places]
    runs = [_run(call, [side], above, d == 1, [[value] for value in begin[d]]) for d, side in enumerate(sides)]
    states = [[call.emit("Squeeze", state, call.whole(0)) for state in run.states] for run in runs]
    return [call.swapped(run.y) for run in runs], states


def _merge(call: Call, pair: list[str]) -> list[str]:
    mode = call.config.get("merge_mode", "concat")
    if mode is None:
        return pair
    if mode == "concat":
        return [call.emit("Concat", *pair, axis=-1)]
    if mode not in ("sum", "mul", "ave"):
        raise Unreadable(f"merge_mode {mode!r} is none of concat, sum, mul, ave")
    return [call.emit({"sum": "Sum", "mul": "Mul", "ave": "Mean"}[mode], *pair)]
