"""The oracle: any RNN in NumPy float64, from the same trace that is compiled.

In: an `RNN` with weights (or graphs at any stage of the pipeline). Out: (y, state), called as a compiled Module is.
Slow and plain on purpose: one interpreter of the op table, one loop over time.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from .errors import InputError, WeightError, message
from .graph import Graph, Node, depends
from .model import Model, Program
from .ops import TABLE
from .rnn import RNN, weight_name
from .runtime_model import Plan, call, check_inputs

Array = np.ndarray


def evaluate(nodes: Sequence[Node], values: dict[Node, Array]) -> None:
    """Fill `values` for nodes (arguments first) whose leaves are already in it. Warnings of NumPy are silenced: NaN and
    inf are results here, not accidents."""
    with np.errstate(all="ignore"):
        for node in nodes:
            if node in values:
                continue
            if node.op == "const":
                assert node.value is not None
                values[node] = node.value
            else:
                values[node] = np.asarray(TABLE[node.op].numpy(*(values[a] for a in node.args), **node.attrs))


class Reference:
    """The oracle of one RNN. Call it as a Module: `y, state = reference(x, state, lengths=n, reset=mask)`."""

    def __init__(self, net: RNN, graphs: Sequence[Graph] | None = None) -> None:
        brought = net.program is not None and net.program.brings_weights
        if not net.weights and net.weight_shapes and not brought:
            raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
        if net.weights:
            net.check_weights()
        self.net = net
        self.graphs = list(graphs) if graphs is not None else [layer.graph for layer in net.layers]

    def __call__(
        self, x: Any, state: Mapping[str, Any] | None = None, *, lengths: Any = None, reset: Any = None, **inputs: Any
    ) -> tuple[Array, dict[str, Any]]:
        """x [T, B, I] (a dict, or a sequence where the cell has several inputs); lengths [B] ints; reset [T, B] bool.

        Returns y [T, B, D*H] and the final state, both float64. Raises InputError for arrays that do not fit.
        """
        net = self.net
        arrays = self._inputs(x, inputs)
        steps, batch = arrays[0].shape[:2]
        n = np.full(batch, steps) if lengths is None else _rows("lengths", lengths, (batch,), "iu")
        if ((n < 0) | (n > steps)).any():
            expected = f"0 to {steps}, the number of steps of x"
            raise InputError(message("lengths are out of range", got=n.tolist(), expected=expected))
        mask = np.zeros((steps, batch), bool) if reset is None else _rows("reset", reset, (steps, batch), "b")
        states = self._states(state, batch)
        layer_input = arrays[0]
        for layer, graph in zip(net.layers, self.graphs, strict=True):
            outputs = []
            for direction in range(net.num_directions):
                own = {name: parts[layer.index][direction] for name, parts in states.items()}
                weights = {p.name: net.weights[weight_name(p.name, layer.index, direction)] for p in graph.params}
                y = self._layer(graph, weights, [layer_input, *arrays[1:]], own, n, mask, direction + net.reverse)
                outputs.append(y)
                for name, value in own.items():
                    states[name][layer.index][direction] = value
            layer_input = np.concatenate(outputs, axis=-1)
        final = {
            name: np.concatenate(parts) if not isinstance(net.initial_state(0)[name], list) else parts
            for name, parts in states.items()
        }
        return layer_input, final

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """All of the model that the network came from, as Module.run; results of floats are float64."""
        return run_program(self.net.program, [self.net], inputs)

    def _inputs(self, x: Any, inputs: Mapping[str, Any]) -> list[Array]:
        names = [a.name for a in self.net.cell.inputs]
        values = list(x) if isinstance(x, (tuple, list)) and len(names) > 1 else [x]
        pairs = list(x.items()) if isinstance(x, Mapping) else list(zip(names, values, strict=False))
        given = [*pairs, *inputs.items()]
        got = ", ".join([*(str(name) for name, _ in given), *["one more"] * (len(values) - len(pairs))])
        if sorted(got.split(", ")) != sorted(names):
            do = "give each input once: net((a, b)), net({'a': a, 'b': b}) or net(a, b=b)"
            raise InputError(message("the inputs do not fit the cell", got=got, expected=", ".join(names), do=do))
        arrays = [_floats(f"input {name}", dict(given)[name]) for name in names]
        widths = [self.net.layers[0].graph.inputs[i].shape for i in range(len(names))]
        for name, array, shape in zip(names, arrays, widths, strict=True):
            if array.ndim != 2 + len(shape) or array.shape[2:] != shape or array.shape[:2] != arrays[0].shape[:2]:
                expected = f"[{', '.join(['T', 'B', *map(str, shape)])}]"
                raise InputError(
                    message(
                        f"input {name} has the wrong shape",
                        got=list(array.shape),
                        expected=expected,
                        do="arrays are time-major, with the same T and B in every input",
                    )
                )
        return arrays

    def _states(self, state: Mapping[str, Any] | None, batch: int) -> dict[str, list[Array]]:
        """Each state as one float64 array [D, B, *shape] per layer, copied."""
        initial = self.net.initial_state(batch)
        given = initial if state is None else state
        if not isinstance(given, Mapping) or given.keys() != initial.keys():
            got = list(given) if isinstance(given, Mapping) else type(given).__name__
            do = "begin with net.initial_state(batch), or None"
            raise InputError(message("the state is not the cell's", got=got, expected=list(initial), do=do))
        result = {}
        for name, default in initial.items():
            wanted = [part.shape for part in default] if isinstance(default, list) else default.shape
            value = given[name]
            if isinstance(default, list) != isinstance(value, list):
                kind, expected = type(value).__name__, f"a {type(default).__name__}"
                raise InputError(message(f"state {name} has the wrong form", got=kind, expected=expected))
            what = f"state {name}"
            value = [_floats(what, part) for part in value] if isinstance(value, list) else _floats(what, value)
            shape = [part.shape for part in value] if isinstance(value, list) else value.shape
            if shape != wanted:
                raise InputError(message(f"state {name} has the wrong shape", got=shape, expected=wanted))
            parts = value if isinstance(value, list) else np.split(value, self.net.num_layers)
            result[name] = [np.array(part, np.float64) for part in parts]
        return result

    def _layer(
        self,
        graph: Graph,
        weights: Mapping[str, Array],
        inputs: Sequence[Array],
        state: dict[str, Array],
        lengths: Array,
        reset: Array,
        direction: int,
    ) -> Array:
        """One layer in one direction; `state` is changed in place. Returns y [T, B, width]."""
        steps, batch = inputs[0].shape[:2]
        nodes = graph.nodes()
        leaves = depends(nodes)
        fixed: dict[Node, Array] = {p: weights[p.name].astype(np.float64) for p in graph.params}
        evaluate([n for n in nodes if not leaves[n]], fixed)
        y = np.zeros((steps, batch, graph.output.shape[0]))
        for t in reversed(range(steps)) if direction else range(steps):
            restart = reset[t] if not direction else (reset[t + 1] if t + 1 < steps else np.zeros(batch, bool))
            active = t < lengths
            known = t + direction < lengths  # flags in the padding mean nothing
            for s in graph.states:
                state[s.name] = state[s.name].copy()
                state[s.name][restart & known] = self.net.cell.initial.get(s.name, 0.0)
            values = dict(fixed)
            values.update({node: state[node.name] for node in graph.states})
            values.update({node: inputs[i][t] for i, node in enumerate(graph.inputs)})
            evaluate(nodes, values)
            for s, result in zip(graph.states, graph.results, strict=True):
                new = np.broadcast_to(values[result], state[s.name].shape)
                shape = (batch, *([1] * (new.ndim - 1)))
                state[s.name] = np.where(active.reshape(shape), new, state[s.name])
            out = np.broadcast_to(values[graph.output], y[t].shape)
            y[t] = np.where(active[:, None], out, 0.0)
        return y


def _floats(what: str, value: Any) -> Array:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, RuntimeError) as reason:
        got = f"{type(value).__name__}: {reason}"
        raise InputError(message(f"{what} is not an array of numbers", got=got, do="pass a NumPy array")) from None


def _rows(what: str, value: Any, shape: tuple[int, ...], kinds: str) -> Array:
    """lengths or reset as an array of that shape and of one of those kinds of dtype."""
    array = np.asarray(value)
    if array.size == 0:  # an empty list is float64
        array = array.astype(bool if kinds == "b" else int)
    if array.dtype.kind not in kinds or array.shape != shape:
        expected = f"{'bool' if kinds == 'b' else 'integers'} of shape {list(shape)}"
        raise InputError(message(f"{what} does not fit x", got=f"{array.dtype} {list(array.shape)}", expected=expected))
    return array


class ModelReference:
    """The oracle of a model of several networks. `run` it as its module is run."""

    def __init__(self, model: Model) -> None:
        self.model, self.networks = model, [Reference(net) for net in model.networks]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The model's outputs by name, of its inputs by name; results of floats are float64."""
        return run_program(self.model.program, self.model.networks, inputs)


class _Oracle:
    """A network as `runtime_model.call` calls one, in float64."""

    def __init__(self, net: RNN) -> None:
        self.net = copy.copy(net)  # its weights may be values of the model
        self.manifest = {"states": [{"name": s.name} for s in net.cell.states], "num_layers": net.num_layers}

    def init_state(self, batch: int) -> dict[str, Any]:
        state = self.net.initial_state(batch)
        wide = {name: v if isinstance(v, list) else v.astype(np.float64) for name, v in state.items()}
        return {name: [p.astype(np.float64) for p in v] if isinstance(v, list) else v for name, v in wide.items()}

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        self.net.load(weights)

    def __call__(self, x: Array, state: Any, lengths: Any) -> tuple[Array, dict[str, Any]]:
        return Reference(self.net)(x, state, lengths=lengths)


def run_program(program: Program | None, networks: Sequence[RNN], inputs: Mapping[str, Any]) -> dict[str, Array]:
    """A program in float64. Raises InputError where there is none, or for inputs that do not fit."""
    if program is None:
        do = "call it as a module: reference(net)(x)"
        raise InputError(message("this network has no model around it", do=do))
    wide, oracles = program.in_float64(), [_Oracle(net) for net in networks]
    plan = Plan(wide.facts(), wide.arrays())
    real = {d.name for d in wide.inputs if d.dtype == "float64"}
    given = {name: _floats(f"input {name}", value) if name in real else value for name, value in inputs.items()}
    arrays = check_inputs(plan.inputs, given)
    return plan.run(arrays, lambda values, a: call(oracles[int(a["network"])], values, a))


@overload
def reference(net: RNN) -> Reference: ...
@overload
def reference(net: Model) -> ModelReference: ...
def reference(net: RNN | Model) -> Reference | ModelReference:
    """The NumPy float64 oracle of `net`, with the call signature of a compiled Module; of a Model, with its `run`.

    Source: the op table's NumPy column (`ops.py`), run step by step.
    """
    return ModelReference(net) if isinstance(net, Model) else Reference(net)
