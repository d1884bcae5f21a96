"""What a bundle's C texts say of a module: its networks with C names, and where the arrays of its file lie.

In: a module's file as `Module.export` writes it. Out: `Facts`, for header.py, source.py, examples.py and folder.py.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.module_file.schema import (
    CpuNetwork,
    Direct,
    GpuNetwork,
    Model,
    SeveralNetworks,
    SeveralOnGpus,
    State,
    read,
)
from tvm_rnn.runtime import runtime

from ..errors import ConfigError, message
from ..names import C_WORDS, identifiers
from .encoding import NETWORK

MOST_ARRAYS = 64  # inputs and states of one network: ENGINE_MOST_ARRAYS of engine.h
# Names that the functions' own parameters have, and what the example programs use: functions of the C library,
# functions and variables of their own.
TAKEN = set(
    re.findall(
        r"\w+",
        """
        model handle steps batch y lengths reset NULL main errno stdin stdout stderr std
        engine_apart engine_init_state engine_step engine_sequence
        abort atoll calloc clock_gettime exit fclose fopen fprintf fread free fseek ftell fwrite malloc memcpy memset
        printf qsort signal strcmp time argc argv begin check compare count files found given i in memory now_us out
        output print_times process read_constant read_file run size start status timed us v
        """,
    )
)
# Variables of entry points: a bundle may be called so, an array may not.
LOCALS = {"own", "step", "weights", "inputs", "states", "call", "t"}
# What entry points call, after the network's name and an underscore.
ENTRIES = ("direct", "fits", "step_unchecked", "step_in_full", "sequence_unchecked", "sequence_in_full")
# The parameters' names of the function that generates besides, and what its program uses.
GENERATING = {
    "prompt",
    "prompt_steps",
    "stop",
    "seed",
    "first_step",
    "path",
    "ends",
    "read_prompt",
    "atof",
    "request",
    "engine_generate",
}
HEADER_WORDS = 8  # safetensors: the size of its header in bytes, as 8 bytes


@dataclass(frozen=True)
class Array:
    """An input or a state. name: in C; per_row: elements of one row, for an input of one step; initial: NaN: of a
    constant, which the caller gives."""

    name: str
    per_row: int
    layout: str
    initial: float = 0.0


@dataclass(frozen=True)
class Network:
    """One recurrent network of a module. name: what its functions' names begin with. packed: of each of the manifest's
    packs the numbers of its arrays in `Facts.arrays`; direct_packed: the same of its direct function's. given: its
    weights are inputs of the model."""

    name: str
    manifest: CpuNetwork
    inputs: tuple[Array, ...]
    states: tuple[Array, ...]
    output: Array
    packed: tuple[tuple[int, ...], ...]
    given: bool = False
    direct_packed: tuple[tuple[int, ...], ...] = ()

    @property
    def direct(self) -> Direct | None:
        """Its function of one step of one row."""
        return self.manifest.direct if self.can_step else None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """In the order of that function."""
        return (*self.inputs, self.output, *self.states)

    @property
    def constants(self) -> list[str]:
        """The names of the states that callers give and that no call changes."""
        return [state.name for state in self.states if math.isnan(state.initial)]

    @property
    def c_type(self) -> str:
        return {"float32": "float", "float64": "double"}[self.manifest.dtype]

    @property
    def macro(self) -> str:
        return self.name.upper()

    @property
    def can_run(self) -> bool:
        """Whether it takes sequences: one that draws random numbers only generates."""
        return not self.manifest.draws

    @property
    def can_step(self) -> bool:
        m = self.manifest
        return m.num_directions == 1 and "step" in m.entry_points and not self.given and self.can_run

    @property
    def token_type(self) -> str:
        """What a prompt, outputs and what ends a row are in calls that generate."""
        tokens = self.manifest.generation is not None and self.manifest.generation.tokens
        return "int32_t" if tokens else self.c_type

    @property
    def title(self) -> str:
        m = self.manifest
        both = "both directions" if m.num_directions == 2 else "backwards" if m.reverse else "forwards"
        return f"{m.cell}, {m.num_layers} layer{'s' * (m.num_layers > 1)}, {both}, {m.dtype}"


@dataclass(frozen=True)
class Stored:
    """An array in the file. offset: in bytes, from the end of the weights' header; below 0: not in the file but a
    weight that is a value of the model, number -1 - offset of its network's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Facts:
    """All that is said of a module. name: of the bundle, a C identifier."""

    name: str
    networks: tuple[Network, ...]
    arrays: tuple[Stored, ...]
    manifest: CpuNetwork | SeveralNetworks
    code_bytes: int
    code_crc: int
    header_bytes: int
    header_crc: int
    features: tuple[tuple[str, str | None], ...]

    @property
    def number(self) -> dict[str, int]:
        return {array.name: i for i, array in enumerate(self.arrays)}

    @property
    def model(self) -> Model:
        """The model around the networks, of which there must be one."""
        if self.manifest.model is None:
            raise ValueError("the module is a network alone")
        return self.manifest.model


def c_name(text: str) -> str:
    """The text, if it can begin names in C. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) or text in TAKEN | C_WORDS:
        do = "letters, digits and _ that begin with a letter, and no word of C"
        raise ConfigError(message("bundle: not a name in C", got=repr(text), expected=do, do="give another: name=..."))
    return text


def read_facts(data: bytes, manifest: Mapping[str, object], name: str) -> Facts:
    """The facts of a module's file. data: its bytes. Raises ConfigError for a module that cannot be bundled."""
    _, _, _, code_bytes, start, size, _ = runtime.FOOTER.unpack(data[-runtime.FOOTER.size :])
    header_bytes = int.from_bytes(data[start : start + HEADER_WORDS], "little") if size else 0
    header = data[start + HEADER_WORDS : start + HEADER_WORDS + header_bytes]
    entries = json.loads(header) if size else {}
    entries.pop("__metadata__", None)
    arrays = tuple(
        Stored(n, np.dtype(runtime.SAFETENSORS[e["dtype"]]).name, tuple(e["shape"]), e["data_offsets"][0])
        for n, e in entries.items()
    )
    said = read(manifest)
    if isinstance(said, GpuNetwork | SeveralOnGpus):
        raise ConfigError(message("bundle: only modules for CPUs", got=said.target.name, do="compile it for a CPU"))
    several = isinstance(said, SeveralNetworks)
    parts = said.networks if isinstance(said, SeveralNetworks) else [said]
    prefixes = [f"{i}." if several else "" for i in range(len(parts))]
    # Weights that the model around a network gives it, in the order of the step's inputs.
    steps = [step.attributes for step in said.model.steps if step.op == NETWORK] if said.model is not None else []
    values = [next((a.get("weights", ()) for a in steps if a["network"] == i), ()) for i in range(len(parts))]
    for own, first, names in zip(parts, prefixes, values, strict=True):
        shapes = {item.name: tuple(item.shape) for item in own.weights}
        arrays += tuple(Stored(first + n, own.dtype, shapes[n], -1 - i) for i, n in enumerate(names))
    number = {array.name: i for i, array in enumerate(arrays)}
    networks = [
        _network(own, f"{name}_n{i}" if several else name, number, prefixes[i], bool(values[i]))
        for i, own in enumerate(parts)
    ]
    code = zlib.crc32(data[:code_bytes])
    words = (re.sub(r"[_.-]", "", feature) for feature in said.target.features)  # as /proc/cpuinfo has most of them
    features = tuple((word, runtime.KERNEL_NAMES.get(word)) for word in words)
    return Facts(name, tuple(networks), arrays, said, code_bytes, code, header_bytes, zlib.crc32(header), features)


def _network(m: CpuNetwork, name: str, number: Mapping[str, int], first: str, given: bool) -> Network:
    directions, layers = m.num_directions, m.num_layers
    if m.draws and m.generation is None:
        do = "compile it with generate=True; or bundle a cell that emits what is drawn from, and draw in the program"
        raise ConfigError(message("bundle: a network that draws random numbers", got=", ".join(m.draws), do=do))
    taken = {*TAKEN, *LOCALS, name, *(f"{name}_{entry}" for entry in ENTRIES)} | (
        GENERATING if m.generation is not None else set()
    )
    words = identifiers([*(item.name for item in m.inputs), *(state.name for state in m.states)], taken)
    if len(words) > MOST_ARRAYS:
        got, expected = f"{len(words)} inputs and states", f"at most {MOST_ARRAYS}"
        raise ConfigError(message("bundle: a network with too many arrays", got=got, expected=expected))
    inputs = [Array(w, math.prod(x.shape), _axes("batch", *x.shape)) for w, x in zip(words, m.inputs, strict=False)]
    states = [_state(w, s, directions, layers) for w, s in zip(words[len(inputs) :], m.states, strict=True)]
    width = [directions * n if i == 0 else n for i, n in enumerate(m.output.shape or [1])]
    output = Array("y", math.prod(width), _axes("batch", *width))
    missing = [n for pack in m.packs for n in pack.weights if first + n not in number]
    if missing:
        do = "compile with weights, or load_weights before: a bundle has them in it"
        raise ConfigError(message("bundle: the module has no weights", got=f"no {missing[0]}", do=do))
    packed, direct = (
        tuple(tuple(number[first + n] for n in pack.weights) for pack in packs)
        for packs in (m.packs, m.direct.packs if m.direct and not given else [])
    )
    return Network(name, m, tuple(inputs), tuple(states), output, packed, given, direct)


def _state(word: str, state: State, directions: int, layers: int) -> Array:
    shapes = [tuple(shape) for shape in state.shapes]
    per_row = directions * sum(map(math.prod, shapes))
    if len({*shapes}) == 1:
        layout = _axes(directions * layers, "batch", *shapes[0])
    else:  # one after the other
        layout = " then ".join(_axes(directions, "batch", *shape) for shape in shapes)
    return Array(word, per_row, layout, math.nan if state.constant else state.initial)


def _axes(*sizes: object) -> str:
    return "".join(f"[{size}]" for size in sizes)


def listed(names: Sequence[str]) -> str:
    """Names for a sentence: "x, h and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


def initialiser(values: Iterable[object]) -> str:
    """Items of an array, with one more: in C it may not be empty."""
    return ", ".join([*map(str, values), "0"])
