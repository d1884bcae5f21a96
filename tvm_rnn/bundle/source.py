"""The generated C source of a bundle's library: tables for engine.c, and the functions that the header declares.

In: `Facts`. Out: the text of one C file, which is compiled with engine.c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs

from tvm_rnn.module_file.schema import Pack, Workspace
from tvm_rnn.runtime import runtime_random

from ..names import c_string
from .facts import Array, Facts, Network, initialiser
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

# Of a network with a function of one row's step: the same checks as the engine's, of sizes that are known. What does
# not pass them is the engine's, with all that it has to say. Nothing is stored and nothing loops: comparisons of
# registers, a branch for each.
APART = """\
static inline int engine_apart(const void *a, uint64_t bytes_of_a, const void *b, uint64_t bytes_of_b) {
  return (uint64_t)((uintptr_t)b - (uintptr_t)a) + bytes_of_b - 1 >= bytes_of_a + bytes_of_b - 1;
}
"""

DIRECT = """\
static inline int {network}_fits({name} *handle, int64_t steps, int64_t batch, {arrays}) {{
  return handle && batch == 1 && steps >= 1 && steps <= MOST_BLOCK && {there}
    && !(({addresses}) % {item})
    && {apart};
}}

"""

STEP = """\
  if ({network}_fits(handle, 1, batch, {given})) {{
    {network}_step_unchecked(handle, {given});
    return ENGINE_OK;
  }}
"""

SEQUENCE = """\
  if (!lengths && !reset && {network}_fits(handle, steps, batch, {given})) {{
{memory}\
    return {network}_sequence_unchecked(handle, steps, {given});
  }}
"""

# All steps of one row, unchecked: small networks call their step again and again, in no memory; the others' code for
# many steps has a workspace.
STEP_BY_STEP = """\
int32_t {network}_sequence_unchecked({name} *handle, int64_t steps, {arrays}) {{
  for (int64_t t = 0; t < steps; ++t) {network}_step_unchecked(handle, {at_step});
  return ENGINE_OK;
}}

"""
WORKSPACE = "    TRY(engine_reserve(HANDLE, {number}, steps, 1));\n"

CALL = """\
{in_full}int32_t {network}_{entry}{kind}({name} *handle, {sizes}, {arrays}{more}) {{
  const void *const inputs[] = {{{inputs}0}};
  void *const states[] = {{{states}0}};
  const struct engine_call call = {{{steps}, {batch}, inputs, states, y, {rows}, 0}};
  return engine_{does}(HANDLE, {number}, &call);
}}
"""
# What one says that checks nothing: of one row, whose lengths and resets are none.
UNCHECKED = {"entry": "sequence", "kind": "_unchecked", "in_full": "", "does": "run", "sizes": "int64_t steps"}
UNCHECKED |= {"steps": "steps", "batch": "1", "rows": "0, 0", "more": ""}

# A function of its own for what the engine does: what is kept for its sake would cost the quick way half its time.
IN_FULL = {"kind": "_in_full", "in_full": "static __attribute__((noinline)) "}
WHOLE = {"kind": "", "in_full": ""}
QUICK = """\
int32_t {network}_{entry}({name} *handle, {sizes}, {arrays}{more}) {{
{direct}\
  return {network}_{entry}_in_full(handle, {given});
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


def source_text(facts: Facts, program: str = "", linked: bool = False) -> str:
    """The C file. program: tables and functions of the model around the networks, which program.py writes. linked: the
    module's code and weights are linked to the same program, not loaded from its file: with a table of functions."""
    about = c_string("\n".join(about_lines(facts)))
    parts = [f"/* Tables and functions of {facts.name}, made from its module. */\n"]
    parts.append(f'#include <math.h>\n\n#include "{facts.name}.h"\n#include "program.h"\n')
    parts.append("enum { MOST_BLOCK = 1 << 20 }; /* steps: their sizes in bytes are none that overflow */\n")
    parts.append(APART)
    parts.append(_tables(facts))
    parts += [_network_tables(network, i) for i, network in enumerate(facts.networks)]
    parts += [_linked(facts)] * linked
    parts.append(_module(facts, linked))
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
    whole = _pack_tables(f"pack_{number}", network.manifest.packs, network.packed)
    if network.direct is not None:
        whole += _pack_tables(f"direct_pack_{number}", network.direct.packs, network.direct_packed)
    names = [array.name for array in (*network.inputs, *network.states, network.output)]
    initial = ["NAN" if math.isnan(state.initial) else repr(float(state.initial)) for state in network.states]
    parts = [
        *whole,
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


def _pack_tables(name: str, packs: Sequence[Pack], packed: Sequence[Sequence[int]]) -> list[str]:
    """NAMEs, and of each pack the numbers of its arrays."""
    parts, rows = list[str](), list[str]()
    for i, (pack, arrays) in enumerate(zip(packs, packed, strict=True)):
        parts.append(f"static const int32_t {name}_{i}[] = {{{initialiser(arrays)}}};")
        rows.append(f"{{{c_string(pack.function)}, {pack.offset}, {len(arrays)}, {name}_{i}}}")
    return [*parts, f"static const struct engine_pack {name}s[] = {{{', '.join([*rows, '{0, 0, 0, 0}'])}}};"]


# Of every module.
POOL = ("pool_install", "pool_size", "pool_resize")


def _linked(facts: Facts) -> str:
    """Declarations and the table of the functions that engine.c asks for by name. WebAssembly compares the types of
    what is called, so these are whole."""
    packed, plain = dict.fromkeys(POOL), {"tvm_rnn_last_error": "char *, int64_t"}
    for network in facts.networks:
        m = network.manifest
        packs = [*m.packs, *(network.direct.packs if network.direct else [])]
        packed |= dict.fromkeys([*[m.sequence] * network.can_run, *(pack.function for pack in packs)])
        packed |= dict.fromkeys(["generate"] * (m.generation is not None))
        if network.direct is not None:
            pointers = "".join("void *, " for _ in network.arrays)
            plain[network.direct.function] = f"{pointers}const void *"
    functions = {f"__tvm_ffi_{name}": "void *, const void *, int32_t, void *" for name in packed if name}
    texts = [f"int32_t {name}({kinds});" for name, kinds in functions.items()]
    texts += [f"void {name}({kinds});" for name, kinds in plain.items()]
    rows = [f"  {{{c_string(name)}, (void (*)(void)){name}}}," for name in (*functions, *plain)]
    return "\n".join(
        [
            *texts,
            f"extern const uint8_t {facts.name}_weights[];",
            "static const struct engine_linked linked[] = {",
            *rows,
            "  {0, 0}",
            "};\n",
        ]
    )


def _module(facts: Facts, linked: bool) -> str:
    rows = []
    for i, n in enumerate(facts.networks):
        m, counts = n.manifest, f"{len(n.inputs)}, {len(n.states)}, {len(n.packed)}"
        own = "0, 0, 0, 0"
        if n.direct:
            own = f"{c_string(n.direct.function)}, {n.direct.packed_elements}, {len(n.direct_packed)}, direct_pack_{i}s"
        sizes = f"{n.output.per_row}, {m.packed_elements}, {_workspace(m.workspace)}, {m.rows_per_tile}"
        sequence = c_string(m.sequence) if n.can_run else "0"
        head = f"{sequence}, {8 * np.dtype(m.dtype).itemsize}, {int(n.can_step)}, {int(n.given)}, {counts}"
        loop = f"&generation_{i}" if m.generation else "0"
        rows.append(f"  {{{head}, names_{i}, inputs_{i}, states_{i}, initial_{i}, {sizes}, pack_{i}s, {own}, {loop}}},")
    counts = f"{len(facts.networks)}, {len(facts.arrays)}, {len(facts.features)}"
    return "\n".join(
        [
            "static const struct engine_network networks[] = {",
            *rows,
            "};",
            "static const struct engine_module module = {",
            f"  {c_string(f'{facts.name}.so')}, {c_string(facts.manifest.target.machine)},",
            f"  {facts.code_bytes}, {facts.header_bytes}, {facts.code_crc}u, {facts.header_crc}u,",
            f"  {counts}, networks, arrays, features, {f'linked, {facts.name}_weights' if linked else '0, 0'}",
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
    entries = list[Mapping[str, str]]()
    if network.can_step:
        entries.append({"entry": "step", "sizes": "int64_t batch", "more": "", "steps": "1", "rows": "0, 0"})
    if network.can_run:
        more = ", const int64_t *lengths, const uint8_t *reset"
        whole = {"sizes": "int64_t steps, int64_t batch", "more": more, "steps": "steps", "rows": "lengths, reset"}
        entries.append({"entry": "sequence", **whole})
    check, quick = _direct(network, own)
    parts.append(check)
    for entry in entries:
        way = quick.get(entry["entry"], "")
        whole = {**entry, "batch": "batch", "does": entry["entry"]}
        parts.append(CALL.format(**own, **whole, **(IN_FULL if way else WHOLE)))
        parts += [QUICK.format(**own, **entry, direct=way, given=_given(network, entry))] * bool(way)
    if network.manifest.generation is not None:
        others = "".join(f"{x.name}, " for x in network.inputs[1:])
        more, drawn = (
            ", ".join(generation_parameters(network)),
            "seed, first_step" if network.manifest.draws else "0, 0",
        )
        parts.append(GENERATE.format(**{**own, "inputs": others}, parameters=more, drawn=drawn))
    return "\n".join(parts)


def _arrays(network: Network) -> list[Array]:
    """In the order of the entry points' parameters."""
    return [*network.inputs, *network.states, network.output]


def _given(network: Network, entry: Mapping[str, str]) -> str:
    """What an entry point was given, behind the handle, in a call of another."""
    arrays = [array.name for array in _arrays(network)]
    of_steps = entry["entry"] == "sequence"
    return ", ".join([*["steps"] * of_steps, "batch", *arrays, *["lengths", "reset"] * of_steps])


def _direct(network: Network, own: Mapping[str, object]) -> tuple[str, dict[str, str]]:
    """The check of a call of one row, and what the entry points do with one that passes; empty where there is none."""
    if network.direct is None:
        return "", {}
    item = np.dtype(network.manifest.dtype).itemsize
    arrays = _arrays(network)
    held, read = {state.name for state in network.states}, {x.name for x in network.inputs}
    given = ", ".join(a.name for a in arrays)
    at_step = (a.name if a.name in held else f"{a.name} + t * {a.per_row}" for a in arrays)
    sizes = {a.name: f"{item * a.per_row}" + " * (uint64_t)steps" * (a.name not in held) for a in arrays}
    apart = (
        f"engine_apart({a}, {sizes[a]}, {b}, {sizes[b]})"
        for a, b in itertools.combinations(sizes, 2)
        if not {a, b} <= read
    )
    facts = {
        "there": " && ".join(sizes),
        "addresses": " | ".join(f"(uintptr_t){name}" for name in sizes),
        "apart": "\n    && ".join(apart),
        "item": item,
    }
    pieces = {"network": network.name, "given": given}
    memory, unchecked = WORKSPACE.format(**own), CALL.format(**own, **UNCHECKED)
    if network.direct.blocks:
        memory, unchecked = "", STEP_BY_STEP.format(**own, at_step=", ".join(at_step))
    quick = {"step": STEP.format(**pieces), "sequence": SEQUENCE.format(**pieces, memory=memory)}
    return DIRECT.format(**own, **facts) + unchecked, quick
