"""Kernels: a CUDA kernel as a tirx function, written with TVM's IR builder.

In: names and dtypes of flat pointers and scalars, and a body that emits statements. Out: `Kernel`, whose `func` goes
into the IRModule and whose `pointers` and `scalars` tell the host program what to pass, in this order.

Python loops unroll, Python conditions choose, and expressions of the op table go straight into the kernel: nothing is
written as CUDA text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as I

from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .register_tile import RegisterTile

DEPENDENT = "tirx.use_programtic_dependent_launch"  # as TVM spells it


class Function(Protocol):
    """A finished function of TVM."""

    def script(self) -> str: ...
    def with_attr(self, name: str, value: str) -> Function: ...


class Argument(Buffer, TirExpr, Protocol):
    """What a kernel is passed: an array is indexed, a scalar is computed with."""

    def __getitem__(self, index: Expr | tuple[Expr, ...]) -> TirExpr: ...


@dataclass(frozen=True)
class Kernel:
    """A device function. pointers: (name, dtype) of its flat arrays; scalars: (name, "int32" or "int64").

    Arguments are passed in that order. threads, shared_bytes, cluster: what one block takes, for residency checks.
    written: makes `func`. It is called when the function is asked for: plans are compared and shown by what stands here
    alone, and most of the time of planning would go into statements that no one reads.
    """

    name: str
    written: Callable[[], Function] = field(repr=False)
    pointers: tuple[tuple[str, str], ...]
    scalars: tuple[tuple[str, str], ...]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    resident: bool = False  # every block must be on the GPU at once: blocks wait for each other
    shares: bool = False  # threads of a block read what others have stored in global memory: no pointer is `restrict`

    @cached_property
    def func(self) -> Function:
        return self.written()


ENDLESS = 1 << 40  # elements of a buffer whose size nobody reads


@dataclass
class Writer:
    """What a kernel's body sees: its buffers and scalars by name, and statements as methods."""

    arguments: dict[str, Argument] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Argument:
        return self.arguments[name]

    def store(self, buffer: Buffer, value: Expr, *index: Expr) -> None:
        I.buffer_store(buffer, value, list(index))

    def do(self, call: TirExpr) -> None:
        I.evaluate(call)

    def launch_next(self) -> None:
        """The kernel behind this one may be launched, if it is one of those that begin early."""
        self.do(I.ptx.griddepcontrol.launch_dependents())

    def wait_for_last(self) -> None:
        """Until the kernel before this one has ended, and what it wrote is there."""
        self.do(I.ptx.griddepcontrol.wait())

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Statements under a condition. A Python bool is decided now."""
        with I.If(condition), I.Then():
            yield

    @contextmanager
    def loop(self, extent: Expr, start: Expr = 0) -> Iterator[TirExpr]:
        with I.serial(start, extent) as i:
            yield i

    def bind(self, value: Expr) -> TirExpr:
        return I.bind(value)

    def keep(self, value: Expr) -> TirExpr:
        """A value computed once, here, in a register: what is only bound, TVM's simplifier copies to every use."""
        register = self.local(1, "int32" if isinstance(value, int) else str(value.ty))
        self.store(register, value, 0)
        return register[0]

    def fresh(self, value: TirExpr) -> TirExpr:
        """The same value, of which the compiler does not know that it is: it would compute all addresses of a step
        before the loop over time, and keep them in registers that weights need. For whole warps."""
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        return self.keep(tirx.call_extern(str(value.ty), "__shfl_xor_sync", everyone, value, 0, 32))

    def local(self, count: int, dtype: str = "float32") -> Buffer:
        """Registers. Index them with Python integers only, or they go to memory."""
        return I.alloc_local((count,), dtype)

    def tile(self, *shape: int, dtype: str = "float32") -> RegisterTile:
        """Registers in fragments: `tile(high, broad, 4)[m, n]` are four."""
        return RegisterTile(*shape, dtype=dtype)


def round_tf32(w: Writer, words: Sequence[Expr]) -> None:
    """Registers of 32 bits with float32 numbers: rounded to the nearest of tf32. Tensor cores cut the bits off that
    tf32 does not have, which makes every number smaller."""
    for word in words:
        w.do(I.ptx["cvt.rna.tf32.f32"](word, I.reinterpret("float32", word)))


def converted(value: Expr, dtype: str) -> TirExpr:
    """A value in that dtype."""
    if isinstance(value, int):
        return tirx.const(value, dtype)
    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def write(
    name: str,
    pointers: Sequence[tuple[str, str]],
    scalars: Sequence[tuple[str, str]],
    body: Callable[[Writer], None],
    *,
    threads: int,
    attributes: Mapping[str, object] | None = None,
    shared_bytes: int = 0,
    cluster: int = 1,
    resident: bool = False,
    shares: bool = False,
    early: bool = False,
    waits: bool = True,
) -> Kernel:
    """A device function that `body` writes when it is asked for, in the context of this call (its `flavour`). It must
    call I.cta_id and I.thread_id (or the cluster forms) itself.

    attributes: of the function, for TVM. early: the kernel is launched while the one before it runs, and begins when
    that has ended: programmatic dependent launch, of Hopper and later; waits: False: its body says where it waits for
    that, and from where on the next one may be launched. What else there is: see `Kernel`."""
    if early:
        attributes = {**(attributes or {}), "tirx.kernel_launch_params": [DEPENDENT]}
    marks = {"global_symbol": name, **(attributes or {})}

    def written() -> Function:
        with IRBuilder() as builder, I.prim_func():
            I.func_name(name)
            I.func_attr(marks)
            writer = Writer()
            handles = [I.arg(p, I.handle(dtype)) for p, dtype in pointers]
            for scalar, dtype in scalars:
                writer.arguments[scalar] = I.arg(scalar, tirx.Var(scalar, dtype))
            for handle, (pointer, dtype) in zip(handles, pointers, strict=True):
                writer.arguments[pointer] = I.decl_buffer((ENDLESS,), dtype, data=handle)
            I.device_entry()
            if early and waits:
                writer.launch_next()
                writer.wait_for_last()
            body(writer)
        return builder.get()

    context = copy_context()
    given = tuple(pointers), tuple(scalars), threads
    # Loads of `restrict` pointers may go past the caches' coherence, on which what starts early depends.
    return Kernel(name, lambda: context.run(written), *given, shared_bytes, cluster, resident, shares or early)
