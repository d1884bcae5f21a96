"""What holds for every test of JAX: float64 is on, and one layer is compiled for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from networks import network

import tvm_rnn as rnn

X, H, T, B = 6, 3, 4, 2  # X = 2 H: both layers share their code


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    import jax

    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="session")
def layer() -> Any:
    """An LSTM of two layers and directions."""
    return rnn.to_jax(network("lstm", X, H, num_layers=2, bidirectional=True, dtype="float64"))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(T, B, X))
