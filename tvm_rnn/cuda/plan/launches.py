"""One launch: of a kernel, or of the first variant of a product whose condition holds.

In: a kernel or a product, the pointers that it is given, the rows. Out: host statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.gemm.group_kernels import Gemm
from tvm_rnn.cuda.layer.row_kernels import Rows
from tvm_rnn.cuda.rowwise.live_rows import LiveSteps


@dataclass(frozen=True)
class LaunchedRows:
    """The rows of a launch. count: of them, with those that are left out. given: a C++ condition, see `Problem`. live:
    the steps whose live rows a product works on; None: all rows."""

    count: HostExpr
    given: str = "false"
    live: LiveSteps | None = None


def launch(host: Host, work: Gemm | Rows, pointers: Sequence[Pointer], rows: LaunchedRows) -> None:
    """Enqueue a product, or the one kernel of rows."""
    if isinstance(work, Gemm):
        launch_variant(host, work, pointers, rows)
    else:
        host.launch(work.kernel, pointers, [rows.count])


def launch_variant(host: Host, work: Gemm, pointers: Sequence[Pointer], rows: LaunchedRows) -> None:
    """Enqueue the first variant of a product whose condition holds. Conditions name the arguments."""
    *others, last = work.variants
    if not others and not work.given:
        host.launch(last.kernel, pointers, [rows.count])
        return
    host.code("{")
    for argument, pointer in zip(work.arguments, pointers, strict=True):
        host.code(f"char* const {argument.name} = {pointer.text};")
    host.code(f"const int64_t rows = {rows.count};")
    if work.given:
        host.code(f"const int32_t given = {rows.given};")
    if rows.live is not None:
        host.code(f"const int64_t first = {rows.live.first}, steps = {rows.live.steps};")
    for number, variant in enumerate(v for v in work.variants if rows.live is not None or not v.listed):
        opening = f"if ({variant.condition})" if not number else f"else if ({variant.condition})"
        host.code(f"{opening if variant is not last or not others else 'else'} {{")
        told = ["rows", *(["given"] if work.given else [])]
        if rows.live is not None and variant.listed:
            host.launch(variant.kernel, [*pointers, *rows.live.pointers], [*told, "first", "steps"])
        else:
            host.launch(variant.kernel, pointers, told)
        host.code("}")
    host.code("}")
