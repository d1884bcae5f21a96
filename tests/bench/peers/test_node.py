"""Programs in node: their results those of the oracle; what is missing is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from peer_problems import problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers import node
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.peers.node import onnxruntime_web_program, web_program
from tvm_rnn.bench.peers.programs import Program
from tvm_rnn.oracle.tolerance import assert_close


def check(program: Program, net: rnn.RNN) -> None:
    y = program.outputs()
    with program.running(0.0) as turn:
        timed = turn()
    assert_close(y, rnn.reference(net)(program.problem.inputs)[0], net.dtype, len(y))
    assert timed.seconds > 0 and timed.tail[0] <= timed.tail[1]


@pytest.mark.broad
def test_a_folder_for_browsers_is_the_oracle(tmp_path: Path) -> None:
    javascript = pytest.importorskip("javascript")
    if javascript.missing():
        pytest.skip(javascript.missing())
    net = small("lstm", 1, False)
    problem = problem_of(net, steps=9, batch=1)
    check(web_program(rnn.compile(net, "wasm32", batch=1), problem, tmp_path), net)


@pytest.mark.peers
@pytest.mark.skipif("NODE_MODULES" not in os.environ, reason="NODE_MODULES: a folder with onnxruntime-web")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_onnxruntime_web_is_the_oracle(cell: str, tmp_path: Path) -> None:
    net = small(cell, 1, False)
    check(onnxruntime_web_program(problem_of(net, steps=9, batch=1), tmp_path, os.environ["NODE_MODULES"]), net)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(small("lstm", 1, False), steps=1, batch=1)
    with pytest.raises(Unsupported, match="npm install onnxruntime-web"):
        onnxruntime_web_program(problem, tmp_path, tmp_path)
    own = tmp_path / "onnxruntime-web"
    (own / "dist").mkdir(parents=True)
    (own / "dist" / "ort.node.min.mjs").touch()
    (own / "package.json").write_text('{"version": "1"}')
    monkeypatch.setattr(node.shutil, "which", lambda name: None)
    with pytest.raises(Unsupported, match="no node"):
        onnxruntime_web_program(problem, tmp_path, tmp_path)
