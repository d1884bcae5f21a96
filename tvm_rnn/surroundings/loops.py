"""A graph's functions as loops: without blocks, pointwise values where they are read, and numbers in place of constants
of one element.

In: functions of blocks, as `calls.py` has them of Relax. Out: the same as loops around stores.

Rewrite: pow(x, two[()])  -->  x * x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import wide

from .calls import Call, Value

LOWER = (
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
    s_tir.transform.ConvertSSA,
)
REDUCED = 2  # the kind of a block's axis that is summed over


def loops_of(functions: Sequence[tirx.PrimFunc]) -> list[tirx.PrimFunc]:
    """The functions without blocks, pointwise values computed where they are read. Equal ones are one object."""
    names = dict[tvm_ffi.StructuralKey, str]()
    own = [names.setdefault(tvm_ffi.StructuralKey(f), f"f{len(names)}") for f in functions]
    made = {name: inlined(key.key).with_attr("global_symbol", name) for key, name in names.items()}
    module = tvm.transform.Sequential([make() for make in LOWER])(tvm.IRModule(made))
    found = {name: module[name] for name in made}
    return [found[name] for name in own]


def parameters(call: Call, loops: tirx.PrimFunc) -> tuple[list[Buffer], dict[tirx.Var, Expr]]:
    """Of a call's loops: the arrays of its inputs and outputs, in order, and what the sizes are that they name."""
    values, count = [*call.inputs, *call.outputs], len(call.inputs)
    arrays = [*loops.params[:count], *loops.params[count + len(call.numbers) :]]
    sizes = dict(zip(loops.params[count:], call.numbers, strict=False))
    for array, value in zip(arrays, values, strict=True):
        for size, axis in zip(array.shape, value.shape, strict=True):
            if isinstance(size, tirx.Var):
                sizes.setdefault(size, wide(axis))
    return arrays, sizes


def inlined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with each pointwise value in what reads it, but where that would compute it many times: in sums, and
    what takes long in loops over more axes than its own."""
    schedule = s_tir.Schedule(function)
    # The outermost block is called root, or is a function's only one.
    for block in schedule.get_child_blocks(schedule.get_sblock(function.body.block.name_hint)):
        readers = schedule.get_consumers(block)
        if readers and not any(_many_times(schedule, block, own) for own in readers):
            try:
                schedule.compute_inline(block)
            except Exception:  # it is not pointwise after all
                continue
    (made,) = schedule.mod.functions.values()
    return made


def _many_times(schedule: s_tir.Schedule, block: object, reader: object) -> bool:
    """Whether a block in its reader would be more work than it is by itself."""
    own, other = schedule.get(block), schedule.get(reader)
    if _sums(own) or not isinstance(own.body, tirx.BufferStore):
        return True
    if isinstance(own.body.value, tvm.ir.TensorLoad) and _is_copy(own.body):
        return False
    return _sums(other) or (_axes(own) < _axes(other) and takes_long(own.body.value))


def _is_copy(store: tirx.BufferStore) -> bool:
    """Whether it stores what it reads at the same place of another array."""
    places = store.value.indices
    return len(places) == len(store.indices) and all(map(tvm_ffi.structural_equal, places, store.indices))


def _sums(block: s_tir.SBlock) -> bool:
    return any(int(axis.iter_type) == REDUCED for axis in block.iter_vars)


def _axes(block: s_tir.SBlock) -> int:
    """Over how many axes it has more than one element."""
    return sum(not (isinstance(n, tirx.IntImm) and int(n) == 1) for n in (axis.dom.extent for axis in block.iter_vars))


def takes_long(value: Expr) -> bool:
    """Whether it divides, or has a function such as an exponential."""
    found = list[Expr]()
    tvm_ffi.structural_walk(value, [(tirx.Div, found.append), (tvm.ir.Call, found.append)])
    return bool(found)


def with_numbers(statement: Stmt, numbers: Mapping[Buffer, Value]) -> Stmt:
    """The statement with numbers where it loads from constants of one element; squares are products."""
    known = [(buffer, number) for buffer, value in numbers.items() if (number := _number(value)) is not None]

    def load(own: tvm.ir.TensorLoad) -> Expr:
        return next((number for buffer, number in known if own.source.same_as(buffer)), own)

    def power(own: tvm.ir.Call) -> Expr:
        if own.op.same_as(_POWER) and isinstance(own.args[1], tirx.FloatImm) and own.args[1].value == 2:
            return own.args[0] * own.args[0]
        return own

    found = tvm_ffi.structural_map(statement, (tvm.ir.TensorLoad, load)) if known else statement
    return tvm_ffi.structural_map(found, (tvm.ir.Call, power))


_POWER = tvm.ir.Op.get("tirx.pow")


def _number(value: Value) -> Expr | None:
    if value.constant is None or value.array.size != 1 or not np.isfinite(value.array).all():
        return None
    if value.array.dtype.kind == "f":
        if not value.array.any():
            return None  # to TVM 0 times anything is 0, and of a choice between 0 and -0 it keeps the first one
        return tirx.FloatImm(value.dtype, float(value.array.reshape(())))
    return tirx.IntImm(value.dtype, int(value.array.reshape(())))
