"""Keras models: from_keras.

In: a layer, a Sequential or Functional model, or a .keras file. Out: an `RNN`, or a `Model` where one network does not
say it all; what is around the networks in `program`. A file is data: no class of it is looked up, no code of it is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tvm_rnn.network.model import Model as Whole
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import Declared
from tvm_rnn.network.rnn import RNN

from ..errors import ConfigError, message
from .fields import Unreadable, items, mapping, text
from .folding import Steps
from .keras_attention import ATTENTION
from .keras_cells import GATES
from .keras_file import Config, Source, describe, groups_of, read_file
from .keras_layers import apply_layer
from .keras_recurrent import Call, Model, Part, Value
from .stacks import Stacks, build_networks

DTYPES = ("float32", "float64", "float16")
BARE = (*GATES, "RNN", "Bidirectional")
OPERANDS = ("query", "value", "key", "training")  # of attention
MASKED = (*BARE, "GlobalAveragePooling1D")
Reference = tuple[str, int, int]  # a value: the name of its layer, which call of it, which of its outputs
Values = dict[tuple[str, int], list[Value]]  # by the name of their layer and the call of it


def from_keras(source: object) -> RNN | Whole:
    """The recurrent network of a Keras layer or model, with its weights and with everything around it.

    Everything that these layers can be told is followed: activations, reset_after, go_backwards, return_sequences,
    return_state, merge_mode, first states, masks (which may leave out steps at the end of rows). A stateful layer has
    its states as inputs "<layer>.h" [D, B, H] and as outputs "<layer>.h.next".

    Args:
        source: a SimpleRNN, LSTM, GRU, Bidirectional or RNN (of cells of these, also stacked) that has its weights; a
            Sequential or Functional model; or the path of a .keras file of Keras 3.

    Returns:
        An RNN (time-major, as always; `.program` is the whole model), or a Model of several RNNs. `rnn.compile` puts
        the whole model into one file: `mod.run({"input_layer": x})` takes arrays [B, T, ...] by the names of the
        model's input layers, and gives its outputs by the names of their layers ("inputs" and "outputs" of a bare
        layer).

    Raises:
        ConfigError: the file is damaged, something in it is not supported (it says all of it at once), or this is no
            layer of Keras.
    """
    found = read_file(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else describe(source)
    reader = _Reader(found)
    model, problems = reader.model, reader.problems
    try:
        reader.read()
    except (Unreadable, KeyError, TypeError, AttributeError, IndexError, ValueError) as reason:
        text = str(reason) if isinstance(reason, Unreadable) else f"its config is not Keras's: {reason!r}"
        problems.append(text)
    if problems:
        text = "\n            ".join(dict.fromkeys(problems))
        do = "leave these parts out, or write them as a cell"
        raise ConfigError(message("from_keras: this model cannot be used", where=found.path, got=text, do=do))
    stacks = Stacks(model.steps, model.layers)
    stacks.merge()
    if not stacks.groups:
        expected = f"a layer of {', '.join(BARE)}"
        raise ConfigError(message("from_keras: no recurrent layer", where=found.path, expected=expected))
    return build_networks(model.steps, stacks, Origin("keras", "", found.path, found.sha256))


def _dtype(config: Config) -> str:
    """The dtype that a layer computes in. Raises Unreadable for a policy that mixes several."""
    policy = config.get("dtype", "float32")
    name = text(mapping(policy["config"]), "name") if isinstance(policy, Mapping) else policy
    if name not in DTYPES:
        raise Unreadable(f"dtype {name!r} is none of {', '.join(DTYPES)}")
    return str(name)


class _Reader:
    """A model in the making, of what a file or an object says. problems: all that cannot be used."""

    def __init__(self, source: Source) -> None:
        self.source, self.model, self.problems = source, Model(Steps(spending=source.spending)), list[str]()

    def read(self) -> None:
        """Fill the model. Raises what a config that is not Keras's makes of its readers, and Unreadable."""
        kind, config = self.source.config["class_name"], mapping(self.source.config["config"])
        if kind in BARE:
            self._bare()
        elif kind == "Sequential":
            self._sequential(list(map(mapping, items(config["layers"]))))
        elif kind in ("Functional", "Model"):
            self._functional(config)
        else:
            raise Unreadable(f"a {kind} is neither Sequential nor Functional, nor one of {', '.join(BARE)}")
        self.model.steps.outputs += self.model.more_outputs

    def _parts(self, layers: Sequence[Config]) -> list[Part]:
        """Every layer with its arrays; what cannot be read is in `problems`."""
        found = []
        for layer, group in zip(layers, groups_of([str(each["class_name"]) for each in layers]), strict=True):
            config = mapping(layer["config"])
            name = str(config.get("name", layer.get("name", group)))
            part = Part(name, str(layer["class_name"]), config, [])
            try:
                part.arrays = self.source.weights(name, layer, group)
            except Unreadable as reason:
                self.problems.append(f"{part.label}: {reason}")
            found.append(part)
        return found

    def _declare(self, part: Part) -> Value:
        """An input of the model."""
        shape = part.config.get("batch_shape", part.config.get("batch_input_shape"))
        if part.config.get("sparse") or part.config.get("ragged"):
            raise Unreadable("sparse and ragged inputs are not supported")
        if not isinstance(shape, list | None):
            raise Unreadable(f"batch_shape is {shape!r:.60}, expected a list of sizes")
        axes = None if shape is None else tuple(n if isinstance(n, int) else None for n in shape)
        self.model.steps.declare(Declared(part.name, str(part.config.get("dtype", "float32")), axes))
        return Value(part.name)

    def _name_outputs(self, named: Iterable[tuple[str, Value]]) -> None:
        steps = self.model.steps
        for name, value in named:
            if name in steps.declared or name in steps.made:
                name = f"{name}.output"
            steps.add_named("Identity", [value.name], name, name)
            steps.outputs.append(Declared(name, self.model.dtype, None))

    def _applied(self, part: Part, inputs: Sequence[Value]) -> list[Value]:
        """What a layer gives; where it is not supported that is noted, and the rest of the model looked at."""
        try:
            return apply_layer(Call(self.model, part, inputs))
        except Unreadable as reason:
            self.problems.append(f"{part.label}: {reason}")
            return list(inputs[:1])

    # --- the three forms of models -----------------------------------------------------------------------------------

    def _bare(self) -> None:
        (part,) = self._parts([self.source.config])
        self.model.dtype = _dtype(part.config)
        if not part.arrays or part.arrays[0].ndim != 2:
            raise Unreadable(f"{part.label}: it has no weights")
        self.model.steps.declare(Declared("inputs", self.model.dtype, (None, None, part.arrays[0].shape[0])))
        self._name_outputs(_several("outputs", self._applied(part, [Value("inputs")])))

    def _sequential(self, layers: Sequence[Config]) -> None:
        parts, model = self._parts(layers), self.model
        model.dtype = next((_dtype(p.config) for p in parts if p.kind != "InputLayer"), "float32")
        if not parts or parts[0].kind != "InputLayer":
            raise Unreadable("the model has no input layer: build it, or begin it with keras.Input")
        values = [self._declare(parts[0])]
        for part in parts[1:]:
            if _dtype(part.config) != model.dtype:
                self.problems.append(f"{part.label}: it computes in {_dtype(part.config)}, others in {model.dtype}")
            values = self._applied(part, values[:1])
        self._name_outputs(_several(parts[-1].name, values))

    def _functional(self, config: Config) -> None:
        layers = list(map(mapping, items(config["layers"])))
        # Operations on values stand among the layers, without being any.
        real = [entry for entry in layers if "layers" in str(entry.get("module", "keras.layers"))]
        parts = {part.name: part for part in self._parts(real)}
        self.model.dtype = next((_dtype(p.config) for p in parts.values() if p.kind in BARE), "float32")
        values: Values = {}
        for each in _flat(config["input_layers"]):
            name, _, _ = _history(each)
            values[name, 0] = [self._declare(parts[name])]
        entries = {str(e["name"] if "name" in e else mapping(e["config"])["name"]): e for e in layers}
        outputs, names = list[tuple[str, Value]](), list[str]()
        for each in _flat(config["output_layers"]):
            name, number, index = reference = _history(each)
            self._evaluate(entries, parts, values, reference)
            again = names.count(name)
            names.append(name)
            outputs.append((f"{name}.{again}" if again else name, values[name, number][index]))
        self._name_outputs(outputs)

    def _evaluate(
        self, entries: Mapping[str, Config], parts: Mapping[str, Part], values: Values, wanted: Reference
    ) -> None:
        """Fill `values` with what a reference needs, what it reads first. Without recursion: models may be deep."""
        stack, begun = [(wanted, False)], set[tuple[str, int]]()
        while stack:
            (name, number, index), ready = stack.pop()
            if (name, number) in values:
                continue
            node = mapping(items(entries[name]["inbound_nodes"])[number])
            args, kwargs = _tensors(node["args"]), mapping(node.get("kwargs"))
            part = parts.get(name) or Part(name, str(entries[name]["class_name"]), mapping(entries[name]["config"]), [])
            states, options = _tensors(kwargs.get("initial_state")), list[str]()
            mask = _tensors(kwargs.get("mask")) if part.kind in MASKED else []
            if part.kind in ATTENTION:
                args += [each for name in ("query", "value", "key") for each in _tensors(kwargs.get(name))]
                options = [
                    name for name, value in kwargs.items() if name not in OPERANDS and value not in (None, False)
                ]
            reads = [each for each in (*args, *states, *mask) if isinstance(each, tuple)]
            if not ready:
                if (name, number) in begun:
                    raise Unreadable(f"{part.label}: its nodes have a cycle")
                begun.add((name, number))
                stack.append(((name, number, index), True))
                stack += [(each, False) for each in reads]
                continue
            given = [self._value(values, each) for each in args]
            extra = given[1:] if part.kind in BARE else []
            called = replace(part, states=[*extra, *(self._value(values, each) for each in states)], options=options)
            if given and part.kind in MASKED:  # a functional model says itself which masks these are called with
                told = self._value(values, mask[0]).name if mask else ""
                given[0] = Value(given[0].name, told, given[0].unheld if told == given[0].mask else "")
            values[name, number] = self._applied(called, given)

    def _value(self, values: Values, reference: Reference | float) -> Value:
        if not isinstance(reference, tuple):
            dtype = "int32" if isinstance(reference, int) else self.model.dtype
            return Value(self.model.steps.keep(reference, dtype))
        name, number, index = reference
        return values[name, number][index]


def _several(name: str, values: Sequence[Value]) -> Iterable[tuple[str, Value]]:
    return ((f"{name}.{i}" if i else name, value) for i, value in enumerate(values))


def _flat(given: object) -> list[object]:
    """One reference ["name", 0, 0], or lists of them in lists (states of stacked cells are so), as a list."""
    found, stack = list[object](), [given]
    while stack:  # without recursion: a file may be nested as deep as it likes
        each = stack.pop()
        if isinstance(each, list) and not (each and isinstance(each[0], str)):
            stack += reversed(each)
        else:
            found.append(each)
    return found


def _history(reference: object) -> Reference:
    match reference:
        case [str(name), int(node), int(tensor)]:
            return name, node, tensor
    raise Unreadable(f"a reference to a value is {reference!r:.60}")


def _tensors(given: object) -> list[Reference | float]:
    """The references to values, and the numbers, in a call's arguments, in order."""
    if isinstance(given, Mapping):
        is_value = given.get("class_name") == "__keras_tensor__"
        return [_history(mapping(given["config"])["keras_history"])] if is_value else []
    if isinstance(given, list):
        return [found for each in given for found in _tensors(each)]
    return [given] if isinstance(given, (int, float)) and not isinstance(given, bool) else []
