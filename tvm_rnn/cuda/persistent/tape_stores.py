"""Tape stores of a persistent kernel: rows of kept values, stored as soon as a phase has them.

In: the kernel's state (`persistent.Body`) and what its layout keeps. Out: statements. A lane has one unit of each block
for two batch rows; two lanes with neighbouring units exchange a row each, so that 16-bit values are stored in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import NotPersistent, Phase, Step, components
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .geometry import LANES, Body

NEIGHBOUR = 4  # lanes: the next unit's is so many further


def _early(layout: Layout, node: Node) -> bool:
    """Whether a group from before the steps has written it."""
    return node in layout.home and layout.home[node].region == "before"


def pairs(place: Place, width: int) -> bool:
    """Whether values are stored two at a time, as words."""
    return place.dtype in ("bfloat16", "float16") and width % 2 == 0


def pointers(layout: Layout) -> list[tuple[str, str]]:
    """The kernel's pointers to kept values, with dtypes."""
    return [(f"kept_{number}", place.dtype) for number, place in stores(layout)]


def stores(layout: Layout) -> list[tuple[int, Place]]:
    """(number among the kept values, place) of those that the kernel writes, in the order of its pointers."""
    kept = enumerate(layout.kept)
    return [(number, layout.kept_place(node)) for number, node in kept if not _early(layout, node)]


def check_kept(step: Step, layout: Layout) -> None:
    """Raises NotPersistent where a kept value is not one that units have."""
    for number, _ in stores(layout):
        node = layout.kept[number]
        if node not in step.domain or not (node.op == "state" or node.pointwise or _root(step, node)):
            raise NotPersistent("a value that training reads later is a view")
        list(components(node, step.domain[node]))


def _root(step: Step, node: Node) -> bool:
    return any(node is phase.root or node in phase.roots for phase in step.phases)


class TapeStores:
    """The stores of one kernel."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.layout, self.step = body, body.k, body.layout, body.step
        self.own = [(f"kept_{number}", self.layout.kept[number], place) for number, place in stores(self.layout)]

    def before(self) -> None:
        """States as they are when the step begins."""
        for name, node, place in self.own:
            if node.op == "state":
                self._store(name, node, place)

    def phase(self, phase: Phase) -> None:
        """What the phase has computed."""
        made = {*phase.nodes, *phase.roots, phase.root}
        for name, node, place in self.own:
            if node in made and node.op != "state":
                self._store(name, node, place)

    def _value(self, node: Node, number: int, block: int, j: int, e: int) -> Expr:
        if node.op == "state":
            registers, at = self.body.states[(node, block, j, e)]
            return registers[at]
        return self.body.held[(node, number, block, j, e)]

    def _store(self, name: str, node: Node, place: Place) -> None:
        body, geometry, width = self.body, self.body.geometry, self.step.domain[node]
        blocks = 1 if width == 1 else geometry.blocks(width)
        for j in range(geometry.own_tiles):
            with body.cells.own_tile(j):
                for number, _ in components(node, width):
                    for block in range(blocks):
                        values = [self._value(node, number, block, j, e) for e in range(2)]
                        if width == 1:
                            self._single(name, place, values, j)
                        elif pairs(place, width):
                            self.pair(name, place, values, (number, block, j), width)
                        else:
                            self._each(name, place, values, (number, block, j), width)

    def _at(self, place: Place, j: int, e: Expr, offset: Expr) -> Expr:
        row = self.body.time(self.body.t) + self.body.cells.row(j, e)
        return row * place.row_stride + tirx.Cast("int64", offset)

    def _cast(self, value: Expr, place: Place) -> Expr:
        return value if place.dtype == "float32" else tirx.Cast(place.dtype, value)

    def _single(self, name: str, place: Place, values: Sequence[Expr], j: int) -> None:
        """One number per row: the first unit's lanes store it."""
        ids = self.body.ids
        first = tirx.And(tirx.EQ(ids.g, 0), tirx.And(tirx.EQ(ids.rank, 0), tirx.EQ(ids.warp_u, 0)))
        for e, value in enumerate(values):
            with self.k.when(tirx.And(first, self.body.cells.row(j, e) < self.k["batch"])):
                self.k.store(self.k[name], self._cast(value, place), self._at(place, j, e, 0))

    def _each(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int], width: int) -> None:
        (number, block, j), body = of, self.body
        for e, value in enumerate(values):
            with self.k.when(body.cells.inside(width, block, j, e)):
                offset = number * width + body.cells.unit(width, block)
                self.k.store(self.k[name], self._cast(value, place), self._at(place, j, e, offset))

    def pair(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int], width: int) -> None:
        """Lanes of even units store two units of the first row, those of odd units of the second. name: of a pointer;
        of: component, block, own tile."""
        (number, block, j), body, k = of, self.body, self.k
        odd = tirx.NE(tirx.floormod(body.ids.g, 2), 0)
        mine = k.keep(tirx.Select(odd, values[1], values[0]))
        given = k.keep(tirx.Select(odd, values[0], values[1]))
        mask = tirx.const(0xFFFFFFFF, "uint32")
        other = k.keep(tirx.call_extern("float32", "__shfl_xor_sync", mask, given, NEIGHBOUR, LANES))
        kind = "bf16x2" if place.dtype == "bfloat16" else "f16x2"
        word = k.local(1, "uint32")
        low, high = k.keep(tirx.Select(odd, other, mine)), k.keep(tirx.Select(odd, mine, other))
        k.do(I.ptx[f"cvt.rn.{kind}.f32"](word[0], high, low))
        e = tirx.Select(odd, tirx.const(1, "int32"), tirx.const(0, "int32"))
        unit = k.keep(body.cells.unit(width, block) - tirx.floormod(body.ids.g, 2))
        inside = body.cells.row(j, 0) + e < k["batch"]
        with k.when(tirx.And(inside, unit < width)):
            at = self._at(place, j, e, number * width + unit)
            k.do(I.ptx["st.global.b32"](k[name].ptr_to([at]), word[0]))
