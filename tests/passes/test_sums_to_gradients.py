"""sums_to_gradients: the graph of what follows all steps of backward."""

from __future__ import annotations

from networks import network

from tvm_rnn.graph.graph import sums_rows
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.sums_to_gradients import SumsToGradients
from tvm_rnn.target import TABLE


def test_sums_are_inputs_and_gradients_come_out() -> None:
    graph = pipeline.run(network("lstm", 5, 5), TABLE["x86-64-v4"], training=True)[-1][1].graphs[0].backward
    assert graph is not None
    sums = [n for n in graph.nodes() if sums_rows(n)]
    found = SumsToGradients(graph, sums)
    assert len(found.graph.weight_gradients) == len(graph.params) and list(found.inner.values()) == sums
    assert [leaf.shape for leaf in found.inner] == [n.shape for n in sums] and found.kept == []
    assert not any(sums_rows(n) for n in found.graph.nodes())
