"""What shells complete behind an option or a command.

In: the letters that were typed. Out: the names that begin so. Nothing is imported but lists of names, as a shell waits;
where no name fits, shells offer files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What completes one of the names. In a list with commas it is the last part that is completed."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def _cells() -> list[str]:
    from tvm_rnn import cells

    return cells.names()


def _targets() -> list[str]:
    from tvm_rnn import target

    return target.names()


def _passes() -> tuple[str, ...]:
    from tvm_rnn.options import PASS_NAMES

    return PASS_NAMES


def _stages() -> list[str]:
    return ["trace", "normalise", "differentiate", *_passes(), "te", "tir", "llvm", "asm", "cuda", "host", "all"]


def _suites() -> list[str]:
    from tvm_rnn.bench.suites import compile_times, cpu, gpu

    return sorted({*cpu.SUITES, *gpu.SUITES, compile_times.SUITE, "models"})


def _dtypes() -> tuple[str, ...]:
    from tvm_rnn.dtypes import DTYPES

    return DTYPES


cells, targets, passes, stages, suites = map(_of, (_cells, _targets, _passes, _stages, _suites))
dtypes = _of(_dtypes)
