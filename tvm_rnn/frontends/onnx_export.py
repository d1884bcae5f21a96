"""to_onnx: a network as an ONNX model, with the standard's own operators where these have its equations.

In: an `RNN` with weights. Out: a file that onnx.checker accepts: RNN, LSTM or GRU nodes, one per layer, or for other
cells a Scan per layer and direction whose body is one step.

    inputs:   x [T, B, I] (the cell's inputs by their names), lengths [B] and <state>_0 [L*D, B, *shape] if asked for
    outputs:  y [T, B, D*H] and <state>_n [L*D, B, *shape]; <state>_n_l0, ... where layers differ in shape

Of a network with batch_first x and y are [B, T, ...]: a Transpose stands at either end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.network.layer import Layer, weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.npy_files import write_whole
from tvm_rnn.surroundings.nodes import import_onnx

from ..errors import ConfigError, WeightError, message
from .onnx_body import Body, constants_of
from .onnx_cells import DEFAULTS, PARAMETERS, STATES, Form, form_of
from .onnx_file import Array
from .onnx_recurrent import ORDER, PEEPHOLES
from .torch import split_biases

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

# Opset 14 is the oldest with today's RNN, GRU and LSTM, so every runtime reads it; ir_version 8 goes with it. bfloat16
# came to these operators with 22.
OPSET, OPSET_BFLOAT16, IR_VERSION, IR_VERSION_BFLOAT16 = 14, 22, 8, 10


def to_onnx(net: RNN, path: str | os.PathLike[str], *, lengths: bool = False, state: bool = False) -> None:
    """Write a network as an ONNX model, whole or not at all.

    Args:
        net: an RNN with weights. Of one that came from a larger model, the network alone is written.
        path: the file.
        lengths: give the model an input `lengths` [B] int32 (ONNX's sequence_lens).
        state: initial states as inputs, in place of the cell's own.

    Raises:
        ConfigError: onnx is not installed, this is no RNN, or the standard has no bfloat16 operator of the cell.
        WeightError: there are no weights.
    """
    onnx = import_onnx()
    if not isinstance(path, str | bytes | os.PathLike):
        raise ConfigError(message("to_onnx writes to a path", got=f"{path!r:.80}", do='to_onnx(net, "model.onnx")'))
    if not isinstance(net, RNN):
        do = "write its networks one by one" if hasattr(net, "networks") else "pass an RNN"
        raise ConfigError(message("to_onnx writes an RNN", got=f"{net!r:.80}", do=do))
    if not net.weights and net.weight_shapes:
        raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
    net.check_weights()
    if net.draws:
        got, do = ", ".join(net.draws), "write a cell that emits what is drawn from"
        raise ConfigError(message("ONNX has no random numbers of a seed and counters", got=got, do=do))
    if net.cell.constants and not state:
        got, do = ", ".join(net.cell.constants), "state=True: they are inputs of the model, with the states"
        raise ConfigError(message("to_onnx: a cell with constants", got=got, do=do))
    if net.dtype == "bfloat16" and form_of(net.cell) is None:
        got, do = f"{net.cell.name} in bfloat16", "write it with dtype='float32' or 'float16'"
        raise ConfigError(message("ONNX has no products of bfloat16 in a Scan (Einsum lacks it)", got=got, do=do))
    model = _Writer(net, onnx, lengths, state).model()
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    write_whole({path: lambda file: _write(file, data)})


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


class _Graph:
    """Nodes in the making, of a model or of a Scan's body; constants are the model's."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer
        self.nodes: list[NodeProto] = []

    def make(self, op: str, *inputs: str, outputs: Sequence[str] | None = None, **attributes: object) -> str:
        """Add a node; the name of its first output."""
        made = list(outputs) if outputs is not None else [self.writer.fresh(op.lower())]
        self.nodes.append(self.writer.onnx.helper.make_node(op, list(inputs), made, **attributes))
        return made[0]


class _Writer:
    """One network's model."""

    def __init__(self, net: RNN, onnx: ModuleType, lengths: bool, state: bool) -> None:
        self.net, self.onnx, self.given_state = net, onnx, state
        self.count, self.constants = 0, dict[str, Array]()
        self.graph = _Graph(self)
        self.element = onnx.TensorProto.DataType.Value(
            {"float32": "FLOAT", "float64": "DOUBLE"}.get(net.dtype, net.dtype.upper())
        )
        self.x = [a.name for a in net.cell.inputs]  # [T, B, ...]
        taken = {*self.x}
        self.lengths = _name("lengths", taken) if lengths else ""
        self.y = _name("y", taken)
        self.first = {s.name: _name(f"{s.name}_0", taken) for s in net.cell.states}
        self.last = {s.name: _name(f"{s.name}_n", taken) for s in net.cell.states}
        self.final: dict[str, list[str]] = {s.name: [] for s in net.cell.states}

    def fresh(self, hint: str) -> str:
        """A name that nothing else has."""
        self.count += 1
        return f"{hint}.{self.count}"

    def constant(self, value: ArrayLike, dtype: str = "int64") -> str:
        """The name of an initializer with this value."""
        name = self.fresh("constant")
        self.constants[name] = constants_of(value, dtype)
        return name

    def weight(self, name: str, value: ArrayLike) -> str:
        """The name of an initializer in the network's dtype."""
        self.constants[name] = constants_of(value, self.net.dtype)
        return name

    def model(self) -> ModelProto:
        """The ModelProto."""
        # The standard's operators have no zoneout, whose expectation is part of the steps.
        form = None if self.net.regularisers.zoneout else form_of(self.net.cell)
        self.x = [self._turned(name, len(shape)) for name, shape in self.net.input_shapes.items()]
        first = next(iter(self.net.input_shapes.values()))
        above = self._shaped(self.x[0], self.net.layers[0].graph.inputs[0].shape, first)
        for layer in self.net.layers:
            above = self._standard(form, layer, above) if form is not None else self._scans(layer, above)
        above = self._shaped(above, self.net.output_shape, (self.net.output_size,))
        self.graph.make("Identity", self._turned(above, len(self.net.output_shape)), outputs=[self.y])
        helper = self.onnx.helper
        constants = [self.onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(
            self.graph.nodes,
            self.net.cell.name,
            self._inputs(),
            self._outputs(),
            constants,
            doc_string=self.net.cell.doc,
        )
        wide = self.net.dtype == "bfloat16"
        opsets = [helper.make_opsetid("", OPSET_BFLOAT16 if wide else OPSET)]
        version = IR_VERSION_BFLOAT16 if wide else IR_VERSION
        return helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="tvm_rnn")

    def _shaped(self, value: str, shape: Sequence[int], own: Sequence[int]) -> str:
        """A value [T, B, *own] as [T, B, *shape]."""
        return value if len(shape) == len(own) else self.graph.make("Reshape", value, self.constant([0, 0, *shape]))

    def _turned(self, value: str, axes: int) -> str:
        """[B, T, ...] of a value [T, B, ...] and the other way about, where the network has the batch first."""
        perm = [1, 0, *range(2, 2 + axes)]
        return self.graph.make("Transpose", value, perm=perm) if self.net.batch_first else value

    # --- inputs and outputs ------------------------------------------------------------------------------------------

    def _value(self, name: str, shape: Sequence[int | str], element: int | None = None) -> ValueInfoProto:
        return self.onnx.helper.make_tensor_value_info(name, self.element if element is None else element, shape)

    def _state_shapes(self, position: int) -> list[list[int | str]]:
        """[L*D, B, *shape], or [D, B, *shape] for each layer where layers differ in shape."""
        net = self.net
        shapes = [layer.graph.states[position].shape for layer in net.layers]
        if len({*shapes}) == 1:
            return [[net.num_layers * net.num_directions, "B", *shapes[0]]]
        return [[net.num_directions, "B", *shape] for shape in shapes]

    def _named(self, name: str, count: int) -> list[str]:
        return [name] if count == 1 else [f"{name}_l{i}" for i in range(count)]

    def _inputs(self) -> list[ValueInfoProto]:
        lead = ["B", "T"] if self.net.batch_first else ["T", "B"]
        found = [self._value(name, [*lead, *shape]) for name, shape in self.net.input_shapes.items()]
        if self.lengths:
            found.append(self._value(self.lengths, ["B"], self.onnx.TensorProto.INT32))
        for position, state in enumerate(self.net.cell.states if self.given_state else ()):
            shapes = self._state_shapes(position)
            names = self._named(self.first[state.name], len(shapes))
            found += [self._value(name, shape) for name, shape in zip(names, shapes, strict=True)]
        return found

    def _outputs(self) -> list[ValueInfoProto]:
        lead = ["B", "T"] if self.net.batch_first else ["T", "B"]
        found = [self._value(self.y, [*lead, *self.net.output_shape])]
        for position, state in enumerate(self.net.cell.states):
            shapes, parts = self._state_shapes(position), self.final[state.name]
            names = self._named(self.last[state.name], len(shapes))
            if len(shapes) == 1:
                self.graph.make("Concat", *parts, outputs=names, axis=0)
            else:
                for part, name in zip(parts, names, strict=True):
                    self.graph.make("Identity", part, outputs=[name])
            found += [self._value(name, shape) for name, shape in zip(names, shapes, strict=True)]
        return found

    def _begin(self, position: int, layer: Layer) -> str:
        """The initial state [D, B, *shape] of a layer, of the model's input."""
        shapes, name = self._state_shapes(position), self.first[self.net.cell.states[position].name]
        if len(shapes) > 1:
            return f"{name}_l{layer.index}"
        if self.net.num_layers == 1:
            return name
        D = self.net.num_directions
        ends = (layer.index * D, (layer.index + 1) * D, 0)
        return self.graph.make("Slice", name, *(self.constant([end]) for end in ends))

    # --- the standard's own operators --------------------------------------------------------------------------------

    def _standard(self, form: Form, layer: Layer, above: str) -> str:
        net, states = self.net, STATES[form.kind]
        parts = [self._packed(form, layer.index, d) for d in range(net.num_directions)]
        own = {k: self.weight(f"{k}_l{layer.index}", np.stack([p[k] for p in parts])) for k in parts[0]}
        begin = [self._begin(i, layer) if self.given_state else "" for i in range(len(states))]
        inputs = [above, own["W"], own["R"], own["B"], self.lengths, *begin, *([own["P"]] if "P" in own else [])]
        while not inputs[-1]:
            inputs.pop()
        outputs = [self.fresh(name) for name in ("Y", *(f"Y_{state}" for state in states))]
        self.graph.make(form.kind, *inputs, outputs=outputs, **self._attributes(form, layer))
        for state, name in zip(net.cell.states, outputs[1:], strict=True):
            self.final[state.name].append(name)
        flat = self.graph.make("Transpose", outputs[0], perm=[0, 2, 1, 3])
        return self.graph.make("Reshape", flat, self.constant([0, 0, -1]))

    def _attributes(self, form: Form, layer: Layer) -> dict[str, object]:
        net = self.net
        direction = "bidirectional" if net.bidirectional else "reverse" if net.reverse else "forward"
        found: dict[str, object] = {"hidden_size": layer.sizes["H"], "direction": direction}
        if form.activations != (DEFAULTS[form.kind],):
            each = (
                form.activations
                if len(form.activations) == net.num_directions
                else form.activations * net.num_directions
            )
            every = [activation for own in each for activation in own]
            found["activations"] = [activation.name for activation in every]
            for which, word in enumerate(("alpha", "beta")):
                values = [getattr(a, word) for a in every if len(PARAMETERS.get(a.name, ())) > which]
                found |= {f"activation_{word}": values} if values else {}
        found |= {"clip": form.clip} if form.clip is not None else {}
        found |= {"input_forget": 1} if form.input_forget else {}
        return found | ({"linear_before_reset": 1} if form.reset_after else {})

    def _packed(self, form: Form, layer: int, direction: int) -> dict[str, Array]:
        """W, R, B and P of one direction, in the standard's order of gates."""
        own = {p.name: self.net.weights[weight_name(p.name, layer, direction)] for p in self.net.cell.params}
        order = np.argsort(ORDER[form.kind])
        gates, width = len(order), own["W"].shape[-1]
        W, R = own["W"].reshape(gates, -1, width), own["R"]
        H = W.shape[1]
        if "R_n" in own:
            R = np.concatenate([R, own["R_n"][None]])
        pair = None if self.net.origin is None else self.net.origin.biases.get(weight_name("b", layer, direction))
        one, two = split_biases("GRU" if "b_R" in own else "LSTM", own, pair, self.net.dtype)
        biases = [value.reshape(gates, H)[order].reshape(-1) for value in (one, two)]
        found = {"W": W[order].reshape(-1, width), "R": R.reshape(gates, H, H)[order].reshape(-1, H)}
        found["B"] = np.concatenate(biases)
        return found | ({"P": own["p"][np.argsort(PEEPHOLES)].reshape(-1)} if "p" in own else {})

    # --- any other cell ----------------------------------------------------------------------------------------------

    def _scans(self, layer: Layer, above: str) -> str:
        outputs = []
        ends: list[list[str]] = [[] for _ in self.net.cell.states]
        for direction in range(self.net.num_directions):
            y, *after = self._scan(layer, above, direction)
            outputs.append(y)
            for own, value in zip(ends, after, strict=True):
                own.append(self.graph.make("Unsqueeze", value, self.constant([0])))
        for state, parts in zip(self.net.cell.states, ends, strict=True):
            joined = parts[0] if len(parts) == 1 else self.graph.make("Concat", *parts, axis=0)
            self.final[state.name].append(joined)
        return outputs[0] if len(outputs) == 1 else self.graph.make("Concat", *outputs, axis=-1)

    def _scan(self, layer: Layer, above: str, direction: int) -> list[str]:
        """y [T, B, width] and each last state [B, *shape] of one layer in one direction."""
        states = layer.graph.states
        begin = [self._first(layer, position, direction, above) for position in range(len(states))]
        scanned = [above, *self.x[1:], *([self._steps(above)] if self.lengths else [])]
        back = int(self.net.reverse or direction > 0)
        outputs = [self.fresh(f"{state.name}_last") for state in states] + [self.fresh("y")]
        self.graph.make(
            "Scan",
            *begin,
            *scanned,
            outputs=outputs,
            body=self._body(layer, direction),
            num_scan_inputs=len(scanned),
            scan_input_directions=[back] * len(scanned),
            scan_output_directions=[back],
        )
        return [outputs[-1], *outputs[:-1]]

    def _first(self, layer: Layer, position: int, direction: int, above: str) -> str:
        """A state's value before the first step: the model's input, or what the cell says."""
        state = layer.graph.states[position]
        if self.given_state:
            whole = self._begin(position, layer)
            return self.graph.make("Gather", whole, self.constant(direction), axis=0)
        batch = self._axis(self.graph, above, 1)
        shape = self.graph.make("Concat", batch, self.constant(list(state.shape)), axis=0) if state.shape else batch
        value = self.net.cell.initial.get(state.name, 0.0)
        return self.graph.make("Expand", self.constant(value, self.net.dtype), shape)

    def _axis(self, graph: _Graph, value: str, axis: int) -> str:
        """The size of an axis, as a list of one whole number."""
        return graph.make("Slice", graph.make("Shape", value), self.constant([axis]), self.constant([axis + 1]))

    def _steps(self, above: str) -> str:
        """The numbers of the steps, [T] int32."""
        count = self.graph.make("Gather", self.graph.make("Shape", above), self.constant(0), axis=0)
        every = self.graph.make("Range", self.constant(0), count, self.constant(1))
        return self.graph.make("Cast", every, to=self.onnx.TensorProto.INT32)

    def _body(self, layer: Layer, direction: int) -> GraphProto:
        graph, inner, helper = layer.graph, _Graph(self), self.onnx.helper
        names = {node: self.fresh(node.name) for node in (*graph.states, *graph.inputs)}
        for param in graph.params:
            name = weight_name(param.name, layer.index, direction)
            names[param] = name if name in self.constants else self.weight(name, self.net.weights[name])
        batch = self._axis(inner, names[graph.states[0]], 0)
        results = Body(inner.make, self.constant, self.net.dtype, dict(names), batch).run(graph)
        values = [self._value(names[n], ["B", *n.shape]) for n in (*graph.states, *graph.inputs)]
        if self.lengths:
            step = self.fresh("t")
            values.append(self._value(step, [], self.onnx.TensorProto.INT32))
            results = self._held(inner, step, results, [names[state] for state in graph.states], layer)
        shapes = [*(state.shape for state in graph.states), graph.output.shape]
        outputs = [self._value(name, ["B", *shape]) for name, shape in zip(results, shapes, strict=True)]
        return helper.make_graph(inner.nodes, f"step of layer {layer.index}", values, outputs)

    def _held(self, inner: _Graph, step: str, results: list[str], old: list[str], layer: Layer) -> list[str]:
        """Rows that have ended keep their states and emit 0."""
        active = inner.make("Less", step, self.lengths)
        found = []
        zero = self.constant(0.0, self.net.dtype)
        shapes = [*(state.shape for state in layer.graph.states), layer.graph.output.shape]
        for name, before, shape in zip(results, [*old, zero], shapes, strict=True):
            axes = self.constant([-1, *([1] * len(shape))])
            found.append(inner.make("Where", inner.make("Reshape", active, axes), name, before))
        return found


def _name(wanted: str, taken: set[str]) -> str:
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted
