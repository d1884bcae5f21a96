"""Time in segments, on the emulator: the states before each, then all steps at once."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from emulated import POISON, decoded, encoded, run
from linear_steps import SMALL, TOLERANCE, Steps, recurrence, scan

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED
from tvm_rnn.cuda.linear.segments import Compose, SegmentEnds, Segments, map_size


def error(case: Steps, span: int, dtype: str = "float32") -> float:
    """Of three kernels' run, against what the precision allows; of one kernel's, where a segment has all steps. dtype:
    of the user's states, which are taken where it is not float32."""
    own, batch = case.own, case.batch
    steps = case.steps + (-case.steps % SMALL.chunk if case.reverse else 0)
    segments = -(-steps // span)
    arrays = case.arrays()
    state = arrays["state_in"]
    if dtype != "float32":
        arrays |= {"users_in": encoded(state, dtype), "users_out": encoded(arrays["state_out"], dtype)}
        state[:], case.before = POISON, decoded(encoded(case.before, dtype), dtype)
    for name, many in (("ends", segments - 1), ("starts", segments)):
        arrays[name] = np.full((many, *state.shape), POISON, "f4")
    arrays["maps"] = np.full((segments - 1, batch, own.heads, map_size(own)), POISON, "f4")
    scalars = {"steps": (segments - 1) * span, "batch": batch, "span": span, "segments": segments, **case.masks}
    scalars |= {"padded": steps, "real": case.steps, "users": int(dtype != "float32")}
    ends, compose = SegmentEnds("ends", replace(own, reads=()), SMALL, case.reverse), Compose("compose", own, dtype)
    whole, found = scan(own, SMALL, case.reverse, bool(case.every), dtype), arrays
    if segments > 1:
        run(ends.kernels[case.masked], arrays, scalars, ends.blocks(batch, segments - 1))
        run(compose.kernel, arrays, scalars, compose.blocks(batch))
        found = arrays | {"state_in": arrays["starts"]}
    run(whole.kernels[case.masked], found, scalars | {"steps": steps}, whole.blocks(batch, segments))
    if dtype != "float32":
        assert np.isnan(arrays["state_out"]).all()
        arrays["state_out"] = decoded(arrays["users_out"], dtype)
    return case.error(arrays) / TOLERANCE[own.precision]


@pytest.mark.broad
@pytest.mark.parametrize("erase", ["", DECAYED])
def test_segments(erase: str) -> None:
    assert error(Steps(recurrence(1, 24, 20, erase=erase), 70), 32) < 1


@pytest.mark.broad
@pytest.mark.parametrize("span", [32, 96])
def test_states_as_the_user_has_them(span: int) -> None:
    """In 16 bits: no kernel copies them before or behind the steps."""
    assert error(Steps(recurrence(1, 24, 20, erase=DECAYED), 70), span, "bfloat16") < 1


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("decay", [1, 24])
def test_segments_of_two_columns(reverse: bool, decay: int) -> None:
    own = recurrence(1, 24, 20, others=("vector",), decay=decay, reads=(BEFORE, AFTER))
    assert error(Steps(own, 117, 1, reverse=reverse, every=EVERY), 32) < 1


@pytest.mark.broad
def test_segments_backwards_with_lengths_and_resets() -> None:
    own, reset = recurrence(1, 24, 20), np.random.default_rng(1).random((117, 3)) < 0.05
    assert error(Steps(own, 117, 3, lengths=np.array([10, 64, 117]), reset=reset, reverse=True), 32) < 1


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("erase", "heads"), [("", 2), (BEFORE, 1)])
def test_segments_where_each_key_decays_by_itself(erase: str, heads: int) -> None:
    own = recurrence(heads, 24, 20, decay=24, erase=erase, own=bool(erase))
    reset = np.random.default_rng(1).random((100, 3)) < 0.05
    assert error(Steps(own, 70), 32) < 1
    assert error(Steps(own, 100, 3, lengths=np.array([10, 64, 90]), reset=reset), 32) < 1


@pytest.mark.slow
def test_more_keys_than_a_thread_holds() -> None:
    assert error(Steps(recurrence(1, 144, 16, erase=DECAYED), 40, 1), 32) < 1


@pytest.mark.broad
def test_lengths_and_resets_in_segments() -> None:
    reset = np.random.default_rng(1).random((100, 3)) < 0.05
    case = Steps(recurrence(1, erase=DECAYED, keys_last=True), 100, 3, lengths=np.array([10, 64, 90]), reset=reset)
    assert error(case, 32) < 1


def test_memory_is_enough_for_any_call() -> None:
    """Where segments are worth it, on a small GPU and a large one."""
    rng, used = np.random.default_rng(0), 0
    for sms, batch, heads, steps in rng.integers((8, 1, 1, 1), (140, 9, 4, 9000), (500, 4)):
        own = Segments("own", recurrence(int(heads), 32, 24, erase=DECAYED), ChunkTile(chunk=64))
        program = Program()
        name = own.span(program.sequence, int(steps))
        space = {"B": int(batch), "sms": int(sms), "rows": int(batch * steps)}
        for line in program.sequence.lines:
            if found := re.search(r"int64_t (\w+) = (.*);", line):
                space[found[1]] = eval(_plain(found[2]), {"math": math, **space})
        span = space[name]
        many = -(-int(steps) // span)
        assert span % 64 == 0 and (many == 1 or many >= 2)
        if many > 1:
            used += 1
            numbers = (many * 2 * own.sizes[0] + (many - 1) * own.sizes[1]) * int(batch * heads)
            assert numbers <= eval(_plain(own.memory_size("rows")), dict(space)), space
    assert used > 50


def _plain(text: str) -> str:
    """C++ as Python."""
    text = re.sub(r"std::min<int64_t>|static_cast<int64_t>", lambda m: "min" if "min" in m[0] else "int", text)
    text = text.replace("std::sqrt", "math.sqrt").replace("/", "//")
    return re.sub(r"\((.*?) \? (.*?) : (.*)\) \* 64", r"((\2) if \1 else (\3)) * 64", text)
