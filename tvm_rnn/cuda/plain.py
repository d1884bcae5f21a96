"""The plain product: one thread per unit of the result, for small sizes and for float64.

In: a gemm group and its values' places. Out: a kernel, and the packed form of its parameters: [k][gate][unit], so that
neighbouring threads read neighbouring numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from ..expressions import Index
from ..graph import Group, Node
from ..memory import int64, wide
from ..scalar_cuda import flavour
from .gemm_layout import Pack
from .kernel import Kernel, Writer, write
from .places import Argument, Place, arithmetic, storage
from .rows import THREADS, Job, elements, finish_group
from .values import Reads, Values, sources

Expr = Any


@dataclass(frozen=True)
class Variant:
    kernel: Kernel
    condition: str


@dataclass(frozen=True)
class Gemm:
    variants: tuple[Variant, ...]
    packs: tuple[Pack, ...]
    arguments: tuple[Argument, ...]


def plain_pack(weight: Node, dtype: str) -> Pack:
    """[k][gate][unit] of a parameter [(gate,) unit, k]."""
    rows, depth = prod(weight.shape[:-1]), weight.shape[-1]

    def index(at: Expr) -> tuple[Index, Expr]:
        row, k = tirx.floormod(at, int64(rows)), tirx.floordiv(at, int64(rows))
        width = int64(weight.shape[-2])
        own = (row,) if len(weight.shape) == 2 else (tirx.floordiv(row, width), tirx.floormod(row, width))
        return (*own, k), k < int64(depth)

    return Pack(weight, dtype, rows * depth, index, ("plain", weight, dtype))


def plain_gemm(
    name: str,
    group: Group,
    *,
    precision: str,
    operands: Reads,
    reads: Reads,
    writes: Callable[[Node], Sequence[Place]],
    elsewhere: frozenset[Node] = frozenset(),
) -> Gemm:
    """The kernel of a gemm group, with its pointwise work."""
    root = group.root
    assert root is not None
    dtype = storage(precision)
    pairs = list(zip(root.args[::2], root.args[1::2], strict=True))
    packs = [plain_pack(weight, dtype) for weight, _ in pairs]
    products: list[Argument] = []
    for number, (weight, operand) in enumerate(pairs):
        bases = sources([operand], lambda n: operands(n) is not None)
        assert len(bases) == 1, "an operand is a view of one stored value"
        products.append(Argument(f"weight{number}", "weight", weight, number))
        products.append(Argument(f"x{number}", "operand", bases[0], number))
    job = Job(name, group, precision, reads, writes, elsewhere)
    arguments = job.arguments([n for n in group.nodes if n is not root], *products)
    gates, width = (root.shape[0] if len(root.shape) == 2 else 1), root.shape[-1]

    def body(writer: Writer) -> None:
        row, unit, inside = elements(writer, width)
        with writer.when(inside):
            sums = writer.local(gates, arithmetic(precision))
            for gate in range(gates):
                writer.store(sums, tirx.const(0.0, arithmetic(precision)), gate)
            for number, (_, operand) in enumerate(pairs):
                x = Values(writer, precision, row, operands, {products[2 * number + 1].node: f"x{number}"})
                _accumulate(x, f"weight{number}", operand, sums, unit, (gates, width))
            totals = [writer.keep(sums[gate]) for gate in range(gates)]
            given = {root: lambda index: totals[index[0] if len(index) == 2 else 0]}
            values = job.values(writer, row, arguments, given=given)
            finish_group(job, values, arguments, (unit,))
            for gate, total in enumerate(totals) if root in group.stored else ():
                job.store(writer, arguments, root, row, (gate, unit)[-len(root.shape) :], total)

    pointers = []
    for a in arguments:
        if a.role == "weight":
            pointers.append((a.name, dtype))
        else:
            place = {"operand": operands(a.node), "read": reads(a.node)}.get(a.role) or writes(a.node)[a.number]
            pointers.append((a.name, place.dtype))
    with flavour(precision):
        kernel = write(name, pointers, [("rows", "int64")], body, threads=THREADS)
    return Gemm((Variant(kernel, "true"),), tuple(packs), arguments)


def _accumulate(values: Values, weight: str, operand: Node, sums: Any, unit: Expr, size: tuple[int, int]) -> None:
    """sums[gate] += weight[k, gate, unit] * operand[k] for all k."""
    writer, dtype = values.writer, arithmetic(values.precision)
    gates, width = size
    with writer.loop(operand.shape[0]) as k:
        x = values.inner().at(operand, (k,))
        for gate in range(gates):
            factor = writer[weight][wide(k) * int64(gates * width) + int64(gate * width) + wide(unit)]
            factor = factor if str(factor.ty) == dtype else tirx.Cast(dtype, factor)
            writer.store(sums, sums[gate] + factor * x, gate)
