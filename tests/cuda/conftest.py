"""Fixtures of several files here."""

from __future__ import annotations

from collections.abc import Iterator

import emulated
import pytest

from tvm_rnn.cuda.persistent import exchange_by_polling


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Six places: a few steps use each several times."""
    emulated.persistent_kernel.cache_clear()
    monkeypatch.setattr(exchange_by_polling, "TURN", 2)
    yield
    emulated.persistent_kernel.cache_clear()
