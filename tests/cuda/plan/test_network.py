"""The program of whole networks: tiles, layers, directions, wavefront; every zoo cell has one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from compiled_kernels import passed_of

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.codegen.launched_kernels import launched_kernels
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.decisions import recording
from tvm_rnn.options import Call, Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


def program_of(name: str, precision: str = "float32", **options: Any) -> Program:
    return plan(passed_of(name, precision, **options), resolve("nvidia-h200"))


def lines(program: Program) -> list[str]:
    return [line.strip() for line in program.sequence.lines]


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "choose", lambda *given: [])


SLOW = [pytest.param(p, marks=pytest.mark.slow) for p in ("float64", "tf32", "float16")]


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.broad), *SLOW])
@pytest.mark.broad_after(16)
@pytest.mark.parametrize("name", rnn.cells.names())
def test_every_cell_has_a_program(step_by_step: None, name: str, precision: str) -> None:
    program = program_of(name, precision)
    assert {"load0", "save0"} <= set(program.kernels)
    assert program.facts["flops_per_row"] > 0 and program.packed_bytes % 256 == 0


@pytest.mark.broad
def test_braces_match(step_by_step: None) -> None:
    for options in ({}, {"num_layers": 3}, {"num_layers": 2, "bidirectional": True}):
        text = "\n".join(lines(program_of("lstm", **options)))
        assert text.count("{") == text.count("}")


def test_one_layer_uses_the_callers_stream_alone(step_by_step: None) -> None:
    text = "\n".join(lines(program_of("lstm")))
    assert "OnStream" not in text and "fork" not in text


def test_only_the_first_of_few_steps_has_its_states_given() -> None:
    """The others' are what the launch before them writes: no product may read them before that has ended."""
    net, machine = rnn.RNN(rnn.cells.get("gru"), 12, 24, dtype="bfloat16"), resolve("nvidia-h200")
    program = plan(passed(net, Options(machine, precision="bfloat16")), machine)
    told = [line for line in lines(program) if "int32_t given" in line]
    assert len(told) > 1 and all(re.search(r"given = s_\d+ == 0", line) for line in told), told


def test_layers_have_streams_of_their_own(step_by_step: None) -> None:
    text = "\n".join(lines(program_of("lstm", num_layers=3)))
    assert text.count("OnStream") == 2 and "fork(int64_t(2))" in text and "join(int64_t(2))" in text
    # Each layer waits for the one before and, for its place to be free, for the one behind.
    assert text.count(".wait(") == 4 and text.count(".record(") == 3


def test_layers_run_one_after_the_other_where_the_pass_was_left_out(step_by_step: None) -> None:
    target = resolve("nvidia-h200")
    net = rnn.RNN(rnn.cells.lstm, 5, 7, num_layers=3)
    options = Options(target, without=("tile_layers_and_time",), precision="float32")
    text = "\n".join(lines(plan(passed(net, options), target)))
    assert "OnStream" not in text and "fork" not in text and ".wait(" not in text


def test_rows_of_the_manifest_say_which_layers_they_are_for(step_by_step: None) -> None:
    found = {tuple(row["layers"]) for row in program_of("lstm", num_layers=3).facts["templates"]}
    assert found == {(0,), (1, 2), (0, 1, 2)}  # the first one reads another width; all run in a wave


def test_directions_run_side_by_side(step_by_step: None) -> None:
    program = program_of("lstm", num_layers=2, bidirectional=True)
    text = "\n".join(lines(program))
    assert text.count("fork(int64_t(1))") == text.count("join(int64_t(1))") == 2
    assert text.count("T - done") == 4 + 2  # the size of each tile, and where those of the backward direction begin
    # In a graph a second stream costs nothing; outside of one the steps have to be worth its events.
    (least,) = re.findall(r"forks_\d+ = \w+ && \(T >= (\d+) \|\| call_state.captured\(\)\)", text)
    assert 1 < int(least) < 64


@pytest.mark.broad
def test_the_reverse_direction_alone_begins_at_the_end(step_by_step: None) -> None:
    program = program_of("lstm", num_layers=2, reverse=True)
    text = "\n".join(lines(program))
    assert "OnStream" not in text and text.count("{") == text.count("}")
    start = re.compile(r"start_\d+ = T - done")
    assert len(start.findall(text)) == 2 and not start.search("\n".join(lines(program_of("lstm"))))


def test_flags_cost_nothing_where_they_are_not_given(step_by_step: None) -> None:
    found = lines(program_of("gru"))
    for kernel, flag in (("restart", "has_reset"), ("freeze", "has_lengths")):
        at = next(i for i, line in enumerate(found) if f"_{kernel}," in line)
        assert found[at - 1].startswith(f"if ({flag}")


def test_rows_without_a_step_are_copied_behind_all_layers(step_by_step: None) -> None:
    """Of calls of one step, which no other row reads: in one launch."""
    net, target = rnn.RNN(rnn.cells.lstm, 6, 6, 3, True, "bfloat16"), resolve("nvidia-h200")
    found = lines(plan(passed(net, Options(target, precision="bfloat16")), target))
    (end,) = (i for i, line in enumerate(found) if "end0" in line)
    assert re.match(r"if \(direct_\d+ && T == 1 && has_lengths\)", found[end - 1])
    assert not any("_freeze" in line for line in found[end:])
    frozen = {found[i - 1] for i, line in enumerate(found) if "_once_freeze" in line}
    assert frozen == {"if (has_lengths && T > 1) {"}


def test_a_call_of_one_step_has_its_states_where_the_user_has_them(step_by_step: None) -> None:
    """Nothing is copied then, and one launch is all of an LSTM's: nothing is hoisted. A GRU's step reads what is
    hoisted; its kernels for 16 bits are of their own, in float32 they are those of every step."""
    for cell, precision, own in (("lstm", "float32", True), ("gru", "bfloat16", True), ("gru", "float32", False)):
        net, target = rnn.RNN(rnn.cells.get(cell), 6, 6, dtype=precision), resolve("nvidia-h200")
        program = plan(passed(net, Options(target, precision=precision)), target)
        text = "\n".join(lines(program))
        assert (re.search(r"if \(!direct_\d+\) {[^}]*g0_before0", text) is not None) == (cell == "lstm")
        assert len(re.findall(r"direct_\d+ = T <= [1-4] && tile_steps_\d+ >= T && !has_reset", text)) == 1
        load, save = (re.findall(rf"if \((\S+)\) {{[^{{}}]*kernels::{name}0[,)]", text) for name in ("load", "save"))
        assert len(load) == len(save) == 1 and load == save and load[0].startswith("!direct")
        assert any(name.startswith("g0_once") for name in program.kernels) == own
        packed = [name for name in program.kernels if name.startswith("g0_joined_pack")]
        assert len(packed) == (cell == "lstm")  # of W, in other tiles; R is packed once


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("members", "inside"), [(16, True), (2, False)])
def test_products_of_members_are_in_the_steps_where_that_takes_less(members: int, inside: bool) -> None:
    """Sixteen members' hoisted values are more than L2 holds. Whoever listens hears of the way that is taken alone."""
    net, target = rnn.RNN(rnn.cells.gru, 128, 128, dtype="bfloat16", members=members), resolve("nvidia-h200")
    with recording() as told:
        program = plan(passed(net, Options(target, (32,), precision="bfloat16")), target)
    assert any("gemm" in kernel for kernel in program.kernels) != inside
    (said,) = [own for own in told if own.what == "products of inputs in the steps"]
    assert (
        said.done == inside and sum(own.stage == "regime" and own.what == f"{members} heads apart" for own in told) == 1
    )


def test_members_in_float32_have_a_step_of_their_own_for_a_call_of_one() -> None:
    net, target = rnn.RNN(rnn.cells.gru, 13, 11, members=2), resolve("nvidia-h200")
    program = plan(passed(net, Options(target, precision="float32")), target)
    assert not any(name.startswith("g0_joined_pack") for name in program.kernels)


def test_pointwise_steps_have_their_states_where_the_user_has_them() -> None:
    """One kernel walks all steps of a tile: where that is all of the call, nothing is copied, whatever layer it is. In
    16 bits states are float32, which the user's are not."""
    for precision, walked in (("float32", True), ("bfloat16", False)):
        net, target = rnn.RNN(rnn.cells.brc, 5, 6, num_layers=2, dtype=precision), resolve("nvidia-h200")
        text = "\n".join(lines(plan(passed(net, Options(target, precision=precision)), target)))
        pattern = r"(?:if \((\S+)\) {{)?\s*[^{{}}\n]*kernels::{}\d\b"
        copied = [re.findall(pattern.format(name), text) for name in ("load", "save")]
        whole = re.findall(r"const int64_t (walked_\d+) = ", text)
        assert len(whole) == int(walked)
        assert all(found == ([f"!{whole[0]}"] if walked else [""]) for found in copied), copied


def test_the_users_states_are_cut_by_layer_and_direction(step_by_step: None) -> None:
    text = "\n".join(lines(program_of("gru", num_layers=2, bidirectional=True)))
    for place in (0, 7, 14, 21):
        assert f"state_in[0] + int64_t(4 * int64_t({place} * B))" in text
        assert f"state_out[0] + int64_t(4 * int64_t({place} * B))" in text


def test_offsets_that_grow_with_time_are_64_bit(step_by_step: None) -> None:
    """Names of variables are int64, numbers beside them small: B * T * H may exceed 32 bits."""
    layout = program_of("lstm").layout
    assert all(line.startswith("const int64_t") or line.startswith("at =") for line in layout)


@pytest.mark.broad
def test_recurrences_take_two_launches_at_most() -> None:
    """One where a block has all steps; where chunks are there at once, another one fills the memory they meet in."""
    program = program_of("min_gru")
    found = lines(program)
    found = [line for line in found if line not in ("{", "}", "else {")]
    at_once = [i for i, line in enumerate(found) if "_scan_at_once" in line]
    apply = [i for i, line in enumerate(found) if "_scan_apply" in line]
    assert len(at_once) == 2 and apply == [i + 1 for i in at_once]  # without and with lengths and resets
    assert all("set_words" in "".join(found[i - 3 : i]) for i in at_once)
    assert not any(line.startswith("for (int64_t s_") for line in found)
    assert "OnStream" not in "\n".join(lines(program_of("min_gru", num_layers=3)))


@pytest.mark.broad
def test_ended_rows_are_blank_where_no_recurrence_writes_the_output() -> None:
    blank = {name: any("_blank" in line for line in lines(program_of(name))) for name in ("min_gru", "lru")}
    assert blank == {"min_gru": False, "lru": True}


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("bfloat16", {}),
        pytest.param("tf32", {"num_layers": 2, "bidirectional": True}, marks=pytest.mark.broad),
        pytest.param("bfloat16", {"num_layers": 3}, marks=pytest.mark.broad),
    ],
)
def test_persistent_kernels_have_the_users_states(precision: str, options: dict[str, Any]) -> None:
    """In a wave, and layer by layer. More steps than a tile has: states between tiles are not rounded."""
    net = rnn.RNN(rnn.cells.lstm, 24, 64, dtype="float32" if precision == "tf32" else precision, **options)
    target = resolve("nvidia-h200")
    program = plan(passed(net, Options(target, precision=precision)), target)
    for total, copied in ((50, False), (1 << 20, True)):
        names = launched_kernels(program, [Call(total, 8)], target.sms)
        assert any("persistent" in name or "wave" in name for name in names), names
        moved = {name.removesuffix("_wide") for name in names if name.startswith(("load", "save"))}
        assert moved == ({"load0", "save0"} if copied else set()), names
