"""The TIR passes of CPU code: what TVM does to the loops of `lower_network.py` before LLVM has them.

In: an IRModule of loops without blocks. Out: the pipeline "tvm_rnn_cpu", which `build.generate` names. TVM's default
runs 40 passes, most of them for GPUs, in twice the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import BaseFunc
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx import compilation_pipeline

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.statements import PLAIN, raised, sequence

from .argument_checks import joined
from .cut_functions import cut, name_of

NAME = "tvm_rnn_cpu"
BESIDE = "beside"  # the first part of names of functions that threads run at the same time
Kind = TypeVar("Kind", tirx.For, tirx.AllocBuffer)
Finish: TypeAlias = Callable[[], tvm.transform.Pass]
# Register tiles and vectors of an epilogue, never state: those are in the workspace. TVM's own limit of 1 KB would send
# every tile to a heap allocator that lives in libtvm_runtime, which a deployed module does not have.
STACK_BYTES = 1 << 17


def keep_on_stack(alloc: tirx.AllocBuffer) -> Stmt:
    """An allocation of up to STACK_BYTES, marked as one for the stack."""
    size = -(-tvm.DataType(alloc.buffer.dtype).bits // 8)
    for extent in alloc.buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return alloc
        size *= int(extent)
    if size > STACK_BYTES:
        return alloc
    return tirx.AllocBuffer(alloc.buffer, {"disable_lower_builtin": tirx.IntImm("int32", 1)})


def one_by_one(loop: tirx.For) -> Stmt:
    """A vectorised loop that calls libm, one lane after the other. VectorizeLoop makes the same of it, but on the way
    it may visit a value that Let binds twice, and then it says "Let cannot bind the same var to two different values".

    Rewrite: for v in vectorized(n): body(libm)  -->  for v in range(n): body(libm)
    """
    found: list[tirx.Call] = []

    def note(call: tirx.Call) -> None:
        if getattr(call.op, "name", "") == "tirx.call_pure_extern":
            found.append(call)

    if loop.kind == tirx.ForKind.VECTORIZED:
        tvm_ffi.structural_walk(loop.body, (tvm.ir.Call, note))
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body) if found else loop


def flat(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Arrays of several axes as one axis. TVM's FlattenBuffer asks an analyzer about every address, which takes time
    quadratic in a function's loops; what is left to simplify, StmtSimplify does at the end.

    Rewrite: tile[r, p, v]  -->  tile[(r * panels + p) * lanes + v]
    """
    made: dict[Buffer, Buffer] = {}

    def note(old: tirx.Var) -> None:
        if len(old.shape) != 1:
            size = address(old.shape, [extent - 1 for extent in old.shape]) + 1
            made[old] = tirx.decl_buffer((size,), old.dtype, name=old.name, scope=old.scope())

    def address(shape: Sequence[Expr], indices: Sequence[Expr]) -> Expr:
        found: Expr = 0
        for index, extent in zip(indices, shape, strict=True):
            found = found * extent + index
        return found

    def load(node: tvm.ir.TensorLoad) -> TirExpr:
        old = node.source
        return tirx.BufferLoad(made[old], [address(old.shape, node.indices)]) if old in made else node

    def put(node: tirx.BufferStore) -> Stmt:
        old = node.buffer
        return tirx.BufferStore(made[old], node.value, [address(old.shape, node.indices)]) if old in made else node

    def allocate(node: tirx.AllocBuffer) -> Stmt:
        return tirx.AllocBuffer(made[node.buffer], node.annotations) if node.buffer in made else node

    given = [param for param in function.params if isinstance(param.ty, tirx.buffer.BufferType)]
    for param in given:
        note(param)
    tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, lambda alloc: note(alloc.buffer)))
    if not made:
        return function
    changes = ((tvm.ir.TensorLoad, load), (tirx.BufferStore, put), (tirx.AllocBuffer, allocate))
    views = [tirx.DeclBuffer(made[param], data=param.data) for param in given if param in made]
    return function.with_body(sequence(views, tvm_ffi.structural_map(function.body, changes)))


@tvm.transform.module_pass(opt_level=0)
def inner_loops_apart(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Bodies of loops that threads share become functions of their own where threads share loops in them too: TVM has
    no code for one in another.

    Rewrite: parallel for i: (parallel for j: a)  -->  parallel for i: main_beside_0(i, ...)
    """
    found: dict[str, BaseFunc] = {}

    def whole(function: tirx.PrimFunc) -> tirx.PrimFunc:
        views: dict[Buffer, tirx.DeclBuffer] = {}
        made: dict[str, tirx.PrimFunc] = {}
        tvm_ffi.structural_walk(function.body, (tirx.DeclBuffer, lambda own: views.update({own.buffer: own})))
        change = (tirx.For, lambda own: _outer(own, function, views, made))
        body = tvm_ffi.structural_map(function.body, change)
        found.update(made)
        return function.with_body(body) if made else function

    functions = {name: whole(f) if isinstance(f, tirx.PrimFunc) else f for name, f in mod.functions_items()}
    return tvm.IRModule(functions | found, attrs=mod.attrs)


def _outer(
    loop: tirx.For,
    function: tirx.PrimFunc,
    views: Mapping[Buffer, tirx.DeclBuffer],
    made: dict[str, tirx.PrimFunc],
) -> tirx.For:
    """The loop, its body moved to a function where it must; that is added to `made`."""
    inside: list[tirx.For] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, lambda own: inside.append(own) if _is_parallel(own) else None))
    if not _is_parallel(loop) or not inside:
        return loop
    name = f"{name_of(function)}_{BESIDE}_{len(made)}"
    moved, arguments = _moved(name, loop.body, views)
    made[name] = moved.with_attr("target", function.attrs["target"])
    ends = tirx.EQ(tirx.call_extern("int32", name, *arguments), tirx.const(0, "int32"))
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, raised(ends))


def _is_parallel(loop: tirx.For) -> bool:
    return loop.kind == tirx.ForKind.PARALLEL


def _moved(name: str, body: Stmt, views: Mapping[Buffer, tirx.DeclBuffer]) -> tuple[tirx.PrimFunc, list[TirExpr]]:
    """The statement as a function, and what a call of it gets. views: buffers that lie in the memory of others, which
    the function must know: of its own arguments it holds that they do not overlap."""
    free = tirx.analysis.undefined_vars(body, [])
    again = [views[own] for own in free if own in views]
    params, sets, arguments, pointers = list[TirExpr](), list[Stmt](), list[TirExpr](), dict[Buffer, tirx.Var]()
    for own in tirx.analysis.undefined_vars(sequence(again, body), []):
        if not isinstance(own.ty, tirx.buffer.BufferType):
            params.append(own)
            arguments.append(own)
            continue
        pointers[own] = tirx.Var(f"pointer_{own.name}", tvm.ir.PointerType(tvm.ir.PrimType(own.dtype)))
        params.append(pointers[own])
        sets.append(tirx.DeclBuffer(own, data=pointers[own]))
        arguments.append(tirx.buffer.buffer_data(own))
    for view in again:
        (memory,) = (own for own in tirx.analysis.undefined_vars(view, []) if own in pointers)
        sets.append(tirx.DeclBuffer(view.buffer, data=pointers[memory]))  # codegen finds no view of what is one here
    made = tirx.PrimFunc(params, sequence(sets, body), tvm.ir.PrimType("int32"))
    return made.with_attr(PLAIN, name).with_attr("tirx.noalias", True), arguments


def _everywhere(kind: type[Kind], change: Callable[[Kind], Stmt]) -> tvm.transform.Pass:
    """The pass that makes `change` of every node of a kind."""

    return _each(lambda f: f.with_body(tvm_ffi.structural_map(f.body, (kind, change))))


def _each(change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.transform.Pass:
    """The pass that makes `change` of every function."""

    @tvm.transform.module_pass(opt_level=0)
    def change_all(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = {name: change(f) if isinstance(f, tirx.PrimFunc) else f for name, f in mod.functions_items()}
        return tvm.IRModule(functions, attrs=mod.attrs)

    return change_all


def simplified(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with simpler expressions. As it is, where TVM fails: in a branch that only arrays without elements
    would take, it knows that a divisor is 0."""
    try:
        return tirx.transform.StmtSimplify()(tvm.IRModule({"function": function}))["function"]
    except tvm.error.InternalError:
        return function


def named(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A plain function under its name."""
    plain = function.attrs.get(PLAIN)
    return function if plain is None else function.with_attr("global_symbol", plain)


def _pipeline() -> tuple[tvm.transform.Pass, Finish, Finish]:
    """The passes that loops without blocks need. RemoveNoOp is not among them: LLVM makes the same code without it."""
    passes = [
        inner_loops_apart,
        _each(flat),
        _everywhere(tirx.For, one_by_one),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        _each(simplified),
        _each(cut),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        _each(joined),
    ]
    _, _, device = default_s_tir_pipeline()
    on_stack = _everywhere(tirx.AllocBuffer, keep_on_stack)
    final = [on_stack, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin(), _each(named)]
    return tvm.ir.transform.Sequential(passes), lambda: tvm.ir.transform.Sequential(final), device


compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
