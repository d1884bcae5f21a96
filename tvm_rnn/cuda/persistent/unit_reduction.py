"""Sums and maxima over the units of a layer, inside a persistent kernel: one number per batch row, known to every lane.

In: the kernel's state (`persistent.Body`) and a phase of reductions. Out: statements: each lane reduces its own units,
each warp its lanes, and every block gets the warps' partial results (one exchange for all roots of the phase), which
each lane then reduces in one fixed order: results are the same in all blocks and from run to run.

A sum of squares around a mean takes one exchange, not two: every warp sums squares around its own mean, and the parts
are combined as the variance of a union is. So does the place of a maximum: every warp finds that of its own, and of
equal parts the first counts.

Source: Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance", The American Statistician 37(3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase, components, places_of
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import element
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import LANES, Body

Sum = tuple[Node, int] | tuple[Node, int, str]  # of a root and a row of two, or of its offsets
AT_ONCE = 8  # parts that a lane asks for before it uses the first
GROUPS = 8  # lanes of a warp that share a batch row


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """a and b reduced. NaN in either of them goes through a maximum."""
    if op == "sum":
        return a + b
    return tirx.Select(tirx.Or(a > b, tirx.isnan(a)), a, b)


def neutral(op: str) -> Expr:
    return _f32(0.0 if op == "sum" else float("-inf"))


def alike(a: Expr, b: Expr) -> Expr:
    """Whether two maxima are the same, NaN too."""
    return tirx.Or(tirx.EQ(a, b), tirx.And(tirx.isnan(a), tirx.isnan(b)))


class Reduction:
    """One reduction phase of one step. `own`: a warp's part, by (root, tile, row)."""

    def __init__(self, body: Body, phase: Phase) -> None:
        self.body, self.phase = body, phase
        self.k, self.geometry, self.ids = body.k, body.geometry, body.ids
        self.gates = len(list(components(phase.roots[0].args[0], phase.width)))
        self.own: dict[tuple[Node, int, int], tuple[Buffer, int]] = {}
        self.exact = self.geometry.ctas * self.geometry.units(phase.width) == phase.width

    def emit(self) -> None:
        geometry = self.geometry
        number = geometry.reductions.index(self.phase)
        keys = [(root, j, e) for root in self.phase.roots for j in range(geometry.own_tiles) for e in range(2)]
        registers = self.k.local(len(keys))
        self.own = {key: (registers, at) for at, key in enumerate(keys)}
        for j in range(geometry.own_tiles):
            with self.body.cells.own_tile(j):
                for root, centre in zip(self.phase.roots, self.phase.centres, strict=True):
                    for e in range(2):
                        self._lane(root, centre, j, e)
                    self._across((root.op, *self.own[(root, j, e)]) for e in range(2))
                for first, count in self._messages():
                    self._send_partial(number, first, count, j)
        with self.body.clock.waiting():
            self.body.exchange.meet(number)
        # Results are read later, outside of the condition that there is such a tile.
        results = [self.k.local(2 * len(self.phase.roots)) for _ in range(geometry.own_tiles)]
        for j in range(geometry.own_tiles):
            with self.body.cells.own_tile(j):
                self._take(number, j, results[j])

    # --- a warp's part -----------------------------------------------------------------------------------------------

    def _values(self, arg: Node, j: int, e: int) -> Iterator[tuple[int, Expr]]:
        """(block, value) of all that this lane has of a value for one batch row."""
        width = self.phase.width
        for block in range(self.geometry.blocks(width)):
            read = self.body.reads.reader(self.phase, block, j, e)
            for _, index in components(arg, width):
                yield block, element(arg, index, read, "float32")

    def _masked(self, block: int, value: Expr, instead: Expr) -> Expr:
        """Units that only fill up the last block count for nothing."""
        if self.exact:
            return value
        return tirx.Select(self.body.cells.unit(self.phase.width, block) < self.phase.width, value, instead)

    def _lane(self, root: Node, centre: Node | None, j: int, e: int) -> None:
        k, (registers, at) = self.k, self.own[(root, j, e)]
        k.store(registers, neutral(root.op), at)
        if centre is None:
            for block, value in self._values(root.args[0], j, e):
                found = k.keep(self._masked(block, value, neutral(root.op)))
                k.store(registers, combine(root.op, registers[at], found), at)
            return
        total, place = self.own[(centre, j, e)]
        if root.op == "max":
            pairs = zip(self._values(centre.args[0], j, e), self._values(places_of(root), j, e), strict=True)
            for (block, value), (_, number) in pairs:
                here = tirx.Select(alike(value, total[place]), -number, neutral("max"))
                here = k.keep(self._masked(block, here, neutral("max")))
                k.store(registers, tirx.Max(registers[at], here), at)
            return
        mean = k.keep(total[place] * self._inverse(_f32(1.0) if self.exact else self._count(self._part())))
        for block, value in self._values(centre.args[0], j, e):
            off = k.keep(value - mean)
            k.store(registers, registers[at] + self._masked(block, off * off, _f32(0.0)), at)

    def _across(self, found: Iterable[tuple[str, Buffer, int]]) -> None:
        """Lanes that share a batch row reduce what each has: (op, register)."""
        every, mask = list(found), tirx.const(0xFFFFFFFF, "uint32")
        for distance in (4, 8, 16):
            for op, register, at in every:
                other = tirx.call_extern("float32", "__shfl_xor_sync", mask, register[at], distance, LANES)
                self.k.store(register, combine(op, register[at], self.k.keep(other)), at)

    def _count(self, part: Expr) -> Expr:
        """Numbers that a part is made of, as float32: its units in the layer, times gates."""
        most = 8 * self.geometry.blocks(self.phase.width)
        if self.exact:
            return _f32(float(most * self.gates))
        units = tirx.Max(tirx.Min(self.phase.width - part * most, most), 0)
        return tirx.Cast("float32", units * self.gates)

    def _inverse(self, count: Expr) -> Expr:
        if self.exact:
            return _f32(1.0 / (8 * self.geometry.blocks(self.phase.width) * self.gates))
        return _f32(1.0) / tirx.Max(count, _f32(1.0))

    # --- the exchange ------------------------------------------------------------------------------------------------

    def _part(self) -> Expr:
        return self.ids.rank * self.geometry.warps_u + self.ids.warp_u

    def _messages(self) -> Iterator[tuple[int, int]]:
        """(first root, roots) of each message: two numbers for two rows are 16 bytes."""
        roots = len(self.phase.roots)
        return ((first, min(2, roots - first)) for first in range(0, roots, 2))

    def _word(self, number: int, root: int, j: int, part: Expr) -> tuple[Expr, int]:
        """Where this lane's two rows of a part lie, in words from the first value, and the numbers per row there.

        [message][tile][part][q][row][number].
        """
        geometry = self.geometry
        first, count = next(m for m in self._messages() if m[0] <= root < m[0] + m[1])
        place = (self.body.cells.tile(j) * geometry.parts + part) * (8 * count) + self.ids.q * (2 * count)
        begin = geometry.reduce_at + self.slot(number) * geometry.reduce_words
        return begin + first * geometry.parts * geometry.rows + place, count

    def slot(self, number: int) -> int:
        """Reductions use two buffers in turn: before one is written again, all blocks have read it."""
        return (self.body.par * len(self.geometry.reductions) + number) % 2

    def _send_partial(self, number: int, first: int, count: int, j: int) -> None:
        words = []
        for e in range(2):
            for root in self.phase.roots[first : first + count]:
                registers, at = self.own[(root, j, e)]
                words.append(I.reinterpret("uint32", registers[at]))
        word, _ = self._word(number, first, j, self._part())
        self.body.exchange.send_partial(word, words, self.slot(number))

    def _loaded(self, number: int, j: int, parts: Sequence[Expr]) -> list[dict[Node, list[Expr]]]:
        """For each part (asked for together): the two rows' numbers, by root."""
        roots = self.phase.roots
        registers = self.k.local(len(parts) * 2 * len(roots), "uint32")
        found: list[dict[Node, list[Expr]]] = [{} for _ in parts]
        at = 0
        for values, part in zip(found, parts, strict=True):
            for first, count in self._messages():
                word, _ = self._word(number, first, j, part)
                self.body.exchange.take(word, [registers[at + z] for z in range(2 * count)])
                for n, root in enumerate(roots[first : first + count]):
                    values[root] = [I.reinterpret("float32", registers[at + e * count + n]) for e in range(2)]
                at += 2 * count
        return found

    def _take(self, number: int, j: int, results: Buffer) -> None:
        """All results for a tile of rows, in every lane."""
        k, geometry = self.k, self.geometry
        sums: dict[Sum, tuple[str, Buffer, int]] = {}  # what lanes reduce: its op and register
        for root, centre in zip(self.phase.roots, self.phase.centres, strict=True):
            for e in range(2):
                spread = centre is not None and root.op == "sum"
                keys: list[Sum] = [(root, e), (root, e, "offset")] if spread else [(root, e)]
                for key in keys:
                    register = k.local(1)
                    k.store(register, neutral(root.op), 0)
                    sums[key] = (root.op, register, 0)

        def add(key: Sum, value: Expr) -> None:
            op, register, at = sums[key]
            k.store(register, combine(op, register[at], value), at)

        places = {(root, e): (c, e) for root, c in self._joined("max") for e in range(2)}
        near = self._near(number, j) if self._joined("sum") else {}
        rounds = -(-geometry.parts // GROUPS)
        for begin in range(0, rounds, AT_ONCE):
            parts = [i * GROUPS + self.ids.g for i in range(begin, min(rounds, begin + AT_ONCE))]
            safe = [p if geometry.parts % GROUPS == 0 else tirx.Min(p, geometry.parts - 1) for p in parts]
            for part, values in zip(parts, self._loaded(number, j, safe), strict=True):
                with nullcontext() if geometry.parts % GROUPS == 0 else k.when(part < geometry.parts):
                    self._add(part, values, near, add, sums)
        before = {key: k.keep(sums[top][1][0]) for key, top in places.items()}
        self._across(own for key, own in sums.items() if key not in places)
        for key, top in places.items():
            op, register, at = sums[key]
            k.store(register, tirx.Select(alike(before[key], sums[top][1][0]), register[at], neutral(op)), at)
        self._across(sums[key] for key in places)
        for at, (root, centre) in enumerate(zip(self.phase.roots, self.phase.centres, strict=True)):
            for e in range(2):
                value = sums[(root, e)][1][0]
                if centre is not None and root.op == "sum":
                    offset = sums[(root, e, "offset")][1][0]
                    value = value - offset * offset * _f32(1.0 / (self.phase.width * self.gates))
                k.store(results, value, at * 2 + e)
                self.body.held[(root, 0, 0, j, e)] = results[at * 2 + e]

    def _joined(self, op: str) -> list[tuple[Node, Node]]:
        """The roots of that kind which another one serves, with it."""
        pairs = zip(self.phase.roots, self.phase.centres, strict=True)
        return [(root, centre) for root, centre in pairs if centre is not None and root.op == op]

    def _near(self, number: int, j: int) -> dict[Node, list[Expr]]:
        """A number near each row's mean, the same for all lanes: the mean of part 0."""
        first = self._loaded(number, j, [tirx.const(0, "int32")])[0]
        count = min(self.phase.width, 8 * self.geometry.blocks(self.phase.width)) * self.gates
        centres = {c for _, c in self._joined("sum")}
        return {c: [self.k.keep(value * _f32(1.0 / count)) for value in first[c]] for c in centres}

    def _add(
        self,
        part: Expr,
        values: dict[Node, list[Expr]],
        near: dict[Node, list[Expr]],
        add: Callable[..., None],
        sums: Mapping[Sum, tuple[str, Buffer, int]],
    ) -> None:
        k = self.k
        for own, maximum in self._joined("max"):  # before the maximum itself
            for e in range(2):
                top, (_, best, _) = values[maximum][e], sums[(own, e)]
                so_far = sums[(maximum, e)][1][0]
                higher = tirx.Or(top > so_far, tirx.And(tirx.isnan(top), tirx.Not(tirx.isnan(so_far))))
                first = tirx.Select(alike(top, so_far), tirx.Max(best[0], values[own][e]), best[0])
                k.store(best, tirx.Select(higher, values[own][e], first), 0)
        for root, centre in zip(self.phase.roots, self.phase.centres, strict=True):
            for e in range(2):
                if centre is None:
                    add((root, e), values[root][e])
                if centre is None or root.op == "max":
                    continue
                count = k.keep(self._count(part))
                off = k.keep(values[centre][e] * self._inverse(count) - near[centre][e])
                add((root, e), values[root][e] + count * off * off)
                add((root, e, "offset"), count * off)
