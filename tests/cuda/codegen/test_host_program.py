"""cuda/codegen/host_program.py: what is declared and stated becomes C++ that runs so; on the fake CUDA runtime, no GPU
needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import Log, link
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.cuda_text import generate
from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.errors import BuildError
from tvm_rnn.target import GPUS

Run = Callable[..., list[str]]


def kernel(name: str = "fill", **facts: Any) -> Kernel:
    """A kernel with one float pointer, a number of elements and a number of blocks."""

    def body(k: Writer) -> None:
        block, thread = I.cta_id([k["blocks"]]), I.thread_id([128])
        at = tirx.Cast("int64", block) * 128 + tirx.Cast("int64", thread)
        with k.when(at < k["n"]):
            k.store(k["x"], tirx.const(1.0, "float32"), at)

    return write(name, [("x", "float32")], [("n", "int64"), ("blocks", "int32")], body, threads=128, **facts)


class Built:
    """A program's module on the fake runtime."""

    def __init__(self, program: Program, folder: Path) -> None:
        import tvm_ffi

        path = folder / "m.so"
        path.write_bytes(link([generate(program, replace(GPUS["nvidia-h200"], arch="sm_90a"))], folder))
        self.library, self.log, self.program = tvm_ffi.load_module(str(path)), Log(path), program
        self.memory = ctypes.create_string_buffer(1 << 20)

    def __call__(self, T: int = 2, B: int = 3, has_lengths: bool = False) -> list[str]:
        """The operations of one call."""
        place = ctypes.addressof(self.memory)
        arguments = [0] * (11 + self.program.inputs + 2 * self.program.states)
        arguments[2:5], arguments[6], arguments[10] = [T, B, has_lengths], place, place
        self.log.take()
        self.library.get_function("sequence_sm_90a")(*arguments)
        return self.log.take()

    def workspace(self, T: int, B: int) -> int:
        return int(self.library.get_function("workspace_sm_90a")(0, 0, T, B))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], Built]:
    monkeypatch.setenv("FAKE_GPUS", "90")
    return lambda program: Built(program, tmp_path)


def test_pointers() -> None:
    x = Pointer("x", "bfloat16")
    assert x.at(0) is x and x.skip(0) is x
    assert x.at("t * B").text == "(x + int64_t(2 * int64_t(t * B)))"
    assert x.cast("uint8").at(3).text == "(x + int64_t(1 * int64_t(3)))"


@pytest.mark.broad
def test_buffers_share_memory_only_in_scratch(build: Callable[[Program], Built]) -> None:
    program = Program()
    program.buffer("a", "T * B", "float32")
    with program.scratch():
        program.buffer("b", 1000)
    with program.scratch():
        program.buffer("c", 300)
    program.buffer("d", "B")
    built = build(program)
    assert built.workspace(2, 3) == 256 + 1024
    assert built.workspace(1000, 3) == 12032 + 1024
    assert built.workspace(0, 3) == built.workspace(5, 0) == 256


def test_packed_weights_are_aligned() -> None:
    program = Program()
    assert program.packed(3, "float32").text == "packed"
    assert program.packed(100, "bfloat16").text == "(packed + int64_t(256))"
    assert program.packed_bytes == 512
    assert program.raw("w", "float32").text == program.raw("w", "float32").text == "raw[0]"
    assert program.raw("b", "float32").text == "raw[1]" and program.parameters == [("w", "float32"), ("b", "float32")]


def test_statements_run_as_they_are_written(build: Callable[[Program], Built]) -> None:
    program = Program()
    fill, host = kernel(), program.sequence
    tile = program.let("tile", "(T + 1) / 2")
    place = program.buffer("x", f"B * {tile}", "float32")
    with host.loop("T", "t") as t:
        with host.when(f"{t} % 2 == 0"):
            size = host.let("size", f"10 + {t}")
            host.launch(fill, [place], {"n": size, "blocks": size})
        with host.otherwise():
            host.memset(host.pointer("here", place.at(1)), t)
    with host.when("has_lengths"):
        host.copy(place.at("B"), place, 8)
    host.copy(place, place, 8)  # nothing to do
    host.memset(place, "T - T")
    built = build(program)
    name = "fill_sm_90a_kernel"
    assert built(3) == [f"{name}(0, 10)", "set(0, 1)", f"{name}(0, 12)"]
    assert built(1, has_lengths=True) == [f"{name}(0, 10)", "copy(0, 8)"]
    assert built(0) == built(1, 0) == []


@pytest.mark.broad
def test_streams_are_ordered_by_events_alone(build: Callable[[Program], Built]) -> None:
    program, fill = Program(), kernel()
    host, place = program.sequence, program.buffer("x", 100)
    host.fork(2)
    with host.loop(2, "k") as k, host.stream(f"{k} + 1"):
        host.launch(fill, [place.cast("float32")], [1, f"{k} + 5"])
        host.record(k)
    with host.stream(1):
        host.wait(1)
    host.wait(7)  # never recorded
    host.join(2)
    host.memset(place, 9)
    built = build(program)
    for _ in range(2):  # the second call has the streams and events of the first
        begin, *rest, last = built()
        one, two = (
            next(w for w in rest if f", {n})" in w and "kernel" in w).split("(")[1].split(",")[0] for n in (5, 6)
        )
        assert begin.startswith("record(0, ") and last == "set(0, 9)" and len({one, two, "0"}) == 3
        event = begin.split(", ")[1]
        assert rest[0] == f"wait({one}, {event}" and rest[1] == f"wait({two}, {event}"
        assert rest[-2].startswith(f"record({two}") and rest[-1].startswith("wait(0")
        assert len(rest) == 2 + 4 + 1 + 4


def test_a_call_knows_that_it_is_recorded(build: Callable[[Program], Built], monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    host, place = program.sequence, program.buffer("x", 100)
    with host.when(host.captured):
        host.memset(place, 9)
    built = build(program)
    assert built() == []
    monkeypatch.setenv("FAKE_STATE", "capture")
    assert built() == ["set(0, 9)"]


@pytest.mark.broad
def test_errors_end_the_call(build: Callable[[Program], Built]) -> None:
    program = Program()
    program.sequence.fail_when("B == 13", 'thirteen "rows"')
    built = build(program)
    assert built(1, 12) == []
    with pytest.raises(RuntimeError, match='thirteen "rows"'):
        built(1, 13)


@pytest.mark.broad
def test_blocks_that_wait_for_each_other_must_fit(build: Callable[[Program], Built]) -> None:
    program, fill = Program(), kernel(resident=True)
    place = program.buffer("x", 100, "float32")
    most = program.let("most", program.resident(fill))
    program.sequence.launch(fill, [place], ["T", "T"])
    program.sequence.memset(place, most)
    built = build(program)
    assert built(264) == ["cooperative(0, 1)", "fill_sm_90a_kernel(0, 264)", "set(0, 264)"]
    with pytest.raises(
        RuntimeError, match="kernel fill needs 265 blocks on the GPU at once, and there is room for 264"
    ):
        built(265)
    assert built(1)[1] == "fill_sm_90a_kernel(0, 1)"  # the refusal is over


def test_wrong_arguments_are_found_at_once() -> None:
    program, fill = Program(), kernel()
    place = program.buffer("x", 1, "float32")
    with pytest.raises(BuildError, match="another dtype"):
        program.sequence.launch(fill, [place.cast("float16")], [1, 1])
    with pytest.raises(BuildError, match="wrong pointers"):
        program.sequence.launch(fill, {"y": place}, [1, 1])
    with pytest.raises(BuildError, match="wrong scalars"):
        program.sequence.launch(fill, [place], [1])
    with pytest.raises(BuildError, match="two kernels have one name"):
        program.sequence.launch(kernel(), [place], [1, 1])
