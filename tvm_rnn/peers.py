"""One framework of a benchmark, in a process of its own: `python -m tvm_rnn.peers NAME`, started by `bench.py`.

In: requests as lines of JSON on stdin; the first names a module's file, from which come the cell, the sizes and the
weights. Out: replies as lines of JSON on stdout, and each configuration's result in a .npy file. Nothing runs between
two requests, and the process ends with its stdin.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import cells
from .errors import TvmRnnError
from .graph import Graph, Node, depends
from .reference import evaluate
from .rnn import RNN, weight_name
from .runtime import Manifest, load, read_container

Array = np.ndarray
Run = Callable[[], Any]  # one pass over all steps; the result is y, in the framework's own form

# Our gate order, and where each gate of the other format's order is found in it.
ONNX_ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}  # from i f g o, r z n
ONNX_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_peephole": ("LSTM", {}),
    "gru": ("GRU", {"linear_before_reset": 1}),
    "gru_reset_before": ("GRU", {"linear_before_reset": 0}),
    "elman": ("RNN", {"activations": ["Tanh"]}),
    "elman_relu": ("RNN", {"activations": ["Relu"]}),
}
TORCH_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_projection": ("LSTM", {}),
    "gru": ("GRU", {}),
    "elman": ("RNN", {"nonlinearity": "tanh"}),
    "elman_relu": ("RNN", {"nonlinearity": "relu"}),
}


class Unsupported(Exception):
    """This framework cannot run this module; the text is the reason. Never leaves the benchmark."""


@dataclass(frozen=True)
class Problem:
    """What everyone computes. inputs: [T, B, *shape] by name, in the manifest's order. threads: how many each uses."""

    path: str
    manifest: Manifest
    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]
    threads: int

    @property
    def x(self) -> Array:
        """The only input, of the manifest's dtype. Raises Unsupported where there are several."""
        if len(self.inputs) != 1:
            raise Unsupported(f"it has no cell with {len(self.inputs)} inputs per step")
        return next(iter(self.inputs.values()))

    def weight(self, name: str, layer: int, direction: int) -> Array:
        return self.weights[weight_name(name, layer, direction)]

    def form(self, known: Mapping[str, tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
        """The framework's own name and options for the cell, from its table. Raises Unsupported where it has none."""
        if self.manifest.cell not in known:
            raise Unsupported(f"it has no cell {self.manifest.cell}, only {', '.join(known)}")
        net_of(self.manifest)  # a user's cell may be called lstm as well
        return known[self.manifest.cell]

    def hidden_size(self) -> int:
        """H of every layer. Raises Unsupported where layers differ."""
        sizes = {self.weight("b", layer, 0).shape[-1] for layer in range(self.manifest.num_layers)}
        if len(sizes) > 1:
            raise Unsupported("its layers are all of one size")
        return int(sizes.pop())


@dataclass(frozen=True)
class Prepared:
    """A framework ready to run: its version, and one Run per configuration that may be the fastest."""

    version: str
    runs: Mapping[str, Run]


def net_of(manifest: Manifest) -> RNN:
    """The RNN, without weights, that a module was compiled from, for a cell of the zoo.

    Raises Unsupported where the zoo has no such cell, or where its cell of that name has other states or weights.
    """
    cell = cells.ZOO.get(manifest.cell)
    own = f"{manifest.cell} is not a cell of the zoo, so nothing else knows its equations"
    if cell is None:
        raise Unsupported(own)
    shapes = {w.name: tuple(w.shape) for w in manifest.weights}
    layers: list[dict[str, int]] = []
    for layer in range(manifest.num_layers):
        known = {s.name: s.shapes[layer] for s in manifest.states}
        known |= {p.name: shapes.get(weight_name(p.name, layer, 0), ()) for p in cell.params}
        known |= {i.name: i.shape for i in manifest.inputs[1:]}
        sizes: dict[str, int] = {}
        for argument in (*cell.inputs[1:], *cell.states, *cell.params):
            for axis, size in zip(argument.dims.axes, known.get(argument.name, ()), strict=False):
                if isinstance(axis, ast.Name):
                    sizes[axis.id] = int(size)
        sizes.pop(cell.inputs[0].dims.text.strip(), None)  # RNN binds it to what feeds the layer
        layers.append(sizes)
    per_axis = {name: [sizes.get(name, 0) for sizes in layers] for name in layers[0]}
    bidirectional = manifest.num_directions == 2
    try:
        net = RNN(
            cell,
            int(manifest.inputs[0].shape[0]),
            num_layers=manifest.num_layers,
            bidirectional=bidirectional,
            dtype=manifest.dtype,
            **per_axis,
        )
    except TvmRnnError:
        raise Unsupported(own) from None
    if net.weight_shapes != shapes or [s.name for s in cell.states] != [s.name for s in manifest.states]:
        raise Unsupported(own)
    return net


def prepare_tvm_rnn(problem: Problem) -> Prepared:
    """This project's module, called as its user calls it."""
    module = load(problem.path)
    inputs = dict(problem.inputs)
    return Prepared(problem.manifest.versions["tvm_rnn"], {"compiled": lambda: module(inputs)[0]})


def prepare_torch(problem: Problem) -> Prepared:
    """torch.nn on the CPU in inference mode, with oneDNN and without."""
    try:
        import torch
    except ImportError:
        raise Unsupported("torch is not installed") from None
    kind, options = problem.form(TORCH_CELLS)
    torch.set_num_threads(problem.threads)
    manifest, hidden, x = problem.manifest, problem.hidden_size(), torch.from_numpy(problem.x)
    if manifest.cell == "lstm_projection":
        options = {"proj_size": problem.weight("R", 0, 0).shape[-1]}
    layer = getattr(torch.nn, kind)(
        x.shape[-1],
        hidden,
        manifest.num_layers,
        bidirectional=manifest.num_directions == 2,
        dtype=x.dtype,
        **options,
    )
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in torch_weights(problem, hidden).items()})
    layer.eval()

    def run(onednn: bool) -> Any:
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            return layer(x)[0]

    return Prepared(torch.__version__, {"oneDNN": lambda: run(True), "no oneDNN": lambda: run(False)})


def torch_weights(problem: Problem, hidden: int) -> dict[str, Array]:
    """Our weights by torch.nn's names and in its shapes: both have the same gate order."""
    result = {}
    for layer in range(problem.manifest.num_layers):
        for direction in range(problem.manifest.num_directions):
            W, R, b = (problem.weight(name, layer, direction) for name in "WRb")
            recurrent = np.zeros_like(b)
            if problem.manifest.cell == "gru":
                recurrent[2] = problem.weight("b_n", layer, direction)
            parts = {
                "weight_ih": W.reshape(-1, W.shape[-1]),
                "weight_hh": R.reshape(-1, R.shape[-1]),
                "bias_ih": b.reshape(-1),
                "bias_hh": recurrent.reshape(-1),
            }
            if problem.manifest.cell == "lstm_projection":
                parts["weight_hr"] = problem.weight("V", layer, direction)
            result |= {weight_name(name, layer, direction): np.array(value) for name, value in parts.items()}
    return result


def onnx_model(problem: Problem) -> bytes:
    """The module as an ONNX model, one node per layer, shapes fixed: x [T, B, I] -> y [T, B, D*H]."""
    try:
        import onnx
    except ImportError:
        raise Unsupported("onnx, which describes the model, is not installed") from None
    kind, options = problem.form(ONNX_CELLS)
    if problem.x.dtype != np.float32:
        raise Unsupported(f"it has no {problem.x.dtype} recurrent layers")
    manifest, x, hidden = problem.manifest, problem.x, problem.hidden_size()
    directions = manifest.num_directions
    if "activations" in options:
        options = {"activations": options["activations"] * directions}
    nodes, constants = [], {"joined": np.array([0, 0, -1], np.int64)}
    width, previous = x.shape[-1], "x"
    for layer in range(manifest.num_layers):
        names = {"W": f"W{layer}", "R": f"R{layer}", "B": f"B{layer}", "P": f"P{layer}"}
        parts = [_onnx_weights(problem, kind, layer, direction) for direction in range(directions)]
        constants |= {names[key]: np.stack([part[key] for part in parts]) for key in parts[0]}
        inputs = [previous, names["W"], names["R"], names["B"]]
        if "P" in parts[0]:
            inputs += ["", "", "", names["P"]]
        way = "bidirectional" if directions == 2 else "forward"
        nodes.append(onnx.helper.make_node(kind, inputs, [f"Y{layer}"], hidden_size=hidden, direction=way, **options))
        # Y [T, D, B, H] -> [T, B, D*H]
        nodes.append(onnx.helper.make_node("Transpose", [f"Y{layer}"], [f"y{layer}"], perm=[0, 2, 1, 3]))
        previous = "y" if layer == manifest.num_layers - 1 else f"x{layer + 1}"
        nodes.append(onnx.helper.make_node("Reshape", [f"y{layer}", "joined"], [previous]))
        width = directions * hidden
    real = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        manifest.cell,
        [onnx.helper.make_tensor_value_info("x", real, x.shape)],
        [onnx.helper.make_tensor_value_info("y", real, [*x.shape[:2], width])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    # Version 14 has the form of RNN, GRU and LSTM that every runtime at hand reads; ir_version 8 goes with it.
    opsets = [onnx.helper.make_opsetid("", 14)]
    model: bytes = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


def _onnx_weights(problem: Problem, kind: str, layer: int, direction: int) -> dict[str, Array]:
    order, hidden = ONNX_ORDER[kind], problem.hidden_size()

    def gates(value: Array) -> Array:
        value = value.reshape(len(order), hidden, *value.shape[2 if len(order) > 1 else 1 :])
        return value[order].reshape(-1, *value.shape[2:])

    W, R, b = (problem.weight(name, layer, direction) for name in "WRb")
    recurrent = np.zeros_like(b)
    if problem.manifest.cell == "gru":
        recurrent[2] = problem.weight("b_n", layer, direction)
    parts = {"W": gates(W), "R": gates(R), "B": np.concatenate([gates(b), gates(recurrent)])}
    if problem.manifest.cell == "lstm_peephole":
        parts["P"] = problem.weight("p", layer, direction)[[0, 2, 1]].reshape(-1)  # ours i f o, theirs i o f
    return parts


def prepare_onnxruntime(problem: Problem) -> Prepared:
    """onnxruntime's CPU provider; with more than one thread also without the spinning of its pool."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise Unsupported("onnxruntime is not installed") from None
    model, feed = onnx_model(problem), {"x": problem.x}

    def run(spinning: str) -> Run:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = problem.threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feed)[0]

    runs = {"spinning": run("1")} | ({"no spinning": run("0")} if problem.threads > 1 else {})
    return Prepared(ort.__version__, runs)


def prepare_openvino(problem: Problem) -> Prepared:
    """OpenVINO's CPU device for latency, in float32: where the CPU has bfloat16, its own choice would be that."""
    try:
        import openvino as ov
    except ImportError:
        raise Unsupported("openvino is not installed") from None
    core, x = ov.Core(), problem.x
    model = core.read_model(onnx_model(problem))

    def run(pinned: bool) -> Run:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": problem.threads,
            "ENABLE_CPU_PINNING": pinned,
        }
        request = core.compile_model(model, "CPU", options).create_infer_request()
        return lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]

    runs = {"pinned": run(True)} | ({"not pinned": run(False)} if problem.threads > 1 else {})
    return Prepared(ov.__version__.split("-")[0], runs)


def prepare_numpy(problem: Problem) -> Prepared:
    """The cell's own graph in NumPy: products of inputs over all steps at once, the rest step by step for all of B."""
    net = net_of(problem.manifest)
    net.load(problem.weights)
    layers = [
        [NumpyLayer(graph, net, layer, direction) for direction in range(net.num_directions)]
        for layer, graph in enumerate(_combined(net))
    ]

    def run() -> Array:
        first, *others = problem.inputs.values()
        for directions in layers:
            first = np.concatenate([layer([first, *others]) for layer in directions], axis=-1)
        return first

    return Prepared(np.__version__, {"vectorised": run})


def _combined(net: RNN) -> list[Graph]:
    """Each layer's graph with its products hoisted and combined: better NumPy than the equations as written."""
    from . import pipeline, target

    stages = dict(pipeline.run(net, target.TABLE["x86-64"]))
    layers = stages["combine_gemms"]
    return [layers.graphs[index] for index in layers.of_layer]


class NumpyLayer:
    """One layer in one direction, evaluated in the RNN's dtype: inputs [T, B, *shape] -> y [T, B, H]."""

    def __init__(self, graph: Graph, net: RNN, layer: int, direction: int) -> None:
        self.graph, self.net, self.direction = graph, net, direction
        nodes = graph.nodes()
        leaves = depends(nodes)
        self.fixed: dict[Node, Array] = {n: n.value.astype(net.dtype) for n in nodes if n.value is not None}
        self.fixed |= {p: net.weights[weight_name(p.name, layer, direction)] for p in graph.params}
        evaluate([n for n in nodes if not leaves[n]], self.fixed)
        self.early = [n for n in nodes if leaves[n] == {"input"} and not n.leaf]
        self.late = [n for n in nodes if "state" in leaves[n] and not n.leaf]
        read = {a for n in self.late for a in n.args} | set(graph.roots)
        self.handed = [n for n in nodes if leaves[n] == {"input"} and n in read]

    def __call__(self, inputs: Sequence[Array]) -> Array:
        graph, (steps, batch) = self.graph, inputs[0].shape[:2]
        whole = {**self.fixed, **dict(zip(graph.inputs, inputs, strict=True))}
        evaluate(self.early, whole)
        initial = self.net.cell.initial
        state = [np.full((batch, *s.shape), initial.get(s.name, 0.0), self.net.dtype) for s in graph.states]
        y = np.empty((steps, batch, *graph.output.shape), self.net.dtype)
        for t in range(steps)[:: -1 if self.direction else 1]:
            values = {**self.fixed, **{n: whole[n][t] for n in self.handed}}
            values.update(zip(graph.states, state, strict=True))
            evaluate(self.late, values)
            y[t] = values[graph.output]
            state = [np.broadcast_to(values[r], s.shape) for r, s in zip(graph.results, state, strict=True)]
        return y


FRAMEWORKS: dict[str, Callable[[Problem], Prepared]] = {
    "tvm_rnn": prepare_tvm_rnn,
    "torch": prepare_torch,
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


def read_problem(request: Mapping[str, Any]) -> Problem:
    """The problem that bench.py wrote: the module's path, and the path of a .npz with the inputs."""
    manifest, weights = read_container(request["path"])
    with np.load(request["inputs"], allow_pickle=False) as file:
        inputs = {item.name: file[item.name] for item in manifest.inputs}
    return Problem(request["path"], manifest, weights, inputs, request["threads"])


def serve(name: str, requests: Any, reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests, one JSON object per line: the first prepares, each other times one configuration."""
    request = json.loads(next(requests))
    try:
        prepared = FRAMEWORKS[name](read_problem(request))
        results = {}
        for index, (config, run) in enumerate(prepared.runs.items()):
            results[config] = os.path.join(request["folder"], f"{name}_{index}.npy")
            np.save(results[config], np.asarray(run()))
    except Unsupported as reason:
        return reply({"skip": str(reason)})
    reply({"version": prepared.version, "results": results})
    for line in requests:
        request = json.loads(line)
        reply({"seconds": median_seconds(prepared.runs[request["config"]], request["seconds"])})


def main() -> None:
    """Serve on stdin and stdout. What the framework itself prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        serve(sys.argv[1], sys.stdin, lambda answer: print(json.dumps(answer), file=channel, flush=True))


if __name__ == "__main__":
    main()
