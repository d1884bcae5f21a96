"""Time compilation on this CPU: CPU seconds of `compile` of each network, for inference and with training.

In: networks by name. Out: records, one per network, written to a file as they come; `table` shows them. CPU time is
that of a worker process and of what it starts, the linker: a busy machine lengthens it less than the clock's. Each
worker compiles a small network first, so that no record has the loading of the compiler in it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.bench.suites import compile_times as suite
from tvm_rnn.worker_process import Lost, Pool, Reply, WorkerProcess, channel

from .compare import OURS, cpu_facts
from .gpu_suite import Progress, Record, writing

if TYPE_CHECKING:
    from rich.table import Table

FIRST = "elman"  # what each worker compiles before it is timed
COMMAND = ("-m", "tvm_rnn.bench.run.compile_times")
TRAININGS = {"inference": False, "training": True}


@dataclass(frozen=True)
class Options:
    """jobs: compilations at a time; one is the quietest. limit: seconds for each network."""

    jobs: int = 1
    limit: float | None = None


def run(
    names: Sequence[str],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> list[Record]:
    """Compile the networks of these names and return the records. records: a file of lines of JSON to write."""
    found = list[Record]()
    with writing(found, records) as write, tempfile.TemporaryDirectory(prefix="tvm_rnn-compile-") as folder:
        write({"kind": "facts", **cpu_facts(1), "clock": "CPU time", "jobs": options.jobs})
        for done, (name, answer) in enumerate(_answers(names, options, folder), 1):
            row = {"reason": str(answer)} if isinstance(answer, Lost) else answer
            record = {"kind": "compile", "network": name, "framework": OURS, **row}
            write(record)
            if progress is not None:
                progress(f"{done} of {len(names)}: {name}: {_text(record)}")
    return found


def _answers(names: Sequence[str], options: Options, folder: str) -> Iterator[tuple[str, Reply | Lost]]:
    pool = Pool(lambda: WorkerProcess(COMMAND, folder, first={"network": FIRST}), options.jobs)
    try:
        for number, answer in pool.map([{"network": name} for name in names], options.limit or float("inf")):
            yield names[number], answer
    finally:
        pool.end()


def _text(record: Record) -> str:
    """CPU seconds of both, or why there are none."""
    if "reason" in record:
        return str(record["reason"])
    return ", ".join(f"{record[name]:.2f} s {name}" for name in TRAININGS)


def table(records: Sequence[Record]) -> tuple[Table, str]:
    """A line for each network, the slowest first, and how many are within the bars."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("network", *(f"{name}, CPU s" for name in TRAININGS), "note"):
        shown.add_column(column, overflow="fold")
    own = [record for record in records if record["kind"] == "compile"]
    within = 0
    for record in sorted(own, key=lambda r: -float(str(r.get("training", "inf")))):
        if "reason" in record:
            shown.add_row(str(record["network"]), "", "", str(record["reason"]))
            continue
        seconds = [float(str(record[name])) for name in TRAININGS]
        fits = all(found <= bar for found, bar in zip(seconds, suite.BARS, strict=True))
        within += fits
        shown.add_row(str(record["network"]), *(f"{n:.2f}" for n in seconds), "" if fits else "over")
    inference, training = suite.BARS
    return shown, f"{within} of {len(own)} take at most {inference:g} s for inference and {training:g} s with training"


# --- the worker ------------------------------------------------------------------------------------------------------


def seconds_of(name: str) -> Reply:
    """CPU seconds of one network's compilation, for inference and with training; the reason where it fails."""
    from tvm_rnn.compiler.compile import compile
    from tvm_rnn.errors import TvmRnnError

    (net,) = suite.networks(name).values()
    found: Reply = {}
    for label, training in TRAININGS.items():
        before = _cpu_time()
        try:
            compile(net, training=training, progress=False)
        except TvmRnnError as reason:
            return {"reason": " ".join(str(reason).split())}
        found[label] = round(_cpu_time() - before, 3)
    return found


def _cpu_time() -> float:
    """Of this process, its threads and the processes that it has started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    with channel() as answer:
        for line in iter(sys.stdin.readline, ""):
            answer(seconds_of(str(json.loads(line)["network"])))
