"""What must be true of sizes that only a run shows, and that Relax takes to be so: two of one size, none below 0.

In: a Relax module of a framework's operators, before it is lowered. Out: `Demand`s on the sizes of main's inputs; or
Unequal, where two sizes differ whatever the inputs are. Of pointwise operators, joins and choices Relax knows no sizes
unless they are equal: what remains are products, groups, other shapes, and loops that came with the module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

Pairs = Iterator[tuple[Expr, Expr]]
MOST = 1 << 40  # of a size


class Unequal(Exception):
    """Sizes that no input makes equal, in words."""


@dataclass(frozen=True)
class Demand:
    """condition: of names of sizes. text: the same in words."""

    condition: Expr
    text: str


def demands_of(module: tvm.IRModule) -> list[Demand]:
    """What main's operators need, without what is known to be so. Raises Unequal."""
    found, analyzer = dict[str, Demand](), Analyzer()
    for name in {axis for param in module["main"].params for axis in _shape(param) if isinstance(axis, tirx.Var)}:
        analyzer.bind(name, tvm.ir.Range(0, MOST))

    def need(condition: Expr, text: str) -> None:
        if not analyzer.can_prove(condition):
            found.setdefault(text, Demand(condition, text))

    for call in _calls(module):
        operator = str(getattr(call.op, "name", "")).removeprefix("relax.").removeprefix("nn.")
        for one, two in PAIRS.get(operator, _none)(module, call):
            first, second = (analyzer.simplify(wide(size)) for size in (one, two))
            if isinstance(first, tirx.IntImm) and isinstance(second, tirx.IntImm) and int(first) != int(second):
                raise Unequal(f"{operator}: sizes {text_of(first)} and {text_of(second)} differ")
            need(tirx.EQ(first, second), f"{text_of(first)} = {text_of(second)}")
        for size in _sizes(call):
            if not isinstance(size, tirx.Var | tirx.IntImm):
                need(tirx.GE(wide(size), int64(0)), f"{text_of(size)} >= 0")
    return [*found.values()]


def text_of(size: Expr) -> str:
    """A size in words."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size)).replace("T.m", "m")


def _calls(module: tvm.IRModule) -> Iterator[tvm.ir.Call]:
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(getattr(binding, "value", None), tvm.ir.Call):
                yield binding.value


def _shape(value: tvm.ir.RelaxExpr) -> Sequence[Expr]:
    """No sizes where there are none, or none that are known: Relax leaves such a call to a virtual machine."""
    return [*getattr(getattr(value.ty, "shape", None), "values", ())]


def _sizes(call: tvm.ir.Call) -> list[Expr]:
    kinds = getattr(call.ty, "fields", [call.ty])
    return [size for kind in kinds for size in getattr(getattr(kind, "shape", None), "values", ())]


def _none(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    yield from ()


def _product(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    """What is summed over."""
    one, two = (_shape(value) for value in call.args[:2])
    if one and two:
        yield one[-1], two[max(len(two) - 2, 0)]


def _convolution(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    data, filters = (_shape(value) for value in call.args[:2])
    if data and filters:
        yield data[1], wide(filters[1]) * int64(call.attrs.groups)


def _transposed(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    data, filters = (_shape(value) for value in call.args[:2])
    if data and filters:
        yield data[1], filters[0]


def _groups(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    """All groups are of one size."""
    if data := _shape(call.args[0]):
        channels, groups = wide(data[int(call.attrs.channel_axis)]), int64(call.attrs.num_groups)
        yield channels // groups * groups, channels


def _elements(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    """As many as before."""
    before, after = (math.prod(map(wide, sizes), start=int64(1)) for sizes in (_shape(call.args[0]), _sizes(call)))
    yield before, after


def _loops(module: tvm.IRModule, call: tvm.ir.Call) -> Pairs:
    """Of loops over several arrays: arrays that are read along one loop are as long as that. What is read under a
    condition is looked at by that."""
    given = [*call.args[1].fields] if isinstance(call.args[1], tvm.ir.Tuple) else [call.args[1]]
    given = [value for value in given if hasattr(value.ty, "shape")]  # sizes come behind arrays
    if len(given) < 2:
        return
    function, names = module[call.args[0]], dict[tirx.Var, Expr]()
    for param, value in zip(function.params, given, strict=False):
        names |= {own: size for own, size in zip(param.shape, _shape(value), strict=True) if isinstance(own, tirx.Var)}
    for extent, size in _read_along(function.body):
        yield tuple(tvm_ffi.structural_map(e, (tirx.Var, lambda v: names.get(v, v))) for e in (extent, size))


def _read_along(body: tirx.Stmt) -> Pairs:
    """The extents of blocks' loops, and sizes of what is read along them."""
    blocks = list[s_tir.SBlock]()
    tvm_ffi.structural_walk(body, (s_tir.SBlock, blocks.append))
    for block in blocks:
        loads, calls = list[tvm.ir.TensorLoad](), list[tvm.ir.Call]()
        extents = {own.var: own.dom.extent for own in block.iter_vars}
        tvm_ffi.structural_walk(block.body, (tvm.ir.TensorLoad, loads.append))
        tvm_ffi.structural_walk(block.body, (tvm.ir.Call, calls.append))
        names = [str(getattr(own.op, "name", "")) for own in calls]
        for load in () if any(name.endswith(".if_then_else") for name in names) else loads:
            for size, index in zip(load.source.shape, load.indices, strict=True):
                if index in extents:
                    yield extents[index], size


PAIRS: dict[str, Callable[[tvm.IRModule, tvm.ir.Call], Pairs]] = {
    "matmul": _product,
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": _transposed for n in (1, 2, 3)},
    "group_norm": _groups,
    "reshape": _elements,
    "call_tir": _loops,
}
