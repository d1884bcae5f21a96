"""The host program of a compiled network: which kernels run in which order, on which memory, as C++ text.

In: calls of `cuda/plan/network.py` and of the regimes, which say "a buffer of so many bytes", "launch this kernel with
these pointers", "repeat". Out: `Program`, the statements of the module's two functions (`sequence` and `pack`), its
kernels and its sizes, which `cuda_text.py` turns into one C++ file.

Sizes, counts and conditions are C++ expressions as text (or Python integers), evaluated as int64 in each call. All of
them may use T, B (steps and rows of the call), `sms` (multiprocessors of the GPU) and what `let` returned; statements
of `sequence` also `has_lengths` and `has_reset`. Nothing here waits for the GPU or allocates, so that every call can be
captured in a CUDA graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from tvm_rnn.errors import BuildError, message
from tvm_rnn.graph.graph import Node
from tvm_rnn.names import identifier

from .kernel_writer import Kernel

T = TypeVar("T")
HostExpr: TypeAlias = "str | int"  # a piece of C++ text of the host program, or an integer
ALIGNMENT = 256  # of every buffer; also what cudaMalloc gives
ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "uint32": 4}
ITEM_BYTES |= {"float64": 8, "int64": 8, "uint64": 8, "float8_e4m3fn": 1}


class WeightDrop(Protocol):
    """What drops parameters (`cuda/rowwise/dropout_masks.py`): own: by name the probability of an element to be 0."""

    @property
    def own(self) -> Mapping[str, float]: ...

    def weight(self, program: Program, node: Node, layer: int, direction: int, dtype: str) -> Pointer: ...


@dataclass(frozen=True)
class Pointer:
    """An address on the GPU, as C++ expression of type `char*`, and the dtype of what is there."""

    text: str
    dtype: str = "uint8"

    def at(self, elements: HostExpr) -> Pointer:
        """The address so many elements further (64-bit arithmetic)."""
        return self if elements == 0 else self.skip(f"{ITEM_BYTES[self.dtype]} * {_long(elements)}")

    def skip(self, count: HostExpr) -> Pointer:
        """The address so many bytes further."""
        return self if count == 0 else replace(self, text=f"({self.text} + {_long(count)})")

    def cast(self, dtype: str) -> Pointer:
        return replace(self, dtype=dtype)


@dataclass
class Host:
    """The statements of one function of the module. They run in the order in which they are written here.

    Everything is enqueued on the caller's stream, or inside `with host.stream(k)` on an internal one.
    """

    program: Program
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    streams: int = 0  # internal streams in use

    def code(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def let(self, name: str, value: HostExpr) -> str:
        """A new int64 variable of this block; returns its name, which begins with `name` and is unique."""
        unique = self.program.unique(name)
        self.code(f"const int64_t {unique} = {_text(value)};")
        return unique

    def pointer(self, name: str, value: Pointer) -> Pointer:
        """A new variable that holds an address, for long expressions that are used often."""
        unique = self.program.unique(name)
        self.code(f"char* const {unique} = {value.text};")
        return replace(value, text=unique)

    def launch(
        self,
        kernel: Kernel,
        pointers: Sequence[Pointer] | Mapping[str, Pointer],
        scalars: Sequence[HostExpr] | Mapping[str, HostExpr] = (),
    ) -> None:
        """Enqueue a kernel with its pointers and scalars, in its own order or by name.

        A kernel with `resident=True` is launched cooperatively, and refused with an error where its blocks would not
        all be on the GPU at once. Raises BuildError where the arguments are not the kernel's or a dtype differs.
        """
        name = self.program.add(kernel)
        places = _arguments(kernel, "pointers", [p for p, _ in kernel.pointers], pointers)
        numbers = _arguments(kernel, "scalars", [s for s, _ in kernel.scalars], scalars)
        words = [f"kernels::{name}"]
        for (parameter, dtype), place in zip(kernel.pointers, places, strict=True):
            if place.dtype != dtype:
                where, got = f"{kernel.name}({parameter})", f"{place.text} of {place.dtype}"
                raise BuildError(message("a kernel is given another dtype", where=where, got=got, expected=dtype))
            words.append(place.text)
        words += [_long(number) for number in numbers]
        self.code(f"RUN(call({', '.join(words)}));")

    def memset(self, place: Pointer, count: HostExpr, value: int = 0) -> None:
        """Enqueue: set `count` bytes to `value` (0 to 255). None at all is allowed."""
        self.code(f"RUN(fill({place.text}, {value}, {_long(count)}));")

    def copy(self, target: Pointer, source: Pointer, count: HostExpr) -> None:
        """Enqueue: copy `count` bytes on the GPU. None at all, and a copy onto itself, are allowed."""
        self.code(f"RUN(copy({target.text}, {source.text}, {_long(count)}));")

    def fail_when(self, condition: HostExpr, text: str) -> None:
        self.code(f"if ({_text(condition)}) return fail({json.dumps(text, ensure_ascii=False)});")

    @contextmanager
    def loop(self, extent: HostExpr, name: str = "i", start: HostExpr = 0) -> Iterator[str]:
        """Repeat for a new variable from `start` to before `extent`; gives the variable's name."""
        i = self.program.unique(name)
        with self._block(f"for (int64_t {i} = {_text(start)}, end = {_text(extent)}; {i} < end; ++{i}) {{"):
            yield i

    @contextmanager
    def when(self, condition: HostExpr) -> Iterator[None]:
        with self._block(f"if ({_text(condition)}) {{"):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Statements for where the condition of the `when` just before does not hold."""
        with self._block("else {"):
            yield

    @contextmanager
    def stream(self, number: HostExpr) -> Iterator[None]:
        """What is enqueued here goes to an internal stream: 0 is the caller's, 1 and more are the module's.

        Streams run at the same time as each other; only `record` and `wait` order them. Before the first use of an
        internal stream it must `wait` for an event of the caller's stream, and the caller's stream must `wait` for the
        last event of each at the end (`fork` and `join` do this).
        """
        with self._block("{"):
            self.code(f"OnStream other(call_state, {_long(number)});")
            self.code("RUN(other.status);")
            yield

    def record(self, event: HostExpr) -> None:
        """Enqueue: event number `event` happens here. A number may be used again; it then means the newest one."""
        self.code(f"RUN(call_state.record({_long(event)}));")

    def wait(self, event: HostExpr) -> None:
        """Enqueue: wait for that event, as last recorded in this call; no effect where it has not been recorded."""
        self.code(f"RUN(call_state.wait({_long(event)}));")

    def fork(self, count: HostExpr) -> None:
        """Internal streams 1 to `count` begin after all that is enqueued so far on the current stream."""
        self.code(f"RUN(call_state.fork({_long(count)}));")

    def join(self, count: HostExpr) -> None:
        """What follows on the current stream begins after all that is enqueued on internal streams 1 to `count`."""
        self.code(f"RUN(call_state.join({_long(count)}));")

    @property
    def captured(self) -> str:
        """A C++ condition: this call is being recorded into a CUDA graph. Not for sizes: a call of the same sizes
        outside of the graph takes the same workspace."""
        return "call_state.captured()"

    @contextmanager
    def _block(self, opening: str) -> Iterator[None]:
        self.code(opening)
        self.depth += 1
        yield
        self.depth -= 1
        self.code("}")


@dataclass(frozen=True)
class Export:
    """One more function of the module. arguments: how many it takes, the device and the stream first."""

    name: str
    arguments: int
    lines: tuple[str, ...]
    comment: tuple[str, ...]


@dataclass
class Program:
    """One network's host program for one arch.

    sequence, pack: the statements of the two functions. `sequence` is not called where T or B is 0. dtype: of x, y and
    states (net.dtype).
    """

    dtype: str = "float32"
    suffix: str = ""  # of the functions' names, after the arch
    kernels: dict[str, Kernel] = field(default_factory=dict)
    parameters: list[tuple[str, str]] = field(default_factory=list)  # (name, dtype) of raw weights that pack reads
    inputs: int = 1
    states: int = 0
    packed_bytes: int = 0
    layout: list[str] = field(default_factory=list)  # statements that compute offsets, shared by all functions
    facts: dict[str, Any] = field(default_factory=dict)  # for the manifest: templates, flops_per_row, what plan adds
    flags: str = "reset"  # C++ expression: where the steps find their reset flags
    dropped: WeightDrop | None = None  # parameters that are dropped in each call
    each: int = 1  # rows of a batch row: B is so many times the call's
    left_out: frozenset[str] = frozenset()  # kernels that no call of this module launches
    exports: list[Export] = field(default_factory=list)  # what is around the network
    tells_starts: bool = False  # calls say whether they are given no states

    def __post_init__(self) -> None:
        self._names: dict[str, int] = {}
        self.sequence, self.pack = Host(self), Host(self)

    def unique(self, name: str) -> str:
        """A variable's name that begins with `name`, which may be that of a state."""
        word = identifier(name)
        count = self._names[word] = self._names.get(word, 0) + 1
        return f"{word}_{count}"

    def add(self, kernel: Kernel) -> str:
        """Make the kernel part of the module; returns its name. One object may be added any number of times."""
        known = self.kernels.setdefault(kernel.name, kernel)
        if known is not kernel:
            raise BuildError(message("two kernels have one name", got=kernel.name, do="give each its own name"))
        return kernel.name

    # --- memory -------------------------------------------------------------------------------------------------

    def let(self, name: str, value: HostExpr) -> str:
        """An int64 variable for sizes and statements alike, such as the steps of a tile; returns its unique name.

        It may use T, B, sms, `resident` and variables made before it.
        """
        unique = self.unique(name)
        self.layout.append(f"const int64_t {unique} = {_text(value)};")
        return unique

    def buffer(self, name: str, count: HostExpr, dtype: str = "uint8") -> Pointer:
        """`count` elements of workspace, for `sequence`, aligned to 256 bytes and not initialised.

        The place is this buffer's alone, save inside `scratch`.
        """
        unique = self.unique(name)
        self.layout.append(f"const int64_t {unique} = reserve(at, most, {ITEM_BYTES[dtype]} * {_long(count)});")
        return Pointer(f"(work + {unique})", dtype)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Buffers declared inside share memory with those declared after it, as in a C++ block."""
        mark = self.unique("mark")
        self.layout.append(f"const int64_t {mark} = at;")
        yield
        self.layout.append(f"at = {mark};")

    def packed(self, count: int, dtype: str) -> Pointer:
        """`count` elements that `pack` writes once and `sequence` reads: weights in the kernels' order. They are 0
        before `pack` runs."""
        offset = self.packed_bytes
        self.packed_bytes += -(-count * ITEM_BYTES[dtype] // ALIGNMENT) * ALIGNMENT
        return Pointer("packed", dtype).skip(offset)

    def raw(self, name: str, dtype: str) -> Pointer:
        """A weight ("R_l0_reverse") or constant ("constant.0.1") as the user gave it, dense, row-major: `pack` only.

        dtype: "float64" for float64 networks, else "float32".
        """
        if (name, dtype) not in self.parameters:
            self.parameters.append((name, dtype))
        return Pointer(f"raw[{self.parameters.index((name, dtype))}]", dtype)

    # --- what the caller gave; valid in sequence ---------------------------------------------------------------

    def input(self, number: int) -> Pointer:
        """[T, B, *shape] of net.dtype, dense."""
        self.inputs = max(self.inputs, number + 1)
        return Pointer(f"input[{number}]", self.dtype)

    @property
    def output(self) -> Pointer:
        """[T, B, D*H] of net.dtype, dense, not initialised."""
        return Pointer("output", self.dtype)

    def state_in(self, number: int) -> Pointer:
        """State `number` before the first step: [L*D, B, *shape] (layers that differ: one after the other, each
        [D, B, *shape]) of net.dtype, dense. Always there: the runtime fills in the initial values."""
        self.states = max(self.states, number + 1)
        return Pointer(f"state_in[{number}]", self.dtype)

    def state_out(self, number: int) -> Pointer:
        """The same after the last step; never the same memory as state_in; not initialised."""
        self.states = max(self.states, number + 1)
        return Pointer(f"state_out[{number}]", self.dtype)

    @property
    def starts(self) -> str:
        """A C++ condition: the caller gave no states, and all parameters are finite."""
        self.tells_starts = True
        return "starts"

    @property
    def lengths(self) -> Pointer:
        """[B] int64; any valid address where has_lengths is false."""
        return Pointer("lengths", "int64")

    @property
    def reset(self) -> Pointer:
        """[T, B] uint8, 0 or 1; any valid address where has_reset is false."""
        return Pointer(self.flags, "uint8")

    def resident(self, kernel: Kernel) -> str:
        """Expression: how many blocks of the kernel can be on this GPU at once, with nothing else on it; 0: none."""
        return f"resident(kernels::{self.add(kernel)})"


def _arguments(kernel: Kernel, what: str, names: list[str], given: Sequence[T] | Mapping[str, T]) -> list[T]:
    if isinstance(given, Mapping):
        if given.keys() != set(names):
            raise BuildError(message(f"kernel {kernel.name}: wrong {what}", got=[*given], expected=names))
        return [given[name] for name in names]
    if len(given) != len(names):
        raise BuildError(message(f"kernel {kernel.name}: wrong {what}", got=f"{len(given)}", expected=names))
    return list(given)


def _text(value: HostExpr) -> str:
    """Python integers beyond 32 bits need a suffix in C++."""
    return str(value) if isinstance(value, str) else f"INT64_C({value})"


def _long(value: HostExpr) -> str:
    return f"int64_t({value})"
