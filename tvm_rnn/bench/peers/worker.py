"""One framework of a benchmark, in a process of its own: `python -m tvm_rnn.bench.peers.worker NAME`, started by
`bench/run/compare.py`.

In: requests as lines of JSON on stdin; the first names a module's file, from which come the cell, the sizes and the
weights. Out: replies as lines of JSON on stdout, and each configuration's result in a .npy file. Nothing runs between
two requests, and the process ends with its stdin.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tvm_rnn.oracle.torch_graph import TorchModel
from tvm_rnn.runtime.runtime import read_container
from tvm_rnn.worker_process import Reply, channel

from . import generation, litert, models, small_engines
from . import streaming as peers_stream
from .models import Prepared, Problem, Unsupported

Run = Callable[[], object]
Clock = Callable[[], float]


def prepare_tvm_rnn(problem: Problem) -> Prepared:
    """This project's module, called as its user calls it."""
    module, inputs = problem.module(), tuple(problem.inputs.values())
    x = inputs if len(inputs) > 1 else inputs[0]
    return Prepared(problem.manifest.versions["tvm_rnn"], {"compiled": lambda: module(x)[0]})


def prepare_torch(problem: Problem) -> Prepared:
    """torch.nn on the CPU in inference mode, with oneDNN and without, on all threads and on one."""
    layer = models.torch_layer_of(problem)
    import torch

    x = torch.from_numpy(problem.x)

    def run(onednn: bool, threads: int) -> torch.Tensor:
        models.torch_threads(threads)
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            return layer(x)[0]

    runs: dict[str, Run] = {}
    for label, count in problem.thread_counts.items():
        runs[f"no oneDNN, {label}"] = partial(run, False, count)
        if problem.manifest.cell != "lstm_projection":  # oneDNN has none in torch
            runs[f"oneDNN, {label}"] = partial(run, True, count)
    return Prepared(torch.__version__, runs)


def prepare_torch_loop(problem: Problem, compiled: bool = False) -> Prepared:
    """The cell's equations as a careful user writes them in torch: what needs no state before a loop over time.

    compiled: with torch.compile of what comes before the loop and of one step.
    """
    with models.imported("torch"):
        import torch
    net, inputs = models.loaded(problem), [torch.from_numpy(array) for array in problem.inputs.values()]
    wrap = partial(torch.compile, dynamic=False, fullgraph=True) if compiled else None
    model = TorchModel(net, inputs[0].dtype, inputs[0].device, wrap)

    def run(threads: int) -> torch.Tensor:
        models.torch_threads(threads)
        with torch.inference_mode():
            return model(inputs)[0]

    runs = {label: partial(run, count) for label, count in problem.thread_counts.items()}
    return Prepared(torch.__version__, runs)


def prepare_onnxruntime(problem: Problem) -> Prepared:
    """onnxruntime on the CPU, on all threads, with and without the spinning of its pool, and on one."""
    version, session_of = models.onnxruntime_sessions(problem)
    feed = {"x": problem.x}

    def run(threads: int, spinning: bool = True) -> Run:
        session = session_of(threads, spinning)
        return lambda: session.run(None, feed)[0]

    runs = {label: run(count) for label, count in problem.thread_counts.items()}
    if problem.threads > 1:
        runs[f"{problem.threads} threads, no spinning"] = run(problem.threads, False)
    return Prepared(version, runs)


def prepare_openvino(problem: Problem) -> Prepared:
    """OpenVINO on all threads, pinned and not, and on one."""
    version, request_of = models.openvino_requests(problem)
    x = problem.x

    def run(threads: int, pinned: bool) -> Run:
        request = request_of(threads, pinned)
        return lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]

    runs = {label: run(count, True) for label, count in problem.thread_counts.items()}
    if problem.threads > 1:
        runs[f"{problem.threads} threads, not pinned"] = run(problem.threads, False)
    return Prepared(version, runs)


def prepare_numpy(problem: Problem) -> Prepared:
    """The cell's own graph in NumPy."""
    model, inputs = models.NumpyModel(problem), list(problem.inputs.values())
    return Prepared(np.__version__, {"all rows at once": lambda: model(inputs)})


FRAMEWORKS: dict[str, Callable[[Problem], Prepared]] = {
    "tvm_rnn": prepare_tvm_rnn,
    "torch": prepare_torch,
    "torch-loop": prepare_torch_loop,
    "torch-compile": partial(prepare_torch_loop, compiled=True),
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "numpy": prepare_numpy,
    "ncnn": small_engines.prepare_ncnn,
    "tract": small_engines.prepare_tract,
    **{name: partial(litert.prepare, name) for name in litert.ENGINES},
}


def prepare(name: str, problem: Problem) -> Prepared:
    """A framework ready to run whole sequences. Raises Unsupported where it has none."""
    if name in generation.WRITERS.keys() - FRAMEWORKS.keys():
        raise Unsupported("it is timed generating alone")
    return FRAMEWORKS[name](problem)


# What is timed: a sequence in one call, a step a call, or steps each of which is fed by the one before.
WAYS: dict[str, Callable[[str, Problem], Prepared]] = {
    "sequence": prepare,
    "stream": peers_stream.prepare,
    "generation": generation.prepare,
}


def median_seconds(run: Run, seconds: float, clock: Clock) -> float:
    """The median time of a call by a clock, over at least three calls and at least `seconds`, after a tenth of that to
    warm up."""
    started = time.perf_counter()
    run()
    while time.perf_counter() - started < seconds / 10:
        run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = clock()
        run()
        times.append(clock() - started)
    return statistics.median(times)


def clock_of(threads: int) -> Clock:
    """Of one thread its time on a CPU: what other programs take in between would lengthen long calls alone. Of several
    threads the time that passes."""
    return time.process_time if threads == 1 else time.perf_counter


def serve(name: str, requests: Iterator[str], reply: Callable[[Reply], None]) -> None:
    """Answer requests, one line of JSON each: the first prepares, every other times one configuration.

    The first: path: a module's file; inputs: .npy files by name, in order; weights: the same, of what the file lacks;
    threads; way: of WAYS, steps: of generation; folder: for results.
    """
    request, results = json.loads(next(requests)), {}
    manifest, weights = read_container(request["path"])
    inputs, others = (
        {name: np.load(path, allow_pickle=False) for name, path in files.items()}
        for files in (request["inputs"], request["weights"])
    )
    problem = Problem(request["path"], manifest, {**weights, **others}, inputs, request["threads"], request["steps"])
    way = request["way"]
    stream = way == "stream"
    try:
        prepared = WAYS[way](name, problem)
    except Unsupported as reason:
        reply({"skip": str(reason)})
        return
    steps = len(next(iter(problem.inputs.values())))
    for index, (config, run) in enumerate(prepared.runs.items()):
        results[config] = os.path.join(request["folder"], f"{name}_{index}.npy")
        np.save(results[config], peers_stream.whole(run, steps) if stream else np.asarray(run()))
    reply({"version": prepared.version, "results": results})
    for line in requests:
        request = json.loads(line)
        run, seconds = prepared.runs[request["config"]], request["seconds"]
        if stream:
            reply(peers_stream.latencies(run, steps, seconds))
        else:
            reply({"seconds": median_seconds(run, seconds, clock_of(problem.threads))})


if __name__ == "__main__":
    with channel() as answer:
        serve(sys.argv[1], sys.stdin, answer)
