"""prefetch: what is asked for ahead changes no result, and is asked for once per cache line."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.records import Records
from tvm_rnn.tune.workload import Candidate, Choice, Trial


def compiled(net: rnn.RNN, ahead: int) -> rnn.Module:
    """The module whose step has that knob."""
    first = Trial()
    rnn.compile(net, batch=1, records=first)
    unit = next(u for u in first.asked.values() if u.kind == "gemm" and u.region == "step")
    knobs = {"ahead": ahead}
    records: Records = Trial(Candidate((Choice(unit.key, "gemm_cpu", version("gemm_cpu"), knobs),)))
    return rnn.compile(net, batch=1, records=records)


def version(name: str) -> int:
    from tvm_rnn.schedule.schedule_template import templates

    return templates()[name].version


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "sizes"), [("elman", (3, 33)), ("lstm", (5, 33)), ("gru_reset_before", (7, 16)), ("elman", (3, 130))]
)
def test_results_are_the_same_bits(cell: str, sizes: tuple[int, int]) -> None:
    net = rnn.RNN(rnn.cells.get(cell), *sizes).init(3)
    x = np.random.default_rng(0).standard_normal((9, 1, sizes[0])).astype("float32")
    plain, asking = (compiled(net, ahead) for ahead in (0, 8))
    knobs = [row["knobs"].get("ahead") for row in asking.manifest.templates if row["unit"].startswith("step gemm")]
    assert knobs and knobs[0] == 8
    np.testing.assert_array_equal(plain(x)[0], asking(x)[0])
