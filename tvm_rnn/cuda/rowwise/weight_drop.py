"""Weight drop on GPUs: parameters with some elements 0 and the others scaled, made again for every call.

In: the probabilities, and of each call the seed. Out: `Dropped`: statements of `pack`, which such a program runs before
each call, that drop what is packed; and of `sequence`, for gradients of the dropped parameters. `pack` is given the
seed among the raw weights, as "masks.seed" and "masks.seed_at": a number, and an address of it on the GPU or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.row_kernels import THREADS
from tvm_rnn.graph.graph import Node
from tvm_rnn.network.layer import weight_name
from tvm_rnn.runtime import runtime_random
from tvm_rnn.tir.index import int64, wide

from .dropout_masks import WORD, NetworkMaskKeys, threefry

SEED, SEED_AT = (runtime_random.RAW + name for name in ("seed", "seed_at"))


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
            there = Pointer(f"({at.text} ? {at.text} : {target.text})", "int64")
            number = f"reinterpret_cast<int64_t>({seed.text})"
            self._launch(program.pack, node, (layer, direction), (raw, target, there), (number, f"{at.text} ? 1 : 0"))
            self.made[name] = target
        return self.made[name]

    def gradient(
        self, host: Host, mask_keys: NetworkMaskKeys, node: Node, place: tuple[int, int], gradient: Pointer
    ) -> None:
        """Drop the same elements of a parameter's gradient, in place."""
        at = mask_keys.seed_at
        there = Pointer(f"({at.text} ? {at.text} : {gradient.text})", "int64")
        self._launch(host, node, place, (gradient, gradient, there), (mask_keys.seed, f"{at.text} ? 1 : 0"))

    def _launch(self, host: Host, node: Node, place: tuple[int, int], pointers: Any, seed: tuple[str, str]) -> None:
        p, dtype = self.own[node.name], pointers[0].dtype
        if (dtype, p) not in self.kernels:
            self.kernels[dtype, p] = drop_kernel(f"drop{len(self.kernels)}", dtype, 1.0 - p)
        word = runtime_random.name_word(runtime_random.ONCE + node.name)
        numbers: list[HostExpr] = [prod(node.shape), *seed, word, 2 * place[0] + place[1]]
        host.launch(self.kernels[dtype, p], pointers, numbers)


def drop_kernel(name: str, dtype: str, keep: float) -> Kernel:
    """target = source / keep where the mask is 1, else 0; they may be one array."""
    limit = tirx.const(runtime_random.threshold(keep), WORD)
    scale, zero = tirx.const(1.0 / keep, dtype), tirx.const(0.0, dtype)

    def body(w: Writer) -> None:
        count = w["count"]
        blocks = tirx.truncdiv(count + int64(THREADS - 1), int64(THREADS))
        block, thread = I.cta_id([tirx.Cast("int32", blocks)]), I.thread_id([THREADS])
        at = w.keep(wide(block) * int64(THREADS) + wide(thread))
        seed = w.local(1, "int64")
        w.store(seed, w["number"], 0)
        with w.when(tirx.NE(w["there"], tirx.const(0, "int32"))):
            w.store(seed, w["seed_at"][int64(0)], 0)
        with w.when(at < count):
            whole = [w.keep(tirx.Cast(WORD, part)) for part in (seed[0], seed[0] >> int64(32))]
            own = threefry(w, whole, w.keep(tirx.Cast(WORD, w["word"])), w.keep(tirx.Cast(WORD, w["place"])))
            word, _ = threefry(w, [w.keep(part) for part in own], w.keep(tirx.Cast(WORD, at)), tirx.const(0, WORD))
            value = w.keep(w["source"][at])
            w.store(w["target"], tirx.Select(word < limit, value * scale, zero), at)

    pointers, scalars = [("source", dtype), ("target", dtype), ("seed_at", "int64")], ["count", "number"]
    numbers = [*((n, "int64") for n in scalars), ("there", "int32"), ("word", "int64"), ("place", "int64")]
    return write(name, pointers, numbers, body, threads=THREADS, shares=True)
