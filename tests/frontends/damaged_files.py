"""What the tests of damaged model files share: how much is changed, and what may come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import tvm_rnn as rnn
from tvm_rnn.errors import TvmRnnError

CUTS = 40  # lengths at which a file is cut off


def examples(count: int) -> settings:
    """So many files, however long each takes."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def cut(whole: bytes) -> range:
    """Where a file is cut off."""
    return range(0, len(whole), len(whole) // CUTS)


def changed_bytes(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file with one to four bytes of other values."""

    def apply(changes: list[tuple[int, int]]) -> bytes:
        data = bytearray(whole)
        for place, byte in changes:
            data[place] = byte
        return bytes(data)

    change = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    return st.lists(change, min_size=1, max_size=4).map(apply)


def survives(data: bytes, feeds: Callable[[], dict[str, Any]]) -> None:
    """A network that can be run, or one error of ours."""
    try:
        rnn.reference(rnn.from_onnx(data)).run(feeds())
    except TvmRnnError as error:
        assert str(error)
