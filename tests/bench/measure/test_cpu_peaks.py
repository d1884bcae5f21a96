"""cpu_peaks: rates that a CPU can have, and code that does the work it is counted for."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_rnn.bench.measure import cpu_peaks
from tvm_rnn.bench.measure.cpu_peaks import CHAINS, _functions, fma_gflops, read_gbytes
from tvm_rnn.target import host


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_multiply_adds_are_done(dtype: str) -> None:
    """By all accumulators with one vector: their own would not fit into registers beside them."""
    lanes = host().lanes(dtype)
    size = CHAINS * lanes
    x, out = np.linspace(0, 0.5, lanes, dtype=dtype), tvm.runtime.tensor(np.ones(size, dtype))
    _functions(dtype)["fma"](3, tvm.runtime.tensor(x), out)
    expected = np.ones(size, dtype)
    for _ in range(3):
        expected = expected * np.tile(x, CHAINS) + np.tile(x, CHAINS)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def test_every_element_is_read() -> None:
    size = CHAINS * host().lanes("float32")
    data = np.random.default_rng(0).standard_normal((5, size)).astype("float32")
    out = tvm.runtime.tensor(np.zeros(size, "float32"))
    _functions("float32")["read"](2, 5, tvm.runtime.tensor(data.ravel()), out)
    np.testing.assert_allclose(out.numpy(), 2 * data.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_those_of_a_cpu(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_peaks, "SECONDS", 0.01)
    assert 0.5 < fma_gflops("float32", threads).best < 2000 * threads
    for size in (1 << 14, 1 << 23):
        found = read_gbytes(size, threads)
        assert 0.2 < found.best < 5000 * threads and 0 <= found.spread < 1
