"""Run the audio suite on this CPU: one sample a call, and blocks of them, in C and C++ as an audio thread calls it.

In: points of the suite; RTNeural's sources where there are some. Out: records as `cpu_suite.py` makes them: ours twice,
with a call's checks and without ("unchecked"), RTNeural, and the peers that `compare.py` knows, which are called from
Python. `real_time`: how many times as fast as 48 kHz.

Programs take turns of some 7 ms: a burst of calls by the thread's CPU time, then TURN seconds of calls that are timed
one by one by a clock on the wall. Figures are medians over all turns; each round has new processes, whose memory lies
elsewhere. Percentiles too, as 1 call in 1000 of 1 us meets what the machine does beside it (the kernel's ticks, other
guests of a virtual machine), which comes in spells: the least of some rounds is luck (ours beside ours: 13 % apart),
and so is one percentile of all calls (1.4 to 4 times). A median over 1000 turns sees alike what all meet (3 to 7 %).
`clock_us`: the 99.9th percentile of calls that do nothing.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tvm_rnn.bench.peers.models import Problem, Unsupported
from tvm_rnn.bench.peers.programs import Program, Timed, bundle_programs, rtneural_program
from tvm_rnn.bench.suites.gpu import Point, network, tamed
from tvm_rnn.compiler.compile import compile
from tvm_rnn.errors import TvmRnnError, message
from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import relative_error, tolerance
from tvm_rnn.runtime.runtime import read_container

from .compare import OURS, check, compare, cpu_facts, spread
from .cpu_suite import STREAM_STEPS, Options
from .gpu_suite import Progress, Record, Run, writing

SAMPLE_RATE = 48000
TURN = 0.005  # seconds of calls timed one by one: 256 samples at 48 kHz; calls.h makes 3000 calls at least
CLOCK = "CPU time of the thread; percentiles: wall time, of each turn; medians over all turns"
UNCHECKED = "unchecked"


@dataclass
class Entry:
    """A program and what was measured of it. timed: a list of turns for each round."""

    program: Program
    error: float = 0.0
    timed: list[list[Timed]] = field(default_factory=list)

    @property
    def framework(self) -> str:
        return UNCHECKED if self.program.config == UNCHECKED else self.program.framework

    def record(self) -> Record:
        """Figures of one sample, in us."""
        scale, turns = 1e6 / self.program.samples, [turn for each in self.timed for turn in each]
        us = scale * statistics.median(turn.seconds for turn in turns)
        tails = zip(*(turn.tail for turn in turns), strict=True)
        return {
            "framework": self.framework,
            "version": self.program.version,
            "config": self.program.config,
            "us_per_step": us,
            "us": us * self.program.samples,
            "spread": spread([statistics.median(turn.seconds for turn in each) for each in self.timed]),
            "tail_us": [scale * statistics.median(values) for values in tails],
            "clock_us": scale * statistics.median(turn.clock for turn in turns),
            "error": self.error,
            "real_time": real_time(us),
        }


def real_time(us: float) -> float:
    """How many times as fast as the sample rate a sample of so many us is."""
    return 1e6 / SAMPLE_RATE / us


def run(
    points: Sequence[Point],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    rtneural: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Measure the points and return the records.

    rtneural: the folder of RTNeural's sources, with Eigen in modules/; None: without it. records: a file of lines of
    JSON to write. Raises ConfigError for a wrong argument.
    """
    check(options.against, rounds=options.rounds)
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", **cpu_facts(1), "clock": CLOCK})
        for point in Run(write, options.limit, progress).each(points):
            for record in _measure(point, options, rtneural):
                write({**point.record, **record})
    return found


def _measure(point: Point, options: Options, rtneural: str | os.PathLike[str] | None) -> Iterator[Record]:
    net = tamed(network(point).init(0))
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-audio-") as folder:
        path = os.path.join(folder, "module.so")

        def ours() -> Sequence[Program]:
            compile(net, batch=1, progress=False).export(path)
            return bundle_programs(problem_of(net, path), Path(folder), point.steps)

        def theirs(problem: Problem) -> Program:
            assert rtneural is not None
            return rtneural_program(problem, Path(folder), point.steps, rtneural)

        peers = {} if rtneural is None else {"rtneural": theirs}
        if (yield from take_turns(ours, peers, net, options)):
            yield from _called_from_python(path, point, options)


def take_turns(
    ours: Callable[[], Sequence[Program]],
    peers: Mapping[str, Callable[[Problem], Program]],
    net: RNN,
    options: Options,
) -> Generator[Record, None, bool]:
    """Records of our programs and of peers' by name, which are made of the same problem; where one cannot be made, its
    reason. Returns whether ours could."""
    try:
        entries = prepared(ours(), net)
    except (TvmRnnError, Unsupported) as reason:
        yield {"framework": OURS, "reason": " ".join(str(reason).split())}
        return False
    problem, failed = entries[0].program.problem, list[Record]()
    for name, theirs in peers.items():
        try:
            entries += prepared([theirs(problem)], net)
        except Unsupported as reason:
            failed.append({"framework": name, "reason": str(reason)})
    for _ in range(options.rounds):
        _round(entries, options.round_seconds)
    yield from (entry.record() for entry in entries)
    yield from failed
    return True


def _round(entries: Sequence[Entry], seconds: float) -> None:
    """Turns of all programs, each in a process of its own, for so many seconds of each; who begins changes."""
    with contextlib.ExitStack() as stack:
        turns = [stack.enter_context(entry.program.running(TURN)) for entry in entries]
        found: list[list[Timed]] = [[] for _ in entries]
        end, first = time.monotonic() + seconds * len(entries), 0
        while not first or time.monotonic() < end:
            for i in range(first, first + len(entries)):
                found[i % len(entries)].append(turns[i % len(entries)]())
            first += 1
    for entry, timed in zip(entries, found, strict=True):
        entry.timed.append(timed)


def problem_of(net: RNN, path: str) -> Problem:
    """STREAM_STEPS random samples in -1..1."""
    manifest, weights = read_container(path)
    rng = np.random.default_rng(0)
    inputs = {n: rng.uniform(-1, 1, (STREAM_STEPS, 1, *s)).astype(net.dtype) for n, s in net.input_shapes.items()}
    return Problem(path, manifest, weights, inputs, 1)


def prepared(programs: Sequence[Program], net: RNN) -> list[Entry]:
    """The programs whose results are the oracle's. Raises Unsupported for one that differs."""
    expected, _ = reference(net)(programs[0].problem.inputs)
    limit, found = tolerance(net.dtype, STREAM_STEPS), list[Entry]()
    for program in programs:
        y = program.outputs()
        error = relative_error(y, expected) if y.shape == expected.shape else float("inf")
        if not error <= limit:
            got, most = f"relative error {error:.3g}", f"at most {limit:.3g}"
            raise Unsupported(message("its result differs from the oracle's", got=got, expected=most))
        found.append(Entry(program, error))
    return found


def _called_from_python(path: str, point: Point, options: Options) -> Iterator[Record]:
    """The peers that have no program here: a call for each sample, or for each block, from Python."""
    if not options.against:
        return
    report = compare(
        path,
        options.against,
        steps=STREAM_STEPS if point.steps == 1 else point.steps,
        batch=1,
        threads=1,
        rounds=options.rounds,
        round_seconds=options.round_seconds,
        stream=point.steps == 1,
    )
    for row in report.rows[1:]:
        if row.median_us is None:
            yield {"framework": row.name, "reason": row.reason}
            continue
        figures: Record = {"us_per_step": row.median_us, "us": row.median_us * point.steps, "spread": row.spread}
        figures |= {"tail_us": list(row.tail_us)} if row.tail_us else {}
        yield {
            "framework": row.name,
            "version": row.version,
            "config": row.config,
            **figures,
            "error": row.error,
            "real_time": real_time(row.median_us),
            "configs": dict(row.configs),
        }
