"""Memory of compiled code that begins as poison, with guards behind it.

In: pytest's monkeypatch and a value. Out: a function that fails if anything behind an allocation was written. What the
code reads before it wrote it shows in its results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tvm_rnn.runtime import runtime

GUARD = 4096


def poison(monkeypatch: pytest.MonkeyPatch, value: float = np.nan) -> Callable[[], None]:
    """From now on workspaces, tapes and packed weights begin as `value`: memory of bytes as float32's, of which two are
    NaN in float64 as well. The result checks the guards."""
    real, guards = runtime._aligned, []

    def allocate(elements: int, dtype: np.dtype) -> np.ndarray:
        whole = real(elements + GUARD, dtype)
        whole[:] = np.resize(_poisoned(dtype), len(whole))
        guards.append((whole[elements:], whole[elements:].copy()))
        return whole[:elements]

    def _poisoned(dtype: np.dtype) -> np.ndarray:
        return np.array([value], dtype if dtype.kind == "f" else np.float32).view(dtype)

    def check() -> None:
        assert guards
        for guard, before in guards:
            np.testing.assert_array_equal(guard, before)

    monkeypatch.setattr(runtime, "_aligned", allocate)
    return check
