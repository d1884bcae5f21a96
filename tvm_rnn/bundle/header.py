"""The C header of one module: shapes, sizes, every function with what it takes.

In: `Facts`. Out: the text of NAME.h: C99, fit for C++ and for what reads C headers (bindgen, cgo).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tvm_rnn.explain.tables import origin_text
from tvm_rnn.module_file.schema import plain

from ..names import c_comment
from .facts import Facts, Network, listed

ABOUT = """\
/* {name}.h: {title}.

{lines}

   Time is the first axis: arrays are dense, in C order, of the type given. States are read and overwritten by every
   call. A call gives back {macro}_OK (0) or what went wrong; {name}_error() is the message, of the calling thread's
   last failure. Nothing throws, nothing exits; no array is read before its sizes and pointers were looked at.

   A handle is for one thread at a time; {name}_share gives others that use the same code and weights.
   {name}_open, _share, _reserve and _close take memory or give it back, and so does a sequence that is larger than all
   before. {steps}

   Written by tvm_rnn {version}; made again, not edited. */
"""

ERRORS = (
    ("OK", 0, "done"),
    ("BAD_ARGUMENT", 1, "an impossible size or length or number of threads, a null pointer, arrays that overlap"),
    ("BAD_FILE", 2, "the module's file is missing, damaged, another one, or for another CPU"),
    ("NO_MEMORY", 3, "there is not enough memory"),
    ("FAILED", 4, "the compiled code said that it failed"),
)

OPEN = """\
/* Open the module: read its file, look whether it is whole and fits this library and this CPU, lay out its weights.
   path: NULL is {name}.so in the folder where lib{name}.so lies; another file may have other weights of this network.
   On failure *handle is NULL. */
{macro}_API int32_t {name}_open(const char *path, {name} **handle);

/* Another handle on the same code and weights, for another thread. Close both, in any order. */
{macro}_API int32_t {name}_share({name} *handle, {name} **other);

/* Give everything back. NULL is no mistake. */
{macro}_API void {name}_close({name} *handle);

/* The message of the calling thread's last failure; valid until its next one. Never NULL. */
{macro}_API const char *{name}_error(void);

/* What this module is: cell, sizes, target, and the file that it was made from if there is one. */
{macro}_API const char *{name}_about(void);

/* How many threads a call may use, 0 to 256. 0, as at first, and 1: the calling thread alone. */
{macro}_API int32_t {name}_set_threads({name} *handle, int32_t threads);
"""

RESERVE = """\
/* Take the memory of calls of up to so many steps and rows now: none of them takes any later. {name}_open has reserved
   one step of one row. */
{macro}_API int32_t {network}_reserve({name} *handle, int64_t steps, int64_t batch);

/* The state before the first step: {initial}. */
{macro}_API int32_t {network}_init_state({name} *handle, int64_t batch{states});
"""

STEP = """\
/* One step of `batch` rows. The same as {network}_sequence of one step.
   Takes no memory and no lock, makes no system call and starts no thread (with 0 threads): fit for a real-time thread.
   More rows than were reserved are {macro}_BAD_ARGUMENT. */
{macro}_API int32_t {network}_step({name} *handle, int64_t batch,
    {arrays});
"""

UNCHECKED = """\
/* The same of one row, inline, without a look at what it is given: a null pointer, too small an array or arrays that
   overlap are the program's mistake, and nothing is said. The look takes a few nanoseconds. Both are quickest where
   arrays begin at multiples of 64 bytes. */
typedef struct {network}_direct {{
  void (*step)({kinds}, const void *);
  const void *weights;
}} {network}_direct; /* what a handle begins with; not for programs */

static inline void {network}_step_unchecked({name} *handle, {arrays}) {{
  const {network}_direct *own = *(const {network}_direct *const *)(const void *)handle + {number};
  own->step({given}, own->weights);
}}
"""

SEQUENCE_UNCHECKED = """\
/* All steps of one row, without a look at what it is given, in memory that {network}_reserve took for so many steps.
   Takes no memory and no lock, makes no system call and starts no thread (with 0 threads). */
{macro}_API int32_t {network}_sequence_unchecked({name} *handle, int64_t steps, {arrays});
"""

SEQUENCE = """\
/* All steps of `batch` rows. 0 steps or 0 rows change nothing.
   lengths: NULL, or [batch] numbers of 0 to steps: a row stops after so many steps, its y is 0 from there.
   reset: NULL, or [steps][batch] of 0 or 1: where it is 1 a row starts this step from the initial state.
   Takes memory where more steps or rows are asked for than ever before, unless they were reserved. */
{macro}_API int32_t {network}_sequence({name} *handle, int64_t steps, int64_t batch,
    {arrays},
    const int64_t *lengths, const uint8_t *reset);
"""

GENERATE = """\
/* Generate: the output of a step is the input of the next, for `steps` outputs of `batch` rows behind a prompt.

{table}

   prompt_steps: 0: the first input is 0, and `prompt` is not read. P is prompt_steps, or 1 where that is 0.
   lengths: NULL, or how many outputs are a row's own. stop: NULL, or the output that ends a row: its states stay as
   they are, its y is `stop` from there, and the call ends when all rows have ended.{draws}
   A call goes on where another ended with its states{drawn} and its last output as prompt.
   Takes no memory and no lock, makes no system call and starts no thread (with 0 threads), whatever `steps` is.
   More rows than were reserved are {macro}_BAD_ARGUMENT.{tokens} */
{macro}_API int32_t {network}_generate({name} *handle,{parameters});
"""

DRAWS = """
   seed, first_step: random numbers are made of seed, layer, step and row alone: those of `mod.generate` in Python.
   first_step: of the call in a whole sequence: that of the call before and its P - 1 + steps."""

TOKENS = """ So is a prompt with a token that is not one of 0 to {last};
   an output that is none is {macro}_FAILED."""


def header_text(facts: Facts, program: str = "") -> str:
    """NAME.h. program: what it says of the model around the networks, which program.py writes."""
    macro, guard = facts.name.upper(), f"{facts.name.upper()}_H_"
    parts = [_about(facts), f"#ifndef {guard}\n#define {guard}\n\n#include <stddef.h>\n#include <stdint.h>\n"]
    parts.append('#ifdef __cplusplus\nextern "C" {\n#endif\n')
    parts.append(f'#if defined(__GNUC__)\n#define {macro}_API __attribute__((visibility("default")))\n#else')
    parts.append(f"#define {macro}_API\n#endif\n")
    width = max(len(n) for n, _, _ in ERRORS)
    every = zip(ERRORS, (",", ",", ",", ",", ""), strict=True)
    rows = "\n".join(f"  {macro}_{n:<{width}} = {code}{comma} /* {text} */" for (n, code, text), comma in every)
    parts.append(f"enum {{\n{rows}\n}};\n")
    parts.append(f"/* A handle. */\ntypedef struct {facts.name} {facts.name};\n")
    parts.append(OPEN.format(name=facts.name, macro=macro))
    parts += [_network(facts, network) for network in facts.networks]
    parts += [program] * bool(program)
    parts.append(f"#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n")
    return "\n".join(parts)


def _about(facts: Facts) -> str:
    title, *lines = about_lines(facts)
    bounded = [f"{n.name}_step" for n in facts.networks if n.can_step]
    bounded += [f"{n.name}_generate" for n in facts.networks if n.manifest.generation is not None]
    said = f"{listed(bounded)} never does." if len(bounded) == 1 else f"{listed(bounded)} never do."
    said = said if bounded else "Only whole sequences: no steps."
    return ABOUT.format(
        name=facts.name,
        macro=facts.name.upper(),
        title=c_comment(title),
        lines="\n".join(f"   {line}" for text in lines for line in textwrap.wrap(c_comment(text), 115)),
        steps=said,
        version=facts.manifest.versions["tvm_rnn"],
    )


def about_lines(facts: Facts) -> list[str]:
    """What `NAME_about` says."""
    m, target = facts.manifest, facts.manifest.target
    lines = ["; ".join(network.title for network in facts.networks) or "A model without recurrent networks"]
    if m.origin is not None:
        lines.append(f"Made from: {origin_text(plain(m.origin))}.")
    needs = ", ".join(target.features)
    lines.append(f"For: {target.machine} {target.mcpu}".rstrip() + (f" ({needs})." if needs else "."))
    versions = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    lines.append(f"Made by: {versions}, {m.created}.")
    return lines


def arrays_of(network: Network) -> list[str]:
    """The parameters of a call that are arrays of floats."""
    kind = network.c_type
    states = [f"{kind} *{state.name}" for state in network.states]
    return [*(f"const {kind} *{x.name}" for x in network.inputs), *states, f"{kind} *y"]


def _network(facts: Facts, network: Network) -> str:
    names = {"name": facts.name, "network": network.name, "macro": facts.name.upper()}
    if network.given:
        return (
            f"/* {c_comment(network.title)}. Its weights are values of the model: only {facts.name}_run has them. */\n"
        )
    initial = listed([f"{s.name} = {s.initial:g}" for s in network.states if s.name not in network.constants])
    if network.constants:
        begun, given = initial, " and ".join(f"{name} = NaN, until you write it" for name in network.constants)
        initial = f"{begun}; {given}: a constant, the same in every layer" if begun else given
    states = "".join(f", {network.c_type} *{state.name}" for state in network.states)
    arrays = ", ".join(arrays_of(network))
    parts = [_sizes(network), RESERVE.format(**names, initial=initial, states=states)]
    parts += [STEP.format(**names, arrays=arrays)] * network.can_step
    parts += [_unchecked(facts, network, names)] * (network.direct is not None)
    parts += [SEQUENCE.format(**names, arrays=arrays)] * network.can_run
    parts += [SEQUENCE_UNCHECKED.format(**names, arrays=arrays)] * (network.direct is not None)
    return "\n".join([*parts, *[_generate(names, network)] * (network.manifest.generation is not None)])


def generation_parameters(network: Network) -> list[str]:
    """Of the function that generates, behind the handle."""
    kind, token = network.c_type, network.token_type
    parts = ["int64_t steps", "int64_t batch", f"const {token} *prompt", "int64_t prompt_steps"]
    parts += [*(f"const {kind} *{x.name}" for x in network.inputs[1:]), *(f"{kind} *{s.name}" for s in network.states)]
    parts += [f"{token} *y", "int64_t *lengths", f"const {token} *stop"]
    return parts + ["uint64_t seed", "int64_t first_step"] * bool(network.manifest.draws)


def _generate(names: Mapping[str, str], network: Network) -> str:
    own, tokens = network.output.layout, network.manifest.generation and network.manifest.generation.tokens
    own = own.removesuffix("[1]") if tokens else own
    rows = [("prompt", network.token_type, f"[prompt_steps]{own}", "read")]
    rows += [(x.name, network.c_type, f"[P - 1 + steps]{x.layout}", "read") for x in network.inputs[1:]]
    rows += _states(network)
    rows += [("y", network.token_type, f"[steps]{own}", "written"), ("lengths", "int64_t", "[batch]", "written")]
    said = TOKENS.format(last=tokens - 1, **names) if tokens else ""
    drawn = ", seed, first_step" if network.manifest.draws else ""
    texts = {"table": _table(rows), "draws": DRAWS * bool(drawn), "drawn": drawn, "tokens": said}
    return GENERATE.format(**names, **texts, parameters=_lines(generation_parameters(network)))


def _lines(parameters: Sequence[str]) -> str:
    """Parameters of a function, in lines of a header."""
    lines = [""]
    for i, parameter in enumerate(parameters):
        word = f" {parameter}" + "," * (i + 1 < len(parameters))
        lines += [""] * (len(lines[-1]) + len(word) > 110)
        lines[-1] += word
    return "".join(f"\n   {line}" for line in lines)


Row = tuple[str, str, str, str]  # of a table of arrays: name, type, layout, what a call does with it


def _states(network: Network) -> list[Row]:
    how = dict.fromkeys(network.constants, "read: a constant, which stays as it is")
    return [(s.name, network.c_type, s.layout, how.get(s.name, "read and overwritten")) for s in network.states]


def _table(rows: Sequence[Row]) -> str:
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(f"     {n:<{wide[0]}}  {t:<{wide[1]}} {at:<{wide[2]}}  {does}" for n, t, at, does in rows)


def _unchecked(facts: Facts, network: Network, names: Mapping[str, str]) -> str:
    kinds = {x.name: f"const {network.c_type} *" for x in network.inputs}
    return UNCHECKED.format(
        **names,
        number=facts.networks.index(network),
        kinds=", ".join(kinds.get(array.name, f"{network.c_type} *") for array in network.arrays),
        arrays=", ".join(arrays_of(network)),
        given=", ".join(array.name for array in network.arrays),
    )


def _sizes(network: Network) -> str:
    """The table of arrays, as a comment and as macros."""
    kind = network.c_type
    rows = [(x.name, kind, f"[steps]{x.layout}", "read") for x in network.inputs] + _states(network)
    rows.append(("y", kind, f"[steps]{network.output.layout}", "written"))
    arrays = f"{_table(rows)}\n\n   A step has no [steps]." * network.can_run or "  "
    batches = network.manifest.batch
    made = f"Made for batches of {listed(list(map(str, batches)))}; any other is right too." if batches else ""
    text = f"/* {c_comment(network.title)}. {made}".rstrip() + f"\n\n{arrays} Elements of one row:"
    every = (*network.inputs, *network.states, network.output)
    macros = (f"#define {network.macro}_{array.name.upper()}_PER_ROW {array.per_row}\n" for array in every)
    return f"{text} */\n" + "".join(macros)
