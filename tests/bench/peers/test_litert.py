"""LiteRT: the names of operators in its schema, and models of many steps."""

from __future__ import annotations

import pytest
from peer_problems import problem_of, small

from tvm_rnn.bench.peers import litert
from tvm_rnn.bench.peers.models import Unsupported


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("FullyConnected", "FULLY_CONNECTED"),
        ("Tanh", "TANH"),
        ("UnidirectionalSequenceLSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"),
    ],
)
def test_names_of_operators(kind: str, name: str) -> None:
    assert litert.code_name(kind) == name


def test_a_long_sequence_of_a_gru_is_refused() -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    problem = problem_of(small("gru"), batch=1)
    with pytest.raises(Unsupported, match="1025 steps"):
        litert.network(problem, schema, 1025, stream=False)
    lstm = litert.network(problem_of(small("lstm", 1), batch=1), schema, 1025, stream=True)
    assert not lstm.states and len(lstm.model.operators) == 1
