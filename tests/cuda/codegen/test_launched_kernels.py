"""Which kernels calls launch: found by the host program's own statements, and the others are left out of a module."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpu import Log, link
from tvm import tirx
from tvm.script.ir_builder import tirx as I

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.cuda_text import generate
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.launched_kernels import launched_kernels
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.options import Call, Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


def kernel(name: str) -> Kernel:
    """Sets n values to 1."""

    def body(k: Writer) -> None:
        I.cta_id([1])
        at = tirx.Cast("int64", I.thread_id([128]))
        with k.when(at < k["n"]):
            k.store(k["x"], tirx.const(1.0, "float32"), at)

    return write(name, [("x", "float32")], [("n", "int64")], body, threads=128)


def program() -> Program:
    """A kernel for packing, one for a few rows, one for many where blocks have room, one for lengths."""
    found = Program(inputs=1, states=1)
    few, many, late, pack = (kernel(name) for name in ("few", "many", "late", "packs"))
    x, host = found.buffer("x", "T * B", "float32"), found.sequence
    found.pack.launch(pack, [found.packed(8, "float32")], [8])
    with host.when("B <= 4"):
        host.launch(few, [x], ["B"])
    with host.otherwise(), host.loop("T") as t, host.when(f"{t} > 0 && {found.resident(many)} > sms"):
        host.launch(many, [x], ["B"])
    with host.when("has_lengths"):
        host.launch(late, [x], ["B"])
    return found


def test_kernels_are_those_that_the_statements_launch() -> None:
    found = program()
    assert launched_kernels(found, [Call(1, 5), Call(1, 2, lengths=True)], 132) == {"packs", "few", "late"}
    assert launched_kernels(found, [Call(2, 5)], 132) == {"packs", "many"}  # a GPU may have room


@pytest.mark.slow  # the C++ compiler, for all of host.h
def test_a_kernel_that_was_left_out_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm_ffi

    monkeypatch.setenv("FAKE_GPUS", "90")
    found, path = program(), tmp_path / "m.so"
    found.left_out = frozenset(found.kernels) - launched_kernels(found, [Call(1, 4)], 132)
    source = generate(found, resolve("nvidia-h200"))
    assert "few" in "".join(source.shards) and "many" not in "".join(source.shards)
    path.write_bytes(link([source], tmp_path))
    library, log = tvm_ffi.load_module(str(path)), Log(path)
    # Device, stream, T, B, lengths, reset, then addresses, which nothing reads.
    library.get_function("sequence_sm_90a")(0, 0, 1, 4, 0, 0, *[1 << 20] * 8)
    assert any("few" in line for line in log.take())
    with pytest.raises(RuntimeError, match="kernel late was left out"):
        library.get_function("sequence_sm_90a")(0, 0, 1, 4, 1, 0, *[1 << 20] * 8)


@pytest.mark.broad
def test_a_call_of_a_network_launches_one_way_of_its_steps() -> None:
    target = resolve("nvidia-h200")
    net = rnn.RNN(rnn.cells.lstm, 40, 40, dtype="bfloat16").init(0)
    found = plan(passed(net, Options(target, (16,), precision="bfloat16")), target)
    long, short = (launched_kernels(found, [Call(steps, 16)], 132) for steps in (100, 1))
    assert len([name for name in long if "persistent" in name]) == 1 and not any("once" in name for name in long)
    assert not any("persistent" in name for name in short) and len(long) < len(found.kernels) / 2
