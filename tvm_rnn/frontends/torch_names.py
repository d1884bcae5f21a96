"""Names and shapes of torch's recurrent layers: what a state_dict says about the layer that it belongs to.

In: names and arrays, from `torch.py`; they may come from a file and fit or not. Out: a `Form`, the layer in torch's
words, with the arrays by their names in that layer; or one error with everything that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tvm_rnn.language.cell import Cell
from tvm_rnn.network.layer import weight_name

from .. import cells
from ..errors import ConfigError, WeightError, message, unknown

Array = np.ndarray
Given = dict[str, tuple[Array, str]]  # name: array, name of its dtype

NEXT_LINE = "\n            "  # of a slot of an error
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# No layer has a number of five digits, and Python refuses to read one of 5000.
NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)(?:_l(\d{1,4})(_reverse)?)?")


@dataclass(frozen=True)
class Form:
    """What kind of layer it is, in torch's words. single: a cell, whose names have no layer in them."""

    kind: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    bidirectional: bool = False
    proj_size: int = 0
    nonlinearity: str = "tanh"
    single: bool = False

    @property
    def cell(self) -> Cell:
        """The zoo's cell with these equations."""
        if self.kind == "RNN":
            return cells.elman if self.nonlinearity == "tanh" else cells.elman_relu
        return cells.gru if self.kind == "GRU" else cells.lstm_projection if self.proj_size else cells.lstm

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(layer, d) for layer in range(self.num_layers) for d in range(1 + self.bidirectional)]

    def name(self, parameter: str, layer: int, direction: int) -> str:
        return parameter if self.single else weight_name(parameter, layer, direction)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter of torch's, by its name."""
        rows = GATES[self.kind] * self.hidden_size
        found: dict[str, tuple[int, ...]] = {}
        out = self.proj_size or self.hidden_size
        for layer, d in self.places:
            width = self.input_size if layer == 0 else out * (1 + self.bidirectional)
            found[self.name("weight_ih", layer, d)] = (rows, width)
            found[self.name("weight_hh", layer, d)] = (rows, out)
            if self.bias:
                found |= {self.name(bias, layer, d): (rows,) for bias in ("bias_ih", "bias_hh")}
            if self.proj_size:
                found[self.name("weight_hr", layer, d)] = (self.proj_size, self.hidden_size)
        return found


def places(source: Mapping[str, object], depth: int = 6) -> dict[str, Mapping[str, object]]:
    """The dicts of a checkpoint that have weights of recurrent layers, by where they are: "" for the checkpoint itself,
    "['model']" for one inside of it. depth: how many dicts inside of each other are looked into."""
    if any(NAME.fullmatch(str(name).rpartition(".")[2]) for name in source):
        return {"": source}
    inside = [(name, part) for name, part in source.items() if depth and isinstance(part, Mapping)]
    return {f"[{name!r}]{at}": own for name, part in inside for at, own in places(part, depth - 1).items()}


def locate(source: Mapping[str, object], prefix: str | None) -> tuple[str, Mapping[str, object]]:
    """The dict of a checkpoint that has the weights, or that has some under this prefix, and where it is.

    Raises ConfigError where several have, WeightError where none has any."""
    found = places(source)
    if not found:
        expected = "weight_ih_l0, weight_hh_l0, ..., as torch names them, here or in a dict inside"
        modules = [f"pass checkpoint[{name!r}], or its state_dict()" for name in source if _is_module(source[name])]
        slots = {"got": _contents(source), "expected": expected, "do": next(iter(modules), None)}
        raise WeightError(message("from_torch: no weights of a recurrent layer", **slots))
    asked = {at: own for at, own in found.items() if _with_dot(prefix) in prefixes(own)} if prefix is not None else {}
    chosen = asked or found
    if len(chosen) > 1:
        got = NEXT_LINE.join(f"checkpoint{at}: {', '.join(map(repr, prefixes(own)))}" for at, own in chosen.items())
        what, do = "from_torch: several dicts with recurrent layers", f"pass one: checkpoint{next(iter(chosen))}"
        raise ConfigError(message(what, got=got, do=do))
    return next(iter(chosen.items()))


def prefixes(names: Iterable[str]) -> list[str]:
    """What comes before the names of weights, of each recurrent layer."""
    parts = [str(name).rpartition(".") for name in names]
    return sorted({f"{head}{dot}" for head, dot, last in parts if NAME.fullmatch(last)})


def _is_module(value: object) -> bool:
    return hasattr(value, "state_dict")


def _with_dot(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def _contents(source: Mapping[str, object]) -> str:
    """What is there instead: names, of what kind each is, and those inside."""
    lines = []
    for name, value in [*source.items()][:8]:
        inside = f" of {len(value)}: {', '.join(map(str, [*value][:4]))}" if isinstance(value, Mapping) else ""
        lines.append(f"{name}: {type(value).__name__}{list(getattr(value, 'shape', ())) or ''}{inside}")
    more = [f"and {len(source) - 8} more"] if len(source) > 8 else []
    return NEXT_LINE.join([*lines, *more]) or "nothing"


def select(names: Iterable[str], prefix: str | None) -> tuple[list[str], str]:
    """The names that belong to one layer, and the prefix that they have.

    Raises ConfigError where that prefix, or without one a single layer, is not there; WeightError where no layer is.
    """
    names = [*names]
    found = prefixes(names)
    if prefix is not None:
        prefix = _with_dot(prefix)
        if prefix not in found:
            slots = unknown("prefix", prefix, found)
            raise ConfigError(message("from_torch: no recurrent layer under this prefix", **slots))
    elif len(found) != 1:
        if found:
            got, do = f"prefixes {', '.join(map(repr, found))}", "say which: from_torch(..., prefix=...)"
            raise ConfigError(message("from_torch: several recurrent layers", got=got, do=do))
        got, expected = ", ".join(names[:8]) or "nothing", "weight_ih_l0, weight_hh_l0, ..., as torch names them"
        raise WeightError(message("from_torch: no weights of a recurrent layer", got=got, expected=expected))
    else:
        (prefix,) = found
    return [name for name in names if name[: name.rfind(".") + 1] == prefix], prefix


def read_form(given: Given, kind: object, prefix: str, nonlinearity: str) -> tuple[Form, Given]:
    """The layer that these names and shapes belong to, and its arrays by torch's names without the prefix.

    Raises WeightError with everything that does not fit, ConfigError where the kind is unknown or cannot be told.
    """
    arrays = {name.removeprefix(prefix): value for name, value in given.items()}
    found = [match for name in arrays if (match := NAME.fullmatch(name))]
    single = all(match[2] is None for match in found)
    suffix = "" if single else "_l0"
    shapes = {name: array.shape for name, (array, _) in arrays.items()}
    first = [shapes.get(f"{name}{suffix}", ()) for name in ("weight_ih", "weight_hh")]
    if any(len(shape) != 2 for shape in first):
        texts = [
            f"{prefix}{n}{suffix}: shape {list(s)}" for n, s in zip(("weight_ih", "weight_hh"), first, strict=True)
        ]
        raise _unfit(texts, "two axes each")
    (rows, out), projection = first[1], shapes.get(f"weight_hr{suffix}")
    hidden = projection[-1] if projection else out
    form = Form(
        kind=_kind(kind, rows, hidden, projection is not None),
        input_size=first[0][1],
        hidden_size=hidden,
        num_layers=1 + max(int(match[2] or 0) for match in found),
        bias=any(match[1].startswith("bias") for match in found),
        bidirectional=any(match[3] for match in found),
        proj_size=out if projection is not None else 0,
        nonlinearity=_nonlinearity(kind, nonlinearity),
        single=single,
    )
    described = f"torch.nn.{form.kind} of input_size {form.input_size} and {form.hidden_size} units"
    if form.num_layers > len(arrays):  # a name may count to any number
        raise _unfit([f"{len(arrays)} arrays for {form.num_layers} layers"], described)
    expected = form.shapes()
    wrong = [f"missing: {prefix}{name}{list(shape)}" for name, shape in expected.items() if name not in shapes]
    wrong += [f"unknown: {prefix}{name}" for name in shapes if name not in expected]
    for name, shape in shapes.items():
        if shape != expected.get(name, shape) or 0 in shape:
            wrong.append(
                f"{prefix}{name}: shape {list(shape)}, expected {list(expected.get(name, shape))}, no axis of 0"
            )
    if wrong:
        raise _unfit(wrong, described)
    return form, arrays


def _unfit(wrong: list[str], expected: str) -> WeightError:
    text = NEXT_LINE.join(wrong)
    return WeightError(message("from_torch: these are not the weights of one layer", got=text, expected=expected))


def _kind(kind: object, rows: int, hidden: int, projection: bool) -> str:
    """LSTM, GRU or RNN: as told, or as the number of gates tells."""
    if kind is None:
        gates = rows / hidden if hidden else 0
        told = next((name for name, count in GATES.items() if count == gates and name != "RNN"), None)
        if told is None:
            got = f"weight_hh with {rows} rows for {hidden} units"
            do = 'say which: from_torch(..., kind="RNN", nonlinearity="relu")'
            raise ConfigError(message("from_torch: the shapes do not tell the kind of layer", got=got, do=do))
        return told
    name = getattr(kind, "__name__", str(kind))  # also torch.nn.LSTM itself
    name = name.removesuffix("Cell").removesuffix("_TANH").removesuffix("_RELU")
    if name not in GATES:
        raise ConfigError(message("from_torch: no such kind of layer", **unknown("kind", name, GATES)))
    if projection and name != "LSTM":
        raise ConfigError(message("from_torch: only an LSTM has a projection", got=f"weight_hr in a {name}"))
    return name


def _nonlinearity(kind: object, nonlinearity: str) -> str:
    for word in ("tanh", "relu"):
        if str(kind).endswith(f"_{word.upper()}"):  # torch's own `mode`
            return word
    if nonlinearity not in ("tanh", "relu"):
        slots = unknown("nonlinearity", nonlinearity, ("tanh", "relu"))
        raise ConfigError(message("from_torch: no such nonlinearity", **slots))
    return nonlinearity
