"""Masks on GPUs: a kernel that makes the keys of a call, and one that fills the rows of a tile of time.

In: mask nodes and where their rows go; of each call a seed, which may be on the GPU, and the number of its first step.
Out: kernels, and `NetworkMaskKeys`, which launches the first of them. What words are made of stands in
`runtime_random.py`, which has the order of the work for this file as well. Masks are hoisted values: each is filled by
one launch per tile before its steps, in both directions of time, and read from the workspace by whatever runs them, in
one of two forms:

    rows    a number for each element of each step and batch row, as every hoisted value
    words   for persistent kernels: 32 steps of one element as the bits of a word, [steps / 32, B, units]; the word of
            a mask for whole sequences, [B, units], is all ones or 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.pointers import Argument, Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.graph.graph import Node
from tvm_rnn.runtime import runtime_random
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

WORD = "uint32"
BITS = 32  # steps of a word
TOGETHER = 4  # of these, drawn at a time: on an H200 27 us for 8 million draws, one by one 29


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
    words: Kernel
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
        with host.when(when[0]) if when[0] != "true" else nullcontext():
            self.launch(host, rows, keys, *steps)
        if words is not None:
            with host.when(when[1]):
                self.launch_words(host, words, keys, *steps)

    def launch(self, host: Host, pointers: Sequence[Pointer], keys: MaskKeys, steps: HostExpr, start: HostExpr) -> None:
        """Fill the rows of the `steps` steps of a tile, which begins at `start`."""
        numbers: list[HostExpr] = [f"({steps}) * B", "B", f"{keys.first} + {start}"]
        if self.every == "sequence":
            numbers = [_groups(steps), "B", steps]
        host.launch(self.kernel, [*pointers, keys.keys.at(self.at)], numbers)

    def launch_words(self, host: Host, words: Pointer, keys: MaskKeys, steps: HostExpr, start: HostExpr) -> None:
        """The words of these steps."""
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
        kernel = keys_kernel(self.streams, self.layers, self.directions)
        there = Pointer(f"({self.seed_at.text} ? {self.seed_at.text} : {self.keys.text})", "int64")
        host.launch(kernel, [self.keys, there], [self.seed, f"{self.seed_at.text} ? 1 : 0"])

    def of(self, layer: int, direction: int) -> MaskKeys:
        """Those of one layer and direction."""
        visit = layer * self.directions + direction
        return MaskKeys(self.keys.at(2 * visit * len(self.streams)), self.first)


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
        seed = w.local(1, "int64")
        w.store(seed, w["number"], 0)
        with w.when(tirx.NE(w["there"], tirx.const(0, "int32"))):
            w.store(seed, w["seed_at"][int64(0)], 0)
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
            key = [w.keep(tirx.Cast(WORD, part)) for part in (seed[0], seed[0] >> int64(32))]
            found = threefry(w, key, name[0], tirx.Cast(WORD, place[0]))
            for i in range(2):
                w.store(w["keys"], found[i], wide(item) * 2 + i)

    pointers, scalars = [("keys", WORD), ("seed_at", "int64")], [("number", "int64"), ("there", "int32")]
    return write("mask_keys", pointers, scalars, body, threads=THREADS)


def mask_kernel(name: str, node: Node, writes: Callable[[Node], Sequence[Place]], streams: Sequence[str]) -> MaskRows:
    """The kernels of a mask: the one that fills its rows, and the one that makes words of them."""
    places, whole = writes(node), node.attrs["every"] == "sequence"
    body = (_whole_rows if whole else _step_rows)(node, places)
    pointers = [(f"w{i}", place.dtype) for i, place in enumerate(places)]
    scalars = [("rows", "int64"), ("batch", "int64"), ("steps" if whole else "start", "int64")]
    kernel = write(name, [*pointers, ("keys", WORD)], scalars, body, threads=THREADS)
    arguments = tuple(Argument(f"w{i}", "write", node, i) for i in range(len(places)))
    at = 2 * list(streams).index(node.attrs["stream"])
    return MaskRows(kernel, arguments, at, words_kernel(f"{name}_words", node), node.attrs["every"])


def _limit(node: Node) -> Expr:
    """Words of Threefry below it mean 1."""
    return tirx.const(runtime_random.threshold(node.attrs["keep"]), WORD)


def _unit(w: Writer, node: Node, row: Expr, j: Expr) -> Expr:
    """The first word of the counter of a batch row's element."""
    return w.keep(tirx.Cast(WORD, tirx.truncmod(row, w["batch"]) * int64(prod(node.shape)) + wide(j)))


def _key(w: Writer) -> list[Expr]:
    return [w.keep(w["keys"][int64(i)]) for i in range(2)]


def _store(w: Writer, places: Sequence[Place], drawn: Expr, row: Expr, j: Expr) -> None:
    for i, place in enumerate(places):
        one, zero = (tirx.const(value, place.dtype) for value in (1.0, 0.0))
        w.store(w[f"w{i}"], tirx.Select(drawn, one, zero), address(place, row, j))


def _step_rows(node: Node, places: Sequence[Place]) -> Callable[[Writer], None]:
    """One thread for each element of each step."""

    def body(w: Writer) -> None:
        row, j, inside = elements(w, prod(node.shape))
        with w.when(inside):
            unit = _unit(w, node, row, j)
            step = w.keep(tirx.Cast(WORD, w["start"] + tirx.truncdiv(row, w["batch"])))
            word, _ = threefry(w, _key(w), unit, step)
            _store(w, places, word < _limit(node), row, j)

    return body


def _whole_rows(node: Node, places: Sequence[Place]) -> Callable[[Writer], None]:
    """One thread for an element of 32 steps, which all have the same mask."""

    def body(w: Writer) -> None:
        row, j, inside = elements(w, prod(node.shape))
        with w.when(inside):
            word, _ = threefry(w, _key(w), _unit(w, node, row, j), tirx.const(0, WORD))
            first, b = w.keep(tirx.truncdiv(row, w["batch"]) * BITS), w.keep(tirx.truncmod(row, w["batch"]))
            with w.loop(BITS) as i, w.when(first + wide(i) < w["steps"]):
                _store(w, places, word < _limit(node), (first + wide(i)) * w["batch"] + b, j)

    return body


def words_kernel(name: str, node: Node) -> Kernel:
    """One thread for each word: the mask of 32 steps of one element, the first in the lowest bit; or of all steps."""
    units = prod(node.shape)

    def body(w: Writer) -> None:
        row, j, inside = elements(w, units)
        with w.when(inside):
            unit, key, bits = _unit(w, node, row, j), _key(w), w.local(1, WORD)
            if node.attrs["every"] == "sequence":
                word, _ = threefry(w, key, unit, tirx.const(0, WORD))
                every, none = (tirx.const(value, WORD) for value in ((1 << BITS) - 1, 0))
                w.store(bits, tirx.Select(word < _limit(node), every, none), 0)
            else:
                last = w.keep(tirx.Cast(WORD, w["start"] + tirx.truncdiv(row, w["batch"]) * BITS + (BITS - 1)))
                w.store(bits, tirx.const(0, WORD), 0)
                with w.loop(BITS // TOGETHER) as i:  # backwards, so that the first step's bit is shifted in last
                    for n in range(TOGETHER):
                        word, _ = threefry(w, key, unit, last - tirx.Cast(WORD, i * TOGETHER + n))
                        own = tirx.Select(word < _limit(node), tirx.const(1, WORD), tirx.const(0, WORD))
                        w.store(bits, bits[0] + bits[0] + own, 0)
            w.store(w["words"], bits[0], row * int64(units) + wide(j))

    scalars = [("rows", "int64"), ("batch", "int64"), ("start", "int64")]
    return write(name, [("words", WORD), ("keys", WORD)], scalars, body, threads=THREADS)
