"""Functions of many loops are cut into several: LLVM's passes over loops take time quadratic in a function's loops.

In: a PrimFunc after TVM's passes over its loops. Out: the same with parts marked, each of which becomes a function of
its own, with what it reads as arguments. Functions of few loops stay whole: to leave one out would save nothing.

Rewrite: for step: for row: a; for row: b  -->  for step: part_1(step, ...); part_2(step, ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tvm import tirx

from tvm_rnn.tir.expr import Buffer, Stmt
from tvm_rnn.tir.statements import PLAIN, apart, inner, with_inner

WHOLE = 96  # a function of at most so many loops stays whole: those of small cells in inference
MOST = 32  # loops of a part; HyperLSTM with training takes 8 s with 12, 24 or 48, and 29 s without parts
LEAST = 4  # a call costs some nanoseconds, so a part is worth that


@dataclass
class Part:
    """A statement, with the statements in it."""

    statement: Stmt
    inner: list[Part] = field(default_factory=list)
    loops: int = 0

    def __post_init__(self) -> None:
        self.inner = [Part(s) for s in inner(self.statement)]
        self.loops = isinstance(self.statement, tirx.For) + sum(p.loops for p in self.inner)


def cut(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function, its largest statements of at most MOST loops marked as parts; all of it is no part, else that would
    have what only the function has: arrays' sizes."""
    whole = Part(function.body)
    return function.with_body(_Cut(name_of(function))(whole, ())) if whole.loops > max(WHOLE, MOST) else function


def name_of(function: tirx.PrimFunc) -> str:
    """What the file has the function under."""
    return str(function.attrs.get("global_symbol", function.attrs.get(PLAIN)))


@dataclass
class _Cut:
    name: str
    count: int = 0

    def __call__(self, part: Part, local: Sequence[Buffer]) -> Stmt:
        """local: the register tiles of what surrounds the part. Whoever reads them stays with them: an address that is
        handed on keeps them out of registers."""
        if part.loops <= MOST:
            return self._function(part.statement, part.loops, local)
        s = part.statement
        if isinstance(s, tirx.SeqStmt):
            own = [p.statement.buffer for p in part.inner if isinstance(p.statement, tirx.AllocBuffer)]
            return with_inner(s, [*self._in_turn(part.inner, [*local, *own])])
        return with_inner(s, [self(p, local) for p in part.inner])

    def _in_turn(self, parts: Sequence[Part], local: Sequence[Buffer]) -> Iterator[Stmt]:
        """Statements one after the other; small neighbours share a function, what sets variables for others does not
        move."""
        run: list[Part] = []

        def together() -> Iterator[Stmt]:
            if run:
                statements = [p.statement for p in run]
                body = statements[0] if len(run) == 1 else tirx.SeqStmt(statements)
                yield self._function(body, sum(p.loops for p in run), local)
                run.clear()

        for part in parts:
            if not part.loops or part.loops + sum(p.loops for p in run) > MOST:
                yield from together()
            if not part.loops:
                yield part.statement
            elif part.loops > MOST:
                yield self(part, local)
            else:
                run.append(part)
        yield from together()

    def _function(self, body: Stmt, loops: int, local: Sequence[Buffer]) -> Stmt:
        if loops < LEAST or (
            local and any(v.same_as(b) for v in tirx.analysis.undefined_vars(body, []) for b in local)
        ):
            return body
        self.count += 1
        return apart(f"{self.name}_part_{self.count}", body)
