"""What the manifest of a module must be whose code does not say what it was made for: those of earlier versions.

In: a manifest as it was read from a file, and the file's arrays. Out: the first field that is wrong, or none. Tables
say what fields are, which names must be known, and which places must lie within what. Sizes of working memory, which
nothing in such a file says, are only numbers that fit. Works alone beside a .so, with runtime.py, which does without it
where it is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import runtime
from .runtime import Facts

# A spec is a type, the range of an integer, names of which it is one, [of each item], (of each item, in order), or of
# fields by name, where "?" marks what may be missing.
Spec = type | range | frozenset[str] | list["Spec"] | tuple["Spec", ...] | dict[str, "Spec"]
Value = Any  # of JSON: whoever reads it has found it to be as its spec says
Problem = tuple[str, object, str]  # where, what was got, what was expected

SIZE, COUNT = range(1 << 40), range(1, 1 << 20)
ARRAY: Spec = {"name": str, "shape": [SIZE]}
STATE: Spec = {"name": str, "shapes": [[SIZE]], "initial": float}
PACK: dict[str, Spec] = {"function": str, "weights": [str], "offset": SIZE}
FINISH: Spec = PACK | {"gradients": [str]}
WORKSPACE: Spec = dict.fromkeys(("fixed", "per_row", "per_tile_row", "per_sequence_row"), SIZE)
FUNCTION: dict[str, Spec] = {
    "packs": [PACK],
    "packed_elements": SIZE,
    "workspace": WORKSPACE,
    "rows_per_tile": COUNT,
}
TAPE: Spec = {
    "fixed": SIZE,
    "per_row": SIZE,
    "per_sequence_row": SIZE,
    "inputs_per_row?": SIZE,
    "per_mark?": SIZE,
    "mark?": COUNT,
}
TRAINING: Spec = {
    "forward": FUNCTION | {"packed_as_inference?": bool},
    "backward": FUNCTION | {"packed_as_inference?": bool, "totals_elements": SIZE, "finishes": [FINISH]},
    "tape": TAPE,
}
PROGRAM: dict[str, Spec] = {"packed_bytes": SIZE, "parameters": [(str, str)]}
VARIANT: Spec = PROGRAM | {"arch": str, "forward_train?": PROGRAM, "backward?": PROGRAM}
PARTS: Spec = {"by": str, "whole_arrays?": SIZE, "handed_bytes?": SIZE}
MASKS: Spec = {"streams": [str], "weights": [(str, str, SIZE, range(2), float)]}
FLOPS: dict[str, Spec] = {f"{name}_flops_per_row": SIZE for name in ("forward", "backward", "again")}
MODEL: Spec = {
    "inputs": [{"name": str, "dtype": str}],
    "outputs": [{"name": str}],
    "constants": [{"name": str, "array": str}],
    "steps": [{"op": str, "inputs": [str], "outputs": [str], "attributes": dict, "node": str}],
}
NETWORK: dict[str, Spec] = {
    "cell": str,
    "num_layers": COUNT,
    "num_directions": range(1, 3),
    "inputs": [ARRAY],
    "output": ARRAY,
    "states": [STATE],
    "weights": [ARRAY],
    "entry_points": [str],
    "flops_per_row": float,
    "reverse?": bool,
    "batch_first?": bool,
    "masks?": MASKS,
    "memory?": FLOPS | {"keep": str, "max_bytes?": SIZE},
}
CPU: dict[str, Spec] = (
    NETWORK | FUNCTION | {"dtype": frozenset(("float32", "float64")), "training?": TRAINING, "sequence?": str}
)
GPU: dict[str, Spec] = NETWORK | {
    "dtype": frozenset(("float32", "float64", "float16", "bfloat16")),
    "variants": [VARIANT],
    "tape?": [[SIZE]],
    "gradients?": [str],
    "reads_inputs?": bool,
    "reads_output?": bool,
    "parts?": PARTS,
}
FILE: dict[str, Spec] = {
    "format": range(1, runtime.MANIFEST_FORMAT + 1),
    "target": {"name": str, "kind": str, "mcpu": str, "machine": str, "features": [str]},
}
# Names in a network's manifest that must be its weights', or its weights' and constants'.
WEIGHTS = ("training.backward.finishes[].gradients[]", "gradients[]", "masks.weights[][0]")
SOURCES = (
    *(f"{way}packs[].weights[]" for way in ("", "training.forward.", "training.backward.")),
    "training.backward.finishes[].weights[]",
    *(f"variants[].{way}parameters[][0]" for way in ("", "forward_train.", "backward.")),
)
RAW = ("masks.seed", "masks.seed_at")  # parameters that are no weights
# Places, and the number of elements that they lie in.
WITHIN = {
    "packs[].offset": "packed_elements",
    "training.forward.packs[].offset": "training.forward.packed_elements",
    "training.backward.packs[].offset": "training.backward.packed_elements",
    "training.backward.finishes[].offset": "training.backward.totals_elements",
}
NOT_EMPTY = ("inputs", "variants")


def problem_of(manifest: Facts, arrays: Mapping[str, np.ndarray]) -> Problem | None:
    """The first thing that is wrong in a manifest, or None. arrays: of its file, by name."""
    return next(_problems(manifest, arrays), None)


def _problems(manifest: Facts, arrays: Mapping[str, np.ndarray]) -> Iterator[Problem]:
    yield from _unlike("", manifest, FILE)
    if "networks" not in manifest:
        yield from _of_network("", manifest, arrays)
        networks = 1
    else:
        yield from _unlike("", manifest, {"networks": [dict], "model": MODEL})
        found = [own for _, own in _at(manifest, "networks[]") if isinstance(own, dict)]
        for number, own in enumerate(found):
            mine = {name.partition(".")[2]: a for name, a in arrays.items() if name.startswith(f"{number}.")}
            yield from _of_network(f"networks[{number}].", {**manifest, **own}, mine)
        networks = len(found)
    for name in NOT_EMPTY:
        if name in manifest and not manifest[name]:
            yield name, manifest[name], "at least one"
    if manifest.get("model") is not None:
        yield from _unlike("model", manifest["model"], MODEL)
        yield from _of_model(manifest, arrays, networks)


def _of_network(prefix: str, own: Facts, arrays: Mapping[str, np.ndarray]) -> Iterator[Problem]:
    yield from _unlike(prefix.rstrip("."), own, GPU if "variants" in own else CPU)
    shapes = {str(item["name"]): tuple(item["shape"]) for _, item in _at(own, "weights[]")}
    constants = {name for name in arrays if name.startswith(runtime.CONSTANT)}
    for paths, known in ((WEIGHTS, {*shapes}), (SOURCES, {*shapes, *constants, *RAW})):
        for where, name in (pair for path in paths for pair in _at(own, path)):
            if name not in known:
                yield prefix + where, name, f"one of {sorted(known)}"
    for path, limit in WITHIN.items():
        most = next((value for _, value in _at(own, limit)), 0)
        for where, at in _at(own, path):
            if at > most:
                yield prefix + where, at, f"at most {limit}, {most}"
    for kind in ("inputs", "states", "weights"):
        names = [name for _, name in _at(own, f"{kind}[].name")]
        if len({*names}) != len(names):
            yield f"{prefix}{kind}", names, "each name once"
    for where, layers in _at(own, "states[].shapes"):
        if len(layers) != own["num_layers"]:
            yield prefix + where, layers, f"{own['num_layers']} shapes, one by layer"
    dtype = own["dtype"] if own["dtype"] == "float64" else "float32"
    expected = {name: f"{dtype} {[*shape]}" for name, shape in shapes.items()}
    found = {name: runtime.described(array) for name, array in arrays.items() if name not in constants}
    if found and found != expected:
        where, got, wanted = runtime.first_difference(f"{prefix}arrays", found, expected)
        yield where, got, repr(wanted)


def _of_model(manifest: Facts, arrays: Mapping[str, np.ndarray], networks: int) -> Iterator[Problem]:
    for where, name in _at(manifest, "model.constants[].array"):
        if name not in arrays:
            yield where, name, f"one of {sorted(arrays)}"
    known = {"", *(str(name) for kind in ("inputs", "constants") for _, name in _at(manifest, f"model.{kind}[].name"))}
    for where, step in _at(manifest, "model.steps[]"):
        if strange := [name for name in step["inputs"] if name not in known]:
            yield f"{where}.inputs", strange, "values that were made before"
        known |= {*step["outputs"]}
        if step["op"] == "Network":
            yield from _unlike(
                f"{where}.attributes", step["attributes"], {"network": range(networks), "weights?": [str]}
            )
    for where, name in _at(manifest, "model.outputs[].name"):
        if name not in known:
            yield where, name, "a value that a step makes"


def _unlike(where: str, value: object, spec: Spec) -> Iterator[Problem]:
    """Where a value is not as its spec says."""
    parts: list[tuple[str, object, Spec]] = []
    if isinstance(spec, dict) and isinstance(value, dict):
        for key, own in spec.items():
            name, place = key.rstrip("?"), f"{where}.{key.rstrip('?')}".lstrip(".")
            if value.get(name) is not None:
                parts.append((place, value[name], own))
            elif name == key:
                yield place, None, _words(own)
    elif isinstance(spec, list) and isinstance(value, list):
        parts = [(f"{where}[{i}]", item, spec[0]) for i, item in enumerate(value)]
    elif isinstance(spec, tuple) and isinstance(value, list) and len(value) == len(spec):
        parts = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(value, spec, strict=True))]
    elif not _is(value, spec):
        yield where or "manifest", value, _words(spec)
    for part in parts:
        yield from _unlike(*part)


def _is(value: object, spec: Spec) -> bool:
    if isinstance(spec, range):
        return type(value) is int and value in spec
    if isinstance(spec, frozenset):
        return type(value) is str and value in spec
    if spec is float:
        return type(value) in (int, float) and math.isfinite(float(str(value)))
    return isinstance(spec, type) and isinstance(value, spec)


def _words(spec: Spec) -> str:
    if isinstance(spec, range):
        return f"an integer from {spec.start} to {spec.stop - 1}"
    if isinstance(spec, frozenset):
        return f"one of {sorted(spec)}"
    if isinstance(spec, type):
        return "a number" if spec is float else spec.__name__
    return f"a list of {len(spec)}" if isinstance(spec, tuple) else "a list" if isinstance(spec, list) else "a dict"


def _at(value: Value, path: str, where: str = "") -> Iterator[tuple[str, Value]]:
    """What a manifest has at a path such as "packs[].weights[]", each with its place; nothing where it has not."""
    first, _, rest = path.partition(".")
    name, *indices = first.replace("]", "").split("[")
    if not isinstance(value, Mapping) or value.get(name) is None:
        return
    found = [(f"{where}.{name}".lstrip("."), value[name])]
    for index in indices:
        chosen = []
        for place, own in found:
            items: Sequence[Value] = own if isinstance(own, list) else []
            numbers = [int(index)] if index else range(len(items))
            chosen += [(f"{place}[{i}]", items[i]) for i in numbers if i < len(items)]
        found = chosen
    for place, own in found:
        if rest:
            yield from _at(own, rest, place)
        else:
            yield place, own


__all__ = ["problem_of"]
