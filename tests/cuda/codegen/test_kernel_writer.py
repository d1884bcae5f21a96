"""Kernels and the writer that their bodies see, as CUDA text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from compiled_kernels import text_of
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write

POINTERS = [("x", "float32"), ("y", "float32")]


def made(body: Callable[[Writer], None] | None = None, **facts: Any) -> Kernel:
    """A kernel that adds "shift" to 64 numbers, or one of another body."""

    def plain(k: Writer) -> None:
        at = I.cta_id([2]) * 32 + I.thread_id([32])
        k.store(k["y"], k["x"][at] + tirx.Cast("float32", k["shift"]), at)

    return write("adds", POINTERS, [("shift", "int32")], body or plain, threads=32, **facts)


def test_a_kernel_says_what_it_takes() -> None:
    kernel = made(shared_bytes=64, cluster=2, resident=True)
    assert (kernel.name, kernel.pointers, kernel.scalars) == ("adds", tuple(POINTERS), (("shift", "int32"),))
    assert (kernel.threads, kernel.shared_bytes, kernel.cluster, kernel.resident) == (32, 64, 2, True)
    assert made().cluster == 1 and not made().resident


def test_a_kernel_that_starts_early_waits_before_all_else() -> None:
    assert "griddepcontrol" not in text_of(made())
    kernel = made(early=True)
    text = text_of(kernel)
    assert kernel.shares and text.rindex("griddepcontrol_wait") < text.rindex("_ptr[")
    assert text.rindex("griddepcontrol_launch_dependents") < text.rindex("griddepcontrol_wait") < text.index("_ptr[")


def test_pointers_and_scalars_in_order() -> None:
    def body(k: Writer) -> None:
        at = I.cta_id([1]) + I.thread_id([32])
        k.store(k["to"], k["from"][at], at + k["shift"])

    func = write(
        "moves", [("from", "int64"), ("to", "int64"), ("more", "uint8")], [("shift", "int32")], body, threads=32
    ).func
    assert func.params[3].name == "shift"
    assert re.findall(r"\), \"(\w+)\"", func.script()) == ["int64", "int64", "uint8"]


def test_attributes_reach_the_function() -> None:
    attributes = {"tirx.kernel_launch_params": ["tirx.use_cooperative_launch"]}
    func = made(attributes=attributes).func
    assert list(func.attrs["tirx.kernel_launch_params"]) == ["tirx.use_cooperative_launch"]


def test_statements() -> None:
    def body(k: Writer) -> None:
        I.cta_id([1])
        thread = I.thread_id([32])
        sums = k.local(2)
        k.store(sums, tirx.const(0.0, "float32"), 0)
        with k.loop(tirx.const(8, "int32"), 0) as i, k.when(thread < 7):
            k.store(sums, sums[0] + k["x"][i * 32 + thread], 0)
        twice = k.keep(sums[0] * tirx.const(2.0, "float32"))
        k.do(I.cuda.cta_sync())
        for z in range(3):  # unrolled
            k.store(k["y"], k.bind(twice) + tirx.const(float(z + 1), "float32"), thread * 3 + z)

    text = text_of(made(body))
    assert "for (int" in text and "< 7" in text and "cta_sync();" in text
    assert text.count("* 0x1p+1f") == 1  # kept, though it is used three times
    assert len(re.findall(r"\* 3\).*\] = \(", text)) == 3  # stores


@pytest.mark.parametrize("name", ["x", "shift"])
def test_the_writer_knows_buffers_and_scalars_by_name(name: str) -> None:
    seen = []

    def body(k: Writer) -> None:
        at = I.cta_id([2]) * 32 + I.thread_id([32])
        seen.append(k[name])
        with pytest.raises(KeyError):
            k["unknown"]
        k.store(k["y"], k["x"][at] + tirx.Cast("float32", k["shift"]), at)

    kernel = made(body)
    assert not seen  # of a plan that no one compiles, no statement is written
    assert kernel.func is kernel.func and len(seen) == 1


def test_a_kept_value_is_computed_once() -> None:
    def body(w: Writer) -> None:
        I.cta_id([1])
        tx = I.thread_id([32])
        divided = w.keep(tirx.Cast("int64", tx) // w["n"])
        for i in range(3):
            w.store(w["out"], divided + i, divided * (i + 1))

    kernel = write("kernel", [("out", "int64")], [("n", "int64")], body, threads=32)
    assert text_of(kernel).count(" / ") <= 2  # the floor of a signed division
