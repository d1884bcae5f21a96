"""Lines of the tape: which values are copied as lines, and where nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from networks import network
from persistent_layers import text_of
from training_plans import H200, trained

from tvm_rnn.cuda.model.choose_regime import Persistent
from tvm_rnn.cuda.persistent.exchange import CLUSTER
from tvm_rnn.cuda.persistent.kernel import kernel
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed


def regime(cell: str, hidden: int, backward: bool = False) -> Persistent:
    _, plans = trained(cell, hidden, "bfloat16")
    found = (plans.backward if backward else plans.forward).code[0].regimes[0]
    assert isinstance(found, Persistent)
    return found


def copies(found: Persistent, **knobs: int) -> tuple[int, str]:
    """How many pieces of lines a thread stores in each step, of a cluster of that geometry; and the kernel's body."""
    geometry = replace(found.geometry, exchange=CLUSTER, warps_n=1, warps_k=1, rows=8, **knobs)
    text = text_of(kernel("k", geometry, found.layout))
    body = text[text.index("{") :]
    return body.count("void* v") // 3, body  # even and odd steps, and behind the last


@pytest.mark.parametrize(("backward", "values"), [(False, 5), (True, 4)])
def test_a_line_for_each_value_and_row(backward: bool, values: int) -> None:
    """Of two blocks with 64 units each: lines of 128 bytes for each of 8 rows, 16 bytes of one for each thread."""
    found = regime("gru", 128, backward)
    geometry = replace(found.geometry, exchange=CLUSTER, ctas=2, rows=8, warps_u=4, warps_n=1, warps_k=1)
    assert len(found.geometry.step.lined) == values and geometry.line_width == 128 and geometry.line_pitch == 144
    assert geometry.shared_bytes == geometry.tape_at + 2 * values * 8 * 144
    count, body = copies(found, ctas=2, warps_u=4)
    assert count == -(-values * 8 * 8 // 128) and "st_vec_global_v2_b32" not in body
    assert body.count("stmatrix") == 2 * -(-values * 2 // 4)


def test_short_lines_and_those_without_room_are_stored_by_lanes() -> None:
    found = regime("gru", 128)
    assert copies(found, ctas=8, warps_u=2)[0] == 0  # 16 units
    geometry = replace(found.geometry, exchange=CLUSTER, ctas=2, rows=8, warps_u=4, warps_n=1, warps_k=1)
    full = replace(geometry, shared_words=1 << 20, register_words=0, step=replace(geometry.step, lined=()))
    assert full.line_width == 0 and full.shared_bytes == full.own_bytes


def test_rows_that_are_no_pieces_of_16_bytes_are_no_lines() -> None:
    assert not regime("gru", 36).geometry.step.lined


@pytest.mark.broad
def test_warps_that_copy_leave_registers_to_those_that_compute() -> None:
    """Of members whose inputs the same warps multiply in the steps: their weights fill registers."""
    net = network("gru", 128, 128, dtype="bfloat16", members=16)
    plans = plan(passed(net, Options(H200, (32,), precision="bfloat16", training="values")), H200)
    found = plans.forward.code[0].regimes[0]
    assert isinstance(found, Persistent)
    geometry: Any = replace(found.geometry, inputs_apart=0, warps_u=8, register_words=128)
    few, many = geometry.moved_registers or (0, 0)
    assert geometry.copy_warps == 4 and few < 168 < geometry.registers < many
    assert few * 4 + many * geometry.warps <= 168 * 12
    text = text_of(kernel("k", geometry, found.layout))
    assert text.count("setmaxnreg_inc") and text.count("setmaxnreg_dec")
    found = plans.backward.code[0].regimes[0]  # a warp has whole tiles of 16 units
    assert isinstance(found, Persistent)
    assert found.geometry.warps == found.geometry.copy_warps == 4
