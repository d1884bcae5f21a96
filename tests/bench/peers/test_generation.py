"""generation: every framework that generates makes the oracle's tokens, and begins anew with each call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from peer_problems import manifest_of, problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers.generation import SEED, WRITERS, prepare
from tvm_rnn.bench.peers.models import Problem, Unsupported
from tvm_rnn.bench.suites.writers import CELLS

STEPS = 7


def writing(name: str, path: str = "m.so") -> tuple[rnn.RNN, Problem]:
    """A network of 9 tokens with large weights, so that its tokens vary; a prompt for three rows."""
    net = rnn.RNN(CELLS[name], 1, 8, V=9).init(seed=0)
    net = net.load({key: 12 * value for key, value in net.weights.items()})
    manifest = manifest_of(net)
    manifest.update(draws=net.draws, generation=rnn.runtime.runtime.Manifest(tokens=net.tokens))
    return net, Problem(path, manifest, net.weights, {"x": np.array([[[0], [4], [8]]])}, 2, STEPS)


def check(name: str, net: rnn.RNN, problem: Problem) -> None:
    expected = rnn.reference(net).generate(STEPS, prompt=problem.x, seed=SEED)[0]
    assert len(np.unique(expected)) > 3
    for run in prepare(name, problem).runs.values():
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(run()), expected)


def test_numpy_generates_as_the_oracle() -> None:
    check("numpy", *writing("lstm_greedy"))


@pytest.mark.peers
def test_torch_generates_as_the_oracle() -> None:
    pytest.importorskip("torch")
    net, problem = writing("lstm_greedy")
    check("torch", net, problem)
    assert list(prepare("torch", problem).runs) == ["2 threads", "1 thread"]


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_compiles_generates_as_the_oracle() -> None:
    pytest.importorskip("torch")
    check("torch-compile", *writing("lstm_greedy"))


@pytest.mark.gpu
def test_a_cuda_graph_of_one_step_generates_as_the_oracle() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(Unsupported, match="no GPU here"):
            prepare("torch-cuda-graph", writing("lstm_greedy")[1])
        pytest.skip("torch has no GPU here")
    check("torch-cuda-graph", *writing("lstm_greedy"))


@pytest.mark.broad
@pytest.mark.parametrize("name", CELLS)
def test_our_own_module(name: str, tmp_path: Path) -> None:
    net, problem = writing(name, str(tmp_path / "m.so"))
    rnn.compile(net, generate=True).export(problem.path)
    check("tvm_rnn", net, problem)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "tvm_rnn"])
def test_what_draws_other_numbers_is_not_compared(name: str) -> None:
    if name != "numpy":
        pytest.importorskip("torch")
    with pytest.raises(Unsupported, match="other random numbers"):
        prepare(name, writing("lstm_sample")[1])


def test_a_framework_that_does_not_generate_is_a_reason() -> None:
    with pytest.raises(Unsupported, match="not timed generating"):
        prepare("openvino", writing("lstm_greedy")[1])
    with pytest.raises(Unsupported, match="nobody has written a loop"):
        prepare("torch", problem_of(small("lstm", 1, False)))
