"""Triton's kernels against the oracle, interpreted on the CPU. Skipped where Triton is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.peers

# In a process of its own: Triton decides when it is imported whether kernels are interpreted.
PROGRAM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from gpu_stand_in import point, problem
from tvm_rnn.bench.run.gpu_worker import errors
from tvm_rnn.bench.peers.gpu import prepare_triton
from tvm_rnn.bench.peers.triton import CELLS, TritonModel
from tvm_rnn.oracle.torch_graph import TorchModel
for cell in CELLS:
    given = problem(point(cell, input=24, hidden=40, layers=2, directions=2), torch)
    expected = TorchModel(given.net, torch.float64, "cpu")([x.double() for x in given.inputs])
    assert errors(TritonModel(given)((16, 16, 16)), expected)[0] < 1e-5, cell
    assert list(prepare_triton(given).runs) == ["tile 16x16x128", "tile 16x32x64"]
"""


def test_every_kernel_is_the_cells() -> None:
    here = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=here)
