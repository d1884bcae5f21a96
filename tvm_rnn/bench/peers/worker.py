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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tvm_rnn.oracle.torch_graph import TorchModel
from tvm_rnn.runtime.runtime import load, read_container
from tvm_rnn.worker_process import Reply, Request, channel

from . import streaming as peers_stream
from .models import TORCH_CELLS, NumpyModel, Problem, Unsupported, net_of, onnx_model, openvino_requests, torch_weights

Run = Callable[[], object]  # one pass over all steps; the result is y [T, B, D*H] in the framework's own form


@dataclass(frozen=True)
class Prepared:
    """A framework ready to run: its version, and one Run per configuration that may be the fastest."""

    version: str
    runs: Mapping[str, Run]


def thread_counts(problem: Problem) -> list[tuple[int, str]]:
    """How many threads a framework is tried with: as many as it may use, and one, which is best for small steps.

    Our runtime and NumPy's BLAS choose for themselves, within the same limit.
    """
    counts = dict.fromkeys((problem.threads, 1))
    return [(count, f"{count} thread{'s' * (count > 1)}") for count in counts]


def prepare_tvm_rnn(problem: Problem) -> Prepared:
    """This project's module, called as its user calls it."""
    module, inputs = load(problem.path), tuple(problem.inputs.values())
    x = inputs if len(inputs) > 1 else inputs[0]
    return Prepared(problem.manifest.versions["tvm_rnn"], {"compiled": lambda: module(x)[0]})


def prepare_torch(problem: Problem) -> Prepared:
    """torch.nn on the CPU in inference mode, with oneDNN and without, on all threads and on one."""
    try:
        import torch
    except ImportError:
        raise Unsupported("torch is not installed") from None
    kind, options = problem.form(TORCH_CELLS)
    if problem.manifest.cell == "lstm_projection":
        options = {"proj_size": problem.weight("R", 0, 0).shape[-1]}
        if options["proj_size"] >= problem.hidden_size:
            raise Unsupported("its projection must be narrower than H")
    x, manifest = torch.from_numpy(problem.x), problem.manifest
    layer = getattr(torch.nn, kind)(
        x.shape[-1],
        problem.hidden_size,
        manifest.num_layers,
        bidirectional=manifest.num_directions == 2,
        dtype=x.dtype,
        **options,
    )
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in torch_weights(problem).items()})
    layer.eval()

    def run(onednn: bool, threads: int) -> torch.Tensor:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            return layer(x)[0]

    runs: dict[str, Run] = {}
    for count, label in thread_counts(problem):
        runs[f"no oneDNN, {label}"] = partial(run, False, count)
        if manifest.cell != "lstm_projection":  # oneDNN has none in torch
            runs[f"oneDNN, {label}"] = partial(run, True, count)
    return Prepared(torch.__version__, runs)


def prepare_torch_loop(problem: Problem) -> Prepared:
    """The cell's equations as a careful user writes them in torch: what needs no state before a loop over time."""
    return _in_torch(problem, compiled=False)


def prepare_torch_compile(problem: Problem) -> Prepared:
    """The same, with torch.compile of what comes before the loop and of one step."""
    return _in_torch(problem, compiled=True)


def _in_torch(problem: Problem, compiled: bool) -> Prepared:
    try:
        import torch
    except ImportError:
        raise Unsupported("torch is not installed") from None
    net = net_of(problem.manifest)
    net.load({name: problem.weights[name] for name in net.weight_shapes})
    inputs = [torch.from_numpy(array) for array in problem.inputs.values()]
    wrap = partial(torch.compile, dynamic=False, fullgraph=True) if compiled else None
    model = TorchModel(net, inputs[0].dtype, inputs[0].device, wrap)

    def run(threads: int) -> torch.Tensor:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            return model(inputs)[0]

    return Prepared(torch.__version__, {label: partial(run, count) for count, label in thread_counts(problem)})


def prepare_onnxruntime(problem: Problem) -> Prepared:
    """onnxruntime on the CPU, on all threads, with and without the spinning of its pool, and on one."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise Unsupported("onnxruntime is not installed") from None
    model, feed = onnx_model(problem), {"x": problem.x}

    def run(threads: int, spinning: str) -> Run:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feed)[0]

    runs = {label: run(count, "1") for count, label in thread_counts(problem)}
    if problem.threads > 1:
        runs[f"{problem.threads} threads, no spinning"] = run(problem.threads, "0")
    return Prepared(ort.__version__, runs)


def prepare_openvino(problem: Problem) -> Prepared:
    """OpenVINO on all threads, pinned and not, and on one."""
    version, request_of = openvino_requests(problem)
    x = problem.x

    def run(threads: int, pinned: bool) -> Run:
        request = request_of(threads, pinned)
        return lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]

    runs = {label: run(count, True) for count, label in thread_counts(problem)}
    if problem.threads > 1:
        runs[f"{problem.threads} threads, not pinned"] = run(problem.threads, False)
    return Prepared(version, runs)


def prepare_numpy(problem: Problem) -> Prepared:
    """The cell's own graph in NumPy."""
    model, inputs = NumpyModel(problem), list(problem.inputs.values())
    return Prepared(np.__version__, {"all rows at once": lambda: model(inputs)})


FRAMEWORKS: dict[str, Callable[[Problem], Prepared]] = {
    "tvm_rnn": prepare_tvm_rnn,
    "torch": prepare_torch,
    "torch-loop": prepare_torch_loop,
    "torch-compile": prepare_torch_compile,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "numpy": prepare_numpy,
}


def median_seconds(run: Run, seconds: float) -> float:
    """The median time of a call, over at least three calls and at least `seconds`, after a tenth of that to warm up."""
    started = time.perf_counter()
    run()
    while time.perf_counter() - started < seconds / 10:
        run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def read_problem(request: Request) -> Problem:
    """The problem that bench/run/compare.py wrote: path: a module's file; inputs: .npy files by name, in order;
    threads."""
    manifest, weights = read_container(request["path"])
    inputs = {name: np.load(path, allow_pickle=False) for name, path in request["inputs"].items()}
    return Problem(request["path"], manifest, weights, inputs, request["threads"])


def serve(name: str, requests: Iterator[str], reply: Callable[[Reply], None]) -> None:
    """Answer requests, one line of JSON each: the first prepares, every other times one configuration."""
    request = json.loads(next(requests))
    results = {}
    problem, stream = read_problem(request), bool(request.get("stream"))
    try:
        prepared: Any = peers_stream.prepare(name, problem) if stream else FRAMEWORKS[name](problem)
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
        timed = peers_stream.latencies(run, steps, seconds) if stream else {"seconds": median_seconds(run, seconds)}
        reply(timed)


if __name__ == "__main__":
    with channel() as answer:
        serve(sys.argv[1], sys.stdin, answer)
