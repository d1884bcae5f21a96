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
    """From now on workspaces, tapes and packed weights begin as `value`. The result checks the guards."""
    real, guards = runtime._aligned, []

    def allocate(elements: int, dtype: np.dtype[np.floating]) -> np.ndarray:
        whole = real(elements + GUARD, dtype)
        whole[:] = value
        guards.append(whole[elements:])
        return whole[:elements]

    def check() -> None:
        assert guards
        for guard in guards:
            np.testing.assert_array_equal(guard, np.full(GUARD, value, guard.dtype))

    monkeypatch.setattr(runtime, "_aligned", allocate)
    return check
