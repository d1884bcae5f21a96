"""The generated C source of a bundle's library: tables for engine.c, and the functions that the header declares.

In: `Facts`. Out: the text of one C file, which is compiled with engine.c.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import structs

from tvm_rnn.module_file.schema import Workspace
from tvm_rnn.runtime import runtime_random

from ..names import c_string
from .facts import Facts, Network, initialiser
from .header import about_lines, arrays_of, generation_parameters

# Steps of one call of the compiled loop in a bundle, whose memory is bounded: so many, or so many elements of a row.
MOST_STEPS, MOST_ELEMENTS = 32, 4096
DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of NumPy's kinds

FUNCTIONS = """\
struct {name} {{ int unused; }}; /* a handle is a struct engine */
#define HANDLE ((struct engine *)handle)

int32_t {name}_open(const char *path, {name} **handle) {{
  return engine_open(&module, path, (struct engine **)handle);
}}
int32_t {name}_share({name} *handle, {name} **other) {{ return engine_share(HANDLE, (struct engine **)other); }}
void {name}_close({name} *handle) {{ engine_close(HANDLE); }}
const char *{name}_error(void) {{ return engine_error(); }}
const char *{name}_about(void) {{ return {about}; }}
int32_t {name}_set_threads({name} *handle, int32_t threads) {{ return engine_threads(HANDLE, threads); }}
"""

NETWORK = """\
int32_t {network}_reserve({name} *handle, int64_t steps, int64_t batch) {{
  return engine_reserve(HANDLE, {number}, steps, batch);
}}

int32_t {network}_init_state({name} *handle, int64_t batch{state_parameters}) {{
  void *const states[] = {{{states}0}};
  return engine_init_state(HANDLE, {number}, batch, states);
}}
"""

CALL = """\
int32_t {network}_{entry}({name} *handle, {sizes}int64_t batch, {arrays}{more}) {{
  const void *const inputs[] = {{{inputs}0}};
  void *const states[] = {{{states}0}};
  const struct engine_call call = {{{steps}, batch, inputs, states, y, {rows}, 0}};
  return engine_{entry}(HANDLE, {number}, &call);
}}
"""

GENERATE = """\
int32_t {network}_generate({name} *handle, {parameters}) {{
  const void *const inputs[] = {{0, {inputs}0}};
  void *const states[] = {{{states}0}};
  const struct engine_request request = {{
    steps, batch, prompt, prompt_steps, inputs, states, y, lengths, stop, {drawn}
  }};
  return engine_generate(HANDLE, {number}, &request);
}}
"""


def source_text(facts: Facts, program: str = "") -> str:
    """The C file. program: tables and functions of the model around the networks, which program.py writes."""
    about = c_string("\n".join(about_lines(facts)))
    parts = [f"/* Tables and functions of {facts.name}, made from its module. */\n"]
    parts.append(f'#include <math.h>\n\n#include "{facts.name}.h"\n#include "operations.h"\n')
    parts.append(_tables(facts))
    parts += [_network_tables(network, i) for i, network in enumerate(facts.networks)]
    parts.append(_module(facts))
    parts.append(FUNCTIONS.format(name=facts.name, about=about))
    parts += [_functions(facts, network, i) for i, network in enumerate(facts.networks) if not network.given]
    return "\n".join([*parts, *[program] * bool(program)])


def _tables(facts: Facts) -> str:
    rows = []
    for array in facts.arrays:
        dtype = np.dtype(array.dtype)
        elements = int(np.prod(array.shape, dtype=np.int64))
        rows.append(f"  {{{array.offset}, {elements}, {DLPACK_CODES[dtype.kind]}, {8 * dtype.itemsize}}},")
    features = [f"{{{c_string(a)}, {c_string(b) if b else '0'}}}" for a, b in facts.features]
    text = "static const struct engine_array arrays[] = {\n" + "\n".join([*rows, "  {0, 0, 0, 0}"]) + "\n};\n"
    return text + f"static const struct engine_feature features[] = {{{', '.join([*features, '{0, 0}'])}}};\n"


def _network_tables(network: Network, number: int) -> str:
    parts, packs = [], []
    for i, (pack, arrays) in enumerate(zip(network.manifest.packs, network.packed, strict=True)):
        parts.append(f"static const int32_t pack_{number}_{i}[] = {{{initialiser(arrays)}}};")
        packs.append(f"{{{c_string(pack.function)}, {pack.offset}, {len(arrays)}, pack_{number}_{i}}}")
    names = [array.name for array in (*network.inputs, *network.states, network.output)]
    packs.append("{0, 0, 0, 0}")
    initial = ["NAN" if math.isnan(state.initial) else repr(float(state.initial)) for state in network.states]
    parts += [
        f"static const struct engine_pack packs_{number}[] = {{{', '.join(packs)}}};",
        f"static const char *const names_{number}[] = {{{initialiser(map(c_string, names))}}};",
        f"static const int64_t inputs_{number}[] = {{{initialiser(x.per_row for x in network.inputs)}}};",
        f"static const int64_t states_{number}[] = {{{initialiser(s.per_row for s in network.states)}}};",
        f"static const double initial_{number}[] = {{{initialiser(initial)}}};",
    ]
    return "\n".join(parts) + "\n" + _generation_tables(network, number)


def _generation_tables(network: Network, number: int) -> str:
    own = network.manifest.generation
    if own is None:
        return ""
    draws = network.manifest.draws or []
    words = initialiser(f"{runtime_random.name_word(name)}u" for name in draws)
    steps = max(1, min(MOST_STEPS, MOST_ELEMENTS // max(1, network.output.per_row)))
    counts = f"{own.tokens or 0}, {steps}, {network.manifest.num_layers}, {len(draws)}"
    row = f'"generate", {counts}, draws_{number}, {_workspace(own.workspace)}'
    return (
        f"static const uint32_t draws_{number}[] = {{{words}}};\n"
        f"static const struct engine_generation generation_{number} = {{{row}}};\n"
    )


def _workspace(sizes: Workspace) -> str:
    return "{" + ", ".join(map(str, structs.astuple(sizes))) + "}"


def _module(facts: Facts) -> str:
    rows = []
    for i, n in enumerate(facts.networks):
        m, counts = n.manifest, f"{len(n.inputs)}, {len(n.states)}, {len(n.packed)}"
        sizes = f"{n.output.per_row}, {m.packed_elements}, {_workspace(m.workspace)}, {m.rows_per_tile}"
        sequence = c_string(m.sequence) if n.can_run else "0"
        head = f"{sequence}, {8 * np.dtype(m.dtype).itemsize}, {int(n.can_step)}, {int(n.given)}, {counts}"
        loop = f"&generation_{i}" if m.generation else "0"
        rows.append(f"  {{{head}, names_{i}, inputs_{i}, states_{i}, initial_{i}, {sizes}, packs_{i}, {loop}}},")
    counts = f"{len(facts.networks)}, {len(facts.arrays)}, {len(facts.features)}"
    return "\n".join(
        [
            "static const struct engine_network networks[] = {",
            *rows,
            "};",
            "static const struct engine_module module = {",
            f"  {c_string(f'{facts.name}.so')}, {c_string(facts.manifest.target.machine)},",
            f"  {facts.code_bytes}, {facts.header_bytes}, {facts.code_crc}u, {facts.header_crc}u,",
            f"  {counts}, networks, arrays, features",
            "};\n",
        ]
    )


def _functions(facts: Facts, network: Network, number: int) -> str:
    names = {"name": facts.name, "network": network.name, "number": number}
    states = "".join(f"{state.name}, " for state in network.states)
    inputs = "".join(f"{x.name}, " for x in network.inputs)
    parameters = "".join(f", {network.c_type} *{state.name}" for state in network.states)
    own = {**names, "states": states, "inputs": inputs, "arrays": ", ".join(arrays_of(network))}
    parts = [NETWORK.format(**names, states=states, state_parameters=parameters)]
    if network.can_step:
        parts.append(CALL.format(**own, entry="step", sizes="", more="", steps="1", rows="0, 0"))
    more = ", const int64_t *lengths, const uint8_t *reset"
    if network.can_run:
        rows = {"more": more, "steps": "steps", "rows": "lengths, reset"}
        parts.append(CALL.format(**own, entry="sequence", sizes="int64_t steps, ", **rows))
    if network.manifest.generation is not None:
        others = "".join(f"{x.name}, " for x in network.inputs[1:])
        more, drawn = (
            ", ".join(generation_parameters(network)),
            "seed, first_step" if network.manifest.draws else "0, 0",
        )
        parts.append(GENERATE.format(**{**own, "inputs": others}, parameters=more, drawn=drawn))
    return "\n".join(parts)
