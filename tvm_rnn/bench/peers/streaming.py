"""Frameworks that step: one time step a call, the state carried from call to call, as a stream is served.

In: a `Problem`, whose inputs are a stream's steps. Out: for each configuration a function of the step's number, which
returns that step's y [B, H]; step 0 begins anew. `worker.py` asks for these where a benchmark says "stream".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import litert, models, small_engines
from .models import Prepared, Problem, Unsupported

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Step = Callable[[int], object]  # y [B, H], in the framework's own form
WARM_UP = 0.1  # of a round's seconds
LEAST = 2000  # calls of a round: of fewer there is no 99.9th percentile


def stream_tvm_rnn(problem: Problem) -> Prepared:
    """This project's module: `step` into arrays that exist, and as most people call it."""
    module, values = problem.module(), [*zip(*problem.inputs.values(), strict=True)]
    if module.manifest.num_directions != 1 or "step" not in module.manifest.entry_points:
        raise Unsupported("it reads the future: both directions, or reverse")
    steps = [value if len(value) > 1 else value[0] for value in values]
    state = module.init_state(problem.batch)
    y, _ = module.step(steps[0], state)
    out = (y, state)
    held: dict[str, Any] = {"state": None}

    def into(t: int) -> np.ndarray:
        if t == 0:
            for array, first in zip(_flat(state), _flat(module.init_state(problem.batch)), strict=True):
                array[...] = first
        return module.step(steps[t], state, out=out)[0]

    def anew(t: int) -> np.ndarray:
        y, held["state"] = module.step(steps[t], held["state"] if t else None)
        return y

    module.threads = problem.threads if problem.threads > 1 else 1
    return Prepared(problem.manifest.versions["tvm_rnn"], {"step(out=)": into, "step": anew})


def _flat(state: Mapping[str, Any]) -> list[np.ndarray]:
    return [a for value in state.values() for a in (value if isinstance(value, list) else [value])]


def stream_torch(problem: Problem) -> Prepared:
    """torch.nn's layer on one step at a time, eager and as TorchScript, with oneDNN and without; and its own cell for
    one step where there is one layer. On one thread, and on all."""
    layer, manifest = models.torch_layer_of(problem), problem.manifest
    import torch

    if manifest.num_directions != 1:
        raise Unsupported("it reads the future: both directions")
    if manifest.cell == "lstm_projection":
        raise Unsupported("a projection is not timed step by step")
    x, held = torch.from_numpy(problem.x), dict[str, Any]()
    zeros = torch.zeros(manifest.num_layers, problem.batch, problem.hidden_size, dtype=x.dtype)
    pair = layer.mode == "LSTM"
    first, first_of_cell = ((zeros, zeros), (zeros[0], zeros[0])) if pair else (zeros, zeros[0])

    def of_layer(model: torch.nn.Module, threads: int, onednn: bool) -> Step:
        def step(t: int) -> object:
            models.torch_threads(threads)
            with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
                y, held["state"] = model(x[t : t + 1], held["state"] if t else first)
            return y[0]

        return step

    def of_cell(model: torch.nn.Module, threads: int) -> Step:
        def step(t: int) -> object:
            models.torch_threads(threads)
            with torch.inference_mode():
                held["state"] = model(x[t], held["state"] if t else first_of_cell)
            return held["state"][0] if pair else held["state"]

        return step

    runs: dict[str, Step] = {}
    for label, threads in problem.thread_counts.items():
        with torch.inference_mode():
            traced = torch.jit.freeze(torch.jit.trace(layer, (x[:1], first)))
        for name, model in (("nn", layer), ("TorchScript", traced)):
            runs |= {f"{name}, {label}": of_layer(model, threads, False)}
            runs |= {f"{name}, oneDNN, {label}": of_layer(model, threads, True)}
        if manifest.num_layers == 1:
            kind, options = models.TORCH_CELLS[manifest.cell]
            cell = getattr(torch.nn, f"{kind}Cell")(x.shape[-1], problem.hidden_size, dtype=x.dtype, **options)
            cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
            runs[f"cell, {label}"] = of_cell(cell.eval(), threads)
    return Prepared(torch.__version__, runs)


def stream_onnxruntime(problem: Problem) -> Prepared:
    """onnxruntime on a model of one step with the states as inputs and outputs: bound to memory, and called with
    arrays; on one thread, and on all."""
    version, session_of = models.onnxruntime_sessions(problem, stream=True)
    runs: dict[str, Step] = {}
    for label, threads in problem.thread_counts.items():
        session = session_of(threads)
        runs |= {f"bound, {label}": _ort_bound(session, problem), f"run, {label}": _ort_run(session, problem)}
    return Prepared(version, runs)


def _ort_run(session: InferenceSession, problem: Problem) -> Step:
    x, names = problem.x, [item.name for item in session.get_inputs()][1:]
    zeros = {item.name: np.zeros(item.shape, x.dtype) for item in session.get_inputs()[1:]}
    held: dict[str, Any] = {}

    def step(t: int) -> object:
        y, *after = session.run(None, {"x": x[t : t + 1], **(held if t else zeros)})
        held.update(zip(names, after, strict=True))
        return y[0]

    return step


def _ort_bound(session: InferenceSession, problem: Problem) -> Step:
    """Two sets of states that take turns: each step reads one and writes the other."""
    import onnxruntime as ort

    x, items = problem.x, session.get_inputs()
    y = np.zeros((1, problem.batch, session.get_outputs()[0].shape[-1]), x.dtype)
    given = ort.OrtValue.ortvalue_from_numpy(x[:1].copy())  # it shares the memory
    states = [[ort.OrtValue.ortvalue_from_numpy(np.zeros(i.shape, x.dtype)) for i in items[1:]] for _ in range(2)]
    zeros = [np.zeros(item.shape, x.dtype) for item in items[1:]]
    result, bindings = ort.OrtValue.ortvalue_from_numpy(y), []
    for turn in range(2):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", given)
        for item, value in zip(items[1:], states[turn], strict=True):
            binding.bind_ortvalue_input(item.name, value)
        outputs = zip(session.get_outputs(), [result, *states[1 - turn]], strict=True)
        for item, value in outputs:
            binding.bind_ortvalue_output(item.name, value)
        bindings.append(binding)

    def step(t: int) -> object:
        if t == 0:
            for value, zero in zip(states[0], zeros, strict=True):
                value.update_inplace(zero)
        given.update_inplace(x[t : t + 1])
        session.run_with_iobinding(bindings[t % 2])
        return result.numpy()[0]

    return step


def stream_openvino(problem: Problem) -> Prepared:
    """OpenVINO on a model of one step, in its memory and ours, on one thread, and on all."""
    version, request_of = models.openvino_requests(problem, stream=True)
    import openvino as ov

    x = problem.x

    def run(threads: int) -> Step:
        request = request_of(threads, True)
        given, *states = (np.zeros(tuple(port.shape), x.dtype) for port in request.model_inputs)
        y, *after = (np.zeros(tuple(port.shape), x.dtype) for port in request.model_outputs)
        for index, array in enumerate((given, *states)):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        for index, array in enumerate((y, *after)):
            request.set_output_tensor(index, ov.Tensor(array, shared_memory=True))

        def step(t: int) -> object:
            given[...] = x[t : t + 1]
            for state, value in zip(states, after, strict=True):
                state[...] = value if t else 0
            request.infer()
            return y[0]

        return step

    return Prepared(version, {label: run(count) for label, count in problem.thread_counts.items()})


def stream_numpy(problem: Problem) -> Prepared:
    """The cell's own graph in NumPy."""
    if models.net_of(problem.manifest).num_directions != 1:
        raise Unsupported("it reads the future: both directions")
    model, inputs = models.NumpyModel(problem), [*problem.inputs.values()]
    held: dict[str, Any] = {}

    def step(t: int) -> object:
        y, held["state"] = model.run([a[t : t + 1] for a in inputs], held["state"] if t else None)
        return y[0]

    return Prepared(np.__version__, {"all rows at once": step})


STREAMS: dict[str, Callable[[Problem], Prepared]] = {
    "tvm_rnn": stream_tvm_rnn,
    "torch": stream_torch,
    "onnxruntime": stream_onnxruntime,
    "openvino": stream_openvino,
    "numpy": stream_numpy,
    "ncnn": small_engines.stream_ncnn,
    "tract": small_engines.stream_tract,
    **{name: partial(litert.stream, name) for name in litert.ENGINES},
}


def prepare(name: str, problem: Problem) -> Prepared:
    """A framework ready to step. Raises Unsupported where it has none."""
    if name not in STREAMS:
        raise Unsupported("it is not timed step by step")
    return STREAMS[name](problem)


def whole(step: Step, steps: int) -> np.ndarray:
    """All steps, one after the other: y [T, B, H]."""
    return np.stack([np.array(step(t)) for t in range(steps)])


def latencies(step: Step, steps: int, seconds: float) -> dict[str, float | list[float]]:
    """Seconds of one call: the median, and the 99th and 99.9th percentile as "tail"; of at least LEAST calls."""
    clock, found = time.perf_counter_ns, list[int]()
    started, warm = clock(), int(seconds * WARM_UP * 1e9)
    while clock() - started < warm:
        whole(step, steps)
    started = clock()
    while len(found) < LEAST or clock() - started < seconds * 1e9:
        for t in range(steps):
            begun = clock()
            step(t)
            found.append(clock() - begun)
    median, *tail = np.percentile(found, (50, 99, 99.9)) * 1e-9
    return {"seconds": float(median), "tail": [float(value) for value in tail]}
