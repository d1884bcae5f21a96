"""Run a suite on this CPU: every network compiled here, and timed beside its peers by `compare.py`.

In: points of a suite. Out: records, one per point and framework, written to a file as they come, in the form that
`tables.py` shows: the first says what they were measured on. A point that fails has the reason.

A row's ceilings are those of its own sizes: multiply-adds of as many threads, and reading as many bytes as the matrices
have that every step reads. Those that fit a cache have its rate; the others are counted as read once.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_rnn.bench.measure.floors import shares
from tvm_rnn.bench.suites import writers
from tvm_rnn.bench.suites.gpu import Point, batches, beside_peers, network, tamed
from tvm_rnn.compiler.compile import compile
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.network.rnn import RNN
from tvm_rnn.passes import pipeline
from tvm_rnn.target import host

from .compare import OURS, check, compare, cpu_facts, records_of
from .gpu_suite import Progress, Record, Run, writing

STREAM_STEPS = 64  # different inputs, over and over


@dataclass(frozen=True)
class Options:
    """How a run is made. threads: of everyone, None: all CPUs. limit: seconds for all of it. rounds: alternating, of
    which the median counts, each round_seconds long for each configuration. stream: one step a call, see `compare`."""

    against: tuple[str, ...]
    threads: int | None = None
    limit: float | None = None
    rounds: int = 7
    round_seconds: float = 0.1
    stream: bool = False


def run(
    points: Sequence[Point],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    every: Sequence[Point] = (),
    progress: Progress | None = None,
) -> list[Record]:
    """Measure the points and return the records.

    every: all points of the suite, which decide what a network is compiled for (default: points). records: a file of
    lines of JSON to write. Raises ConfigError for a wrong argument.
    """
    threads = options.threads or len(os.sched_getaffinity(0))
    check(options.against, threads=threads, rounds=options.rounds)
    found, sizes, with_peers = list[Record](), batches(every or points), beside_peers(points)
    with writing(found, records) as write:
        clock = "CPU time of the process" if threads == 1 and not options.stream else "wall time"
        write({"kind": "facts", **cpu_facts(threads), "target": host().mcpu, "clock": clock})
        for point in Run(write, options.limit, progress).each(points):
            peers = options.against if point in with_peers else ()
            for record in _measure(point, sizes[point.network], peers, replace(options, threads=threads)):
                write(record)
    return found


def _measure(point: Point, sizes: Sequence[int], peers: Sequence[str], options: Options) -> Iterator[Record]:
    base = point.record
    try:
        net = tamed(network(point).init(0))
        begun = time.perf_counter()
        writes = point.cell in writers.CELLS
        module = compile(net, batch=sizes, without=point.without, generate=writes, progress=False)
        seconds = round(time.perf_counter() - begun, 2)
        with tempfile.TemporaryDirectory(prefix="tvm_rnn-suite-") as folder:
            path = os.path.join(folder, "module.so")
            module.export(path)
            report = compare(
                path,
                peers,
                steps=STREAM_STEPS if options.stream else point.steps,
                batch=point.batch,
                threads=options.threads,
                rounds=options.rounds,
                round_seconds=options.round_seconds,
                stream=options.stream,
            )
    except TvmRnnError as reason:
        yield {**base, "framework": OURS, "reason": " ".join(str(reason).split())}
        return
    each_step, once = product_bytes(net, point.without)
    each_step, once = (each_step + once, 0) if writes else (each_step, once)  # no step is known before the one before
    flops = module.manifest.flops_per_row
    known = {"flops_per_row": flops, "bytes": each_step * point.steps + once}
    ceilings = ceilings_of(point.precision, each_step, options.threads or 1)
    ours = {"compile_seconds": seconds, "ceilings": ceilings, **known}
    for record in records_of(report, point, ours, writes):
        everything = {**record, "flops": flops * point.batch * point.steps}
        timed = record["framework"] == OURS and "us" in record
        yield {**record, **(shares(everything, ceilings) if timed else {})}


def product_bytes(net: RNN, without: Sequence[str] = ()) -> tuple[int, int]:
    """Bytes of the matrices of products that every step reads, and of those that are read for many steps at once: of
    all layers and directions."""
    layers = pipeline.run(net, host(), without)[-1][1]
    found = {"step": 0, "before": 0}
    for index in layers.of_layer:
        for group in layers.graphs[index].groups:
            if group.kind == "gemm" and group.root is not None and group.region in found:
                found[group.region] += sum(int(np.prod(weight.shape)) for weight in group.root.args[::2])
    itemsize = int(np.dtype(net.dtype).itemsize) * net.num_directions
    return found["step"] * itemsize, found["before"] * itemsize


@functools.cache
def ceilings_of(precision: str, size: int, threads: int) -> Mapping[str, float]:
    """By the names that `bench/measure/floors.py` knows: what this CPU does at best with `size` bytes of weights.
    spread: of the tries. load: of the machine before."""
    from tvm_rnn.bench.measure import cpu_peaks

    shift = max(0, size.bit_length() - 2)  # two binary digits of a size: no cache tells more apart
    load = os.getloadavg()[0]
    memory = cpu_peaks.read_gbytes(max(1 << 14, size >> shift << shift), threads)
    products = cpu_peaks.fma_gflops(precision, threads)
    rates = {"memory_tb_s": memory.best * 1e-3, f"{precision}_tflops": products.best * 1e-3}
    return {**rates, "spread": max(memory.spread, products.spread), "load": load}
