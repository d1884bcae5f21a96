"""A model's steps as tables for program.c, and the part of the header that says how to run them.

In: `manifest.model` of a module. Out: C text; or ConfigError, with everything in it that a bundle cannot do.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_rnn.module_file.schema import Declared, Model

from ..errors import ConfigError, message
from ..names import c_comment, c_string
from .encoding import DTYPES, INNER, MOST_AXES, MOST_VALUES, Impossible, encode
from .facts import Facts, initialiser, listed

HEADER = """\
/* --- the whole model, by its own inputs and outputs --- */

/* An array. dtype: one of {macro}_BOOL (a byte of 0 or 1), {macro}_FLOAT16 (IEEE's 16 bits), ... */
typedef struct {{
  void *data;
  int64_t shape[8];
  int32_t rank, dtype;
}} {name}_array;

enum {{
{dtypes}
}};

/* All of the model. inputs: these, in this order; a name stands for one size, wherever it is:
{inputs}
   outputs: {count} arrays that are filled in; what they point to is the handle's, until its next run:
{outputs}
   Takes memory where sizes are new. {macro}_BAD_ARGUMENT names the input, or the step, that does not fit. */
enum {{ {macro}_INPUTS = {input_count}, {macro}_OUTPUTS = {count} }};
{macro}_API int32_t {name}_run({name} *handle, const {name}_array *inputs, {name}_array *outputs);
"""


def check_program(facts: Facts) -> None:
    """Raise ConfigError with every step that a bundle cannot do."""
    model, networks = facts.model, [network.manifest for network in facts.networks]
    problems = []
    for step in model.steps:
        try:
            encode(step, networks)
        except Impossible as reason:
            problems.append(f"{step.node or step.op}: {reason}")
    arrays = [(repr(item.name), item.dtype, len(item.shape or ())) for item in (*model.inputs, *model.outputs)]
    stored, inner = {array.name: array for array in facts.arrays}, list[tuple[str, str, int]]()
    for constant in model.constants:
        array = stored[constant.array]
        inner.append((f"constant {constant.name!r}", array.dtype, len(array.shape)))
    unfit = [own for own in arrays if own[1] not in DTYPES or own[2] > MOST_AXES]
    unfit += [own for own in inner if own[1] not in INNER or own[2] > MOST_AXES]
    problems += [f"{name}: {dtype} of {axes} axes" for name, dtype, axes in unfit]
    if problems:
        expected = f"arrays of {listed(list(DTYPES))} of at most {MOST_AXES} axes"
        do = "export a .so, for Python; or bundle the network alone, without what is around it"
        got = "\n            ".join(dict.fromkeys(problems))
        raise ConfigError(message("bundle: a model that cannot run without Python", got=got, expected=expected, do=do))


def program_header(facts: Facts) -> str:
    """What the header says of the model; "" where the module is a network alone."""
    model = facts.manifest.model
    if model is None:
        return ""
    macro = facts.name.upper()
    codes = ",\n".join(f"  {macro}_{name.upper()} = {code}" for name, code in DTYPES.items())
    described = ["\n".join(f"     {_described(item)}" for item in items) for items in (model.inputs, model.outputs)]
    counts = {"input_count": len(model.inputs), "count": len(model.outputs)}
    return HEADER.format(
        name=facts.name, macro=macro, dtypes=codes, inputs=described[0], outputs=described[1], **counts
    )


def _described(item: Declared) -> str:
    axes = "of any shape" if item.shape is None else "".join(f"[{'any' if a is None else a}]" for a in item.shape)
    return c_comment(f"{item.name}: {item.dtype} {axes}")


def program_source(facts: Facts) -> str:
    """Tables of the steps, and NAME_run."""
    model = facts.manifest.model
    if model is None:
        return ""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names)) if name else -1

    kept = {item.name for item in model.outputs} | {item.name for item in model.constants}
    last = {name: i for i, step in enumerate(model.steps) for name in (*step.inputs, *step.outputs)}
    parts, rows = [], []
    for i, step in enumerate(model.steps):
        own = encode(step, [network.manifest for network in facts.networks])
        drop = {name for name in (*step.inputs, *step.outputs) if name and name not in kept and last[name] == i}
        lists = [[*map(number, names)] for names in (step.inputs, step.outputs, sorted(drop))]
        for word, values in zip(("in", "out", "drop"), lists, strict=True):
            parts.append(f"static const int32_t step_{i}_{word}[] = {{{initialiser(values)}}};")
        parts.append(f"static const int64_t step_{i}_ints[] = {{{initialiser(map(_c_int, own.ints))}}};")
        compiled = c_string(own.function) if own.function else "0"
        counts = f"{len(lists[0])}, {len(lists[1])}, {len(own.ints)}, {len(lists[2])}"
        node = c_string(step.node or step.op)
        arrays = ", ".join(f"step_{i}_{word}" for word in ("in", "out", "drop", "ints"))
        rows.append(f"  {{{compiled}, {node}, {counts}, {arrays}}},")
    table = "static const struct program_step steps[] = {\n" + "\n".join([*rows, "  {0}"]) + "\n};"
    declared = [_declared(model, kind, number) for kind in ("inputs", "outputs")]
    constants = _constants(facts, model, number)
    counts = f"{len(names)}, {len(rows)}, {len(model.inputs)}, {len(model.outputs)}, {len(model.constants)}"
    whole = f"static const struct program program = {{{counts}, steps, inputs, outputs, constants}};"
    return "\n".join([*parts, table, *declared, constants, whole, RUN.format(name=facts.name)])


RUN = """
int32_t {name}_run({name} *handle, const {name}_array *inputs, {name}_array *outputs) {{
  return program_run(HANDLE, &module, &program, (const struct program_array *)inputs, (struct program_array *)outputs);
}}
"""


def _c_int(value: int) -> str:
    return f"INT64_C({value})" if value > -(1 << 63) else "INT64_MIN"


def _declared(model: Model, kind: str, number: Callable[[str], int]) -> str:
    names = {axis: -2 - i for i, axis in enumerate(_axes(model))}
    parts, rows = [], []
    for i, item in enumerate(model.inputs if kind == "inputs" else model.outputs):
        shape = item.shape
        sizes = [axis if isinstance(axis, int) else -1 if axis is None else names[axis] for axis in shape or ()]
        parts.append(f"static const int64_t {kind}_{i}_shape[] = {{{initialiser(sizes)}}};")
        rank = -1 if shape is None else len(shape)
        row = f"{c_string(item.name)}, {number(item.name)}, {DTYPES[item.dtype]}, {rank}, {kind}_{i}_shape"
        rows.append(f"  {{{row}}},")
    return "\n".join([*parts, f"static const struct program_declared {kind}[] = {{", *rows, "  {0}\n};"])


def _axes(model: Model) -> list[str]:
    """The names that sizes have; those of outputs alone mean nothing, and fit anything."""
    found = dict.fromkeys(a for i in (*model.inputs, *model.outputs) for a in i.shape or ())
    names = [axis for axis in found if isinstance(axis, str)]
    if len(names) > MOST_VALUES:
        raise ConfigError(message("bundle: a model with too many names of sizes", got=len(names), expected=MOST_VALUES))
    return names


def _constants(facts: Facts, model: Model, number: Callable[[str], int]) -> str:
    parts, rows = [], []
    for i, item in enumerate(model.constants):
        array = facts.arrays[facts.number[item.array]]
        parts.append(f"static const int64_t constant_{i}[] = {{{initialiser(array.shape)}}};")
        row = f"{number(item.name)}, {facts.number[item.array]}, {INNER[array.dtype]}, {len(array.shape)}"
        rows.append(f"  {{{row}, constant_{i}}},")
    return "\n".join([*parts, "static const struct program_constant constants[] = {", *rows, "  {0}\n};"])
