"""Modules for CPUs whose code LLVM has not optimised: made in half of the time, and equal to the oracle all the same.

In: nothing. Out: a context in which this process compiles so, whatever calls `compile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from tvm_rnn.target import Target

if TYPE_CHECKING:
    import tvm

_optimised: Any = Target.tvm_target


def _for_tvm(target: Target) -> tvm.target.Target:
    import tvm  # not in the process that only hands out tests

    made: tvm.target.Target = _optimised.fget(target)
    return tvm.target.Target({**made.export(), "opt-level": 0}) if target.kind == "llvm" else made


@contextmanager
def code() -> Iterator[None]:
    with mock.patch.object(Target, "tvm_target", property(_for_tvm)):
        yield
