"""The texts of a network in plain C: header, source, weights, example.

In: an RNN with weights, the arithmetic of each layer. Out: `Source`, of which `folder.py` makes files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm_rnn.graph.graph import Node
from tvm_rnn.names import c_comment, identifiers
from tvm_rnn.network.rnn import RNN
from tvm_rnn.version import __version__

from .arithmetic import Arithmetic, Array
from .layer_values import LayerValues
from .nests import LayerCode, Names, Nests

TAKEN = ("s", "x", "y", "i", "k", "sum", "steps", "step", "block", "init", "work", "main", "NULL")

HEADER = """\
/* {name}.h: {title}.

{about}

   Everything is here: no memory is taken, and nothing is called{calls}. A `{name}` is a stream: its states, and what a
   step needs besides. It may lie anywhere, and there may be many of them. Arrays of a call do not overlap.{numbers}

   Written by tvm_rnn {version}; made again, not edited. */
#ifndef {macro}_H_
#define {macro}_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{ /* elements of a step */
{sizes}
}};

typedef struct {name} {{
{fields}
}} {name};

/* Begin: the states before the first step.{held} */
void {name}_init({name} *s);

/* One step: y of {given}. */
void {name}_step({name} *s, {parameters});

/* So many steps, one after the other: arrays are [steps][elements of a step]. */
void {name}_block({name} *s, int32_t steps, {parameters});
{more}
#ifdef __cplusplus
}}
#endif

#endif /* {macro}_H_ */
"""

FIXED = """

   Numbers are integers: q means q / 2^exponent. What is beyond 16 bits is cut off."""

CONVERT = """
enum {{ /* of arrays of a step */
{rows}
}};

/* A number in fixed point, and back. */
static inline int16_t {name}_fixed(float v, int exponent) {{
  const float q = exponent < 0 ? v / (float)(1L << -exponent) : v * (float)(1L << exponent);
  return q >= 32767 ? 32767 : q <= -32768 ? -32768 : (int16_t)(q < 0 ? q - 0.5f : q + 0.5f);
}}
static inline float {name}_float(int16_t q, int exponent) {{
  return exponent < 0 ? (float)q * (float)(1L << -exponent) : (float)q / (float)(1L << exponent);
}}
"""

SOURCE = """\
/* {name}.c: see {name}.h. C99. */
#include "{name}.h"
{math}
#include "{name}_weights.h"

{helpers}

void {name}_init({name} *s) {{
{begin}
}}

void {name}_step({name} *restrict s, {restricted}) {{
{step}
}}

void {name}_block({name} *restrict s, int32_t steps, {restricted}) {{
  for (int32_t t = 0; t < steps; ++t)
    {name}_step(s, {at_step});
}}
"""

EXAMPLE = """\
/* Run {name} over raw numbers ({kind}): from stdin, step after step, to stdout. */
#include <stdio.h>

#include "{name}.h"

static {name} stream;

int main(void) {{
  static {kind} {arrays};
  {name}_init(&stream);
  while ({reads}) {{
    {name}_step(&stream, {given}, y);
    if (fwrite(y, sizeof y, 1, stdout) != 1) return 1;
  }}
  return 0;
}}
"""


@dataclass(frozen=True)
class Field:
    """A state of a layer, as the stream has it. text: its name in C; initial: what it begins with, as C has it."""

    text: str
    state: str
    layer: int
    node: Node
    initial: str
    constant: bool


@dataclass(frozen=True)
class Source:
    """The files' texts by name, and what they need: bytes of numbers known now, bytes of a stream."""

    files: Mapping[str, str]
    flash: int
    ram: int
    fields: Sequence[Field]


@dataclass(frozen=True)
class Network:
    """A network to be written. layers: its values and its numbers; about: lines on it."""

    net: RNN
    name: str
    layers: Sequence[tuple[LayerValues, Arithmetic]]
    about: Sequence[str] = ()


def source(network: Network) -> Source:
    """All texts of a network."""
    net, name = network.net, network.name
    inputs = identifiers((a.name for a in net.cell.inputs), {*TAKEN, name} - {"x"})
    fields, codes = _fields(network), []
    below: dict[int, str] = dict(enumerate(inputs))
    for number, (values, numbers) in enumerate(network.layers):
        own = {f.node: f"s->{f.text}" for f in fields if f.layer == number}
        arrays = {node: below[i] for i, node in enumerate(values.graph.inputs)} | own
        codes.append(Nests(values, numbers, Names(f"{name}_w{number}", arrays, f"s->work.l{number}.")).written())
        below[0] = codes[-1].output
    numbers, kind = network.layers[0][1], network.layers[0][1].kind
    sizes = {word: prod(shape) for word, shape in zip(inputs, net.input_shapes.values(), strict=True)}
    sizes["y"] = prod(net.output_shape)
    weights = {n: array for code in codes for n, array in code.arrays.items()} | dict(numbers.tables())
    files = {
        f"{name}.h": _header(network, fields, codes, sizes),
        f"{name}.c": _source(network, fields, codes, sizes),
        f"{name}_weights.h": _weights(name, weights),
        "example.c": _example(name, kind, sizes),
    }
    flash = sum(len(array.numbers) * array.size for array in weights.values())
    elements = sum(prod(f.node.shape) for f in fields) + sum(_work(codes))
    return Source(files, flash, elements * numbers.bytes, fields)


def _fields(network: Network) -> list[Field]:
    net, found = network.net, []
    places = [(layer, s) for layer, (values, _) in enumerate(network.layers) for s in values.graph.states]
    words = identifiers((f"{s.name}_{layer}" for layer, s in places), {*TAKEN, network.name})
    for word, (layer, node) in zip(words, places, strict=True):
        numbers, initial = network.layers[layer][1], net.cell.initial.get(node.name, 0.0)
        constant = node.name in net.cell.constants
        found.append(Field(word, node.name, layer, node, numbers.literal(node, initial), constant))
    return found


def _shared(codes: Sequence[LayerCode]) -> bool:
    """Whether layers may use the same memory: none hands on what lies in its own."""
    return all(not code.output.startswith("s->work.") for code in codes[:-1])


def _work(codes: Sequence[LayerCode]) -> list[int]:
    """Elements of what a step needs: of each layer, or of the largest."""
    each = [sum(code.memory.values()) for code in codes]
    return [max(each)] if _shared(codes) else each


def _parameters(kind: str, sizes: Mapping[str, int], restrict: str = "") -> str:
    *inputs, y = sizes
    return ", ".join([*(f"const {kind} *{restrict}{x}" for x in inputs), f"{kind} *{restrict}{y}"])


def _header(network: Network, fields: Sequence[Field], codes: Sequence[LayerCode], sizes: Mapping[str, int]) -> str:
    name, macro, numbers = network.name, network.name.upper(), network.layers[0][1]
    kind, lines = numbers.kind, []
    for f in fields:
        scale = network.layers[f.layer][1].scale(f.node)
        said = f"layer {f.layer}: {c_comment(f.state)}" + ("" if scale is None else f", exponent {scale}")
        lines.append(f"  {kind} {f.text}[{prod(f.node.shape)}]; /* {said} */")
    if sum(_work(codes)):
        lines.append(f"  {'union' if _shared(codes) else 'struct'} {{")
        for number, code in enumerate(codes):
            own = " ".join(f"{kind} {n}[{size}];" for n, size in code.memory.items())
            lines += [f"    struct {{ {own} }} l{number};"] * bool(own)
        lines.append("  } work;")
    held = [f.text for f in fields if f.constant]
    about = "\n".join("   " + line for text in network.about for line in textwrap.wrap(c_comment(text), 115))
    return HEADER.format(
        name=name,
        title=c_comment(f"{network.net!r}".strip("<>")),
        about=about,
        calls=" but math.h" if numbers.scale(fields[0].node) is None else "",
        numbers=FIXED if numbers.scale(fields[0].node) is not None else "",
        version=__version__,
        macro=macro,
        sizes=",\n".join(f"  {macro}_{word.upper()} = {size}" for word, size in sizes.items()),
        fields="\n".join(lines),
        held=f" {', '.join(held)}: what is constant over time; yours to fill." if held else "",
        given=", ".join([*sizes][:-1]),
        parameters=_parameters(kind, sizes),
        more=_scales(network, [*sizes][:-1]),
    )


def _scales(network: Network, inputs: Sequence[str]) -> str:
    """What a program needs to make numbers in fixed point, and floats of them."""
    (values, numbers), (last, above) = network.layers[0], network.layers[-1]
    pairs = [(x, numbers.scale(node)) for x, node in zip(inputs, values.graph.inputs, strict=True)]
    pairs.append(("y", above.scale(last.graph.output)))
    macro = network.name.upper()
    rows = ",\n".join(f"  {macro}_{word.upper()}_EXPONENT = {scale}" for word, scale in pairs)
    return "" if pairs[0][1] is None else CONVERT.format(name=network.name, rows=rows)


def _source(network: Network, fields: Sequence[Field], codes: Sequence[LayerCode], sizes: Mapping[str, int]) -> str:
    name, kind = network.name, network.layers[0][1].kind
    begin = [f"  for (int i = 0; i < {prod(f.node.shape)}; ++i) s->{f.text}[i] = {f.initial};" for f in fields]
    step: list[str] = []
    for number, code in enumerate(codes):
        step += [f"  /* layer {number} */", *(f"  {line}" for line in code.lines)]
    step.append(f"  for (int i = 0; i < {sizes['y']}; ++i) y[i] = {codes[-1].output}[i];")
    text = "\n".join(step)
    unused = [f"  (void){x};" for x in sizes if not any(f"{x}{after}" in text for after in "[,")]
    return SOURCE.format(
        name=name,
        helpers=_helpers(network.layers[0][1], text),
        math="" if network.layers[0][1].scale(fields[0].node) is not None else "\n#include <math.h>\n",
        begin="\n".join(begin),
        step="\n".join([*unused, *step]),
        restricted=_parameters(kind, sizes, "restrict "),
        at_step=", ".join(f"{word} + t * {size}" for word, size in sizes.items()),
    )


def _helpers(numbers: Arithmetic, text: str) -> str:
    """The functions that a text calls, and those that these call."""
    found: list[str] = []
    for name, own in reversed(list(numbers.helpers().items())):
        if any(re.search(rf"\b{name}\b", other) for other in (text, *found)) or name == "int_is_as_expected":
            found.append(own)
    return "\n\n".join(reversed(found))


def _weights(name: str, arrays: Mapping[str, Array]) -> str:
    parts = [f"/* {name}_weights.h: numbers of {name}.c. */"]
    for own, array in arrays.items():
        numbers = textwrap.fill(", ".join(array.numbers), 118, initial_indent="  ", subsequent_indent="  ")
        parts.append(f"static const {array.kind} {own}[{len(array.numbers)}] = {{\n{numbers}\n}};")
    return "\n\n".join(parts) + "\n"


def _example(name: str, kind: str, sizes: Mapping[str, int]) -> str:
    *inputs, _ = sizes
    return EXAMPLE.format(
        name=name,
        kind=kind,
        arrays=", ".join(f"{word}[{size}]" for word, size in sizes.items()),
        reads=" && ".join(f"fread({x}, sizeof {x}, 1, stdin) == 1" for x in inputs),
        given=", ".join(inputs),
    )
