"""recurrence_cpu: how many vectors go through time together."""

from __future__ import annotations

import pytest

from tvm_rnn import target
from tvm_rnn.schedule.schedule_template import Unit, best


@pytest.mark.parametrize(("width", "panels"), [(1, 1), (16, 1), (32, 2), (48, 1), (512, 2)])
def test_blocks_leave_no_rest(width: int, panels: int) -> None:
    chosen = best(Unit("scan", "before", "float32", width=width), target.TABLE["x86-64-v4"])
    assert chosen.template.name == "recurrence_cpu" and chosen.knobs == {"panels": panels}
