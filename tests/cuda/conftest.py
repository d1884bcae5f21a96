"""Fixtures of several files here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import emulated
import numpy as np
import pytest

from tvm_rnn.cuda.persistent import exchange_by_polling


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Six places: a few steps use each several times."""
    emulated.persistent_kernel.cache_clear()
    monkeypatch.setattr(exchange_by_polling, "TURN", 2)
    yield
    emulated.persistent_kernel.cache_clear()


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What blocks left in the memory of their exchange, by kernel that was run."""
    seen: list[np.ndarray] = []

    def run(kernel: Any, arrays: emulated.Arrays, *more: Any) -> None:
        original(kernel, arrays, *more)
        seen.append(arrays["exchange"])

    original = emulated.run
    monkeypatch.setattr(emulated, "run", run)
    return seen
