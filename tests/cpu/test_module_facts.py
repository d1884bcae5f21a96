"""A CPU module's manifest."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.module_facts import describe
from tvm_rnn.module_file.schema import plain
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import TABLE


def test_what_the_manifest_says() -> None:
    net, options = rnn.RNN(rnn.cells.gru, 3, 5), Options(TABLE["x86-64-v4"], (2,), stored="bfloat16")
    lowered = Lowering(net, passed(net, options).layers, options).run()
    facts = plain(describe(net, lowered, options))
    assert facts["weight_dtype"] == "bfloat16" and facts["batch"] == [2] and facts["cell"] == "gru"
    assert len(facts["packs"]) == len(lowered.packs) and facts["packed_elements"] > 0 and facts["flops_per_row"] > 0
    assert {row["template"] for row in facts["templates"]} >= {"gemm_cpu"}
