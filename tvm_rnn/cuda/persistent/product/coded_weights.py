"""Products with weights of 8 bits on the chip: codes become 16 bits just before mma.sync, sums are scaled behind it.

In: words of four e4m3 codes and a scale for each row (`layer/fp8_weights.py`). Out: fragments for mma.sync; sums times
scales.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.fp8_weights import decode
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import Geometry, Share, ThreadIds
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32


def registers(geometry: Geometry) -> int:
    """Of a thread, beside its words of codes, roughly: scales, fragments in flight, sums of several operands."""
    kept = sum(len(geometry.halves(phase)) * len(shares) for phase, shares in geometry.shares.items())
    each = geometry.pass_tiles * 4
    work = [
        min(4 * geometry.m_tiles(p), 2 * each) + (len(s) > 1) * geometry.m_tiles(p) * each
        for p, s in geometry.shares.items()
    ]
    return int(kept + max(work, default=0))


class Coded:
    """What the products of one kernel do with e4m3 weights. Construct once, at the kernel's start: it loads the scales
    of this lane's rows.

    Codes in registers never change, so compilers would make 16 bits of them once, before the loop over time, or once
    for two steps, and take the registers that codes are to save (LSTM 2048, B = 16: 3.6 KB spilled; without, none).
    Hence PTX in place of expressions, and `zero`: it is 0, and changes in each product, as far as ptxas can see.
    """

    def __init__(self, k: Writer, geometry: Geometry, ids: ThreadIds, names: Mapping[Share, str]) -> None:
        """names: each share's pointer to its weight's scales."""
        self.k, self.geometry = k, geometry
        self.scales = dict[Share, Buffer]()
        for phase, share in geometry.weights:
            self.scales[share] = self._load(phase, names[share], ids)
        most = max((geometry.m_tiles(p) for p in geometry.shares), default=1)
        self.registers, self.passing = k.tile(most, 4, dtype="uint32"), k.local(2, "uint32")
        self.zero = k.local(1, "uint32")
        k.do(I.ptx["shr.b32"](self.zero[0], tirx.Cast("uint32", k["batch"]), uint32(31)))

    def _load(self, phase: Phase, name: str, ids: ThreadIds) -> Buffer:
        k, geometry, width = self.k, self.geometry, phase.width
        found = k.local(2 * geometry.m_tiles(phase))
        for half in range(2 * geometry.m_tiles(phase)):
            k.store(found, tirx.const(1.0, "float32"), half)  # also of units that only fill up a block
        for half, (gate, block) in enumerate(geometry.halves(phase)):
            unit = ids.rank * geometry.units(width) + (ids.warp_u * geometry.blocks(width) + block) * 8 + ids.g
            with k.when(unit < width):
                k.store(found, k[name][tirx.Cast("int64", unit + gate * width)], half)
        return found

    def begin(self) -> None:
        """Before each product: what was computed for the last one is not to be kept."""
        self.k.do(I.ptx["shl.b32"](self.zero[0], self.zero[0], uint32(1)))

    def fragment(self, m: int, words: Sequence[TirExpr], resident: bool) -> list[TirExpr]:
        """The four registers of an M tile for mma.sync, of two words of codes. resident: these never change."""
        found = self.registers[m]
        for number, codes in enumerate(words):
            zero = self.zero[0] if resident else None
            into = found[2 * number : 2 * number + 2]
            decode(self.k, self.geometry.precision, codes, into, self.passing, zero)
        return list(found)

    def scaled(self, share: Share, m: int, z: int, value: Expr) -> Expr:
        """A sum times its row's scale. z: of an accumulator's four, two of the first 8 rows, two of the rest."""
        return value * self.scales[share][2 * m + z // 2]

    def fold(self, phase: Phase, share: Share, acc: Buffer, chains: int, total: Buffer, first: bool) -> None:
        """Add one operand's sums (of all chains) times their scales to the phase's, and set them to 0."""
        k, tiles = self.k, self.geometry.pass_tiles
        for m in range(self.geometry.m_tiles(phase)):
            for tile in range(tiles):
                at = m * tiles + tile
                for z in range(4):
                    own = [(at * chains + chain) * 4 + z for chain in range(chains)]
                    value = self.scaled(share, m, z, reduce(operator.add, (acc[i] for i in own)))
                    k.store(total, value if first else total[at * 4 + z] + value, at * 4 + z)
                    for i in own:
                        k.store(acc, tirx.const(0.0, "float32"), i)
