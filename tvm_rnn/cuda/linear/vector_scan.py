"""Recurrences of vectors over all time: a group of kind "scan" whose rows are `scan`, `scan_max` or `delay`.

In: the group, and where its values lie. Out: a `VectorScan`, its kernels and their launches. A thread has an element or
two, side by side in memory, a block 32 times as many, and all or a part of the time, which it takes in rounds: warps
have the same elements, and some steps each, one behind the other. A warp finds what its steps do to any state that
enters them: a matrix of the component's states and a vector (of `scan_max` a sum and a maximum). In shared memory each
sees what those before it do, always in the same order, and walks its steps, of which the operands were loaded once.
While a round is worked on, the operands of the next one are on their way.

Where there are too few elements for the GPU, time is cut into chunks whose blocks run at once (`at_once`): each finds
what its chunk does, publishes it (`published.py`), joins those before its own, and walks its steps. How many there are
follows, in each call, from T, B and the GPU. Where the chip does not hold what is read again, and that takes longer
than to wait for other blocks more often, chunks have a round each, and a block of `once` keeps the operands of one in
registers. It joins the chunks before it in a group; the last one of the group publishes the states behind it. The order
is that of every call. `apply` has all steps in a block; calls of few steps have `few`, whose warps have other elements
each.

Rewrite: for t: h = a h + b  -->  each part: (P, v);  each part: for those before: h = P h + v; for t: h = a h + b

A reset cuts a part off from what enters it: no product with a state of infinity is made. Where an infinity enters a
part whose factors multiply to 0, composition gives NaN and one step after the other may give infinity; the same holds
of `scan_max` where terms of both infinities are added.

Source: Blelloch 1990, "Prefix sums and their applications".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.vector_access import aligned
from tvm_rnn.cuda.layer.pointers import arithmetic
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import WARP, Job
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit, best
from tvm_rnn.target import Target

from .kept_operands import ALIGN
from .vector_apply import Apply, Few
from .vector_at_once import AtOnce
from .vector_group import VectorGroup
from .vector_once import AWAITED, Once
from .vector_walk import FEW_WARPS, Walk

SCALARS = (("steps", "int32"), ("reverse", "int32"), ("batch", "int32"), ("chunks", "int32"), ("span", "int32"))
GROUP = ("group", "int32")
ONCE_BYTES = 16  # of an element and step, operands read twice: with fewer, that is as fast as blocks that wait
LEAST_SPAN = 64  # steps of a chunk: fewer take less time than another kernel takes to begin
LEAST_CHUNKS = 3  # fewer are no faster than one: operands are read twice, or blocks wait
RESERVED = 1024  # bytes of shared memory that each block takes besides its own
MOST_KEPT = 64 << 10  # of a block, operands in shared memory: the rest is the level-1 cache's
EARLIER = 4  # steps that take as long as to compose the effect of an earlier chunk


@dataclass(frozen=True, eq=False)
class VectorScan(VectorGroup):
    """The kernels of one group. held: bytes of operands that the GPU has until they are read again; record: where the
    knobs are from."""

    held: int = 0
    record: str = DEFAULT

    @cached_property
    def once(self) -> bool:
        """Whether chunks may be read once: to wait for other blocks must cost less than to read operands twice, and
        what is published is a matrix and a vector, no cut."""
        moved = 2 * self._moved("read") + self._moved("write")
        return moved >= ONCE_BYTES and self.rows[0].op != "delay"

    def _moved(self, role: str) -> float:
        """Bytes of an element and step."""
        found = [(a, self.place(a)) for a in self.arguments if a.role == role]
        sizes = [prod(a.node.shape) * ITEM_BYTES[place.dtype] for a, place in found if place.row_stride]
        return sum(sizes) / self.width

    @property
    def exchange_bytes(self) -> int:
        """Shared memory in which warps of a block exchange what they do."""
        return 2 * self.warps * self.side * self.words * WARP * ITEM_BYTES[arithmetic(self.job.precision)]

    @property
    def knobs(self) -> dict[str, int]:
        return {"warps": self.warps, "ahead": self.ahead, "resident": self.resident, "side": self.side}

    @property
    def fact(self) -> dict[str, object]:
        """A row of the manifest's templates."""
        ops = " ".join(dict.fromkeys(row.op for row in self.rows))
        shape = "x".join(map(str, self.rows[0].shape)) or "1"
        unit = f"before {ops} {shape}, all of T in chunks, any B"
        return {"unit": unit, "template": "vector_scan_cuda", "knobs": self.knobs, "record": self.record}

    def ends_size(self, rows: HostExpr) -> str:
        """Numbers, at most, that say what the chunks of so many rows of steps do."""
        most = f"sms * {self.resident * self.tile}, {rows} * {self.width} / {LEAST_SPAN}"
        size = f"std::min<int64_t>({most}) * {self.words}"
        if not self.once:
            return size
        return f"std::max<int64_t>({size}, {rows} * {2 * self.width} / {self.round} * {self.words + len(self.rows)})"

    def launch(
        self,
        host: Host,
        values: Sequence[Pointer],
        states: Sequence[tuple[Pointer, Pointer]],
        ends: Pointer,
        tile: Tile,
        lean: bool = False,
    ) -> None:
        """All steps of a tile. values: of `arguments`; states: each before and after; ends: memory for `ends_size`;
        lean: there are never lengths or resets."""
        tiles = host.let("tiles", f"(B * {self.width} + {self.tile - 1}) / {self.tile}")
        most = f"std::min<int64_t>(sms * {self.resident} / {tiles}, {tile.count} / {LEAST_SPAN})"
        most = f"std::min<int64_t>({most}, static_cast<int64_t>(std::sqrt({tile.count} / {EARLIER})))"
        most = host.let("most", f"std::max<int64_t>({most}, 1)")
        span = f"(({tile.count} + {most} - 1) / {most} + {LEAST_SPAN - 1}) / {LEAST_SPAN} * {LEAST_SPAN}"
        span = host.let("span", f"{most} < {LEAST_CHUNKS} ? {tile.count} : {span}")
        chunks = host.let("chunks", f"({tile.count} + {span} - 1) / {span}")
        pointers = {a.name: p for a, p in zip(self.arguments, values, strict=True)} | {"chunk_ends": ends}
        for n, (old, new) in enumerate(states):
            pointers |= {f"old_{n}": old, f"new_{n}": new}
        pointers |= {"lengths": host.program.lengths, "reset": host.program.reset}
        scalars: dict[str, HostExpr] = {"steps": tile.count, "reverse": int(tile.reverse), "batch": "B", "span": span}
        scalars |= {"start": tile.start, "total": "T", "has_lengths": "has_lengths", "has_reset": "has_reset"}
        # Without lengths and resets users' values are taken for aligned; other kernels take them as they are.
        near = [pointers[a.name] for a in self.arguments if not self.is_aligned(self.place(a))]
        apart = f"!({aligned(near, self.side)})" if near else "false"
        cases = {False: f"!has_lengths && !has_reset && !{apart}", True: f"has_lengths || has_reset || {apart}"}
        for masked in (False,) if lean else (False, True):
            with nullcontext() if lean else host.when(cases[masked]):
                with host.when(f"{tile.count} <= {self.ahead}"):
                    self._launch(host, self.kernels["few", masked], pointers, {**scalars, "chunks": 1})
                with host.otherwise():
                    once = self.once and not masked
                    done = self._launch_once(host, pointers, scalars, tiles, tile.count) if once else ""
                    with host.when(f"!{done}") if once else nullcontext():
                        own = {**scalars, "chunks": chunks}
                        with host.when(f"{chunks} > 1"):
                            ends = pointers["chunk_ends"]
                            numbers = f"{chunks} * {self.words} * (B * {self.width})"
                            set_bytes(host, ends, f"{numbers} * {ITEM_BYTES[ends.dtype]}", 0xFF, early=self.job.early)
                            self._launch(host, self.kernels["at_once", masked], pointers, own)
                        with host.otherwise():
                            self._launch(host, self.kernels["apply", masked], pointers, own)

    def _launch_once(
        self, host: Host, pointers: Mapping[str, Pointer], scalars: Mapping[str, HostExpr], tiles: str, steps: HostExpr
    ) -> str:
        """All steps in chunks that are read once. Returns a C++ condition: it was done. That is not where the GPU has
        the operands until they are read again, where there are few chunks, or so many of a group that a warp would wait
        for several one behind the other."""
        group, words = host.let("group", f"sms * {self.resident} / {tiles}"), self.words - 1
        chunks = host.let("chunks", f"({steps} + {self.round - 1}) / {self.round}")
        fit = f"{group} >= {LEAST_CHUNKS} && {group} <= {AWAITED * self.warps + 1} && {chunks} >= {LEAST_CHUNKS}"
        read = f"{steps} * (B * {round(self._moved('read') * self.width)})"
        # One group waits for nobody's states: all its blocks run at once, and read once.
        done = host.let("once", f"{fit} && ({read} > {self.held} || {chunks} <= {group})")
        with host.when(done):
            numbers = f"({chunks} * {words} + {chunks} / {group} * {len(self.rows)}) * (B * {self.width})"
            ends = pointers["chunk_ends"]
            set_bytes(host, ends, f"{numbers} * {ITEM_BYTES[ends.dtype]}", 0xFF)
            own = {**scalars, "chunks": chunks, "span": self.round, "group": group}
            self._launch(host, self.kernels["once", False], pointers, own)
        return done

    @staticmethod
    def _launch(host: Host, kernel: Kernel, pointers: Mapping[str, Pointer], scalars: Mapping[str, HostExpr]) -> None:
        own = {name: pointers[name] for name, _ in kernel.pointers}
        host.launch(kernel, own, {name: scalars[name] for name, _ in kernel.scalars})

    @cached_property
    def kernels(self) -> dict[tuple[str, bool], Kernel]:
        """By kind, and by whether they know lengths and resets."""
        return {(kind, masked): self.kernel(kind, masked) for kind in KINDS for masked in (False, True)}

    def kernel(self, kind: str, masked: bool) -> Kernel:
        """kind: one of KINDS. masked: with lengths and resets."""
        body, dtype, numbers = KINDS[kind], arithmetic(self.job.precision), range(len(self.rows))
        pointers = [(a.name, self.job.dtype(a)) for a in self.arguments] + [("chunk_ends", dtype)]
        pointers += [(f"{side}_{n}", dtype) for side in ("old", "new") for n in numbers]
        pointers += MASK_POINTERS if masked else ()
        scalars = (*SCALARS, *([GROUP] if kind == "once" else ()), *(MASK_SCALARS if masked else ()))
        name = f"{self.job.name}_{kind}{'_masked' if masked else ''}"

        def emit(w: Writer) -> None:
            # As many blocks as the launch counts with: else registers may leave room for fewer.
            blocks = {"tirx.launch_bounds_min_blocks_per_sm": self.resident}
            with I.attr(blocks) if self.side > 1 and kind != "few" else nullcontext():
                body(w, self, masked).emit()

        with flavour(self.job.precision):
            what, threads, early = (name, pointers, scalars, emit), self.threads(kind), self.job.early
            if kind == "at_once":
                return write(*what, threads=threads, early=early, waits=False, shared_bytes=self.kept)
            return write(*what, threads=threads, early=early)

    def threads(self, kind: str) -> int:
        """Of a block."""
        return WARP * (FEW_WARPS if kind == "few" else self.warps)


KINDS: Mapping[str, type[Walk]] = {"apply": Apply, "once": Once, "at_once": AtOnce, "few": Few}


def vector_scan(
    job: Job, replaced: Mapping[Node, Node], initial: Mapping[str, float], zeroed: frozenset[Node], target: Target
) -> VectorScan:
    """The kernels of a group, as fast as the target's records and the template know. The arguments are the fields."""
    plain = VectorScan(job, replaced, initial, zeroed)
    reads = sum(a.role == "read" for a in plain.arguments)
    unit = Unit("recurrence", "before", job.precision, gates=len(plain.rows), width=plain.width, stages=reads)
    _, knobs, record = best(unit, target)
    if plain.rows[0].shape[-1:] and plain.rows[0].shape[-1] % knobs["side"]:
        knobs = {**knobs, "side": 1}
    scan = VectorScan(job, replaced, initial, zeroed, record=record, **knobs)
    left = min(target.sm_shared_bytes // scan.resident - RESERVED, target.shared_bytes) - scan.exchange_bytes
    kept = max(0, min(left, MOST_KEPT)) // ALIGN * ALIGN
    return replace(scan, kept=kept, held=target.l2_bytes + target.sms * scan.resident * kept)
