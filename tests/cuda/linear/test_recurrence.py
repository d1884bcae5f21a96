"""Recurrences: the names of what kernels are given."""

from __future__ import annotations

from linear_steps import recurrence

from tvm_rnn.cuda.linear.recurrence import BEFORE, DECAYED, sum_name


def test_pointers() -> None:
    own = recurrence(erase=DECAYED, own=True, value_scale=True, reads=(BEFORE,))
    names = [
        "key",
        "erase",
        "read_0",
        "value",
        "decay",
        "value_scale",
        "erase_scale",
        "output_0",
        "state_in",
        "state_out",
    ]
    assert [name for name, _ in own.pointers] == names
    assert [name for name, _ in own.operands] == names[:-3]


def test_what_erases() -> None:
    for own, name in ((True, "erase"), (False, "key")):
        assert recurrence(erase=DECAYED, own=own).erasing_vector == name
    assert (sum_name(BEFORE), sum_name(DECAYED)) == ("before", "after")
