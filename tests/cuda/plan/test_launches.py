"""Which kernel one launch enqueues, and with what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.pointers import Argument
from tvm_rnn.cuda.plan.launches import LaunchedRows, launch, launch_variant
from tvm_rnn.cuda.rowwise.live_rows import LiveSteps
from tvm_rnn.graph.graph import Node


@dataclass
class Choice:
    kernel: Kernel
    condition: str
    listed: bool = False


@dataclass
class Work:
    variants: list[Choice]
    arguments: list[Argument]
    given: bool = False


def test_variants_are_tried_in_order() -> None:
    def kernel(name: str) -> Kernel:
        return Kernel(name, None, (("x", "float32"),), (("rows", "int64"),), 128)

    node = Node("state", shape=(4,), name="h")
    choices = [Choice(kernel("a"), "rows < 9 && ((uintptr_t)x0 & 15) == 0"), Choice(kernel("b"), "rows < 99")]
    work: Any = Work([*choices, Choice(kernel("c"), "true")], [Argument("x0", "operand", node)])
    program = Program("float32")
    launch_variant(program.sequence, work, [Pointer("input[0]", "float32")], LaunchedRows("T * B"))
    lines = [line.strip() for line in program.sequence.lines]
    assert lines[:3] == ["{", "char* const x0 = input[0];", "const int64_t rows = T * B;"]
    openings = [line for line in lines if line.startswith(("if", "else"))]
    assert openings == ["if (rows < 9 && ((uintptr_t)x0 & 15) == 0) {", "else if (rows < 99) {", "else {"]
    assert lines.count("{") + len(openings) == lines.count("}")

    told: Any = Work(
        [Choice(replace(kernel("d"), scalars=(("rows", "int64"), ("given", "int32"))), "true")],
        [Argument("x0", "operand", node)],
        True,
    )
    launch_variant(program.sequence, told, [Pointer("input[0]", "float32")], LaunchedRows(8, "s == 0"))
    assert program.sequence.lines[-3].strip().endswith("int64_t(rows), int64_t(given)));"), program.sequence.lines[-6:]


def test_only_listed_variants_are_given_the_list() -> None:
    def kernel(name: str, *scalars: str) -> Kernel:
        return Kernel(name, None, (("x", "float32"),), tuple((scalar, "int64") for scalar in scalars), 128)

    node = Node("state", shape=(4,), name="h")
    lists = (("x", "float32"), ("live", "int32"), ("starts", "int32"))
    some = replace(kernel("some", "rows", "first", "steps"), pointers=lists)
    choices = [Choice(kernel("all", "rows"), "rows < 9"), Choice(some, "steps > 0", listed=True)]
    work: Any = Work([*choices, Choice(kernel("rest", "rows"), "true")], [Argument("x0", "operand", node)])
    pointers, live = [Pointer("input[0]", "float32")], (Pointer("live", "int32"), Pointer("starts", "int32"))
    program = Program("float32")
    launch_variant(program.sequence, work, pointers, LaunchedRows("B", live=LiveSteps(live, "t", 1)))
    calls = [line.strip() for line in program.sequence.lines if "int64_t(rows)" in line]
    assert "const int64_t first = t, steps = 1;" in [line.strip() for line in program.sequence.lines]
    assert ["live" in line and "int64_t(first), int64_t(steps)" in line for line in calls] == [False, True, False]

    plain = Program("float32")
    launch_variant(plain.sequence, work, pointers, LaunchedRows("B"))
    assert not any("steps" in line for line in plain.sequence.lines)


def test_what_has_one_kernel_is_given_its_rows() -> None:
    @dataclass
    class OneKernel:
        kernel: Kernel

    program = Program("float32")
    work: Any = OneKernel(Kernel("copy", None, (("x", "float32"),), (("rows", "int64"),), 128))
    launch(program.sequence, work, [Pointer("input[0]", "float32")], LaunchedRows("T * B"))
    assert any("int64_t(T * B)" in line for line in program.sequence.lines), program.sequence.lines
