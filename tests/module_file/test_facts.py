"""module_facts: what every manifest says, and the arrays of a file."""

from __future__ import annotations

import json

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.module_file.facts import blob, common_facts, memory_facts
from tvm_rnn.module_file.schema import plain
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import TABLE

V4 = TABLE["x86-64-v4"]


def test_what_every_manifest_says() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 5, num_layers=2)
    facts = plain(common_facts(net, V4, (1, 4), ("combine_gemms",)))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cell"] == "lstm" and facts["batch"] == [1, 4] and "combine_gemms" not in facts["passes"]
    assert facts["states"][0]["shapes"] == [[5], [5]] and facts["target"]["name"] == V4.name
    assert [w["name"] for w in facts["weights"]] == list(net.weight_shapes)


def test_the_arrays_of_a_file() -> None:
    table = np.arange(5.0) / 5

    @rnn.cell(states="h")
    def shifted(x: "I", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + h * table)

    net = rnn.RNN(shifted, 3, 5).init()
    arrays = blob(net, passed(net, Options(V4)).layers)
    assert {*net.weights} < {*arrays} and any(name.startswith("constant.") for name in arrays)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}


def test_memory_of_training() -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 32)
    own = passed(net, Options(V4))
    values, states = (memory_facts(net, own.training(keep)[-1][1], keep) for keep in ("values", "states"))
    assert values.keep == "values" and states.keep == "states"
    assert states.again_flops_per_row > values.again_flops_per_row
    assert states.forward_flops_per_row == values.forward_flops_per_row > 2 * 4 * 32 * 40
