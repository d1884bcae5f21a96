"""The contract between the compiler and the runtime: what a module's manifest says, and the file that carries it.

In: a linked ELF shared object, facts about it and weights, from compiler/compile.py and Module.export. Out: one
container file (ELF, weights, manifest, footer), which runtime.py reads.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tvm_rnn.dtypes import DTYPES, PRECISIONS, STORED, held_dtype
from tvm_rnn.errors import BuildError, ConfigError, WeightError, message
from tvm_rnn.network.model import NETWORK
from tvm_rnn.runtime.runtime import ALIGNMENT, CONSTANT, CONTAINER_VERSION, FOOTER, MAGIC, MANIFEST_FORMAT
from tvm_rnn.runtime.runtime_ops import OPERATIONS
from tvm_rnn.runtime.runtime_random import RAW

MODEL_CONSTANT = f"{CONSTANT}model."


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shape(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_size(n) for n in value)


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_shapes(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(_is_shape(shape) for shape in value)


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and _is_names(value)


Fields = tuple[tuple[str, Callable[[Any], bool], str], ...]
# One row per field: dotted path ("[]": each item of a list), test, what is expected in words.
FIELDS: Fields = (
    ("versions", _is_dict, "a dict of version strings"),
    ("cell", _is_name, "a name"),
    ("dtype", lambda value: value in DTYPES, " or ".join(DTYPES)),
    ("num_layers", lambda value: _is_size(value) and value > 0, "an integer, at least 1"),
    ("num_directions", lambda value: value in (1, 2), "1 or 2"),
    ("inputs[].name", _is_name, "a name"),
    ("inputs[].shape", _is_shape, "a list of sizes"),
    ("output.name", _is_name, "a name"),
    ("output.shape", _is_shape, "a list of sizes"),
    ("states[].name", _is_name, "a name"),
    ("states[].shapes", _is_shapes, "a list of shapes, one per layer"),
    ("states[].initial", _is_number, "a finite number"),
    ("weights[].name", _is_name, "a name"),
    ("weights[].shape", _is_shape, "a list of sizes"),
    ("target.name", _is_name, "a name"),
    ("target.kind", _is_name, "a name"),
    ("target.mcpu", _is_text, "a name or an empty string"),
    ("target.machine", _is_name, "a name as platform.machine() gives"),
    ("target.features", _is_names, "a list of names"),
    ("entry_points", _is_names, "a list of names"),
    ("batch", _is_shape, "a list of batch sizes"),
    ("flops_per_row", lambda value: _is_number(value) and value >= 0, "a number, at least 0"),
    ("templates", lambda value: isinstance(value, list | tuple), "a list"),
    ("passes", _is_names, "a list of names"),
    ("created", _is_text, "a time as text"),
)
CPU_FIELDS: Fields = (
    ("packs[].function", _is_name, "a name"),
    ("packs[].weights", _is_names, "a list of weight names"),
    ("packs[].offset", _is_size, "an integer, at least 0"),
    ("packed_elements", _is_size, "an integer, at least 0"),
    ("workspace.fixed", _is_size, "an integer, at least 0"),
    ("workspace.per_row", _is_size, "an integer, at least 0"),
    ("workspace.per_tile_row", _is_size, "an integer, at least 0"),
    ("workspace.per_sequence_row", _is_size, "an integer, at least 0"),
    ("rows_per_tile", lambda value: _is_size(value) and value > 0, "an integer, at least 1"),
)
GPU_WAYS = ("forward_train", "backward")
# One variant per GPU arch. parameters: (name, dtype) of the weights and constants that its packing reads, in order.
GPU_FIELDS: Fields = (
    ("precision", lambda value: any(value in names for names in PRECISIONS.values()), "a precision"),
    ("weight_dtype", lambda value: _is_text(value) and value in (*DTYPES, *STORED), " or ".join((*DTYPES, *STORED))),
    ("variants", lambda value: isinstance(value, list | tuple) and len(value) > 0, "a list of at least 1"),
    ("variants[].arch", _is_name, "a name as nvcc has it"),
    ("variants[].target", _is_name, "a name"),
    ("variants[].packed_bytes", _is_size, "an integer, at least 0"),
    ("variants[].parameters[]", _is_pair, "a name and a dtype"),
    ("variants[].kernels[].kernel", _is_name, "a name"),
    ("variants[].templates", lambda value: isinstance(value, list | tuple), "a list"),
)


# What training adds on GPUs: two programs more of each variant, and what lies between them. tape: of each array [bytes
# of a row, steps beyond T].
GPU_TRAINING_FIELDS: Fields = (
    *((f"variants[].{way}.packed_bytes", _is_size, "an integer, at least 0") for way in GPU_WAYS),
    *((f"variants[].{way}.parameters[]", _is_pair, "a name and a dtype") for way in GPU_WAYS),
    *((f"variants[].{way}.kernels[].kernel", _is_name, "a name") for way in GPU_WAYS),
    ("tape[]", lambda value: 2 <= len(value) <= 3 and all(map(_is_size, value)), "bytes of a row, and steps beyond T"),
    ("gradients", _is_names, "a list of weight names"),
)


# Only of modules that were made from a layer of another framework.
ORIGIN_FIELDS: Fields = (
    ("origin.framework", _is_name, "a name"),
    ("origin.layer", _is_name, "a name"),
    ("origin.file", lambda value: value is None or _is_name(value), "a path or null"),
    ("origin.sha256", lambda value: value is None or _is_name(value), "a digest or null"),
    ("origin.batch_first", lambda value: isinstance(value, bool), "true or false"),
)


# Only of modules whose weights were there, in fewer bits, when they were compiled.
ERROR_FIELDS: Fields = (
    (
        "weight_error",
        lambda value: value is None or (_is_number(value) and value >= 0),
        "a number from 0 on, or null",
    ),
)


# Not of modules from before there was one.
EQUATIONS_FIELDS: Fields = (("equations", _is_name, "a digest"),)


# Only of modules that were made from a whole model.
MODEL_FIELDS: Fields = (
    ("model.inputs[].name", _is_name, "a name"),
    ("model.inputs[].dtype", _is_name, "a dtype"),
    ("model.outputs[].name", _is_name, "a name"),
    ("model.constants[].name", _is_name, "a name"),
    ("model.constants[].array", lambda value: str(value).startswith(MODEL_CONSTANT), "a name of an array in the file"),
    ("model.steps[].op", lambda value: value in OPERATIONS or value == NETWORK, "an operation of runtime_ops.py"),
    ("model.steps[].inputs", _is_names, "a list of names"),
    ("model.steps[].outputs", _is_names, "a list of names"),
    ("model.steps[].attributes", _is_dict, "a dict"),
    ("model.steps[].node", _is_text, "a name, which may be empty"),
)


# Only of modules that train, of networks with regularisers. weights: of each that is dropped its name, the name of its
# mask, layer, direction, and the probability of being kept.
MASK_FIELDS: Fields = (
    ("masks.streams", _is_names, "a list of names"),
    ("masks.weights[]", lambda value: len(value) == 5 and 0 < value[4] < 1, "a weight, a mask, its place, a number"),
)


# What training adds: the same facts of forward_train and of backward, and what lies between them.
TRAINING_FIELDS: Fields = (
    *((f"training.{way}.{path}", test, text) for way in ("forward", "backward") for path, test, text in CPU_FIELDS),
    ("training.tape.fixed", _is_size, "an integer, at least 0"),
    ("training.tape.per_row", _is_size, "an integer, at least 0"),
    ("training.tape.per_sequence_row", _is_size, "an integer, at least 0"),
    ("training.backward.totals_elements", _is_size, "an integer, at least 0"),
    ("training.backward.finishes[].function", _is_name, "a name"),
    ("training.backward.finishes[].weights", _is_names, "a list of weight names"),
    ("training.backward.finishes[].offset", _is_size, "an integer, at least 0"),
    ("training.backward.finishes[].gradients", _is_names, "a list of weight names"),
)


# What a plan of training's memory must know; files of earlier versions have none of it.
MEMORY_FIELDS: Fields = (
    ("memory.keep", _is_name, "a name of what is kept"),
    ("memory.forward_flops_per_row", _is_size, "an integer, at least 0"),
    ("memory.backward_flops_per_row", _is_size, "an integer, at least 0"),
    ("memory.again_flops_per_row", _is_size, "an integer, at least 0"),
)
BUDGET_FIELDS: Fields = (("memory.max_bytes", _is_size, "an integer, at least 0"),)  # where there is a budget


def validate(manifest: Mapping[str, Any]) -> None:
    """Raise BuildError, naming the field, where the manifest is not one that this version's runtime understands."""
    number = manifest.get("format")
    if number != MANIFEST_FORMAT:
        raise _invalid("format", number, str(MANIFEST_FORMAT))
    own = {"origin": ORIGIN_FIELDS, "model": MODEL_FIELDS, "weight_error": ERROR_FIELDS}
    own |= {"masks": MASK_FIELDS, "memory": MEMORY_FIELDS}
    _check(manifest, [field for name, fields in own.items() if name in manifest for field in fields])
    _check(manifest, BUDGET_FIELDS if "max_bytes" in manifest.get("memory", ()) else ())
    for own in manifest.get("networks", (manifest,)):
        _validate_network({**manifest, **own})


def _check(manifest: Mapping[str, Any], fields: Iterable[tuple[str, Callable[[Any], bool], str]]) -> None:
    for path, test, expected in fields:
        for where, value in _values(manifest, path, ""):
            if not test(value):
                raise _invalid(where, value, expected)


def _validate_network(manifest: Mapping[str, Any]) -> None:
    """One network with its code: all of a manifest, or one of its `networks` with what all of these share."""
    training = TRAINING_FIELDS if "training" in manifest else GPU_TRAINING_FIELDS if "tape" in manifest else ()
    _check(manifest, (*FIELDS, *(GPU_FIELDS if "variants" in manifest else CPU_FIELDS), *training))
    _check(manifest, EQUATIONS_FIELDS if "equations" in manifest else ())
    layers = manifest["num_layers"]
    for state in manifest["states"]:
        if len(state["shapes"]) != layers:
            raise _invalid(f"states {state['name']!r} shapes", len(state["shapes"]), f"{layers}, one per layer")
    for kind in ("inputs", "states", "weights"):
        names = [item["name"] for item in manifest[kind]]
        if len({*names}) != len(names):
            raise _invalid(f"{kind} names", ", ".join(names), "each name once")
    known = {weight["name"] for weight in manifest["weights"]}
    for pack in _packs(manifest):
        if not known.issuperset(name for name in pack["weights"] if not name.startswith(CONSTANT)):
            raise _invalid(f"packs {pack['function']!r} weights", ", ".join(pack["weights"]), ", ".join(sorted(known)))
    for variant in manifest.get("variants", ()):
        strange = [name for name in _read_by(variant) if not name.startswith(CONSTANT) and name not in known]
        if strange:
            raise _invalid(f"variants {variant['arch']!r} parameters", strange, ", ".join(sorted(known)))


def _packs(manifest: Mapping[str, Any]) -> list[Any]:
    """Every call of a function that reads weights and constants."""
    training = manifest.get("training", {"forward": {"packs": ()}, "backward": {"packs": (), "finishes": ()}})
    back = training["backward"]
    return [*manifest.get("packs", ()), *training["forward"]["packs"], *back["packs"], *back["finishes"]]


def _read_by(variant: Mapping[str, Any]) -> list[str]:
    """The weights and constants that the programs of one GPU arch read."""
    programs = [variant, *(variant[way] for way in GPU_WAYS if way in variant)]
    return [name for program in programs for name, _ in program["parameters"] if not name.startswith(RAW)]


def _values(value: Any, path: str, where: str) -> list[tuple[str, Any]]:
    """Each value at a dotted path, with the place where it was found; a missing one is None."""
    head, _, rest = path.partition(".")
    key = head.removesuffix("[]")
    value = value.get(key) if isinstance(value, Mapping) else None
    where = f"{where}.{key}" if where else key
    if key != head:
        if not isinstance(value, list | tuple):
            raise _invalid(where, value, "a list")
        if not rest:
            return [(f"{where}[{i}]", item) for i, item in enumerate(value)]
        return [found for i, item in enumerate(value) for found in _values(item, rest, f"{where}[{i}]")]
    return _values(value, rest, where) if rest else [(where, value)]


def _invalid(where: str, got: object, expected: str) -> BuildError:
    do = "this is a fault of whoever built the manifest, not of the model: report it with the command that led here"
    return BuildError(message("the manifest is not valid", where=where, got=repr(got), expected=expected, do=do))


def _arrays_of(manifest: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The shapes of one network's weights by name, and the names of the constants that its packs or variants read."""
    shapes = {weight["name"]: tuple(weight["shape"]) for weight in manifest["weights"]}
    read = [name for pack in _packs(manifest) for name in pack["weights"]]
    read += [name for variant in manifest.get("variants", ()) for name in _read_by(variant)]
    return shapes, {name for name in read if name.startswith(CONSTANT)}


def serialize_weights(manifest: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> bytes:
    """The arrays in safetensors format; b"" for none. All of the manifest's weights or none of them, and always the
    constants that its packs or variants name ("constant.0"), which may have any shape, and those of its model, which
    may have any dtype. Those of `networks` have the network's number before their names ("0.W_l0"). Raises WeightError
    where they are not so."""
    model = {item["array"] for item in manifest.get("model", {}).get("constants", ())}
    shapes, constants, dtypes = dict[str, tuple[int, ...]](), set(model), dict[str, np.dtype[Any]]()
    for number, own in enumerate(manifest.get("networks", (manifest,))):
        first = f"{number}." if "networks" in manifest else ""
        mine, fixed = _arrays_of(own)
        shapes |= {first + name: shape for name, shape in mine.items()}
        constants |= {first + name for name in fixed}
        dtypes |= dict.fromkeys((first + name for name in (*mine, *fixed)), np.dtype(held_dtype(own["dtype"])))
    names = constants | shapes.keys() if weights.keys() - constants else constants
    if weights.keys() != names:
        got, expected = (", ".join(sorted(given)) or "none" for given in (weights, names))
        raise WeightError(message("the weights are not the manifest's", got=got, expected=expected, do="give them all"))
    for name, array in weights.items():
        shape, dtype = shapes.get(name, array.shape), dtypes.get(name, array.dtype.newbyteorder("="))
        if array.shape != shape or array.dtype.newbyteorder("=") != dtype:
            got, expected = f"{array.dtype} of shape {array.shape}", f"{dtype} of shape {shape}"
            do = "cast or reshape it"
            raise WeightError(message(f"weight {name} does not fit", got=got, expected=expected, do=do))
    if not weights:
        return b""
    from safetensors.numpy import save

    # Not ascontiguousarray, which makes a weight without dimensions one of shape (1,).
    return save({name: np.array(array, dtypes.get(name, array.dtype), order="C") for name, array in weights.items()})


def export(module: Any, path: Any, bundle: Any, name: str | None) -> None:
    """What `Module.export` does. Raises ConfigError where it is not told what to write, and what the writers raise."""
    if path is None and bundle is None:
        do = 'mod.export("m.so"), or mod.export(bundle="folder")'
        raise ConfigError(message("export: nothing to write", got="neither a path nor a bundle", do=do))
    if bundle is not None:
        from tvm_rnn.bundle import write_bundle

        write_bundle(module, bundle, name)
    if path is not None:
        arrays = {**module.weights, **module._constants}
        write_container(module._file[: module._elf_size], module.manifest, arrays, path)


def write_container(
    elf: bytes | str | os.PathLike[str],
    manifest: Mapping[str, Any],
    weights: Mapping[str, np.ndarray] | None,
    path: str | os.PathLike[str],
) -> None:
    """Write a module's file, whole or not at all: a temporary file beside it takes its place when it is complete.

    elf: a linked shared object or its path. weights: {name: array} of the manifest's dtype and shapes with the packs'
    constants, or only those (None: there are none) for a module whose weights come later. Raises BuildError (manifest,
    path) and WeightError.
    """
    validate(manifest)
    path = os.fspath(path)
    if not isinstance(elf, bytes):
        with open(elf, "rb") as file:
            elf = file.read()
    if elf[:4] != b"\x7fELF":
        raise BuildError(message("there is no shared object to write", got=repr(elf[:8]), expected="an ELF file"))
    blob = serialize_weights(manifest, weights or {})
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    parts = [elf, bytes(-len(elf) % ALIGNMENT), blob, text]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    offset = len(elf) + len(parts[1])
    parts.append(FOOTER.pack(MAGIC, CONTAINER_VERSION, crc, len(elf), offset, len(blob), len(text)))
    _replace_file(path, parts)


def _replace_file(path: str, parts: list[bytes]) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    # Not tempfile: it makes files that only their owner can read, and a module is for others too.
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(6)}.tmp")
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(0, "it is a directory")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        problem = f"{error.strerror or error}" if os.path.isdir(folder) else f"no directory {folder!r}"
        do = "give a file name in an existing directory that you may write to"
        raise BuildError(message(f"cannot write {path!r}", got=problem, do=do)) from error
