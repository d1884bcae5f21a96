"""What the command line does with networks: those of cells and sizes, and those that come whole in a file.

In: words and options from `cli.py`. Out: an `RNN` or a `Model`; a whole model's results in files.
"""

from __future__ import annotations

import os
from typing import Any

from .arrays import npy_writer, npz_writer, read_npy, write_whole
from .errors import ConfigError, InputError, message, unknown
from .model import Model
from .rnn import RNN
from .spec import build_net, find_cell, is_model, parse_sizes, read_model


def net_of(
    spec: str,
    width: int | None,
    hidden: int | None,
    size: list[str] | None,
    shape: dict[str, Any],
    more: dict[str, Any],
) -> RNN | Model:
    """The network that a SPEC names. shape: layers, bidirectional, dtype. more: weights, seed or fill.

    Raises ConfigError, CellError or WeightError, as what reads it does.
    """
    if is_model(spec):
        said = {"--input-size": width, "--hidden-size": hidden, "--size": size or None, "--dtype": shape["dtype"]}
        said |= {"--layers": shape["layers"] if shape["layers"] > 1 else None}
        said |= {"--bidirectional": shape["bidirectional"] or None}
        said |= {"--weights": more.get("weights"), "--seed": more.get("seed")}
        return read_model(spec, [option for option, value in said.items() if value is not None])
    shape = {**shape, "dtype": shape["dtype"] or "float32", "fill": more.get("fill")}
    net = build_net(find_cell(spec), width or 0, hidden, sizes=parse_sizes(size or []), **shape)
    if more.get("weights") is not None:
        net.load(more["weights"])
    elif more.get("seed") is not None:
        net.init(more["seed"])
    return net


def run_model(loaded: Any, words: list[str], output: str, options: list[str]) -> None:
    """`tvm-rnn run` for a module of a whole model: by the model's own names. options: those that it has no use for."""
    names = [item["name"] for item in loaded.manifest["model"]["inputs"]]
    if options:
        do = f"give the model's own inputs: {', '.join(names)}"
        raise ConfigError(message("this module is a whole model", got=", ".join(options), do=do))
    results = loaded.run({name: read_npy(path) for name, path in name_inputs(words, names).items()})
    first = loaded.manifest["model"]["outputs"][0]["name"]
    write_whole({output: npz_writer(results) if output.endswith(".npz") else npy_writer(results[first])})


def name_inputs(words: list[str], names: list[str]) -> dict[str, str]:
    """{input: path} from "path" (the first input) and "name=path"."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if equals and name not in names and not os.path.exists(word):
            raise InputError(message("--input: no such input", **unknown("input", name, names)))
        if not equals or name not in names:
            name, path = names[0], word
        if name in given:
            raise InputError(message(f"--input: {name} is given twice", got=f"{given[name]}, {path}", expected="once"))
        given[name] = path
    return given
