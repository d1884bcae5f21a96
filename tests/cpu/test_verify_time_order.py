"""verify: the guard of the order of time."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import PassError, target
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.verify_time_order import verify
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def sequence() -> Any:
    net = rnn.RNN(rnn.cells.lstm, 3, 5)
    return Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run().module["sequence"]


@pytest.mark.parametrize("loop", ["tile", "step"])
def test_a_parallel_loop_over_time_is_refused(loop: str) -> None:
    func = sequence()

    def parallel(node: tirx.For) -> tirx.For:
        if node.loop_var.name != loop:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.PARALLEL, node.body)

    verify(func)
    broken = func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, parallel)))
    with pytest.raises(PassError, match=f"loop over {loop} is not serial"):
        verify(broken)


def test_a_loop_over_time_inside_a_parallel_one_is_refused() -> None:
    func = sequence()
    var = tirx.Var("outer", "int64")
    body = tirx.For(var, tirx.IntImm("int64", 0), tirx.IntImm("int64", 2), tirx.ForKind.PARALLEL, func.body)
    with pytest.raises(PassError, match="inside a parallel loop"):
        verify(func.with_body(body))
