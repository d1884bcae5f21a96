"""A pair's pointers: what is read, what comes out, and a border of each matrix that is read."""

from __future__ import annotations

from tvm_rnn.cuda.linear.pair import GRADIENT, STATE, Made, Pair, Read, marks_name
from tvm_rnn.cuda.linear.recurrence import Rows


def test_pointers() -> None:
    rows = Rows(16, 16, "bfloat16")
    made = Made(None, ((rows, rows),))
    both = Pair(2, 16, 16, "bfloat16", made, made, (Read(STATE, rows, rows), Read(GRADIENT, rows, rows)))
    names = [name for name, _ in both.pointers]
    assert names[-4:] == ["output_0", "output_1", marks_name(STATE), marks_name(GRADIENT)]
    assert dict(both.pointers)[marks_name(STATE)] == "bfloat16" and "vector_1" in names
    alone = Pair(2, 16, 16, "float32", made, None, (Read(STATE, rows, rows),))
    assert [*alone.made] == [STATE] and dict(alone.pointers)[marks_name(STATE)] == "float32"
