"""What every command of the command line prints with: the stage at hand, JSON, and what rich renders.

In: texts, values and renderables from `commands.py` and `bench.py`. Out: stderr for progress, stdout for results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.text import Text

from tvm_rnn.stages import Stages

LOG_SECONDS = 10.0


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows the stage at hand on stderr, with the share that is done where it is a compilation's: in a
    terminal while it lasts, in a log a line where the last is LOG_SECONDS ago."""
    if quiet:
        yield lambda stage: None
        return
    stages = Stages()
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield _log(stages)
        return
    with Console(stderr=True).status("starting") as status:

        def tell(stage: str) -> None:
            stages.text(stage)
            status.update(_Now(stages))

        yield tell


class _Now:
    """A stage as it is whenever the terminal is written."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages

    def __rich__(self) -> Text:
        return Text(self.stages.now())


def _log(stages: Stages) -> Callable[[str], None]:
    said = [time.monotonic()]

    def tell(stage: str) -> None:
        if time.monotonic() - said[0] >= LOG_SECONDS:
            said[0] = time.monotonic()
            print(f"tvm-rnn: {stages.text(stage)}", file=sys.stderr, flush=True)

    return tell


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_written(path: str, arrays: Mapping[str, object]) -> None:
    """A line for a file of arrays: their names, dtypes and shapes."""
    said = [f"{name} {getattr(a, 'dtype', '')} {list(getattr(a, 'shape', ()))}" for name, a in arrays.items()]
    print(f"wrote {path}: {', '.join(said)}")


def print_rich(*renderables: RenderableType) -> None:
    """Tables and texts. In a file or a pipe nobody's window limits the lines: rows are not folded, for grep's sake."""
    console = Console()
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        console.width = 10_000
        console.width = max(80, *(console.measure(renderable).maximum for renderable in renderables))
    for renderable in renderables:
        console.print(renderable)


def show(as_json: bool, facts: object, *renderables: RenderableType) -> None:
    """A command's result: the facts as JSON for programs, or the rest for people."""
    if as_json:
        print_json(facts)
    else:
        print_rich(*renderables)
