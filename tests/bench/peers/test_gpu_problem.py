import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers.gpu_problem import GpuProblem
from tvm_rnn.bench.suites.gpu import Point


def test_weights_come_in_the_dtype_and_on_the_device_of_the_inputs() -> None:
    torch = pytest.importorskip("torch")
    net = rnn.RNN(rnn.cells.lstm, 3, 5).init(seed=0)
    problem = GpuProblem(Point("lstm", 3, 5, 2, 2), net, (torch.zeros(2, 2, 3, dtype=torch.bfloat16),))
    found = problem.weight("W", 0, 0)
    assert found.dtype == problem.dtype == torch.bfloat16 and found.device == problem.device
    assert np.allclose(found.float().numpy(), net.weights["W_l0"], rtol=2**-8)
