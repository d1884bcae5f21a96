"""matrix_rows: steps of a matrix as its owner laid it out."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tests.cpu.matrix_parts import delta_part
from tvm_rnn.cpu.matrix_rows import Rows


@pytest.mark.parametrize(("first", "count"), [(0, 16), (16, 3)])
def test_rows_end_where_the_matrix_does(first: int, count: int) -> None:
    rows = Rows(delta_part(19, 19, tirx.const(first, "int64")))
    assert int(Analyzer().simplify(rows.count)) == count


def test_sums_leave_out_what_is_behind_the_last_key() -> None:
    part = delta_part(19, 19)
    assert "Select" in str(Rows(part).step(part.matrix, part.matrix, tirx.const(0, "int64")))
    assert "Select" not in str(Rows(delta_part(19, 32)).step(part.matrix, part.matrix, tirx.const(0, "int64")))
