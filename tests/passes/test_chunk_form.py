"""Which matrix recurrences GPUs run in chunks, and what `explain` says of the others."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tests.linear_cells import OWN
from tvm_rnn.cuda.linear.choose_tile import choose
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, Erase, Read, Recurrence, Rows
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import is_scan
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.chunk_form import MOST_KEYS, MOST_READS
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


@pytest.mark.parametrize("name", ["gated_delta_net", "delta_net", "mlstm", "retnet", "mamba2"])
def test_in_chunks(name: str) -> None:
    assert decided(name)[0] and decided(name, N=2)[0]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("gated_delta_net", {"dtype": "float32"}, "not for float32"),
        ("gated_delta_net", {"target": "nvidia-a100"}, "not for sm_80"),
        ("gated_delta_net", {"bidirectional": True}, "go forward in time"),
        ("gla", {}, "each key decays by itself"),
        ("corrected_twice", {"K": 5}, "one product that is written"),
    ],
)
def test_the_others_say_why(name: str, options: dict[str, Any], why: str) -> None:
    whole, reason = decided(name, **options)
    assert not whole and why in reason


def test_there_are_kernels_for_all_that_is_let_through() -> None:
    def rows(width: int) -> Rows:
        return Rows(width, width, "bfloat16")

    key = rows(MOST_KEYS)
    reads = tuple(Read(key, rows(64), of) for of in (BEFORE, AFTER)[:MOST_READS])
    erase, decay = Erase(key, None, BEFORE), Rows(1, 1, "float32")
    own = Recurrence(1, MOST_KEYS, 64, "bfloat16", key, rows(64), reads, None, erase, decay)
    assert choose(own, (1,), GPU).tile.chunk
