"""working_memory: what a layout reserves, computed here, is what the compiled function returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import emulator
import pytest
from networks import network
from training_plans import trained

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.training.add_entry_points import WAYS, plan, working
from tvm_rnn.errors import BuildError
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


def of(*lines: str) -> Any:
    program: Any = SimpleNamespace(layout=list(lines), each=1)
    return working_memory(program, 132)


def test_buffers_follow_each_other() -> None:
    program = Program()
    steps = program.let("steps", "min<int64_t>(T, max<int64_t>(1, 100 / B))")
    program.buffer("a", f"{steps} * B * 3", "float32")
    with program.scratch():
        program.buffer("b", "B", "float64")
    program.buffer("c", "2 * sms", "uint8")
    found = working_memory(program, 132)
    assert found(50, 7) == -(-14 * 7 * 12 // 256) * 256 + 512  # 14 steps; b shares memory with c
    assert found(0, 7) == found(7, 0) == ALIGNMENT


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("T >= 8 && 2 * (B <= 4 ? 1 : 3) <= sms ? 5 : 7", 5),
        ("(T + 1) * B - 3 / 2 * 2 % 5", 28),
        ("!(T == 9) || B != 3 ? 1 : (T < 9 ? 2 : 3)", 3),
        ("-1 + int64_t(T) * 2", 17),
        ("(T > 3) & 1", 1),
        ("max<int64_t>(min<int64_t>(T, B), 2)", 3),
        ("std::max<int64_t>({std::min<int64_t>(sms * 2, T / 3), int64_t(0)}) + std::max<int64_t>({B})", 6),
    ],
)
def test_expressions(expression: str, value: int) -> None:
    found = of(f"const int64_t x_1 = {expression};", "const int64_t y_1 = reserve(at, most, 1000 * int64_t(x_1));")
    assert found(9, 3) == -(-1000 * value // 256) * 256


@pytest.mark.parametrize("expression", ["f(T)", "T T", "1 @ 2", "(1", "T ? 1", "max<int64_t>({1)"])
def test_what_is_not_known(expression: str) -> None:
    for line in (f"const int64_t x = {expression};", "int x = 1; T + 1"):
        with pytest.raises(BuildError, match="a layout of memory cannot be computed here"):
            of(line)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("cell", ["lstm", "mlstm", "lstm_layer_norm", "min_gru"])
def test_every_layout_is_read(cell: str) -> None:
    _, plans = trained(cell, precision="bfloat16")
    own = working(plans, resolve("nvidia-h200"))
    for way in WAYS:
        sizes = [own[way](steps, 33) for steps in (1, 10, 100, 1000)]
        assert sizes == sorted(sizes) and sizes[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "min_gru"])
def test_the_compiled_function_says_the_same(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = network(cell, 7, 7)
    module = emulator.compile(net, training=True, keep="states")
    module.memory_sizes(1, 1)
    (device,) = module._devices.values()
    machine = resolve("nvidia-h200")
    own = working(plan(passed(net, Options(machine, precision="float32", training="states")), machine), machine)
    for steps, batch in ((1, 1), (7, 3), (100, 33), (5000, 7), (0, 3)):
        for way in WAYS:
            assert own[way](steps, batch) == device.parts[way].workspace(steps, batch, 2)
