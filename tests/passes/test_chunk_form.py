"""Which matrix recurrences GPUs run over all steps at once, in what form, and what `explain` says of the others."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tests.linear_cells import OWN
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import is_scan
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.chunk_form import AT_ONCE, MOST_KEYS, sums_of_both
from tvm_rnn.passes.matrix_recurrence import Solved
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


def decided(name: str, dtype: str = "bfloat16", target: str = "nvidia-h200", **options: Any) -> tuple[bool, str]:
    """Whether a cell's matrix is known for all steps, and why or why not."""
    cell = OWN[name][0] if name in OWN else rnn.cells.get(name)
    net = rnn.RNN(cell, 5, 8, dtype=dtype, **options)
    with recording() as found:
        graph = pipeline.run(net, resolve(target), precision=dtype)[-1][1].graphs[0]
    matrix = next(s for s in graph.states if len(s.shape) > 1)
    whole = is_scan(graph.results[graph.states.index(matrix)])
    return whole, " ".join(d.why for d in found if d.what == f"state {matrix.name}")


@pytest.mark.parametrize(
    "name", ["gated_delta_net", "delta_net", "mlstm", "retnet", "mamba2", "gla", "corrected_twice"]
)
def test_all_steps_at_once(name: str) -> None:
    assert decided(name)[0] and decided(name, N=2)[0]


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"target": "nvidia-a100"}])
def test_for_any_dtype_and_gpu(options: dict[str, Any]) -> None:
    assert decided("gated_delta_net", **options)[0]


def test_the_others_say_why() -> None:
    whole, reason = decided("gated_delta_net", bidirectional=True)
    assert not whole and "go forward in time" in reason
    whole, reason = decided("retnet", dtype="float64")
    assert not whole and "in float32" in reason
    whole, reason = decided("corrected_twice", K=MOST_KEYS + 1)
    assert not whole and f"up to {MOST_KEYS} keys" in reason


@pytest.mark.parametrize(
    ("name", "target", "more", "most"),
    [
        ("gated_delta_net", "nvidia-h200", {}, AT_ONCE[0][2]),
        ("gated_delta_net", "nvidia-a100", {}, 0),
        ("gated_delta_net", "nvidia-h200", {"dtype": "float32"}, 0),
        ("gated_delta_net", "nvidia-h200", {"hidden_size": AT_ONCE[0][0] + 1}, AT_ONCE[1][2]),
        ("gated_delta_net", "nvidia-h200", {"hidden_size": MOST_KEYS + 1}, 0),
        ("gla", "nvidia-h200", {}, 0),
    ],
)
def test_which_gpus_give_the_product_of_both_as_one_number(
    name: str, target: str, more: dict[str, Any], most: int
) -> None:
    """In 16 bits, on Hopper, of heads that decay as one and are no larger than a block of threads can have."""
    net = rnn.RNN(rnn.cells.get(name), 5, **{"hidden_size": 8, "dtype": "bfloat16", **more})
    graph = pipeline.run(net, resolve(target))[-1][1].graphs[0]
    (state,) = [s for s in graph.states if len(s.shape) > 1]
    solved = Solved("", [state], [graph.results[graph.states.index(state)]], {})
    assert sums_of_both(solved, net, resolve(target)) == most


HEADS = {"N": 2, "M": 3}  # whose values are sums of products, as a convolution makes them


@pytest.mark.parametrize(
    ("name", "sizes", "along_key"),
    [("gated_delta_net", {}, True), ("gated_delta_net_conv", HEADS, True), ("corrected_twice", {}, False)],
)
def test_one_key_where_there_is_one(name: str, sizes: dict[str, int], along_key: bool) -> None:
    cell = OWN[name][0] if name in OWN else rnn.cells.get(name)
    graph = pipeline.run(rnn.RNN(cell, 5, 8, dtype="bfloat16", **sizes), GPU, precision="bfloat16")[-1][1].graphs[0]
    new = next(result for result in graph.results if result.op == "scan_matrix")
    assert new.attrs["writes"] == 1
    assert all(column is new.args[2] for column in new.args[4:-1:2]) == along_key
    assert new.attrs.get("scaled", False) == along_key


def test_what_scales_a_column_of_its_own() -> None:
    """In a gradient the key that is erased along is the one that is read by, and numbers scale the product."""
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 8, dtype="bfloat16")
    back = pipeline.run(net, GPU, training="values")[-1][1].graphs[0].backward
    assert back is not None
    new = next(result for result in back.results if result.op == "scan_matrix")
    *_, key, _, column, vector, _ = new.args
    assert new.attrs["scaled"] and column is vector and column is not key
    by_key = pipeline.run(rnn.RNN(OWN["delta_by_key"][0], 5, 8), GPU, training="values")[-1][1].graphs[0].backward
    assert by_key is not None
    new = next(result for result in by_key.results if result.op == "scan_matrix")
    assert not new.attrs.get("scaled")
