"""What a command line names, found: "lstm" or "file.py:function" is a Cell, "m.onnx" a network, "P=16" a size.

In: words from `cli/commands.py`. Out: a `Cell`, an `RNN` or a `Model`, or a ConfigError whose text says what was
expected.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tvm_rnn import cells
from tvm_rnn.errors import ConfigError, TvmRnnError, message, unknown
from tvm_rnn.language.cell import Cell
from tvm_rnn.network.model import Model
from tvm_rnn.network.rnn import RNN, Sizes

EXPECTED = 'a cell of the zoo ("lstm"; `tvm-rnn cells` lists them) or "file.py:function"'
MODELS = (".keras", ".onnx")  # how files of networks end


def find_cell(spec: str) -> Cell:
    """The Cell that `spec` names: a name of the zoo, "file.py:function", or "file.py" where that has one cell.

    The file is run, with its own folder importable. Raises ConfigError where there is no such cell or file, or where
    the file fails; CellError where @cell in it refuses the definition.
    """
    path, _, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if is_model(spec):
        do = "`tvm-rnn compile`, `show` and `inspect` take networks"
        raise ConfigError(message("this is a network, not a cell", got=repr(spec), expected=EXPECTED, do=do))
    if spec.endswith(".so"):
        do = "name what it was made from; `tvm-rnn inspect` says what that is"
        raise ConfigError(message("this module is compiled already", got=repr(spec), expected=EXPECTED, do=do))
    if path.endswith(".py"):
        return _cell_of(_run(path), path, name)
    if spec not in cells.ZOO:
        slots = unknown("cell", spec, cells.names())
        if "did you mean" not in slots["do"]:
            slots["do"] = f"give {EXPECTED}"
        raise ConfigError(message("no such cell", **slots))
    return cells.get(spec)


def is_model(spec: str) -> bool:
    """Whether a SPEC is the file of a network that another framework wrote."""
    return os.path.splitext(spec)[1] in MODELS


def read_model(
    spec: str,
    options: Sequence[str] = (),
    given: Mapping[str, float | list[float]] | None = None,
    shapes: Mapping[str, list[int | str]] | None = None,
) -> RNN | Model:
    """The network in a file. options: those that say something of a network, which such a file says itself: refused.
    given, shapes: inputs of an ONNX model that are fixed.

    Raises ConfigError, as from_onnx does.
    """
    if spec.endswith(".keras"):
        fixed = {"--given": given, "--shape": shapes}
        options = [*options, *(name for name, value in fixed.items() if value)]
    if options:
        got, do = ", ".join(options), "leave them out: sizes, dtype and weights are in the file"
        raise ConfigError(message("this file is a whole network", where=spec, got=got, do=do))
    if spec.endswith(".keras"):
        from .keras import from_keras

        return from_keras(spec)
    from .onnx import from_onnx

    return from_onnx(spec, given=given, shapes=shapes)


def _run(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise ConfigError(message("no such file", got=repr(path), expected=EXPECTED, do="check the path"))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[: -len(".py")], path)
    assert spec is not None and spec.loader is not None  # the name ends in .py and the file exists
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except TvmRnnError:
        raise
    except Exception as reason:  # the user's file may raise anything
        frames = [f for f in traceback.extract_tb(reason.__traceback__) if f.filename == path]
        line = getattr(reason, "lineno", None) if isinstance(reason, SyntaxError) else None
        line = line or (frames[-1].lineno if frames else None)
        where = path if line is None else f"{path}:{line}"
        got = f"{type(reason).__name__}: {reason}"
        raise ConfigError(message("this file cannot be imported", where=where, got=got, do="correct it")) from reason
    finally:
        sys.path.remove(folder)
    return module


def _cell_of(module: ModuleType, path: str, name: str) -> Cell:
    found = {key: value for key, value in vars(module).items() if isinstance(value, Cell)}
    if not name:
        own = [key for key, value in found.items() if value.function.__module__ == module.__name__]
        if len(own) == 1:
            return found[own[0]]
        got = f"{path!r}, with cells: {', '.join(own) or 'none'}"
        raise ConfigError(message("which cell of this file?", got=got, expected='"file.py:function"', do="name one"))
    if name in found:
        return found[name]
    if hasattr(module, name):
        got = f"{name}, a {type(getattr(module, name)).__name__}"
        raise ConfigError(message("this is not a cell", where=path, got=got, do="decorate the function with @cell"))
    raise ConfigError(message("this file has no such cell", where=path, **unknown("cell", name, found)))


def parse_sizes(words: Sequence[str]) -> dict[str, Sizes]:
    """["P=16", "H=64,32"] as {"P": 16, "H": [64, 32]}: a list is one size per layer. Raises ConfigError."""
    sizes: dict[str, Sizes] = {}
    for word in words:
        name, equals, text = word.partition("=")
        values = parse_numbers(text) if equals and name.isidentifier() else []
        if not values:
            raise ConfigError(message("--size", got=repr(word), expected="NAME=INT, or NAME=INT,INT,... per layer"))
        sizes[name] = values if len(values) > 1 else values[0]
    return sizes


def parse_values(words: Sequence[str]) -> dict[str, float | list[float]]:
    """["sr=16000", "scale=0.5,2"] as values by name. Raises ConfigError."""
    found: dict[str, float | list[float]] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values = [float(part) if {*part} & {*".einfa"} else int(part) for part in text.lower().split(",")]
        except ValueError:
            values = []
        if not name or not values:
            raise ConfigError(message("--given", got=repr(word), expected="NAME=NUMBER, or NAME=NUMBER,NUMBER,..."))
        found[name] = values if len(values) > 1 else values[0]
    return found


def parse_shapes(words: Sequence[str]) -> dict[str, list[int | str]]:
    """["input=B,576"] as sizes and names of axes by the input's name. Raises ConfigError."""
    found: dict[str, list[int | str]] = {}
    for word in words:
        name, _, text = word.partition("=")
        axes = [part.strip() for part in text.split(",")]
        if not name or not all(axis.isdecimal() or axis.isidentifier() for axis in axes):
            raise ConfigError(message("--shape", got=repr(word), expected="NAME=AXIS,AXIS,..., each a size or a name"))
        found[name] = [int(axis) if axis.isdecimal() else axis for axis in axes]
    return found


def parse_numbers(text: str) -> list[int]:
    """The numbers of "1,16"; none where that is not a list of whole numbers of at least 1."""
    parts = [part.strip() for part in text.split(",")]
    return [int(part) for part in parts] if all(part.isdecimal() and int(part) > 0 for part in parts) else []


def parse_bytes(text: str) -> int | None:
    """A number of bytes, which may end in k, M, G or T (1000s); "": None. Raises ConfigError."""
    text = text.strip()
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    try:
        return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text) if text else None
    except (ValueError, OverflowError):
        expected = "a number, such as 500000000 or 500M"
        raise ConfigError(message("this is no number of bytes", got=repr(text), expected=expected)) from None


def parse_probabilities(option: str, text: str) -> float | dict[str, float]:
    """A probability, "0.1", or one for each name, "h=0.1,c=0.05". Raises ConfigError for anything else; which names
    there are, and that a probability is below 1, is RNN's to say."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            return float(text)
        names = [name.strip() for name, _, _ in pairs]
        if all(equals for _, equals, _ in pairs) and len({*names}) == len(names):
            return {name: float(value) for name, (_, _, value) in zip(names, pairs, strict=True)}
    except ValueError:
        pass
    raise ConfigError(message(option, got=repr(text), expected="a probability, such as 0.1, or NAME=P,NAME=P"))


def parse_names(text: str) -> list[str]:
    """The names of "sm_80, sm_90a"; none of ""."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_batch(text: str) -> list[int]:
    """The batch sizes of "1,16"; none of "". Raises ConfigError for anything else."""
    values = parse_numbers(text)
    if text and not values:
        raise ConfigError(message("--batch", got=repr(text), expected="batch sizes, such as 1,16"))
    return values


def build_net(
    cell: Cell,
    input_size: int,
    hidden_size: int | None,
    *,
    layers: int = 1,
    bidirectional: bool = False,
    dtype: str = "float32",
    sizes: Mapping[str, Sizes] | None = None,
    fill: int | None = None,
    regularisers: Mapping[str, Any] | None = None,
) -> RNN:
    """An RNN of the cell. `fill`: the size of every axis that got none, to look at a cell; None: that is an error.
    regularisers: options of RNN, such as zoneout.

    Raises ConfigError or CellError, as RNN does.
    """
    given: dict[str, Any] = dict(sizes or {})
    if hidden_size is not None:
        given["H"] = hidden_size
    if fill is not None:
        ours = set(cell.inputs[0].dims.names[:1])  # bound to the input's size
        given.update({name: fill for name in cell.required if name not in given and name not in ours})
    hidden = given.pop("H", None)
    return RNN(cell, input_size, hidden, layers, bidirectional, dtype, **(regularisers or {}), **given)
