"""A network's folder of plain C: its texts written, all of it in place at once.

In: an RNN with weights; for fixed point, bits and samples. Out: a folder, and what was written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.bundle.folder import check_folder, write_whole
from tvm_rnn.dtypes import real_numbers
from tvm_rnn.errors import ConfigError, InputError, WeightError, message
from tvm_rnn.explain.tables import origin_text
from tvm_rnn.names import markdown
from tvm_rnn.network.layer import Layer, weight_name
from tvm_rnn.network.rnn import RNN, no_network
from tvm_rnn.oracle.reference import reference

from .calibrate import Samples, calibrated, simulated
from .floating import Floating
from .layer_values import LayerValues, layer_values
from .source import Network, Source, source

FILES = ("{}.h", "{}.c", "{}_weights.h", "example.c", "README.md")
README = """\
# {name}

{about}

| file | |
|---|---|
| `{name}.h` | sizes, the stream, three functions |
| `{name}.c`, `{name}_weights.h` | the network: C99, math.h alone, no memory taken |
| `example.c` | raw numbers from stdin, step after step, to stdout |

{bytes}

```bash
cc -std=c99 -O3 {name}.c example.c -o example -lm
arm-none-eabi-gcc -std=c99 -O3 -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -c {name}.c
```
"""


@dataclass(frozen=True)
class Written:
    """What was written. folder: its path. flash: bytes of numbers known now; ram: bytes of a stream. bits: of the
    weights of products in fixed point, else 0. error: the largest one of y relative to float64 over the samples; of
    floats 0: the table of tolerances holds."""

    folder: str
    flash: int
    ram: int
    bits: int = 0
    error: float = 0.0


def write_c(
    net: RNN,
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    bits: int | None = None,
    samples: ArrayLike | Mapping[str, ArrayLike] | None = None,
) -> Written:
    """Write a network as plain C99: for machines that no other target is for, microcontrollers among them.

    Args:
        net: one direction, with weights, float32 or float64.
        path: the folder. One that is there is replaced if it is empty or was written so.
        name: what names in C begin with; None: the folder's name.
        bits: None: in the network's own dtype. 8 or 16: in fixed point, for machines without floating point: weights of
            products have so many bits (a scale for each row), all other values 16, with scales from `samples`.
        samples: x [T, B, I] (a dict where the cell has several inputs) such as the network will see: what is larger
            than anything in them is cut off. Constants of the cell are among them by name, [B, *shape].

    Raises ConfigError (another dtype, directions, random numbers, an operation without fixed point; bits without
    samples), WeightError (no weights), InputError (samples that do not fit) and BuildError (cannot write).
    """
    _check(net, bits, samples)
    folder, own = check_c(path, name)
    values = [_layer_values(net, layer) for layer in net.layers]
    if bits is None:
        network = Network(net, own, [(v, Floating(net.dtype)) for v in values], _about(net))
        return _write(source(network), network, folder, Written(folder, 0, 0))
    given = _samples(net, samples)
    walked = _walkable(net, given)
    numbers = calibrated(values, walked, bits)
    found = simulated(values, numbers, walked) * 2.0 ** -numbers[-1].exponent(values[-1].graph.output)
    expected, _ = reference(net)(given)
    error = float(np.abs(found.reshape(expected.shape) - expected).max() / (np.abs(expected).max() or 1.0))
    network = Network(net, own, list(zip(values, numbers, strict=True)), [*_about(net), _said(bits, error)])
    return _write(source(network), network, folder, Written(folder, 0, 0, bits, error))


def _layer_values(net: RNN, layer: Layer) -> LayerValues:
    names = {p.name: weight_name(p.name, layer.index, 0) for p in layer.graph.params}
    return layer_values(layer.graph, {name: net.weights[own] for name, own in names.items()})


def _samples(net: RNN, given: object) -> dict[str, np.ndarray]:
    """Inputs and constants by name, looked at. Raises InputError."""
    names, constants = list(net.input_shapes), net.constant_shapes
    arrays = dict(given) if isinstance(given, Mapping) else {names[0]: given}
    if {*arrays} != {*names, *constants}:
        do = "samples={name: array, ...}; in the shell --samples NAME=FILE for each"
        raise InputError(message("write_c: samples do not fit", got=[*arrays], expected=[*names, *constants], do=do))
    found, lead = {}, None
    for name, shape in {**net.input_shapes, **constants}.items():
        value = _numbers(name, arrays[name])
        lead = lead or value.shape[:2]
        expected = (*(lead if name in names else lead[1:]), *shape)
        if value.shape != expected or not value.size:
            text = f"[{', '.join([*(['T', 'B'] if name in names else ['B']), *map(str, shape)])}]"
            what = f"write_c: samples of {name} have the wrong shape"
            raise InputError(message(what, got=list(value.shape), expected=text))
        if not np.isfinite(value).all():
            raise InputError(message(f"write_c: samples of {name} are not finite", do="leave those rows out"))
        found[name] = value
    return found


def _walkable(net: RNN, given: Mapping[str, np.ndarray]) -> Samples:
    """Samples as the layers take them: the first input as a vector."""
    first, *more = net.input_shapes
    x = given[first].reshape(*given[first].shape[:2], *net.layers[0].graph.inputs[0].shape)
    return Samples([x, *(given[n] for n in more)], {n: given[n] for n in net.constant_shapes}, net.cell.initial)


def _numbers(name: str, value: object) -> np.ndarray:
    try:
        return real_numbers(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as reason:
        got = f"{type(value).__name__}: {reason}"
        raise InputError(message(f"write_c: samples of {name} are no array of numbers", got=got)) from None


def _said(bits: int, error: float) -> str:
    return (
        f"Fixed point: weights of products in {bits} bits, values in 16. y differs from float64 by {error:.2g} of its "
        "largest magnitude over the samples that its scales are from."
    )


def check_c(path: str | os.PathLike[str], name: str | None = None) -> tuple[str, str]:
    """The folder and the name of plain C, if it may be written there. Raises ConfigError."""
    more = {"example.c", "README.md"}
    return check_folder(
        "folder of plain C", path, name, lambda own: {f"{own}.h", f"{own}.c", f"{own}_weights.h"} | more
    )


def _check(net: object, bits: int | None, samples: object) -> None:
    if not isinstance(net, RNN):
        raise no_network("write_c", net)
    if not net.weights:
        raise WeightError(message("write_c: the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
    net.check_weights()
    if net.dtype not in ("float32", "float64"):
        raise ConfigError(message("write_c: no such dtype in C", got=net.dtype, expected="float32 or float64"))
    if net.bidirectional or net.reverse:
        got = "both directions" if net.bidirectional else "reverse"
        do = "compile it, and export a bundle"
        raise ConfigError(message("write_c: plain C goes forwards, step by step", got=got, do=do))
    if net.draws:
        raise ConfigError(message("write_c: a network that draws random numbers", got=", ".join(net.draws)))
    if net.program is not None:
        do = "compile it, and export a bundle"
        raise ConfigError(message("write_c: only networks alone", got="a model with operators around it", do=do))
    if bits not in (None, 8, 16):
        raise ConfigError(message("write_c: bits of weights in fixed point", got=repr(bits), expected="8 or 16"))
    if (bits is None) != (samples is None):
        got, do = ("samples alone", "give bits=8, --bits 8")
        if samples is None:
            got, do = "bits alone", "give samples=x, --samples x.npy"
        raise ConfigError(message("write_c: fixed point needs bits and samples", got=got, do=do))


def _about(net: RNN) -> list[str]:
    return [] if net.origin is None else [f"Made from: {origin_text(net.origin.facts())}."]


def _write(texts: Source, network: Network, folder: str, said: Written) -> Written:
    """Fill the folder. said: what is known of it already."""
    written = replace(said, flash=texts.flash, ram=texts.ram)

    def fill(work: Path) -> None:
        for file, text in texts.files.items():
            (work / file).write_text(text, encoding="utf-8")
        (work / "README.md").write_text(_readme(network, written), encoding="utf-8")

    write_whole("plain C", folder, fill)
    return written


def _readme(network: Network, written: Written) -> str:
    bytes = f"Numbers known now take {written.flash} bytes, a stream {written.ram}."
    about = "\n\n".join(markdown(text) for text in (f"{network.net!r}".strip("<>"), *network.about))
    return README.format(name=network.name, about=about, bytes=bytes)
