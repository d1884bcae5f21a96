"""The oracle: any RNN in NumPy float64, from the same trace that is compiled; and its gradients.

In: an `RNN` with weights (or graphs at any stage of the pipeline). Out: (y, state), called as a compiled Module is;
from `gradients` those of inputs, state and weights. Slow and plain on purpose: one interpreter of the op table, one
loop over time, and one back.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.dtypes import real_numbers
from tvm_rnn.errors import InputError, WeightError, message
from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.model import Model
from tvm_rnn.network.program import NETWORK, Program
from tvm_rnn.network.rnn import RNN, no_network
from tvm_rnn.runtime import runtime_generate, runtime_random
from tvm_rnn.runtime.runtime import State
from tvm_rnn.runtime.runtime_model import Plan, call, check_inputs
from tvm_rnn.surroundings.evaluation import Refused, evaluated


@dataclass(frozen=True)
class Draws:
    """The masks of one call of training; compiled code makes the same ones bit for bit. seed: a 64-bit integer.
    first_step: the number, in its whole sequence, of the first step that is given."""

    seed: int
    first_step: int = 0

    def masks(self, nodes: Sequence[Node], place: Place, batch: int, t: int) -> dict[Node, Array]:
        """The values [B, *shape] of the mask nodes among `nodes` at step t of what is given. place: (layer,
        direction)."""
        found = {}
        for node in nodes:
            if node.random:
                words = runtime_random.key(self.seed, node.attrs["stream"], *place)
                found[node] = TABLE[node.op].numpy(words, batch, self.first_step + t, **node.attrs)
        return found

    def factors(self, net: RNN) -> dict[str, Array]:
        """What weight drop multiplies weights with, by name: 0 and 1 / keep."""
        found = {}
        for layer in net.layers:
            for direction in range(net.num_directions):
                for param in layer.graph.params:
                    p = net.regularisers.weight_drop.get(param.name)
                    if p is None:
                        continue
                    words = runtime_random.key(self.seed, runtime_random.ONCE + param.name, layer.index, direction)
                    own = runtime_random.mask(words, 1.0 - p, 1, prod(param.shape), 0)
                    found[weight_name(param.name, layer.index, direction)] = own.reshape(param.shape) / (1.0 - p)
        return found

    def weights(self, net: RNN) -> dict[str, Array]:
        """All weights of this call, in float64 where they are not the network's own."""
        factors = self.factors(net)
        return {name: value * factors[name] if name in factors else value for name, value in net.weights.items()}


Array = np.ndarray
Inputs = ArrayLike | Mapping[str, ArrayLike] | Sequence[ArrayLike]  # one array, or one for each input of the cell
# Each state by its name: one array of all layers, or a list of one for each layer where layers differ in shape.
GivenState = Mapping[str, ArrayLike | Sequence[ArrayLike]]
Place = tuple[int, int]  # layer, direction
Ends = tuple[Array, Array]  # rows' lengths, and their reset flags
Tape = dict[int, list[Array]]  # for each step: inputs, states before it, what the graph emits


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
    """The oracle of one RNN. Call it as a Module: `y, state = reference(x, state, lengths=n, reset=mask)`.

    graphs: the layers' at any stage. draws: it is the network in training, where regularisers act with these masks."""

    def __init__(self, net: RNN, graphs: Sequence[Graph] | None = None, draws: Draws | None = None) -> None:
        if not isinstance(net, RNN):
            raise no_network("reference", net)
        brought = net.program is not None and net.program.brings_weights
        if not net.weights and net.weight_shapes and not brought:
            raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
        if net.weights:
            net.check_weights()
        self.net = net
        own = [layer.graph if draws is None else layer.training for layer in net.layers]
        self.graphs = own if graphs is None else list(graphs)
        self._differentiated: dict[int, Graph] = {}
        self._kept: dict[Place, dict[Node, Array]] | None = None  # what _fixed has made, in a call of many steps
        self.draws, self.dropped = draws, None if draws is None else draws.weights(net)

    def _masks(self, nodes: Sequence[Node], place: Place, batch: int, t: int) -> dict[Node, Array]:
        return {} if self.draws is None else self.draws.masks(nodes, place, batch, t)

    def __call__(
        self,
        x: Inputs,
        state: GivenState | None = None,
        *,
        lengths: ArrayLike | None = None,
        reset: ArrayLike | None = None,
        **inputs: ArrayLike,
    ) -> tuple[Array, State]:
        """x [T, B, I] (a dict, or a sequence where the cell has several inputs); lengths [B] ints; reset [T, B] bool;
        of a network with batch_first [B, T, ...] each.

        Returns y [T, B, D*H] and the final state, both float64. Raises InputError for arrays that do not fit.
        """
        if self.draws is None and self.net.draws:
            got, do = "a call without a seed", "reference(net, seed=1)(x), or reference(net).generate(steps, seed=1)"
            raise InputError(message("this network draws random numbers", got=got, do=do))
        x, state, inputs = self._held(x, state, inputs, reset)
        arrays = self._time_first(self._inputs(x, inputs))
        states, ends = self._arguments(arrays, state, lengths, reset)
        y, _ = self._run(self.graphs, arrays, states, ends)
        return self._ordered(self._shaped(y, self.net.output_shape)), self._joined(states)

    def _ordered(self, array: Array) -> Array:
        """[B, T, ...] for [T, B, ...] where the network has the batch first, and the other way about."""
        return array.swapaxes(0, 1) if self.net.batch_first else array

    def _time_first(self, arrays: list[Array]) -> list[Array]:
        return [self._ordered(array) for array in arrays]

    @staticmethod
    def _shaped(rows: Array, shape: tuple[int, ...]) -> Array:
        """[T, B, features] with the axes that the cell gives them."""
        return rows.reshape((*rows.shape[:2], *shape))

    def gradients(
        self,
        x: Inputs,
        state: GivenState | None = None,
        gy: ArrayLike | None = None,
        gstate: GivenState | None = None,
        *,
        lengths: ArrayLike | None = None,
        reset: ArrayLike | None = None,
        **inputs: ArrayLike,
    ) -> tuple[Array | dict[str, Array], State, dict[str, Array]]:
        """The gradients of sum(gy * y) + sum(gstate * state), where (y, state) is what a call with x, state, lengths
        and reset returns: those of x, of the first state and of the weights, all float64.

        gy: [T, B, D*H]; gstate: as the state; None: zeros. The first result is an array like x, or {input: array} where
        the cell has several inputs; the second has the form of a state; the third is {weight: gradient}. Rows after
        their last step get zeros, and what gy has there counts nothing. Raises InputError for arrays that do not fit.
        """
        net = self.net
        x, state, inputs = self._held(x, state, inputs, reset)
        arrays = self._time_first(self._inputs(x, inputs))
        states, ends = self._arguments(arrays, state, lengths, reset)
        graphs = [self._with_gradients(graph) for graph in self.graphs]
        y, tapes = self._run(graphs, arrays, states, ends)
        expected = self._ordered(self._shaped(y, net.output_shape)).shape
        d_y = np.zeros(expected) if gy is None else _floats("the gradient of y", gy)
        if d_y.shape != expected:
            raise InputError(message("the gradient of y has the wrong shape", got=d_y.shape, expected=expected))
        d_y = self._ordered(d_y).reshape(y.shape)
        first = net._first_states(y.shape[1]) if gstate is None else gstate
        carried = self._states(first, y.shape[1], "the gradient of state")
        if gstate is None:
            carried = {name: [np.zeros_like(part) for part in parts] for name, parts in carried.items()}
        d_extra = [np.zeros(array.shape) for array in arrays[1:]]
        d_weights: dict[str, Array] = {}
        for layer, graph in reversed(list(zip(net.layers, graphs, strict=True))):
            d_x: Array | float = 0.0
            for direction, d_out in enumerate(np.split(d_y, net.num_directions, axis=-1)):
                place = (layer.index, direction)
                own = {name: parts[layer.index][direction] for name, parts in carried.items()}
                d_first, *d_others, gradients = self._back(graph, place, tapes[place], d_out, own, ends)
                d_x = d_x + d_first
                for into, more in zip(d_extra, d_others, strict=True):
                    into += more
                d_weights |= {weight_name(p.name, *place): v for p, v in zip(graph.params, gradients, strict=True)}
                for name, value in own.items():
                    carried[name][layer.index][direction] = value
            d_y = np.asarray(d_x)
        names = [a.name for a in net.cell.inputs]
        d_y = self._shaped(d_y, net.input_shapes[names[0]])
        d_inputs = dict(zip(names, self._time_first([d_y, *d_extra]), strict=True))
        factors = {} if self.draws is None else self.draws.factors(net)
        d_weights = {name: d_weights[name] * factors.get(name, 1.0) for name in net.weight_shapes}
        return (d_inputs if len(names) > 1 else d_inputs[names[0]]), self._joined(carried), d_weights

    def _held(
        self, x: Inputs, state: GivenState | None, inputs: dict[str, ArrayLike], reset: ArrayLike | None
    ) -> tuple[Inputs, GivenState | None, dict[str, ArrayLike]]:
        """x and the inputs without the cell's constants, and the state with them, [L*D, B, *shape]."""
        net, names = self.net, self.net.cell.constants
        if state is not None and not isinstance(state, Mapping):
            return x, state, inputs  # who reads it says so
        if names and isinstance(x, Mapping):
            inputs = {name: value for name, value in x.items() if name in names} | inputs
            x = {name: value for name, value in x.items() if name not in names}
        given = {name: _floats(f"the constant {name}", inputs[name]) for name in names if name in inputs}
        missing = [name for name in names if name not in given and (state is None or name not in state)]
        if missing:
            raise InputError(message(f"the constant {missing[0]} is not given", got=[*inputs], expected=[*names]))
        if names and reset is not None:
            raise InputError(message("reset= does not go with constants", got=[*names], do="call once per sequence"))
        for name, value in given.items():
            shape = next(s.shape for s in net.layers[0].graph.states if s.name == name)
            if not value.ndim or value.shape[1:] != shape:
                expected = f"[{', '.join(['B', *map(str, shape)])}]"
                what = f"the constant {name} has the wrong shape"
                raise InputError(message(what, got=list(value.shape), expected=expected))
        rows = net.num_layers * net.num_directions
        held = {name: np.broadcast_to(value, (rows, *value.shape)) for name, value in given.items()}
        if state is None and held:
            state = net._first_states(len(next(iter(given.values()))))
        rest = {name: value for name, value in inputs.items() if name not in held}
        return x, (state if state is None else {**state, **held}), rest

    def generate(
        self,
        steps: int,
        state: GivenState | None = None,
        *,
        prompt: ArrayLike | None = None,
        seed: int | None = None,
        first_step: int = 0,
        stop: float | None = None,
        **inputs: ArrayLike,
    ) -> tuple[Array, State, Array]:
        """As `Module.generate`, which see: the output of a step is the input of the next."""
        net = self.net
        _, state, inputs = self._held(0.0, state, inputs, None)
        options: runtime_generate.Options = {"seed": seed, "first_step": first_step, "stop": stop, "inputs": inputs}
        facts = runtime_generate.Network(net.tokens, net.output_shape, np.dtype(float), net.draws, net.batch_first)
        first = prompt if prompt is None or net.tokens is not None else _floats("prompt", prompt)
        rows = None if state is None else runtime_generate._rows_of(state)
        ask = runtime_generate.requested(facts, steps, first, rows, options)
        states = self._states(net._first_states(ask.rows) if state is None else state, ask.rows)
        y, ends = np.zeros((ask.total, ask.rows, net.output_size)), np.full(ask.rows, ask.total)
        x, own = np.zeros((ask.total, *ask.prompt.shape[1:])), copy.copy(self)
        own._kept = {}  # weights in float64: to make them again in each step took longer than the step
        x[: len(ask.prompt)] = ask.prompt[: ask.total]
        given = self._time_first(self._inputs(self._ordered(x), inputs))
        for t in range(ask.total):
            arrays = [array[t : t + 1] for array in given]
            own.draws = None if ask.seed is None else Draws(ask.seed, ask.first_step + t)
            active = (t < ends).astype(int)
            y[t], _ = own._run(own.graphs, arrays, states, (active, np.zeros((1, ask.rows), bool)))
            if ask.stop is not None and t >= len(ask.prompt) - 1:
                ends[(active > 0) & (y[t, :, 0] == ask.stop)] = t + 1
            if len(ask.prompt) <= t + 1 < ask.total:
                given[0][t + 1] = y[t]
        new, lengths = ask.results(self._shaped(y, net.output_shape), ends)
        return new, self._joined(states), lengths

    def _arguments(
        self, arrays: list[Array], state: GivenState | None, lengths: ArrayLike | None, reset: ArrayLike | None
    ) -> tuple[dict[str, list[Array]], Ends]:
        steps, batch = arrays[0].shape[:2]
        n = np.full(batch, steps) if lengths is None else _rows("lengths", lengths, (batch,), "iu")
        if ((n < 0) | (n > steps)).any():
            expected = f"0 to {steps}, the number of steps of x"
            raise InputError(message("lengths are out of range", got=n.tolist(), expected=expected))
        own = (batch, steps) if self.net.batch_first else (steps, batch)
        mask = np.zeros(own, bool) if reset is None else _rows("reset", reset, own, "b")
        mask = self._ordered(mask)
        return self._states(self.net._first_states(batch) if state is None else state, batch), (n, mask)

    def _run(
        self, graphs: Sequence[Graph], arrays: Sequence[Array], states: dict[str, list[Array]], ends: Ends
    ) -> tuple[Array, dict[Place, Tape]]:
        """All layers; `states` is changed in place. Returns y and a tape for each (layer, direction)."""
        net, layer_input, tapes = self.net, arrays[0], {}
        for layer, graph in zip(net.layers, graphs, strict=True):
            outputs = []
            for direction in range(net.num_directions):
                place = (layer.index, direction)
                own = {name: parts[layer.index][direction] for name, parts in states.items()}
                y, tapes[place] = self._layer(graph, place, [layer_input, *arrays[1:]], own, ends)
                outputs.append(y)
                for name, value in own.items():
                    states[name][layer.index][direction] = value
            layer_input = np.concatenate(outputs, axis=-1)
        return layer_input, tapes

    def _joined(self, states: Mapping[str, list[Array]]) -> State:
        whole = self.net._first_states(0)
        return State((n, parts if isinstance(whole[n], list) else np.concatenate(parts)) for n, parts in states.items())

    def _with_gradients(self, graph: Graph) -> Graph:
        if graph.backward is not None:
            return graph
        from tvm_rnn.passes.differentiate import differentiate

        if id(graph) not in self._differentiated:
            self._differentiated[id(graph)] = differentiate(graph)
        return self._differentiated[id(graph)]

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """All of the model that the network came from, as Module.run; results of floats are float64."""
        return run_program(self.net.program, [self.net], inputs)

    def _inputs(self, x: Inputs, inputs: Mapping[str, ArrayLike]) -> list[Array]:
        names = [a.name for a in self.net.cell.inputs]
        values = list(x) if isinstance(x, (tuple, list)) and len(names) > 1 else [x]
        pairs = list(x.items()) if isinstance(x, Mapping) else list(zip(names, values, strict=False))
        given = [*pairs, *inputs.items()]
        got = ", ".join([*(str(name) for name, _ in given), *["one more"] * (len(values) - len(pairs))])
        if sorted(got.split(", ")) != sorted(names):
            do = "give each input once: net((a, b)), net({'a': a, 'b': b}) or net(a, b=b)"
            raise InputError(message("the inputs do not fit the cell", got=got, expected=", ".join(names), do=do))
        arrays = [_floats(f"input {name}", dict(given)[name]) for name in names]
        widths = list(self.net.input_shapes.values())
        for name, array, shape in zip(names, arrays, widths, strict=True):
            if array.ndim != 2 + len(shape) or array.shape[2:] != shape or array.shape[:2] != arrays[0].shape[:2]:
                axes = ["B", "T"] if self.net.batch_first else ["T", "B"]
                expected = f"[{', '.join([*axes, *map(str, shape)])}]"
                do = f"arrays are {', '.join(axes)}, ..., with the same T and B in every input"
                raise InputError(
                    message(f"input {name} has the wrong shape", got=list(array.shape), expected=expected, do=do)
                )
        arrays[0] = self._shaped(arrays[0], self.net.layers[0].graph.inputs[0].shape)
        return arrays

    def _states(self, given: GivenState, batch: int, what: str = "state") -> dict[str, list[Array]]:
        """Each state as one float64 array [D, B, *shape] per layer, copied."""
        initial = self.net._first_states(batch)
        if not isinstance(given, Mapping) or given.keys() != initial.keys():
            got = list(given) if isinstance(given, Mapping) else type(given).__name__
            wrong = f"the {what.removeprefix('the ')} is not the cell's"
            do = "begin with net.initial_state(batch), or None"
            raise InputError(message(wrong, got=got, expected=list(initial), do=do))
        result = {}
        for name, default in initial.items():
            wanted = [part.shape for part in default] if isinstance(default, list) else default.shape
            value = given[name]
            if isinstance(default, list) != isinstance(value, list):
                kind, expected = type(value).__name__, f"a {type(default).__name__}"
                raise InputError(message(f"{what} {name} has the wrong form", got=kind, expected=expected))
            own = f"{what} {name}"
            value = [_floats(own, part) for part in value] if isinstance(value, list) else _floats(own, value)
            shape = [part.shape for part in value] if isinstance(value, list) else value.shape
            if shape != wanted:
                raise InputError(message(f"{what} {name} has the wrong shape", got=shape, expected=wanted))
            parts = value if isinstance(value, list) else np.split(value, self.net.num_layers)
            result[name] = [np.array(part, np.float64) for part in parts]
        return result

    def _fixed(self, graph: Graph, place: Place) -> dict[Node, Array]:
        """The values of a graph that are made of parameters alone, of one (layer, direction)."""
        if self._kept is not None and place in self._kept:
            return self._kept[place]
        weights = self.net.weights if self.dropped is None else self.dropped
        fixed = {p: weights[weight_name(p.name, *place)].astype(np.float64) for p in graph.params}
        leaves = depends(nodes := graph.nodes())
        evaluate([n for n in nodes if not leaves[n]], fixed)
        if self._kept is not None:
            self._kept[place] = fixed
        return fixed

    def _layer(
        self, graph: Graph, place: Place, inputs: Sequence[Array], state: dict[str, Array], ends: Ends
    ) -> tuple[Array, Tape]:
        """One layer in one direction; `state` is changed in place. Returns y [T, B, width] and what gradients read."""
        (lengths, reset), (steps, batch) = ends, inputs[0].shape[:2]
        nodes, fixed, way = graph.nodes(), self._fixed(graph, place), place[1] + self.net.reverse
        y = np.zeros((steps, batch, graph.output.shape[0]))
        tape: Tape = {}
        for t in reversed(range(steps)) if way else range(steps):
            active, restart = t < lengths, _restart(t, lengths, reset, way)
            for s in graph.states:
                state[s.name] = state[s.name].copy()
                state[s.name][restart] = self.net.cell.initial.get(s.name, 0.0)
            values = dict(fixed)
            values.update({node: state[node.name] for node in graph.states})
            values.update({node: inputs[i][t] for i, node in enumerate(graph.inputs)})
            values |= self._masks(nodes, place, batch, t)
            evaluate(nodes, values)
            tape[t] = [values[n] for n in (*graph.inputs, *graph.states, *graph.emitted)]
            for s, result in zip(graph.states, graph.results, strict=True):
                state[s.name] = _chosen(active, _full(values[result], batch, s), state[s.name])
            y[t] = _chosen(active, _full(values[graph.output], batch, graph.output), 0.0)
        return y, tape

    def _back(
        self, graph: Graph, place: Place, tape: Tape, d_y: Array, carry: dict[str, Array], ends: Ends
    ) -> list[Any]:
        """One layer in one direction, back over its tape; `carry`, the gradients of its states, is changed in place.
        Returns the gradient of each input, then a list of those of the
        parameters."""
        back = graph.backward
        assert back is not None
        (lengths, reset), (steps, batch) = ends, d_y.shape[:2]
        fixed, way = self._fixed(back, place), place[1] + self.net.reverse
        leaves = depends(nodes := back.nodes())
        own = [n for n in nodes if "sum_rows" not in leaves[n]]
        sums = {n: np.zeros(n.shape) for n in nodes if not n.leaf and TABLE[n.op].kind == "sum_rows"}
        roots = (back.output, *back.emitted)
        results = [np.zeros((steps, batch, *root.shape)) for root in roots]
        for t in range(steps) if way else reversed(range(steps)):
            active, restart = t < lengths, _restart(t, lengths, reset, way)
            values = {**fixed, **dict(zip(back.inputs, [d_y[t], *tape[t]], strict=True))}
            values.update({node: carry[s.name] for node, s in zip(back.states, graph.states, strict=True)})
            values |= self._masks(nodes, place, batch, t)
            evaluate(own, values)
            for node in sums:
                rows = [_full(values[a], batch, a)[active] for a in node.args]
                with np.errstate(all="ignore"):
                    sums[node] += TABLE[node.op].numpy(*rows, **node.attrs)
            for into, root in zip(results, roots, strict=True):
                into[t] = _chosen(active, _full(values[root], batch, root), 0.0)
            for s, result in zip(graph.states, back.results, strict=True):
                new = _chosen(active, _full(values[result], batch, s), carry[s.name])
                carry[s.name] = _chosen(restart, 0.0, new)
        values = {**fixed, **sums}
        evaluate([n for n in nodes if "sum_rows" in leaves[n]], values)
        return [*results, [np.broadcast_to(values[n], n.shape) for n in back.weight_gradients]]


def _restart(t: int, lengths: Array, reset: Array, direction: int) -> Array:
    """The rows that begin again before step t is processed. Flags in the padding mean nothing."""
    at = t + direction  # backwards, a flag at t + 1 separates t from what was just processed
    flags: Array = reset[at] if at < len(reset) else np.zeros(len(lengths), bool)
    rows: Array = flags & (at < lengths)
    return rows


def _full(value: Array, batch: int, node: Node) -> Array:
    return np.broadcast_to(value, (batch, *node.shape))


def _chosen(rows: Array, yes: ArrayLike, no: ArrayLike) -> Array:
    """One or the other, row by row of the batch."""
    rank = max(np.ndim(yes), np.ndim(no))
    chosen: Array = np.where(rows.reshape(-1, *[1] * (rank - 1)), yes, no)
    return chosen


def _floats(what: str, value: object) -> Array:
    try:
        return real_numbers(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as reason:
        got = f"{type(value).__name__}: {reason}"
        raise InputError(message(f"{what} is not an array of numbers", got=got, do="pass a NumPy array")) from None


def _rows(what: str, value: ArrayLike, shape: tuple[int, ...], kinds: str) -> Array:
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

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """The model's outputs by name, of its inputs by name; results of floats are float64."""
        return run_program(self.model.program, self.model.networks, inputs)


class _Oracle:
    """A network as `runtime_model.call` calls one, in float64."""

    def __init__(self, net: RNN) -> None:
        self.net = copy.copy(net)  # its weights may be values of the model
        self.manifest = {"states": [{"name": s.name} for s in net.cell.states], "num_layers": net.num_layers}

    def init_state(self, batch: int) -> State:
        state = self.net.initial_state(batch)
        wide = ([p.astype(float) for p in v] if isinstance(v, list) else v.astype(float) for v in state.values())
        return State(zip(state, wide, strict=True))

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        self.net.load(weights)

    def __call__(self, x: Array, state: GivenState | None, *, lengths: Array | None = None) -> tuple[Array, State]:
        return Reference(self.net)(x, state, lengths=lengths)


def run_program(program: Program | None, networks: Sequence[RNN], inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """A program in float64. Raises InputError where there is none, or for inputs that do not fit."""
    if program is None:
        do = "call it as a module: reference(net)(x)"
        raise InputError(message("this network has no model around it", do=do))
    wide, oracles = program.in_dtype("float64"), [_Oracle(net) for net in networks]
    plan = Plan(wide.facts(), wide.arrays())
    real = {d.name for d in wide.inputs if d.dtype == "float64"}
    given = {name: _floats(f"input {name}", value) if name in real else value for name, value in inputs.items()}
    arrays = check_inputs(plan.inputs, given)

    def made(step: Mapping[str, Any], values: Sequence[Array]) -> Sequence[Array]:
        """What a step makes of these values."""
        if step["op"] == NETWORK:
            return call(oracles[int(step["attributes"]["network"])], values, step["attributes"])
        try:
            return evaluated(step["op"], values, step["attributes"], len(step["outputs"]))
        except Refused as reason:
            got = ", ".join("nothing" if v is None else f"{v.dtype}{list(v.shape)}" for v in values)
            what = f"{step['op']} of this model cannot be computed (node {step['node']!r})"
            raise InputError(message(what, got=f"{got}: {reason}", do="check the shapes of the inputs")) from None

    return plan.run(arrays, made)


@overload
def reference(net: RNN, seed: int | None = None, first_step: int = 0) -> Reference: ...
@overload
def reference(net: Model) -> ModelReference: ...
def reference(net: RNN | Model, seed: int | None = None, first_step: int = 0) -> Reference | ModelReference:
    """The NumPy float64 oracle: the op table's NumPy column (`graph/ops.py`), run step by step.

    Args:
        net: an RNN with weights, or a Model.
        seed: the network in training, as `forward_train(..., seed=seed)` runs it: with the masks of its regularisers.
            None: in inference.
        first_step: with a seed: the number of step 0 in its whole sequence.

    Returns:
        An object with the call signature of a compiled Module; of a Model, with its `run`.
    """
    if isinstance(net, Model):
        return ModelReference(net)
    return Reference(net, draws=None if seed is None else Draws(seed, first_step))
