"""Keras's recurrent layers as layers of ours with steps around them: SimpleRNN, LSTM, GRU, Bidirectional, RNN of cells.

In: a layer's config and arrays, and the values that it is called with, from `keras_layers.py`. Out: `Recurrent`s, and
values: theirs are [B, T, ...], ours [T, B, ...].

A mask becomes lengths. go_backwards is our reverse direction, whose y they write in order of processing: flipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.network.program import Declared

from .fields import Fields, Unreadable, integer, items, mapping
from .folding import Steps
from .keras_cells import GATES, cell_of, form_of, parameters
from .layers import Recurrent, add_network, without_empty_rows

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
    """A layer of a model. states: first states that it is called with."""

    name: str
    kind: str
    config: Config
    arrays: list[Array]
    states: list[Value] = field(default_factory=list)

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

    def emit(self, part: Part, op: str, *inputs: str, **attributes: object) -> str:
        return self.steps.emit(op, inputs, part.label, **attributes)

    def whole(self, *numbers: int) -> str:
        """A list of whole numbers as a constant."""
        return self.steps.keep(list(numbers))

    def lengths_of(self, part: Part, mask: str) -> str:
        """How many steps count, of a mask; the same value for the same mask."""
        if mask and mask not in self.lengths:
            self.lengths[mask] = self.emit(part, "LengthsOfMask", mask)
            self.steps.dtypes[self.lengths[mask]] = "int32"
        return self.lengths.get(mask, "")


@dataclass(frozen=True)
class Run:
    """What one pass over a sequence gives: y [T, B, W], each last state [D, B, H], lengths, and its layer."""

    y: str
    states: tuple[str, ...]
    lengths: str
    layer: Recurrent


def recurrent(model: Model, part: Part, x: Value) -> list[Value]:
    """SimpleRNN, LSTM, GRU, or RNN of one cell or several. Returns the output, and the last states if it gives them."""
    cells = _cells(part)
    run, states, offset = None, list[str](), 0
    back = bool(part.config.get("go_backwards", False))
    above = model.emit(part, "Transpose", x.unheld or x.name, perm=[1, 0, 2])
    for kind, config in cells:
        count = 3 if config.get("use_bias", True) else 2
        arrays = part.arrays[offset : offset + count]
        offset += count
        begin = part.states if len(cells) == 1 else []
        run = _run(model, part, [(kind, config, arrays)], above, x.mask, back, [[s] for s in begin])
        above = run.y
        states += [model.emit(part, "Squeeze", state, model.whole(0)) for state in run.states]
    if len(part.arrays) > offset:
        raise Unreadable(f"it has {len(part.arrays)} arrays, expected {offset}")
    if part.states and len(cells) > 1:
        raise Unreadable("first states of stacked cells are not supported")
    assert run is not None
    output = _output(model, part, run, x, back)
    return [output, *(Value(name) for name in states)] if part.config.get("return_state") else [output]


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


def _run(
    model: Model,
    part: Part,
    directions: Sequence[tuple[str, Config, list[Array]]],
    x: str,
    mask: str,
    back: bool,
    begin: Sequence[Sequence[Value]],
) -> Run:
    """One layer in one direction, or in both. begin: for each state its first value in each direction, or nothing."""
    params, biases, sizes = [], [], set()
    form = form_of(directions[0][0], directions[0][1])
    for kind, config, arrays in directions:
        if any(a.dtype.name != model.dtype for a in arrays):
            raise Unreadable(f"its arrays are not all {model.dtype}")
        own, pair = parameters(form_of(kind, config), config, arrays)
        params.append({name: model.steps.keep(value, model.dtype) for name, value in own.items()})
        biases += [] if pair is None else [(pair[0], pair[1])]
        sizes.add((own["W"].shape[-1], integer(config, "units")))
    ((width, units),) = sizes
    cell = cell_of(form)
    layer = Recurrent(part.label, cell, width, units, back, model.dtype, params, biases, True)
    first, named = _first_states(model, part, layer, begin)
    lengths = model.lengths_of(part, mask)
    y, *ends = add_network(model.steps, layer, x, lengths, first, len(model.layers))
    model.layers.append(layer)
    ends = [without_empty_rows(model.steps, layer, end, lengths) if lengths else end for end in ends]
    for name, end in zip(named, ends, strict=False):
        model.steps.add_named("Identity", [end], f"{name}.next", part.label)
        model.more_outputs.append(Declared(f"{name}.next", model.dtype, None))
    return Run(y, tuple(ends), lengths, layer)


def _first_states(
    model: Model, part: Part, layer: Recurrent, begin: Sequence[Sequence[Value]]
) -> tuple[list[str], list[str]]:
    """Each state's first value [D, B, H]: as called with; inputs of the model for a stateful layer, whose names are
    returned too; else none."""
    names = [state.name for state in layer.cell.states]
    if part.config.get("stateful") and not begin:
        named = [f"{part.name}.{name}" for name in names]
        for name in named:
            shape = (layer.directions, "B", layer.hidden_size)
            model.steps.inputs.append(Declared(name, model.dtype, shape))
            model.steps.dtypes[name] = model.dtype
        return named, named
    if not begin:
        return [""] * len(names), []
    if len(begin) != len(names) or any(len(own) != layer.directions for own in begin):
        raise Unreadable(
            f"it is called with {sum(map(len, begin))} first states, expected {len(names) * layer.directions}"
        )
    found = []
    for own in begin:
        parts = [model.emit(part, "Unsqueeze", value.name, model.whole(0)) for value in own]
        found.append(parts[0] if len(parts) == 1 else model.emit(part, "Concat", *parts, axis=0))
    return found, []


def _flip(model: Model, part: Part, value: str) -> str:
    """[B, T, ...] in the opposite order of steps."""
    return model.emit(part, "Slice", value, model.whole(-1), model.whole(LAST), model.whole(1), model.whole(-1))


def _output(model: Model, part: Part, run: Run, x: Value, back: bool) -> Value:
    """All steps, or the last one; theirs repeat the last step that counts where the mask has ended."""
    if not part.config.get("return_sequences"):
        return Value(model.emit(part, "Squeeze", run.states[0], model.whole(0)))
    y = model.emit(part, "Transpose", run.y, perm=[1, 0, 2])
    if back:
        return Value(_flip(model, part, y), x.mask)
    if not run.lengths or part.config.get("zero_output_for_mask"):
        return Value(y, x.mask)
    return Value(model.emit(part, "HoldLast", y, run.lengths), x.mask, y)


# --- both directions -------------------------------------------------------------------------------------------------


def bidirectional(model: Model, part: Part, x: Value) -> list[Value]:
    """A wrapped layer in both directions: one layer of ours where they are alike, else two."""
    sides: list[Part] = []
    for side in ("layer", "backward_layer"):
        wrapped = mapping(part.config.get(side))
        kind, config = str(wrapped.get("class_name", "")), wrapped.get("config")
        if side == "backward_layer" and part.config.get(side) is None:  # older files leave it out where it is a copy
            kind, config = sides[0].kind, {**sides[0].config, "go_backwards": True}
        if kind not in GATES or not isinstance(config, Mapping):
            raise Unreadable(f"it wraps {kind!r}, which is none of {', '.join(GATES)}")
        half = len(part.arrays) // 2
        arrays = part.arrays[:half] if side == "layer" else part.arrays[half:]
        sides.append(Part(part.name, kind, config, arrays))
    forward, backward = sides
    if forward.config.get("go_backwards") or not backward.config.get("go_backwards"):
        raise Unreadable("its layers do not go forward and backward")
    if any(side.config.get("stateful") for side in sides):
        raise Unreadable("a stateful layer in both directions is not supported")
    above = model.emit(part, "Transpose", x.unheld or x.name, perm=[1, 0, 2])
    half = len(part.states) // 2
    first, second = part.states[:half], part.states[half:]
    y, states = _both(model, part, sides, above, x.mask, (first, second))
    sequences = bool(forward.config.get("return_sequences"))
    outputs = y if sequences else (states[0][0], states[1][0])
    merged = _merge(model, part, outputs)
    found = [Value(name, x.mask if sequences else "") for name in merged]
    if not forward.config.get("return_state"):
        return found
    return [*found, *(Value(name) for own in states for name in own)]


def _both(
    model: Model, part: Part, sides: Sequence[Part], above: str, mask: str, begin: tuple[list[Value], list[Value]]
) -> tuple[tuple[str, str], tuple[list[str], list[str]]]:
    """y [B, T, H] and the last states [B, H] of each direction."""
    forward, backward = sides
    forms = [form_of(side.kind, side.config) for side in sides]
    if forms[0] == forms[1] and forward.config.get("units") == backward.config.get("units"):
        directions = [(side.kind, side.config, side.arrays) for side in sides]
        pairs = [list(pair) for pair in zip(*begin, strict=True)]
        run = _run(model, part, directions, above, mask, False, pairs)
        y = model.emit(part, "Transpose", run.y, perm=[1, 0, 2])
        H = run.layer.hidden_size
        parts = [model.emit(part, "Slice", y, model.whole(at), model.whole(at + H), model.whole(2)) for at in (0, H)]
        states = [[model.emit(part, "Gather", s, model.steps.keep(d), axis=0) for s in run.states] for d in (0, 1)]
        return (parts[0], parts[1]), (states[0], states[1])
    found_y, found_states = [], []
    for d, side in enumerate(sides):
        own = [[value] for value in begin[d]]
        run = _run(model, part, [(side.kind, side.config, side.arrays)], above, mask, d == 1, own)
        found_y.append(model.emit(part, "Transpose", run.y, perm=[1, 0, 2]))
        found_states.append([model.emit(part, "Squeeze", s, model.whole(0)) for s in run.states])
    return (found_y[0], found_y[1]), (found_states[0], found_states[1])


def _merge(model: Model, part: Part, pair: tuple[str, str]) -> list[str]:
    mode = part.config.get("merge_mode", "concat")
    if mode is None:
        return list(pair)
    if mode == "concat":
        return [model.emit(part, "Concat", *pair, axis=-1)]
    if mode not in ("sum", "mul", "ave"):
        raise Unreadable(f"merge_mode {mode!r} is none of concat, sum, mul, ave")
    return [model.emit(part, {"sum": "Sum", "mul": "Mul", "ave": "Mean"}[mode], *pair)]
