"""Run the browser suite in node on this machine: WebAssembly, one step a call, beside onnxruntime-web.

In: points of the suite; the folder node_modules that has onnxruntime-web, where there is one. Out: records as
`audio_suite.py` makes them. Programs take turns in processes of their own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvm_rnn.bench.peers.models import Problem
from tvm_rnn.bench.peers.node import PACKAGE, onnxruntime_web_program, web_program
from tvm_rnn.bench.peers.programs import Program
from tvm_rnn.bench.suites.gpu import Point, network, tamed
from tvm_rnn.compiler.compile import compile

from .audio_suite import CLOCK, problem_of, take_turns
from .compare import cpu_facts
from .cpu_suite import Options
from .gpu_suite import Progress, Record, Run, writing

TARGET = "wasm32"


def run(
    points: Sequence[Point],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    packages: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Measure the points and return the records.

    packages: the folder node_modules that has onnxruntime-web; None: without it. records: a file of lines of JSON to
    write.
    """
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", **cpu_facts(1), "target": TARGET, "clock": CLOCK})
        for point in Run(write, options.limit, progress).each(points):
            for record in _measure(point, options, packages):
                write({**point.record, **record})
    return found


def _measure(point: Point, options: Options, packages: str | os.PathLike[str] | None) -> Iterator[Record]:
    net = tamed(network(point).init(0))
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-browser-") as name:
        folder = Path(name)

        def ours() -> Sequence[Program]:
            module = compile(net, TARGET, batch=1, progress=False)
            module.export(folder / "module.so")
            return [web_program(module, problem_of(net, str(folder / "module.so")), folder)]

        def theirs(problem: Problem) -> Program:
            assert packages is not None
            return onnxruntime_web_program(problem, folder, packages)

        yield from take_turns(ours, {} if packages is None else {PACKAGE: theirs}, net, options)
