"""What a function checks of its arguments, in few tests: TVM makes one of each fact of each argument, with a text,
and LLVM spends much of its time on them, most of all in small modules.

In: a function as MakePackedAPI leaves it. Out: the same with its checks joined. Those of sizes, which users' own shapes
can fail, stay as they are. A function of a network is called by the runtime alone, which has looked at arguments before
and says what is wrong: of those only the number is checked.

Rewrite: assert a; x = args[0]; assert b; assert c  -->  x = args[0]; assert a and b and c
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.tir.expr import Stmt, TirExpr
from tvm_rnn.tir.statements import CHECKED_BY_CALLER, sequence

PACKED = 1  # TVM's calling convention of functions that take arguments of any kind


def joined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with few checks; one that takes pointers as they are has none, and stays."""
    if function.attrs.get("calling_conv", 0) != PACKED:
        return function
    found = _Checks(function.params[1], CHECKED_BY_CALLER in function.attrs)
    found.sort(function.body)
    return function.with_body(found.body())


@dataclass
class _Checks:
    """Statements before a function's own, by what they read: the arguments; the arrays that these point to, which have
    to be arrays; what arrays point to, which have to have as many axes."""

    arguments: TirExpr  # what TVM calls args
    checked_by_caller: bool  # whether what is read from them needs no check
    count: list[tirx.AssertStmt] = field(default_factory=list)
    values: list[Stmt] = field(default_factory=list)
    kinds: list[tirx.AssertStmt] = field(default_factory=list)
    arrays: list[tirx.AssertStmt] = field(default_factory=list)
    sizes: list[Stmt] = field(default_factory=list)
    shapes: list[tirx.AssertStmt] = field(default_factory=list)
    contents: list[tirx.AssertStmt] = field(default_factory=list)
    rest: list[Stmt] = field(default_factory=list)
    marks: list[tirx.AttrStmt] = field(default_factory=list)
    behind: set[TirExpr] = field(default_factory=set)  # variables that were read from arrays

    def sort(self, body: Stmt) -> None:
        """Each array has a mark, in that of the one before: of a large model these are a thousand in each other."""
        left = [body]
        while left:
            s = left.pop()
            if isinstance(s, tirx.SeqStmt):
                left += reversed([*s.seq])
            elif isinstance(s, tirx.AttrStmt) and s.attr_key != "compute_scope":
                self.marks.append(s)
                left.append(s.body)
            else:
                self.take(s)

    def take(self, s: Stmt) -> None:
        if isinstance(s, tirx.IfThenElse) and isinstance(s.then_case, tirx.AssertStmt):
            own = s.then_case
            where = tirx.if_then_else(s.condition, own.condition, tirx.const(True))
            self.check(tirx.AssertStmt(where, own.error_kind, own.message_parts))
        elif isinstance(s, tirx.AssertStmt):
            self.check(s)
        elif isinstance(s, tirx.Bind):
            pointed, later = self.reads(s.value)
            if pointed or later:
                self.behind.add(s.var)
            (self.sizes if pointed or later else self.values).append(s)
        else:
            self.rest.append(s)

    def check(self, s: tirx.AssertStmt) -> None:
        if self.checked_by_caller and self.values:
            return
        pointed, later = self.reads(s.condition)
        if any(".shape[" in part.value for part in s.message_parts):
            self.shapes.append(s)
        elif later:
            self.contents.append(s)
        elif pointed:
            self.arrays.append(s)
        else:
            (self.kinds if self.values else self.count).append(s)

    def reads(self, value: TirExpr) -> tuple[bool, bool]:
        """Whether a value reads through a pointer, and whether it reads a variable that was read through one."""
        found = [False, False]

        def call(node: tvm.ir.Call) -> None:
            name = getattr(node.op, "name", "")
            found[0] |= name == "tirx.tvm_struct_get" and not node.args[0].same_as(self.arguments)

        def variable(node: tirx.Var) -> None:
            found[1] |= node in self.behind

        tvm_ffi.structural_walk(value, ((tvm.ir.Call, call), (tirx.Var, variable)))
        return found[0], found[1]

    def body(self) -> Stmt:
        signature = self.count[0].message_parts[-2]

        def together(checks: Sequence[tirx.AssertStmt], what: str) -> Stmt | None:
            if not checks:
                return None
            parts = [tvm.ir.StringImm(f"{what} when calling:\n  `"), signature, tvm.ir.StringImm("`")]
            holds = functools.reduce(tirx.And, [s.condition for s in checks])
            return tirx.AssertStmt(holds, checks[0].error_kind, parts)

        contents = together(self.contents, "Mismatched strides or memory of an array")
        inside = sequence(self.shapes, contents, self.rest)
        for mark in reversed(self.marks):
            inside = tirx.AttrStmt(mark.node, mark.attr_key, mark.value, inside)
        return sequence(
            together(self.count, "Mismatched number of arguments"),
            self.values,
            together(self.kinds, "Mismatched type of an argument"),
            together(self.arrays, "Mismatched axes, dtype or device of an array"),
            self.sizes,
            inside,
        )
