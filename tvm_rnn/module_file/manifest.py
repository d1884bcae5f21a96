"""The file of a module: ELF, weights, manifest, footer; `schema.py` has the types of the manifest.

In: a linked ELF shared object, facts about it and weights, from compiler/compile.py and bundle/export.py. Out: one
container file, which runtime.py reads; what does not fit together is refused before.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tvm_rnn.dtypes import held_dtype
from tvm_rnn.errors import BuildError, WeightError, message
from tvm_rnn.network.program import COMPILED, NETWORK
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import (
    ALIGNMENT,
    CARRIED,
    CARRIED_MARK,
    CONSTANT,
    CONTAINER_VERSION,
    FOOTER,
    MAGIC,
    carried,
)
from tvm_rnn.runtime.runtime_random import RAW
from tvm_rnn.whole_files import advice, path_of, write_whole

from .schema import CpuNetwork, Facts, GpuNetwork, SeveralNetworks, SeveralOnGpus, invalid, plain, read


def validate(manifest: Facts | Mapping[str, object]) -> Facts:
    """The facts, where they are what this version's runtime understands. Raises BuildError, naming the field."""
    facts = read(manifest if isinstance(manifest, Mapping) else plain(manifest))
    for step in facts.model.steps if facts.model is not None else ():
        if step.op not in (NETWORK, COMPILED):
            raise invalid("model.steps", step.op, f"{NETWORK} or {COMPILED}")
    for network in _networks(facts):
        _check_network(network)
    return facts


def _networks(facts: Facts) -> Sequence[CpuNetwork | GpuNetwork]:
    return facts.networks if isinstance(facts, SeveralNetworks | SeveralOnGpus) else [facts]


def _check_network(network: CpuNetwork | GpuNetwork) -> None:
    """What types cannot say of one network."""
    for state in network.states:
        if len(state.shapes) != network.num_layers:
            expected = f"{network.num_layers}, one per layer"
            raise invalid(f"states {state.name!r} shapes", len(state.shapes), expected)
        if state.constant and any(shape != state.shapes[0] for shape in state.shapes):
            raise invalid(f"states {state.name!r} shapes", state.shapes, "one shape in every layer: it is constant")
    for kind, items in (("inputs", network.inputs), ("states", network.states), ("weights", network.weights)):
        names = [item.name for item in items]
        if len({*names}) != len(names):
            raise invalid(f"{kind} names", ", ".join(names), "each name once")
    known = {weight.name for weight in network.weights}
    for where, given in _reads(network):
        strange = [name for name in given if not name.startswith(CONSTANT) and name not in known]
        if strange:
            raise invalid(where, ", ".join(strange), ", ".join(sorted(known)))


def _reads(network: CpuNetwork | GpuNetwork) -> list[tuple[str, list[str]]]:
    """Who reads which weights and constants: the functions of a CPU, the programs of each GPU arch."""
    if isinstance(network, CpuNetwork):
        return [(f"packs {call.function!r} weights", call.weights) for call in network.calls]
    return [
        (f"variants {own.arch!r} parameters", [n for n, _ in program.parameters if not n.startswith(RAW)])
        for own in network.variants
        for program in own.programs
    ]


def serialize_weights(manifest: Facts | Mapping[str, object], weights: Mapping[str, np.ndarray]) -> bytes:
    """The arrays in safetensors format; b"" for none. All of the manifest's weights or none of them, and always the
    constants that its packs or variants name ("constant.0"), which may have any shape, and those of its model, which
    may have any dtype. Those of `networks` have the network's number before their names ("0.W_l0"). Raises WeightError
    where they are not so."""
    facts = validate(manifest)
    shapes, dtypes = dict[str, Sequence[int]](), dict[str, np.dtype]()
    constants = {item.array for item in facts.model.constants} if facts.model is not None else set()
    for number, own in enumerate(_networks(facts)):
        first = f"{number}." if isinstance(facts, SeveralNetworks | SeveralOnGpus) else ""
        mine = {first + weight.name: tuple(weight.shape) for weight in own.weights}
        fixed = {first + name for _, names in _reads(own) for name in names if name.startswith(CONSTANT)}
        shapes |= mine
        constants |= fixed
        dtypes |= dict.fromkeys((*mine, *fixed), np.dtype(held_dtype(own.dtype)))
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
    arrays = {name: np.array(array, dtypes.get(name, array.dtype), order="C") for name, array in weights.items()}
    return _from_a_line_on(save(arrays))


def _from_a_line_on(blob: bytes) -> bytes:
    """The same with spaces behind the header, so that arrays begin where a line of the cache does: vectors that lie
    across two lines take twice the time."""
    size = int.from_bytes(blob[:8], "little")
    more = -(8 + size) % ALIGNMENT
    return (size + more).to_bytes(8, "little") + blob[8 : 8 + size] + b" " * more + blob[8 + size :]


def with_facts(elf: bytes, facts: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Code with what it was made for at its end, where loaders do not look: the runtime compares that with the
    manifest. Code that has it stays as it is. Raises BuildError for a manifest that is not that of the code."""
    if (known := carried(elf, len(elf))) is not None:
        if runtime.facts_text(facts) != known[0]:
            where, got, expected = runtime.first_difference("", facts, json.loads(known[0]))
            raise invalid(where, got, repr(expected))
        return elf
    described = dict[str, str]()
    said = validate(facts)
    for number, own in enumerate(_networks(said)):
        first = f"{number}." if isinstance(said, SeveralNetworks | SeveralOnGpus) else ""
        described |= {first + weight.name: f"{held_dtype(own.dtype)} {weight.shape}" for weight in own.weights}
    described |= {name: runtime.described(array) for name, array in arrays.items() if name not in described}
    texts = [runtime.facts_text(facts).encode(), json.dumps(described, separators=(",", ":")).encode()]
    end = b"".join([*texts, CARRIED.pack(*map(len, texts), CARRIED_MARK)])
    return elf + bytes(-(len(elf) + len(end)) % ALIGNMENT) + end


Path = str | os.PathLike[str]


def write_container(
    elf: bytes | Path,
    manifest: Facts | Mapping[str, object],
    weights: Mapping[str, np.ndarray] | None,
    path: Path,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a module's file, whole or not at all: a temporary file beside it takes its place when it is complete.

    elf: a linked shared object or its path. weights: {name: array} of the manifest's dtype and shapes with the packs'
    constants, or only those (None: there are none) for a module whose weights come later. check: called once all is
    copied; raises where its sources are no longer as they were. Raises BuildError (manifest, path) and WeightError.
    """
    facts = manifest if isinstance(manifest, Mapping) else plain(manifest)
    if not isinstance(elf, bytes):
        with open(elf, "rb") as file:
            elf = file.read()
    if elf[:4] not in runtime.CODE_BEGINS:
        expected = "an ELF or a Mach-O file, or one of WebAssembly"
        raise BuildError(message("there is no code to write", got=repr(elf[:8]), expected=expected))
    blob = serialize_weights(facts, weights or {})
    elf = with_facts(elf, facts, weights or {})
    check()
    text = json.dumps(facts, indent=1, allow_nan=False).encode()
    parts = [elf, bytes(-len(elf) % ALIGNMENT), blob, text]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    offset = len(elf) + len(parts[1])
    parts.append(FOOTER.pack(MAGIC, CONTAINER_VERSION, crc, len(elf), offset, len(blob), len(text)))
    _write(path, parts)


def _write(path: Path, parts: Sequence[bytes]) -> None:
    """Raises BuildError where that cannot be."""
    try:
        write_whole({path_of(path): lambda file: file.writelines(parts)}, 0o777)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        problem = f"no directory {os.path.dirname(os.path.realpath(path))!r}" if missing else error.strerror
        do = advice(error, "give a file name in an existing directory that you may write to")
        raise BuildError(message(f"cannot write {str(path)!r}", got=problem, do=do)) from error
