"""The TIR passes of CPU code: what TVM does to the loops of `lower_network.py` before LLVM has them.

In: an IRModule of loops without blocks. Out: the pipeline "tvm_rnn_cpu", which `build.generate` names. TVM's default
runs 40 passes, most of them for GPUs, in twice the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx import compilation_pipeline

from tvm_rnn.tir.expr import Stmt
from tvm_rnn.tir.statements import PLAIN

from .cut_functions import cut

NAME = "tvm_rnn_cpu"
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


def named(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A plain function under its name."""
    plain = function.attrs.get(PLAIN)
    return function if plain is None else function.with_attr("global_symbol", plain)


def _pipeline() -> tuple[tvm.transform.Pass, Finish, Finish]:
    """The passes that loops without blocks need. RemoveNoOp is not among them: LLVM makes the same code without it."""
    passes = [
        s_tir.transform.StmtSimplify(),
        tirx.transform.FlattenBuffer(),
        _everywhere(tirx.For, one_by_one),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        _each(cut),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    _, _, device = default_s_tir_pipeline()
    on_stack = _everywhere(tirx.AllocBuffer, keep_on_stack)
    final = [on_stack, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin(), _each(named)]
    return tvm.ir.transform.Sequential(passes), lambda: tvm.ir.transform.Sequential(final), device


compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
