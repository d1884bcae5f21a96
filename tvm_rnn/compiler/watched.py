"""The stages of a compilation for whoever looks on: one line, rewritten on stderr, with what share is done.

In: what the caller said of progress. Out: a function that is told each stage, for the time of the compilation. A
terminal and a notebook see the line, which is gone in the end; files, pipes and TVM_RNN_PROGRESS=0 see nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm_rnn.stages import Stages

Progress = Callable[[str], None]
VARIABLE = "TVM_RNN_PROGRESS"  # 0: no line


@contextmanager
def watched(progress: Progress | bool | None) -> Iterator[Progress]:
    """progress: called in place of the line; True: the line if someone looks on; None: that, unless VARIABLE is 0;
    False: nothing."""
    if callable(progress):
        yield progress
        return
    wanted = os.environ.get(VARIABLE, "1") != "0" if progress is None else progress
    if not wanted or not _someone_looks_on():
        yield lambda stage: None
        return
    line = Line()
    try:
        yield line
    finally:
        line.clear()


class Line:
    """A line of stderr that is written over."""

    width = 0

    def __init__(self) -> None:
        self.stages = Stages()

    def __call__(self, stage: str) -> None:
        text = f"compiling: {self.stages.text(stage.splitlines()[0])}"[:78]
        print(f"\r{text:<{self.width}}", end="", file=sys.stderr, flush=True)
        self.width = len(text)

    def clear(self) -> None:
        print(f"\r{'':<{self.width}}\r", end="", file=sys.stderr, flush=True)


def _someone_looks_on() -> bool:
    """A terminal, or the stream that a notebook's kernel shows."""
    return sys.stderr is not None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"))
