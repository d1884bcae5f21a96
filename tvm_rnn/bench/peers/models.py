"""A module of the zoo as other frameworks have it: torch's weights, an ONNX model, NumPy that runs the cell's graph.

In: a `Problem`: a module's manifest and weights, and the inputs of a run. Out: what `worker.py` hands to the
frameworks. `Unsupported` says which cells, sizes and dtypes one of them lacks: nothing is ever compared with a
stand-in.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_rnn import cells
from tvm_rnn.bench.suites.gpu import CELLS, Point
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.frontends.torch import state_arrays
from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.language.cell import Cell
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN, equations_digest
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.combine_gemms import CombineGemms
from tvm_rnn.passes.hoist_gemms import HoistGemms
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.runtime.runtime import Manifest, Module, load
from tvm_rnn.target import TABLE

if TYPE_CHECKING:
    import torch
    from onnxruntime import InferenceSession

Array = np.ndarray
Runs = Mapping[str, Callable[..., object]]

# The framework's name of each cell of ours, and its options.
TORCH_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_projection": ("LSTM", {}),
    "gru": ("GRU", {}),
    "elman": ("RNN", {"nonlinearity": "tanh"}),
    "elman_relu": ("RNN", {"nonlinearity": "relu"}),
}
ONNX_CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_peephole": ("LSTM", {}),
    "gru": ("GRU", {"linear_before_reset": 1}),
    "gru_reset_before": ("GRU", {"linear_before_reset": 0}),
    "elman": ("RNN", {"activations": ["Tanh"]}),
    "elman_relu": ("RNN", {"activations": ["Relu"]}),
}
# ONNX has the gates i o f c and z r h; ours are i f g o and r z n, as torch's.
ONNX_GATES = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
ONNX_PEEPHOLES = [0, 2, 1]  # theirs i o f, ours i f o


class Unsupported(Exception):
    """This framework cannot run this module; the text is the reason. Never leaves the benchmark."""


@dataclass(frozen=True)
class Prepared:
    """A framework ready to run: its version, what to call per configuration that may be the fastest, facts to record.

    runs: one pass over all steps, without arguments, that returns y [T, B, D*H] in the framework's own form, on GPUs
    with the state; of a stream one step, by its number. compiling: the configurations whose first call compiles
    something: it is timed, and stopped where it takes too long. families: by configuration, what several have in common
    that decides most of their time, such as an algorithm; "" is none.
    """

    version: str
    runs: Runs
    facts: Mapping[str, object] = field(default_factory=dict)
    compiling: Collection[str] = ()
    families: Mapping[str, str] = field(default_factory=dict)


def in_a_line(reason: Exception) -> str:
    """An exception's kind and the first line of what it says."""
    first = next((line for line in str(reason).splitlines() if line.strip()), "")
    return f"{type(reason).__name__}: {first}"


@contextlib.contextmanager
def imported(package: str) -> Iterator[None]:
    """Makes of whatever goes wrong in an import a reason why the framework is absent."""
    try:
        yield
    except ModuleNotFoundError as reason:
        absent = reason.name is not None and reason.name.partition(".")[0] == package
        text = f"{package} is not installed" if absent else f"{package} cannot be imported: {reason}"
        raise Unsupported(text) from None
    except Exception as reason:  # it may want a compiler or a GPU of its own taste
        raise Unsupported(f"{package} cannot be imported: {in_a_line(reason)}") from None


@dataclass(frozen=True)
class Problem:
    """What everyone computes. inputs: [T, B, *shape] by name, in the manifest's order. threads: how many each uses.
    steps: of generation, whose first input is a prompt of one step."""

    path: str
    manifest: Manifest
    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]
    threads: int
    steps: int = 0

    @property
    def x(self) -> Array:
        """The only input, of the manifest's dtype. Raises Unsupported where there are several."""
        if len(self.inputs) != 1:
            raise Unsupported(f"it has no cell with {len(self.inputs)} inputs per step")
        return next(iter(self.inputs.values()))

    @property
    def batch(self) -> int:
        return int(next(iter(self.inputs.values())).shape[1])

    @property
    def thread_counts(self) -> dict[str, int]:
        """How many threads a framework is tried with, by name: as many as it may use, and one, which is best for small
        steps. Our runtime and NumPy's BLAS choose for themselves, within the same limit."""
        return {f"{count} thread{'s' * (count > 1)}": count for count in (self.threads, 1)}

    @property
    def hidden_size(self) -> int:
        return int(self.weight("b", 0, 0).shape[-1])

    def module(self) -> Module:
        """This project's, with these weights where its file has none."""
        module = load(self.path)
        module.batch_first = False  # arrays of a problem have time first
        if not module.weights:
            module.load_weights({item.name: self.weights[item.name] for item in self.manifest.weights})
        return module

    def weight(self, name: str, layer: int, direction: int) -> Array:
        return self.weights[weight_name(name, layer, direction)]

    def gates(self, layer: int, direction: int) -> tuple[Array, Array, Array, Array]:
        """W [G, H, I], R [G, H, H], and the biases of both products, [G, H] each, in our gate order."""
        W, R, b = (self.weight(name, layer, direction) for name in "WRb")
        if b.ndim == 1:
            W, R, b = W[None], R[None], b[None]
        second = np.zeros_like(b)
        if self.manifest.cell == "gru":
            second[2] = self.weight("b_R", layer, direction)
        if self.manifest.cell == "gru_reset_before":
            R = np.concatenate([R, self.weight("R_n", layer, direction)[None]])
        return W, R, b, second

    def form(self, known: Mapping[str, tuple[str, dict[str, object]]]) -> tuple[str, dict[str, Any]]:
        """A framework's own name and options for the cell, from its table. Raises Unsupported where it has none."""
        if self.manifest.cell not in known:
            raise Unsupported(f"it has no cell {self.manifest.cell}")
        if self.manifest.get("reverse"):
            raise Unsupported("its layers run forward, or in both directions")
        if "zoneout" in self.manifest.get("regularisers", {}):
            raise Unsupported("it has no zoneout")
        net_of(self.manifest)  # a user's cell may be called lstm as well
        if len({self.weight("b", layer, 0).shape[-1] for layer in range(self.manifest.num_layers)}) > 1:
            raise Unsupported("its layers are all of one size")
        return known[self.manifest.cell]


@dataclass(frozen=True)
class GpuProblem:
    """What everyone computes. inputs: torch tensors [T, B, *shape] of the point's dtype. module: our .so, or None.
    lengths: int32 [B], the longest first, which is T; None: every row has T steps. reset: bool [T, B], where rows begin
    anew; None: nowhere."""

    point: Point
    net: RNN
    inputs: tuple[torch.Tensor, ...]
    module: str | None = None
    compile_seconds: float = 60.0
    lengths: torch.Tensor | None = None
    reset: torch.Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs[0].dtype

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def bytes(self) -> int:
        """What must move through memory at least: inputs, the output and the weights, in training their gradients too,
        once each."""
        steps, batch = self.inputs[0].shape[:2]
        elements = sum(x.numel() for x in self.inputs) + steps * batch * self.net.output_size
        elements += sum(array.size for array in self.net.weights.values())
        return int(self.inputs[0].element_size() * elements) * (2 if self.point.training else 1)

    def weight(self, name: str, layer: int, direction: int) -> torch.Tensor:
        """A weight as torch tensor, in the dtype and on the device of the inputs."""
        return self.put(self.net.weights[weight_name(name, layer, direction)])

    def put(self, array: np.ndarray) -> torch.Tensor:
        import torch

        return torch.tensor(array).to(self.device, self.dtype)


def net_of(manifest: Manifest, cell: Cell | None = None) -> RNN:
    """The RNN, without weights, that a module was compiled from. cell: its cell; None: the zoo's of that name.

    Raises Unsupported where the zoo has no such cell, or where the cell has other states, weights or equations.
    """
    cell = cell or cells.ZOO.get(manifest.cell) or CELLS.get(manifest.cell)
    reason = f"{manifest.cell} is not a cell of the zoo: only its own module knows its equations"
    if cell is None:
        raise Unsupported(reason)
    shapes = {w.name: tuple(w.shape) for w in manifest.weights}
    layers = [_axis_sizes(cell, manifest, shapes, layer) for layer in range(manifest.num_layers)]
    options: dict[str, Any] = {name: [sizes.get(name, 0) for sizes in layers] for name in layers[0]}
    options |= manifest.get("regularisers", {})
    try:
        net = RNN(
            cell,
            int(manifest.inputs[0].shape[0]),
            num_layers=manifest.num_layers,
            bidirectional=manifest.num_directions == 2,
            dtype=manifest.dtype,
            reverse=bool(manifest.get("reverse")),
            **options,
        )
    except TvmRnnError:
        raise Unsupported(reason) from None
    shapes = {name: shape for name, shape in shapes.items() if "." not in name}  # those are constants, not parameters
    if net.weight_shapes != shapes or [s.name for s in cell.states] != [s.name for s in manifest.states]:
        raise Unsupported(reason)
    if manifest.get("equations", "") not in ("", equations_digest(net)):
        raise Unsupported(reason)
    if cell.constants:
        raise Unsupported(f"{manifest.cell} has constants, which nobody gives here")
    return net


def _axis_sizes(cell: Cell, manifest: Manifest, shapes: Mapping[str, tuple[int, ...]], layer: int) -> dict[str, int]:
    """The size of each axis of the cell, read off the shapes of one layer's states and weights."""
    known = {s.name: s.shapes[layer] for s in manifest.states}
    known |= {p.name: shapes.get(weight_name(p.name, layer, 0), ()) for p in cell.params}
    known |= {i.name: i.shape for i in manifest.inputs[1:]}
    sizes: dict[str, int] = {}
    for argument in (*cell.inputs[1:], *cell.states, *cell.params):
        shape, dims = known.get(argument.name, ()), argument.dims
        dims = dims if len(shape) == len(dims.axes) else dims.present({})
        for axis, size in zip(dims.axes, shape, strict=False):
            if isinstance(axis, ast.Name):
                sizes[axis.id] = int(size)
    sizes.pop(str(cell.inputs[0].dims.labels[0]), None)  # RNN binds it to what feeds the layer
    return sizes


def loaded(problem: Problem) -> RNN:
    """The RNN that a module was compiled from, with its weights."""
    net = net_of(problem.manifest)
    return net.load({name: problem.weights[name] for name in net.weight_shapes})


def torch_layer(net: RNN) -> torch.nn.RNNBase:
    """torch.nn's layer of one of TORCH_CELLS with the network's weights, in evaluation mode."""
    with imported("torch"):
        import torch
    kind, options = TORCH_CELLS[net.cell.name]
    sizes, both = net.sizes[0], net.num_directions == 2
    if net.cell.name == "lstm_projection":
        options = {"proj_size": sizes["P"]}
        if sizes["P"] >= sizes["H"]:
            raise Unsupported("its projection must be narrower than H")
    dtype = getattr(torch, net.dtype)
    layer = getattr(torch.nn, kind)(
        net.input_size, sizes["H"], net.num_layers, bidirectional=both, dtype=dtype, **options
    )
    layer.load_state_dict({name: torch.tensor(value) for name, value in state_arrays(net).items()})
    found: torch.nn.RNNBase = layer.eval()
    return found


def in_one_piece(layer: torch.nn.RNNBase) -> torch.nn.RNNBase:
    """A layer on a GPU with its weights in one memory, as cuDNN wants them.

    torch leaves bfloat16 out of the dtypes that it does this for, and copies all weights at every call; cuDNN knows it.
    The best that torch can do is what counts here.
    """
    import torch

    dtypes = torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    before = {*dtypes}
    try:
        dtypes.add(torch.bfloat16)
        layer.flatten_parameters()
    finally:
        dtypes.intersection_update(before)
    return layer


def torch_layer_of(problem: Problem) -> torch.nn.RNNBase:
    """The same for a module on the CPU. Raises Unsupported where torch has no such layer."""
    problem.form(TORCH_CELLS)
    return torch_layer(loaded(problem))


def torch_threads(count: int) -> None:
    """torch's threads from now on."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def openvino_requests(problem: Problem, stream: bool = False) -> tuple[str, Callable[[int, bool], Any]]:
    """OpenVINO's version, and what makes an infer request on the CPU for latency of a number of threads, pinned or not.

    In float32: where the CPU has bfloat16 its own choice would be that.
    """
    with imported("openvino"):
        import openvino as ov
    if problem.manifest.cell == "lstm_peephole":
        raise Unsupported("its LSTM has no peepholes")
    core = ov.Core()
    model = core.read_model(onnx_model(problem, stream))

    def request(threads: int, pinned: bool) -> Any:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": pinned,
        }
        return core.compile_model(model, "CPU", options).create_infer_request()

    return ov.__version__.split("-")[0], request


def onnxruntime_sessions(problem: Problem, stream: bool = False) -> tuple[str, Callable[..., InferenceSession]]:
    """onnxruntime's version, and what makes a session on the CPU of a number of threads, whose pool spins or not."""
    with imported("onnxruntime"):
        import onnxruntime as ort
    model = onnx_model(problem, stream)

    def session(threads: int, spinning: bool = True) -> InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    return ort.__version__, session


def onnx_model(problem: Problem, stream: bool = False) -> bytes:
    """The module as an ONNX model of fixed shapes, one node per layer: x [T, B, I] -> y [T, B, D*H].

    stream: of one step, x [1, B, I], with each layer's states [D, B, H] as inputs h_0, c_0, ... and outputs behind y.
    """
    try:
        import onnx
    except ImportError:
        raise Unsupported("onnx, which describes the model, is not installed") from None
    kind, options = problem.form(ONNX_CELLS)
    x, hidden, layers = problem.x, problem.hidden_size, problem.manifest.num_layers
    directions = problem.manifest.num_directions
    if x.dtype != np.float32:
        raise Unsupported(f"it has no recurrent layers in {x.dtype}")
    options = {name: value * directions if isinstance(value, list) else value for name, value in options.items()}
    options |= {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    nodes, constants, above = [], {"joined": np.array([0, 0, -1], np.int64)}, "x"
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    carried = [f"{name}_{layer}" for layer in range(layers) for name in states] if stream else []
    for layer in range(layers):
        parts = [_onnx_weights(problem, kind, layer, direction) for direction in range(directions)]
        stacked = {f"{name}_{layer}": np.stack([part[name] for part in parts]) for name in parts[0]}
        W, R, b, *peephole = stacked
        before = ["", *(f"{name}_{layer}" for name in states)] if stream else []
        given = [above, W, R, b, *before, *([*[""] * (3 - len(before)), *peephole] if peephole else [])]
        made = [f"Y_{layer}", *(f"{name}_{layer}_out" for name in states if stream)]
        nodes.append(onnx.helper.make_node(kind, given, made, **options))
        constants |= stacked
        # Y [T, D, B, H] -> [T, B, D*H]
        nodes.append(onnx.helper.make_node("Transpose", [f"Y_{layer}"], [f"y_{layer}"], perm=[0, 2, 1, 3]))
        above = "y" if layer == layers - 1 else f"x_{layer + 1}"
        nodes.append(onnx.helper.make_node("Reshape", [f"y_{layer}", "joined"], [above]))
    lead = [1, x.shape[1]] if stream else [*x.shape[:2]]
    real, state_shape = onnx.TensorProto.FLOAT, [directions, x.shape[1], hidden]
    graph = onnx.helper.make_graph(
        nodes,
        problem.manifest.cell,
        [
            onnx.helper.make_tensor_value_info("x", real, [*lead, *x.shape[2:]]),
            *(onnx.helper.make_tensor_value_info(name, real, state_shape) for name in carried),
        ],
        [
            onnx.helper.make_tensor_value_info("y", real, [*lead, directions * hidden]),
            *(onnx.helper.make_tensor_value_info(f"{name}_out", real, state_shape) for name in carried),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    # Opset 14 is the oldest with today's RNN, GRU and LSTM, so every runtime reads it; ir_version 8 goes with it.
    opsets = [onnx.helper.make_opsetid("", 14)]
    model: bytes = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


def _onnx_weights(problem: Problem, kind: str, layer: int, direction: int) -> dict[str, Array]:
    order = ONNX_GATES[kind]
    W, R, b, second = (value[order] for value in problem.gates(layer, direction))
    parts = {"W": W.reshape(-1, W.shape[-1]), "R": R.reshape(-1, R.shape[-1]), "B": np.append(b, second)}
    if problem.manifest.cell == "lstm_peephole":
        parts["P"] = problem.weight("p", layer, direction)[ONNX_PEEPHOLES].reshape(-1)
    return parts


class NumpyModel:
    """A module's RNN evaluated by NumPy in its own dtype, all rows at once: inputs and y [T, B, *shape]."""

    def __init__(self, problem: Problem) -> None:
        net, target = loaded(problem), TABLE["x86-64"]
        self.shape = net.output_shape
        self.layers = []
        for layer in net.layers:
            # Hoisted and combined products make better NumPy than the equations as written.
            graph = HoistGemms().apply(normalise(layer.graph), net, target)
            graph = CombineGemms().apply(graph, net, target)
            self.layers.append([NumpyLayer(graph, net, layer.index, d) for d in range(net.num_directions)])

    def __call__(self, inputs: Sequence[Array]) -> Array:
        return self.run(inputs, None)[0]

    def run(self, inputs: Sequence[Array], states: Sequence[Any] | None) -> tuple[Array, list[Any]]:
        """The same from given states on; and the last ones, in the form in which they are given."""
        (x, *others), after = inputs, list[Any]()
        x = x.reshape(*x.shape[:2], -1)  # as layers hand it on
        for directions in self.layers:
            made = []
            for layer in directions:
                y, last = layer([x, *others], None if states is None else states[len(after)])
                made.append(y)
                after.append(last)
            x = np.concatenate(made, axis=-1)
        return x.reshape(*x.shape[:2], *self.shape), after


class NumpyLayer:
    """One layer in one direction: what reads inputs alone over all of T at once, the rest step by step."""

    def __init__(self, graph: Graph, net: RNN, layer: int, direction: int) -> None:
        self.graph, self.net, self.direction = graph, net, direction
        nodes = graph.nodes()
        leaves = depends(nodes)
        # In the RNN's dtype: NumPy would compute in float64 wherever a float64 constant takes part.
        self.fixed: dict[Node, Array] = {n: n.value.astype(net.dtype) for n in nodes if n.value is not None}
        self.fixed |= {p: net.weights[weight_name(p.name, layer, direction)] for p in graph.params}
        evaluate([n for n in nodes if not leaves[n]], self.fixed)
        self.early = [n for n in nodes if leaves[n] == {"input"} and not n.leaf]
        self.late = [n for n in nodes if "state" in leaves[n] and not n.leaf]
        read = {a for n in self.late for a in n.args} | set(graph.roots)
        self.handed = [n for n in nodes if leaves[n] == {"input"} and n in read]

    def __call__(self, inputs: Sequence[Array], state: Sequence[Array] | None) -> tuple[Array, Sequence[Array]]:
        """inputs: [T, B, *shape] each, in the graph's order. Returns y [T, B, width] and the last state."""
        graph, (steps, batch) = self.graph, inputs[0].shape[:2]
        whole = {**self.fixed, **dict(zip(graph.inputs, inputs, strict=True))}
        evaluate(self.early, whole)
        initial = self.net.cell.initial
        first = [np.full((batch, *s.shape), initial.get(s.name, 0.0), self.net.dtype) for s in graph.states]
        state = first if state is None else state
        y = np.empty((steps, batch, *graph.output.shape), self.net.dtype)
        for t in range(steps)[:: -1 if self.direction or self.net.reverse else 1]:
            values = {**self.fixed, **{n: whole[n][t] for n in self.handed}}
            values.update(zip(graph.states, state, strict=True))
            evaluate(self.late, values)
            y[t] = values[graph.output]
            state = [np.broadcast_to(values[r], s.shape) for r, s in zip(graph.results, state, strict=True)]
        return y, state
