"""rows_cpu: takes what gemm_cpu does not."""

from __future__ import annotations

import pytest

from tvm_rnn import BuildError, target
from tvm_rnn.schedule.schedule_template import Unit, best


@pytest.mark.parametrize("kind", ["pointwise", "reduce"])
@pytest.mark.parametrize("machine", tuple(target.TABLE.values()), ids=lambda t: t.name)
def test_pointwise_and_reductions_are_scheduled_everywhere(kind: str, machine: target.Target) -> None:
    chosen, config, _ = best(Unit(kind, "step", "float32"), machine)
    assert chosen.name == "rows_cpu" and config == {}


def test_a_kind_that_no_template_takes_is_an_error() -> None:
    with pytest.raises(BuildError, match="no template schedules this unit"):
        best(Unit("convolution", "step", "float32"), target.TABLE["x86-64-v4"])
