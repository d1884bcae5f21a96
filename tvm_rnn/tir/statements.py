"""Small constructors for TVM statements: loops, bindings, conditions, copies.

In: extents and bodies from `cpu/lower_network.py` and `cpu/lower_group.py`. Out: tirx statements with 64-bit indices,
so that no product of sizes overflows; and the functions that hold them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tvm
from tvm import tirx

from .expr import Buffer, Expr, Stmt, TirExpr
from .index import INDEX, int64, wide

Block: TypeAlias = "Stmt | Sequence[Block] | None"  # statements one after the other

# Of functions that C calls as they are: the name. TVM makes a packed function of any other that has a name.
PLAIN = "tvm_rnn.plain"
# Of functions that the runtime alone calls, with arguments that it has made or looked at.
CHECKED_BY_CALLER = "tvm_rnn.checked_by_caller"

_names = itertools.count()


def variable(name: str) -> tirx.Var:
    return tirx.Var(name, INDEX)


def sequence(*parts: Block) -> Stmt:
    """Statements one after the other; nested lists are flattened, None is skipped."""
    flat: list[Stmt] = []

    def add(part: Block) -> None:
        if isinstance(part, Sequence):
            for p in part:
                add(p)
        elif part is not None:
            flat.append(part)

    add(parts)
    if not flat:
        return tirx.Evaluate(int64(0))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def loop(name: str, extent: Expr, body: Callable[[tirx.Var], Block], parallel: bool = False) -> Stmt:
    """for name in range(extent): body(name)."""
    var = variable(name)
    extent = int64(extent) if isinstance(extent, int) else extent
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return tirx.For(var, int64(0), extent, kind, sequence(body(var)))


def loops(extents: Sequence[Expr], body: Callable[[Sequence[tirx.Var]], Block]) -> Stmt:
    """body(place) for all places of an array of these sizes, in their order."""
    place = [variable(f"i{n}") for n in range(len(extents))]
    made = sequence(body(place))
    for var, extent in reversed([*zip(place, extents, strict=True)]):
        made = tirx.For(var, int64(0), wide(extent), tirx.ForKind.SERIAL, made)
    return made


def use_threads(number: Expr) -> Stmt:
    """So many threads at most share what follows."""
    return tirx.Evaluate(tirx.call_extern("int32", "tvm_rnn_pool_use", tirx.Cast("int32", number)))


def raised(unless: Expr) -> Stmt:
    """Ends the function where a signal's handler has raised an error: see pool.c."""
    kind, parts = tvm.ir.StringImm("EnvErrorAlreadySet"), [tvm.ir.StringImm("a signal")]
    return tirx.AssertStmt(unless, kind, parts)  # in the order of TVM's own constructor: its Python names are not


def vector(name: str, extent: int, body: Callable[[tirx.Var], Block]) -> Stmt:
    """for name in range(extent): body(name), as one operation on vectors. extent: of one register at most."""
    var = variable(name)
    kind = tirx.ForKind.VECTORIZED if extent > 1 else tirx.ForKind.SERIAL  # TVM has no vectors of one
    return tirx.For(var, int64(0), int64(extent), kind, sequence(body(var)))


def bind(name: str, value: Expr) -> tuple[tirx.Var, Stmt]:
    """A variable that is set once, and the statement that sets it for the statements after it."""
    var = variable(name)
    return var, tirx.Bind(var, int64(value) if isinstance(value, int) else value)


class Named:
    """Names values, in order; `sets` are the statements that set them."""

    def __init__(self) -> None:
        self.sets: list[Stmt] = []

    def __call__(self, name: str, value: Expr) -> Expr:
        var, statement = bind(name, value)
        self.sets.append(statement)
        return var


def demanded(condition: Expr, text: str) -> Stmt:
    """Ends the call with an error that says this where the condition does not hold."""
    kind, parts = tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(text)]
    return tirx.AssertStmt(condition, kind, parts)  # in the order of TVM's own constructor: its Python names are not


def when(condition: Expr, then: Block, otherwise: Block = None) -> Stmt:
    return tirx.IfThenElse(condition, sequence(then), None if otherwise is None else sequence(otherwise))


def apart(name: str, body: Stmt) -> Stmt:
    """The statement as a function of LLVM's own, which is called here."""
    named = tvm.ir.StringImm(name)
    # What follows would keep its position in debug information, which LLVM refuses; any statement sets it.
    nothing = tirx.Evaluate(tirx.const(1, "int32"))
    return tirx.SeqStmt([tirx.AttrStmt(named, "compute_scope", named, body), nothing])


def inner(statement: Stmt) -> list[Stmt]:
    """The statements right in a sequence, a loop, a condition or a mark; others have none."""
    if isinstance(statement, tirx.SeqStmt):
        return list(statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        return [s for s in (statement.then_case, statement.else_case) if s is not None]
    return [statement.body] if isinstance(statement, tirx.For | tirx.AttrStmt) else []


def with_inner(s: Stmt, inner: Sequence[Stmt]) -> Stmt:
    """The statement with others in it, as many."""
    if isinstance(s, tirx.SeqStmt):
        return sequence(inner)
    if isinstance(s, tirx.For):
        return tirx.For(s.loop_var, s.min, s.extent, s.kind, *inner, s.thread_binding, s.annotations)
    if isinstance(s, tirx.IfThenElse):
        return tirx.IfThenElse(s.condition, inner[0], inner[1] if inner[1:] else None)
    return tirx.AttrStmt(s.node, s.attr_key, s.value, *inner) if isinstance(s, tirx.AttrStmt) else s


def store(into: Buffer, address: Expr, value: Expr) -> Stmt:
    return tirx.BufferStore(into, value, [address])


def load(source: Buffer, address: Expr) -> TirExpr:
    return tirx.BufferLoad(source, [address])


def buffer(name: str, dtype: str, alignment: int = 64) -> Buffer:
    """A flat argument. LLVM uses aligned moves as far as it may: users' arrays promise no more than their element
    size."""
    return tirx.decl_buffer((variable(f"size_{name}"),), dtype, name=name, data_alignment=alignment)


def function(name: str, params: Sequence[TirExpr | Buffer], body: Stmt) -> tirx.PrimFunc:
    """A PrimFunc that a module has under that name; none of its buffers overlap."""
    func = tirx.PrimFunc(list(params), body)
    return func.with_attr("global_symbol", name).with_attr("tirx.noalias", True)


def runtime_function(name: str, params: Sequence[TirExpr | Buffer], body: Stmt) -> tirx.PrimFunc:
    """A function for the runtime alone: it checks the number of its arguments, and takes them as they are."""
    return function(name, params, body).with_attr(CHECKED_BY_CALLER, True)


def floordiv(a: Expr, b: int) -> Expr:
    return a if b == 1 else tirx.floordiv(a, int64(b))


def floormod(a: Expr, b: int) -> Expr:
    return int64(0) if b == 1 else tirx.floormod(a, int64(b))
