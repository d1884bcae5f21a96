"""Masks on GPUs: kernels that make the keys of a call, fill the rows of a tile of time, and drop weights.

In: mask nodes and where their rows go; of each call a seed, which may be on the GPU, and the number of its first step.
Out: kernels; `NetworkMaskKeys`, which launches the first of them; and `Dropped`: statements of `pack`, which such a
program runs before each call, that drop weights, and of `sequence` for their gradients. What words are made of stands
in `runtime_random.py`, which has the order of the work for this file as well. Masks of rows are hoisted values: each is
filled by one launch per tile before its steps, in both directions of time, and read from the workspace by whatever runs
them, in one of two forms:

    rows    a number for each element of each step and batch row, as every hoisted value
    words   for persistent kernels: 32 steps of one element as the bits of a word, [steps / 32, B, units]; the word of
            a mask for whole sequences, [B, units], is all ones or 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.pointers import Argument, Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.graph.graph import Node
from tvm_rnn.network.layer import weight_name
from tvm_rnn.runtime import runtime_random
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

WORD = "uint32"
BITS = 32  # steps of a word
TOGETHER = 4  # of these, drawn at a time: on an H200 27 us for 8 million draws, one by one 29
SEED, SEED_AT = (runtime_random.RAW + name for name in ("seed", "seed_at"))  # among `pack`'s raw weights
Seed = tuple[HostExpr, Pointer]  # a number, and an address of it on the GPU or 0


@dataclass(frozen=True)
class MaskKeys:
    """What the masks of one layer and direction are made of. keys: two words for each stream; first: the number of the
    call's first step in its whole sequence."""

    keys: Pointer
    first: HostExpr


@dataclass(frozen=True)
class MaskRows:
    """The kernels of a mask. at: of its words among a layer's and direction's. Scalars: rows, batch, start; those of
    `words`, and of the rows of a mask for whole sequences, count a row for up to 32 steps of a batch row."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    at: int
    words: Kernel | None  # of masks alone
    every: str

    def fill(
        self,
        host: Host,
        rows: Sequence[Pointer],
        words: Pointer | None,
        keys: MaskKeys,
        steps: tuple[HostExpr, HostExpr],
        when: tuple[str, str],
    ) -> None:
        """A tile's mask in each form that is read. steps: (how many, the first). when: C++ conditions of its rows, and
        of its words where there are any."""
        count, start = steps
        numbers: list[HostExpr] = [f"({count}) * B", "B", f"{keys.first} + {start}"]
        if self.every == "sequence":
            numbers = [_groups(count), "B", count]
        with host.when(when[0]) if when[0] != "true" else nullcontext():
            host.launch(self.kernel, [*rows, keys.keys.at(self.at)], numbers)
        if words is not None:
            with host.when(when[1]):
                self.launch_words(host, words, keys, *steps)

    def launch_words(self, host: Host, words: Pointer, keys: MaskKeys, steps: HostExpr, start: HostExpr) -> None:
        """The words of these steps."""
        assert self.words is not None
        rows = "B" if self.every == "sequence" else _groups(steps)
        host.launch(self.words, [words, keys.keys.at(self.at)], [rows, "B", f"{keys.first} + {start}"])


def _groups(steps: HostExpr) -> str:
    return f"({steps} + {BITS - 1}) / {BITS} * B"


class NetworkMaskKeys:
    """The keys of all layers and directions of one program, which has three inputs more from number `number` on: the
    seed, an address of it on the GPU or 0, and the number of the first step. These are no addresses but the last."""

    def __init__(self, program: Program, number: int, streams: Sequence[str], layers: int, directions: int) -> None:
        self.streams, self.layers, self.directions = tuple(streams), layers, directions
        texts = [program.input(number + i).text for i in range(3)]
        self.seed, self.first = (f"reinterpret_cast<int64_t>({texts[i]})" for i in (0, 2))
        self.seed_at = Pointer(texts[1], "int64")
        self.keys = program.buffer("keys", 2 * layers * directions * len(streams), WORD)

    def prepare(self, host: Host) -> None:
        """Make the keys, if there are masks of rows."""
        if not self.streams:
            return
        there, numbers = seed_arguments(self.seed, self.seed_at, self.keys)
        host.launch(keys_kernel(self.streams, self.layers, self.directions), [self.keys, there], numbers)

    def of(self, layer: int, direction: int) -> MaskKeys:
        """Those of one layer and direction."""
        visit = layer * self.directions + direction
        return MaskKeys(self.keys.at(2 * visit * len(self.streams)), self.first)


def seed_arguments(seed: HostExpr, seed_at: Pointer, anything: Pointer) -> tuple[Pointer, tuple[HostExpr, HostExpr]]:
    """What `seed_words` reads: a pointer, which is `anything` where no seed is on the GPU, and two scalars."""
    at = seed_at.text
    return Pointer(f"({at} ? {at} : {anything.text})", "int64"), (seed, f"{at} ? 1 : 0")


def seed_words(w: Writer) -> Callable[[], list[Expr]]:
    """The seed, `number` or what `seed_at` points to, is loaded; what is returned makes two words of it."""
    seed = w.local(1, "int64")
    w.store(seed, w["number"], 0)
    with w.when(tirx.NE(w["there"], tirx.const(0, "int32"))):
        w.store(seed, w["seed_at"][int64(0)], 0)
    return lambda: [w.keep(tirx.Cast(WORD, part)) for part in (seed[0], seed[0] >> int64(32))]


def threefry(w: Writer, key: Sequence[Expr], first: Expr, second: Expr) -> tuple[Expr, Expr]:
    """The two words of a counter, in registers."""
    parity = tirx.const(runtime_random.PARITY, WORD)
    words = [*key, w.keep(tirx.bitwise_xor(tirx.bitwise_xor(key[0], key[1]), parity))]
    x = w.local(2, WORD)
    w.store(x, first + words[0], 0)
    w.store(x, second + words[1], 1)

    def step(r: int) -> None:
        w.store(x, x[0] + x[1], 0)
        turned = tirx.bitwise_or(x[1] << tirx.const(r, WORD), x[1] >> tirx.const(32 - r, WORD))
        w.store(x, tirx.bitwise_xor(turned, x[0]), 1)

    def inject(i: int, j: int, number: int) -> None:
        w.store(x, x[0] + words[i], 0)
        w.store(x, x[1] + (words[j] + tirx.const(number, WORD)), 1)

    runtime_random.rounds(step, inject)
    return x[0], x[1]


def keys_kernel(streams: Sequence[str], layers: int, directions: int) -> Kernel:
    """Words [layers, directions, streams, 2] of a seed, which is `number` or `there`: one thread for each two."""
    count = layers * directions * len(streams)

    def body(w: Writer) -> None:
        block, thread = I.cta_id([-(-count // THREADS)]), I.thread_id([THREADS])
        item = w.keep(block * THREADS + thread)
        key = seed_words(w)
        with w.when(item < count):
            visit, stream = tirx.truncdiv(item, len(streams)), w.keep(tirx.truncmod(item, len(streams)))
            visit = w.keep(visit)
            name, place = w.local(1, WORD), w.local(1, "int32")
            w.store(place, visit if directions == 2 else visit * 2, 0)
            for number, text in enumerate(streams):
                with w.when(tirx.EQ(stream, number)):
                    w.store(name, tirx.const(runtime_random.name_word(text), WORD), 0)
                    if text == runtime_random.SHARED and directions == 2:
                        w.store(place, visit - tirx.truncmod(visit, 2), 0)
            found = threefry(w, key(), name[0], tirx.Cast(WORD, place[0]))
            for i in range(2):
                w.store(w["keys"], found[i], wide(item) * 2 + i)

    pointers, scalars = [("keys", WORD), ("seed_at", "int64")], [("number", "int64"), ("there", "int32")]
    return write("mask_keys", pointers, scalars, body, threads=THREADS)


def mask_kernel(name: str, node: Node, writes: Callable[[Node], Sequence[Place]], streams: Sequence[str]) -> MaskRows:
    """The kernels of a mask: what fills its rows, and what makes words of them; of numbers the first."""
    places, every = writes(node), node.attrs["every"]

    def store(w: Writer, word: Expr, row: Expr, j: Expr) -> None:
        for i, place in enumerate(places):
            w.store(w[f"w{i}"], _value(node, word, place.dtype), address(place, row, j))

    def each_step(w: Writer, row: Expr, j: Expr) -> None:
        """One thread for each element of each step."""
        unit = _unit(w, node, row, j)
        step = w.keep(tirx.Cast(WORD, w["start"] + tirx.truncdiv(row, w["batch"])))
        store(w, threefry(w, _key(w), unit, step)[0], row, j)

    def whole(w: Writer, row: Expr, j: Expr) -> None:
        """One thread for an element of 32 steps, which all have the same mask."""
        word, _ = threefry(w, _key(w), _unit(w, node, row, j), tirx.const(0, WORD))
        first, b = w.keep(tirx.truncdiv(row, w["batch"]) * BITS), w.keep(tirx.truncmod(row, w["batch"]))
        with w.loop(BITS) as i, w.when(first + wide(i) < w["steps"]):
            store(w, word, (first + wide(i)) * w["batch"] + b, j)

    pointers = [(f"w{i}", place.dtype) for i, place in enumerate(places)]
    kernel = _kernel(name, node, pointers, *(("steps", whole) if every == "sequence" else ("start", each_step)))
    arguments = tuple(Argument(f"w{i}", "write", node, i) for i in range(len(places)))
    at = 2 * list(streams).index(node.attrs["stream"])
    words = words_kernel(f"{name}_words", node) if node.op == "mask" else None
    return MaskRows(kernel, arguments, at, words, every)


def words_kernel(name: str, node: Node) -> Kernel:
    """One thread for each word: the mask of 32 steps of one element, the first in the lowest bit; or of all steps."""

    def fill(w: Writer, row: Expr, j: Expr) -> None:
        unit, key, bits = _unit(w, node, row, j), _key(w), w.local(1, WORD)
        if node.attrs["every"] == "sequence":
            every, none = (tirx.const(value, WORD) for value in ((1 << BITS) - 1, 0))
            w.store(bits, tirx.Select(_drawn(w, node, key, unit, tirx.const(0, WORD)), every, none), 0)
        else:
            last = w.keep(tirx.Cast(WORD, w["start"] + tirx.truncdiv(row, w["batch"]) * BITS + (BITS - 1)))
            w.store(bits, tirx.const(0, WORD), 0)
            with w.loop(BITS // TOGETHER) as i:  # backwards, so that the first step's bit is shifted in last
                for n in range(TOGETHER):
                    drawn = _drawn(w, node, key, unit, last - tirx.Cast(WORD, i * TOGETHER + n))
                    own = tirx.Select(drawn, tirx.const(1, WORD), tirx.const(0, WORD))
                    w.store(bits, bits[0] + bits[0] + own, 0)
        w.store(w["words"], bits[0], row * int64(prod(node.shape)) + wide(j))

    return _kernel(name, node, [("words", WORD)], "start", fill)


def _kernel(
    name: str, node: Node, pointers: list[tuple[str, str]], number: str, fill: Callable[[Writer, Expr, Expr], None]
) -> Kernel:
    """fill: with (row, element), statements of one thread. number: the third scalar."""

    def body(w: Writer) -> None:
        row, j, inside = elements(w, prod(node.shape))
        with w.when(inside):
            fill(w, row, j)

    scalars = [("rows", "int64"), ("batch", "int64"), (number, "int64")]
    return write(name, [*pointers, ("keys", WORD)], scalars, body, threads=THREADS)


def _value(node: Node, word: Expr, dtype: str) -> TirExpr:
    """An element of a mask, or a number, an odd one of 24 bits over 2**24."""
    if node.op == "mask":
        drawn = word < tirx.const(runtime_random.threshold(node.attrs["keep"]), WORD)
        return tirx.Select(drawn, tirx.const(1.0, dtype), tirx.const(0.0, dtype))
    odd = (word >> tirx.const(9, WORD)) * tirx.const(2, WORD) + tirx.const(1, WORD)
    return tirx.Cast(dtype, odd) * tirx.const(2.0**-24, dtype)


def _drawn(w: Writer, node: Node, key: Sequence[Expr], unit: Expr, step: Expr) -> Expr:
    """Whether an element of a step is 1: words of Threefry below a limit mean that."""
    word, _ = threefry(w, key, unit, step)
    return word < tirx.const(runtime_random.threshold(node.attrs["keep"]), WORD)


def _unit(w: Writer, node: Node, row: Expr, j: Expr) -> Expr:
    """The first word of the counter of a batch row's element."""
    return w.keep(tirx.Cast(WORD, tirx.truncmod(row, w["batch"]) * int64(prod(node.shape)) + wide(j)))


def _key(w: Writer) -> list[Expr]:
    return [w.keep(w["keys"][int64(i)]) for i in range(2)]


# --- weight drop: parameters with some elements 0 and the others scaled, made again for every call -------------------


@dataclass
class Dropped:
    """Of one program. own: by parameter the probability of an element to be 0."""

    own: Mapping[str, float]
    kernels: dict[tuple[str, float], Kernel] = field(default_factory=dict)
    made: dict[str, Pointer] = field(default_factory=dict)

    def weight(self, program: Program, node: Node, layer: int, direction: int, dtype: str) -> Pointer:
        """A parameter as it is in this call; filled by `pack` before it is first read."""
        name = weight_name(node.name, layer, direction)
        if name not in self.made:
            raw, target = program.raw(name, dtype), program.packed(prod(node.shape), dtype)
            seed, at = (program.raw(text, "int64") for text in (SEED, SEED_AT))
            number = f"reinterpret_cast<int64_t>({seed.text})"
            self._launch(program.pack, node, (layer, direction), (raw, target), (number, at))
            self.made[name] = target
        return self.made[name]

    def gradient(
        self, host: Host, mask_keys: NetworkMaskKeys, node: Node, place: tuple[int, int], gradient: Pointer
    ) -> None:
        """Drop the same elements of a parameter's gradient, in place."""
        self._launch(host, node, place, (gradient, gradient), (mask_keys.seed, mask_keys.seed_at))

    def _launch(self, host: Host, node: Node, place: tuple[int, int], pointers: Sequence[Pointer], seed: Seed) -> None:
        p, dtype = self.own[node.name], pointers[0].dtype
        there, numbers = seed_arguments(*seed, pointers[1])
        if (dtype, p) not in self.kernels:
            self.kernels[dtype, p] = drop_kernel(f"drop{len(self.kernels)}", dtype, 1.0 - p)
        word = runtime_random.name_word(runtime_random.ONCE + node.name)
        own: list[HostExpr] = [prod(node.shape), *numbers, word, 2 * place[0] + place[1]]
        host.launch(self.kernels[dtype, p], [*pointers, there], own)


def drop_kernel(name: str, dtype: str, keep: float) -> Kernel:
    """target = source / keep where the mask is 1, else 0; they may be one array."""
    limit = tirx.const(runtime_random.threshold(keep), WORD)
    scale, zero = tirx.const(1.0 / keep, dtype), tirx.const(0.0, dtype)

    def body(w: Writer) -> None:
        count = w["count"]
        blocks = tirx.truncdiv(count + int64(THREADS - 1), int64(THREADS))
        block, thread = I.cta_id([tirx.Cast("int32", blocks)]), I.thread_id([THREADS])
        at = w.keep(wide(block) * int64(THREADS) + wide(thread))
        key = seed_words(w)
        with w.when(at < count):
            own = threefry(w, key(), w.keep(tirx.Cast(WORD, w["word"])), w.keep(tirx.Cast(WORD, w["place"])))
            word, _ = threefry(w, [w.keep(part) for part in own], w.keep(tirx.Cast(WORD, at)), tirx.const(0, WORD))
            value = w.keep(w["source"][at])
            w.store(w["target"], tirx.Select(word < limit, value * scale, zero), at)

    pointers, scalars = [("source", dtype), ("target", dtype), ("seed_at", "int64")], ["count", "number"]
    numbers = [*((n, "int64") for n in scalars), ("there", "int32"), ("word", "int64"), ("place", "int64")]
    return write(name, pointers, numbers, body, threads=THREADS, shares=True)
