"""RNN: a cell over time, with sizes, layers, directions, dtype and weights.

In: a `Cell` and sizes from the user. Out: one traced `Graph` per distinct layer for `compile` and `reference`, and
weights as ordinary arrays named `<parameter>_l{layer}` (suffix `_reverse` for the backward direction), as torch names
them.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tvm_rnn.dtypes import check_fit, dtype_name, held_dtype, rounded
from tvm_rnn.errors import ConfigError, WeightError, message, unknown, whole_number
from tvm_rnn.graph.graph import Graph, constant, is_move
from tvm_rnn.graph.graph_text import graph_text
from tvm_rnn.graph.ops import Shape
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.ensemble import AXIS, ensemble
from tvm_rnn.network.program import Program

from .layer import Layer, weight_name
from .origin import Origin
from .regularise import OPTIONS, Probability, regularisers
from .tensor_files import open_safetensors

Sizes = int | Sequence[int]
LARGEST_SIZE = 2**31 - 1


class RNN:
    """A recurrent network: `num_layers` layers of one cell, in one or both directions, over time.

    Args:
        cell: a Cell of `tvm_rnn.cells`, or a user's own.
        input_size: features of x (axis I), or the first of its axes, such as C of "C Y X".
        hidden_size: axis H, of one head where a cell has several: an int, or one int per layer.
        num_layers: layers, each of which reads the output of the one before.
        bidirectional: two directions per layer; the output is [T, B, 2 H].
        dtype: of x, y, states and weights: "float32" or "float64", and for GPUs "float16" and "bfloat16". Weights and
            states of the 16-bit dtypes are float32 arrays whose values 16 bits can hold.
        reverse: one direction that begins at each row's last step and ends at step 0. Such a network cannot be called
            step by step.
        dropout: probability, from 0 to below 1, of what layers hand to the next one.
        recurrent_dropout: probability for a state where a parameter multiplies it; the same units at all steps of a
            sequence. A number, or {name of a state: number}.
        zoneout: how likely a unit of a state keeps its value; in inference the expectation. A number, or {name of a
            state: number}.
        weight_drop: probability for the elements of parameters that multiply states, drawn once per call. A number, or
            {name of a parameter: number}.
        members: how many networks of this form there are, in one: each has inputs, states and weights of its own, x
            [T, B, members, I], y [T, B, members, H], states [L*D, B, members, H], weights [members, ...]. None: one
            network, without that axis. Directions are joined along the first axis: y [T, B, 2 members, H].
        batch_first: x, y and whatever else begins [T, B] begin [B, T], as of torch's layers: in calls of modules,
            layers and the oracle, and in ONNX files. States are [L*D, B, ...] all the same. C takes time first.
        **sizes: other axes of the cell by name: `RNN(cells.lstm_projection, 32, 64, P=16)`; an int, or one per layer.
            proj_size is P, as in torch. An axis "N?" is left out where N is not given; "K=H" is H then.

    The four regularisers act in training (`forward_train`, `to_torch(net).train()`). Their masks depend on seed, layer,
    direction, step, row and unit alone, and are never stored (`regularise.py`).

    Raises:
        ConfigError: an argument is wrong.
        CellError: the equations do not fit these sizes.
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: Sizes | None = None,
        num_layers: int = 1,
        bidirectional: bool = False,
        dtype: str = "float32",
        *,
        reverse: bool = False,
        dropout: float = 0.0,
        recurrent_dropout: Probability = None,
        zoneout: Probability = None,
        weight_drop: Probability = None,
        members: int | None = None,
        batch_first: bool = False,
        **sizes: Sizes,
    ) -> None:
        if not isinstance(cell, Cell):
            do = "pass rnn.cells.lstm or your own @cell"
            if isinstance(cell, str) and cell.isidentifier():
                do = f"pass the cell, not its name: rnn.cells.{cell.lower()} if the zoo has it, or your own @cell"
            raise ConfigError(message("RNN needs a cell", got=f"{cell!r:.80}", do=do))
        self.members = None if members is None else _size("members", members)
        if self.members is not None:
            cell, sizes[AXIS] = cell if AXIS in cell.size_names else ensemble(cell), self.members
        if "proj_size" in sizes:  # torch's name for the axis P
            if "P" in sizes:
                raise ConfigError(message("RNN: proj_size is another name of P", got="both", do="give one of them"))
            sizes["P"] = sizes.pop("proj_size")
        for name, value in (("bidirectional", bidirectional), ("reverse", reverse), ("batch_first", batch_first)):
            if not isinstance(value, bool | np.bool_ | int):
                raise ConfigError(message(f"RNN: {name}", got=repr(value), expected="True or False"))
        self.cell, self.dtype = cell, dtype_name(dtype)
        self.input_size = _size("input_size", input_size)
        self.num_layers = _size("num_layers", num_layers)
        self.bidirectional, self.reverse, self.batch_first = bool(bidirectional), bool(reverse), bool(batch_first)
        if self.bidirectional and self.reverse:
            raise ConfigError(
                message("RNN: both directions include the reverse one", got="both", do="give one of them")
            )
        self.sizes = self._bind(hidden_size, sizes)
        layers, options = self._trace(), (dropout, recurrent_dropout, zoneout, weight_drop)
        self.regularisers = regularisers(layers[0].graph, self.num_layers, *options)
        self.layers = self.regularisers.applied(layers)
        self.weights: dict[str, np.ndarray] = {}
        self.origin: Origin | None = None  # the layer of another framework that this one was
        self.program: Program | None = None  # the whole model that it was part of, this network included

    def time_first(self) -> RNN:
        """The same network, with the same weights, whose calls have time first, as compiled code has it."""
        if not self.batch_first:
            return self
        found = copy.copy(self)
        found.batch_first = False
        return found

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def hidden_size(self) -> int:
        return int(self.sizes[-1]["H"]) if "H" in self.sizes[-1] else self.layers[-1].width

    @property
    def output_size(self) -> int:
        """Features of y: the last layer's width times the number of directions."""
        return self.layers[-1].width * self.num_directions

    @property
    def input_shapes(self) -> dict[str, Shape]:
        """Of each input by name its axes at a step of one row: of a vector x, (input_size,)."""
        return {a.name: a.shape(self.layers[0].sizes) for a in self.cell.inputs}

    @property
    def constant_shapes(self) -> dict[str, Shape]:
        """Of each argument that is constant over time by name its axes for one row."""
        return {a.name: a.shape(self.layers[0].sizes) for a in self.cell.states if a.name in self.cell.constants}

    @property
    def output_shape(self) -> Shape:
        """The axes of y at a step of one row: of a vector, (output_size,). Directions are joined along the first."""
        first, *rest = self.layers[-1].output_shape
        return (first * self.num_directions, *rest)

    @cached_property
    def draws(self) -> list[str]:
        """The names of the streams of random numbers that the equations draw from, in inference too."""
        nodes = (n for layer in self.layers for n in layer.graph.nodes() if n.random)
        return list(dict.fromkeys(str(n.attrs["stream"]) for n in nodes))

    @property
    def streams(self) -> list[str]:
        """The names of all streams of training: those of masks, and those of the equations' own random numbers."""
        return [*self.regularisers.streams, *self.draws]

    @property
    def tokens(self) -> int | None:
        """How many tokens there are where the first input is one: a place in a table, and nothing else. Else None."""
        first = self.layers[0].graph
        found: list[int] = []
        below = {first.inputs[0]}
        for node in first.nodes():
            if is_move(node) and node.args[0] in below:
                below.add(node)
            elif node.op == "take" and node.args[1] in below:
                found.append(node.args[0].shape[0])
            elif any(a in below for a in node.args):
                return None
        return min(found, default=None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes[0].items()) or f"I={self.input_size}"
        directions = "reverse" if self.reverse else f"directions={self.num_directions}"
        drops = " batch first" * self.batch_first + (f" {self.regularisers}" if self.regularisers else "")
        return f"<RNN {self.cell.name} {sizes} layers={self.num_layers} {directions} {self.dtype}{drops}>"

    def _repr_html_(self) -> str:
        """For notebooks: the equations of each layer; those of layers with equal sizes once."""
        return self.drawing()()

    def drawing(self) -> Callable[[], str]:
        """What `_repr_html_` returns, made when it is called; it keeps no weights alive."""
        graphs, title = {id(layer.graph): layer.graph for layer in self.layers}, repr(self)

        def html() -> str:
            from tvm_rnn.graph.equations import drawn

            return drawn(title, graphs.values())

        return html

    def _bind(self, hidden_size: Sizes | None, sizes: Mapping[str, Sizes]) -> list[dict[str, int]]:
        names = self.cell.size_names
        given: dict[str, Sizes] = dict(sizes) if hidden_size is None else {"H": hidden_size, **sizes}
        for name in given:
            if name not in names:
                own = ("hidden_size", "num_layers", "bidirectional", "dtype", "reverse", "members", "batch_first")
                known = (*names, *own, *OPTIONS)
                what = f"RNN: cell {self.cell.name} has no axis {name!r}, and RNN no such argument"
                if name == "H" and hidden_size is not None:
                    what = f"RNN: cell {self.cell.name} has no axis 'H', whose size hidden_size is"
                    known = names
                raise ConfigError(message(what, **unknown("axis", name, known)))
        layers = []
        for layer in range(self.num_layers):
            bound = {}
            for name, value in given.items():
                if isinstance(value, Sequence) and not isinstance(value, str):
                    if len(value) != self.num_layers:
                        text = f"{len(value)} values for {self.num_layers} layers"
                        raise ConfigError(message(f"RNN: size {name} per layer", got=text, do="give one per layer"))
                    value = value[layer]
                bound[name] = _size("hidden_size" if name == "H" else name, value)
            layers.append(bound)
        return layers

    def _trace(self) -> tuple[Layer, ...]:
        lead = self.cell.lead(self.sizes[0])
        named, above = self.cell.inputs[0].dims.labels[len(lead)], self.cell.joined(self.num_directions)
        layers, shape = list[Layer](), (*lead, self.input_size)
        cache: dict[object, Graph] = {}
        for index, bound in enumerate(self.sizes):
            if named is not None and named not in bound:  # the usual case: x: "I"
                bound[named] = shape[len(lead)]
            bound.update(self.cell.completed(bound))
            cell = above if index else self.cell
            key = cell, tuple(sorted(bound.items()))
            if key not in cache:
                cache[key] = cell.trace(bound, held_dtype(self.dtype))
            graph = cache[key]
            layers.append(Layer(index, bound, graph, graph))
            self._check_inputs(layers, shape)
            self._check_constants(layers[0].graph, graph)
            first, *rest = layers[-1].output_shape[len(lead) :]
            shape = (*lead, first * self.num_directions, *rest)
        return tuple(layers)

    def _check_inputs(self, layers: Sequence[Layer], shape: Shape) -> None:
        """The newest layer reads what the one below emits (of the first, input_size is the first axis); its other
        inputs are those of layer 0."""
        index, graph, cell = layers[-1].index, layers[-1].graph, self.cell
        own = cell.inputs[0].shape(layers[-1].sizes)
        if own[: len(shape)] != shape or (index and own != shape):
            source = "input_size" if index == 0 else f"the output of layer {index - 1}"
            raise ConfigError(
                message(
                    f"cell {cell.name}: layer {index} does not fit its input",
                    where=cell.where,
                    got=f"{source} = {shape[0] if len(shape) == 1 else list(shape)}",
                    expected=f"{cell.inputs[0]} = {own[0] if len(own) == 1 else list(own)}",
                    do="choose sizes that agree, or declare the cell's input as an axis of its own",
                )
            )
        for argument, given, shared in zip(cell.inputs, graph.inputs, layers[0].graph.inputs, strict=True):
            if argument is not cell.inputs[0] and given.shape != shared.shape:
                raise ConfigError(
                    message(
                        f"cell {cell.name}: every layer is given the same {argument.name}",
                        where=cell.where,
                        got=f"{list(shared.shape)} at layer 0 and {list(given.shape)} at layer {index}",
                        expected="one shape",
                        do=f"give {argument.name} an axis that does not change from layer to layer",
                    )
                )

    def _check_constants(self, first: Graph, graph: Graph) -> None:
        """Every layer is given the same constants."""
        for own, shared in zip(graph.states, first.states, strict=True):
            if own.name in self.cell.constants and own.shape != shared.shape:
                raise ConfigError(
                    message(
                        f"cell {self.cell.name}: every layer is given the same {own.name}",
                        where=self.cell.where,
                        got=f"{list(shared.shape)} at layer 0 and {list(own.shape)} at a later one",
                        expected="one shape",
                        do=f"give {own.name} an axis that does not change from layer to layer",
                    )
                )

    @property
    def weight_shapes(self) -> dict[str, Shape]:
        """Every weight's name and shape, in a fixed order: by layer, direction, then the cell's own order."""
        return {
            weight_name(p.name, layer.index, direction): p.shape
            for layer in self.layers
            for direction in range(self.num_directions)
            for p in layer.graph.params
        }

    def init(self, seed: int = 0) -> RNN:
        """Fill the weights: uniform in +-1/sqrt(H) as torch does, or as the cell's `init` says. Returns self.

        Raises ConfigError for a seed that is no whole number of at least 0."""
        rng = np.random.default_rng(whole_number("init: seed", seed, 0))
        for layer in self.layers:
            bound = 1.0 / np.sqrt(layer.sizes.get("H", layer.width))
            for direction in range(self.num_directions):
                for p in layer.graph.params:
                    how = self.cell.init.get(p.name, "uniform")
                    value = rng.uniform(-bound, bound, p.shape)
                    if how != "uniform":
                        value = np.full(p.shape, {"zeros": 0.0, "ones": 1.0}.get(str(how), how), np.float64)
                    name = weight_name(p.name, layer.index, direction)
                    self.weights[name] = rounded(value, self.dtype)  # also where uniform gave a plain number
        return self

    def load(self, source: Mapping[str, object] | str | os.PathLike[str]) -> RNN:
        """Take weights from a dict of arrays or a .safetensors file; all of them, by name. Returns self.

        Arrays of another float dtype are converted to the RNN's. Raises WeightError naming every weight that is
        missing, unknown or of a wrong shape, or has finite numbers that would be infinite in the RNN's dtype, and then
        changes nothing. Infinities and NaNs that are given stay what they are.
        """
        self.weights = checked_weights(self.weight_shapes, _arrays(source), self.dtype)
        return self

    def check_weights(self) -> None:
        """Raise WeightError if the weights were changed by hand to something that does not fit."""
        self.weights = checked_weights(self.weight_shapes, self.weights, self.dtype)

    def initial_state(self, batch: int) -> dict[str, Any]:
        """{name: [L*D, B, *shape]}, or a list of one [D, B, *shape] per layer where layers differ in shape. Constants,
        which a caller gives, are not among them. Raises ConfigError for a batch that is none."""
        batch = whole_number("initial_state: batch", batch, 0, LARGEST_SIZE)
        return {n: value for n, value in self._first_states(batch).items() if n not in self.cell.constants}

    def _first_states(self, batch: int) -> dict[str, Any]:
        """The initial state, and zeros in the places of constants."""
        result: dict[str, Any] = {}
        for position, state in enumerate(self.cell.states):
            value = self.cell.initial.get(state.name, 0.0)
            shapes = [layer.graph.states[position].shape for layer in self.layers]
            held = held_dtype(self.dtype)
            arrays = [np.full((self.num_directions, batch, *shape), value, held) for shape in shapes]
            result[state.name] = np.concatenate(arrays) if len(set(shapes)) == 1 else arrays
        return result


def no_network(who: str, given: object) -> ConfigError:
    """The error of a function that was given no RNN; who: its name. A layer of torch is told the way."""
    net = "rnn.from_torch(layer)" if hasattr(given, "named_parameters") else "rnn.RNN(cell, I, H)"
    return ConfigError(message(f"{who} needs an RNN", got=f"{given!r:.80}", do=f"rnn.{who}({net})"))


def check_without_constants(who: str, net: RNN) -> None:
    """Raise ConfigError for a network whose cell has constants. who: what cannot give it any."""
    if net.cell.constants:
        do = "give them yourself: call the module"
        raise ConfigError(message(f"{who}: no cell with constants", got=", ".join(net.cell.constants), do=do))


def constants(graph: Graph) -> list[np.ndarray]:
    """The array constants of a graph's equations, in a fixed order; scalars are written into the code."""
    return [n.value for n in graph.nodes() if n.op == "const" and n.value is not None and n.value.size > 1]


def named_constants(graph: Graph, number: int | str) -> dict[str, np.ndarray]:
    """The array constants of a network's graph `number` by the names that a module's file has them under."""
    return {f"constant.{number}.{i}": value for i, value in enumerate(constants(graph))}


def equations_digest(net: RNN) -> str:
    """SHA-256 of every layer's equations as traced, with the arrays in them: what a manifest knows them by."""
    distinct = {id(layer.graph): layer.graph for layer in net.layers}.values()
    found = hashlib.sha256()
    for graph in distinct:
        found.update(f"{sorted(graph.sizes.items())} {graph.dtype}{graph_text(graph).partition(chr(10))[2]}".encode())
        for node in graph.nodes():
            if node.op == "const" and node.value is not None:
                found.update(node.value.tobytes())
    return found.hexdigest()


def _size(name: str, value: object) -> int:
    size = whole_number(f"RNN: {name}", value, 1)
    if size > LARGEST_SIZE:
        raise ConfigError(message(f"RNN: {name} is too large", got=size, expected=f"at most {LARGEST_SIZE:,}"))
    return size


def _arrays(source: Mapping[str, object] | str | os.PathLike[str]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise WeightError(message("weights are a dict or the path of a .safetensors file", got=f"{source!r:.80}"))
    return {name: tensor.read() for name, tensor in open_safetensors(source).items()}


def checked_weights(shapes: Mapping[str, Shape], given: Mapping[str, object], dtype: str) -> dict[str, np.ndarray]:
    """Weights by name as contiguous arrays of `dtype`; WeightError lists all that does not fit: shapes, dtypes, and
    numbers that `dtype` does not have."""
    wrong = [f"missing: {name}{list(shape)}" for name, shape in shapes.items() if name not in given]
    wrong += [f"unknown: {name}" for name in given if name not in shapes]
    result = {}
    for name, shape in shapes.items():
        if name not in given:
            continue
        array = _weight(given[name])
        if array is None:
            wrong.append(f"{name}: {type(given[name]).__name__}, expected an array")
        elif array.shape != shape:
            wrong.append(f"{name}: shape {list(array.shape)}, expected {list(shape)}")
        elif array.dtype.kind not in "fiu":
            wrong.append(f"{name}: dtype {array.dtype}, expected {dtype}")
        else:
            result[name] = array
    if wrong:
        text, expected = "\n            ".join(wrong), f"{len(shapes)} arrays, see .weight_shapes"
        theirs = any(str(name).startswith(("weight_ih", "weight_hh")) for name in given)
        do = "these are a layer's of torch: rnn.from_torch makes the network of them" if theirs else None
        raise WeightError(message("these weights do not fit", got=text, expected=expected, do=do))
    check_fit(result, dtype)
    # Copies: later changes of the caller's do not count.
    return {name: np.array(rounded(array, dtype), order="C") for name, array in result.items()}


def _weight(value: Any) -> np.ndarray | None:
    """NumPy's view of an array or a torch tensor (bfloat16, which NumPy lacks, widened); None where it is no array."""
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        return None
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return None


__all__ = ["RNN", "Layer", "checked_weights", "constant", "constants", "named_constants", "weight_name"]
