"""LiteRT, once TensorFlow Lite, and its engine for microcontrollers: whole sequences, and one step a call.

In: a `Problem`. Out: what `worker.py` and `streaming.py` hand to a benchmark. Models are written with LiteRT's own
schema, as its converter writes what Keras has: an LSTM as one operator, which keeps its states; GRU and Elman as
products and pointwise operators of each step, whose states go in and out.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from . import models
from .models import Array, Prepared, Problem, Unsupported

LITERT_CELLS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in ("lstm", "gru", "elman")}
MOST_STEPS = 1024  # that a model repeats
LSTM_INPUTS = 24  # of its operator, most of which an LSTM without peepholes, projections and norms leaves out
OWN_STATE = 18  # where the states are among these
NONE, TANH = 0, 4  # functions behind an operator
ABSENT = -1
ARENA = 1 << 16  # bytes for what the small engine needs besides arrays


@dataclass
class Model:
    """A model that grows, tensor by tensor and operator by operator; each is known by its number. schema: LiteRT's."""

    schema: ModuleType
    tensors: list[object] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    buffers: list[object] = field(default_factory=list)
    operators: list[object] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffers.append(self.schema.BufferT())  # that of tensors that are no constants

    def tensor(self, *shape: int, variable: bool = False) -> int:
        """Of float32."""
        return self._add(shape, self.schema.TensorType.FLOAT32, 0, variable)

    def constant(self, value: Array) -> int:
        whole = np.issubdtype(value.dtype, np.integer)
        kind, value = ("INT32", value.astype(np.int32)) if whole else ("FLOAT32", value.astype(np.float32))
        self.buffers.append(self.schema.BufferT(data=np.frombuffer(value.tobytes(), np.uint8)))
        return self._add(value.shape, getattr(self.schema.TensorType, kind), len(self.buffers) - 1, False)

    def _add(self, shape: Sequence[int], kind: int, buffer: int, variable: bool) -> int:
        name = f"t{len(self.tensors)}"
        own = self.schema.TensorT(shape=[*shape], type=kind, buffer=buffer, name=name, isVariable=variable)
        self.tensors.append(own)
        self.shapes.append([*shape])
        return len(self.tensors) - 1

    def operator(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], **options: object) -> None:
        """kind: its name, such as FullyConnected."""
        if kind not in self.codes:
            self.codes.append(kind)
        own = self.schema.OperatorT(opcodeIndex=self.codes.index(kind), inputs=[*inputs], outputs=[*outputs])
        if options:
            own.builtinOptionsType = getattr(self.schema.BuiltinOptions, f"{kind}Options")
            own.builtinOptions = getattr(self.schema, f"{kind}OptionsT")(**options)
        self.operators.append(own)

    def pointwise(self, kind: str, *inputs: int) -> int:
        """The result of an operator on elements."""
        options = {} if kind in ("Logistic", "Tanh") else {"fusedActivationFunction": NONE}
        result = self.tensor(*self.shapes[inputs[0]])
        self.operator(kind, inputs, [result], **options)
        return result

    def product(self, x: int, weights: int, bias: int) -> int:
        """x by a matrix of [outputs, inputs], along the last axis."""
        result = self.tensor(*self.shapes[x][:-1], self.shapes[weights][0])
        options = {"fusedActivationFunction": NONE, "keepNumDims": True}
        self.operator("FullyConnected", [x, weights, bias], [result], **options)
        return result

    def split(self, x: int, count: int) -> list[int]:
        """Equal parts along the last axis."""
        *outer, width = self.shapes[x]
        parts = [self.tensor(*outer, width // count) for _ in range(count)]
        self.operator("Split", [self.constant(np.array(len(outer))), x], parts, numSplits=count)
        return parts

    def written(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """A file of the model with these inputs and outputs."""
        import flatbuffers

        schema, names = self.schema, [code_name(kind) for kind in self.codes]
        codes = [getattr(schema.BuiltinOperator, name) for name in names]
        made = schema.ModelT(version=3, buffers=self.buffers)
        made.operatorCodes = [
            schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=min(code, 127), version=1) for code in codes
        ]
        graph = schema.SubGraphT(
            tensors=self.tensors, inputs=[*inputs], outputs=[*outputs], operators=self.operators, name="main"
        )
        made.subgraphs = [graph]
        builder = flatbuffers.Builder(1024)
        builder.Finish(made.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def code_name(kind: str) -> str:
    """FULLY_CONNECTED of FullyConnected; UNIDIRECTIONAL_SEQUENCE_LSTM of UnidirectionalSequenceLSTM."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", kind).upper()


@dataclass
class Network:
    """A model of so many steps. x, y: its tensors; states: those that go in; after: those that come out."""

    model: Model
    x: int
    y: int
    states: Sequence[int]
    after: Sequence[int]

    @functools.cached_property
    def content(self) -> bytes:
        """As a file has it."""
        return self.model.written([self.x, *self.states], [self.y, *self.after])


def network(problem: Problem, schema: ModuleType, steps: int, stream: bool) -> Network:
    """The problem's network. stream: states of GRU and Elman go in and out; else they are zeros."""
    kind, _ = problem.form(LITERT_CELLS)
    model, batch, hidden = Model(schema), problem.batch, problem.hidden_size
    x = above = model.tensor(steps, batch, problem.x.shape[-1])
    states, after = list[int](), list[int]()
    for layer in range(problem.manifest.num_layers):
        arrays = problem.gates(layer, 0)
        if kind == "lstm":
            above = _lstm(model, above, arrays)
            continue
        first = model.tensor(batch, hidden) if stream else model.constant(np.zeros((batch, hidden), np.float32))
        above, last = _steps(model, above, first, arrays)
        states.append(first)
        after.append(last)
    return Network(model, x, above, states if stream else [], after if stream else [])


def _lstm(model: Model, x: int, arrays: Sequence[Array]) -> int:
    """One operator, which keeps its states from call to call."""
    (steps, batch, _), (W, R, b, _) = model.shapes[x], arrays
    inputs = [ABSENT] * LSTM_INPUTS
    inputs[0] = x
    for place, values in ((1, W), (5, R), (12, b)):
        inputs[place : place + 4] = [model.constant(gate) for gate in values]  # i f g o, as ours
    hidden = R.shape[-1]
    inputs[OWN_STATE : OWN_STATE + 2] = [model.tensor(batch, hidden, variable=True) for _ in range(2)]
    y = model.tensor(steps, batch, hidden)
    model.operator("UnidirectionalSequenceLSTM", inputs, [y], fusedActivationFunction=TANH, timeMajor=True)
    return y


def _steps(model: Model, x: int, state: int, arrays: Sequence[Array]) -> tuple[int, int]:
    """A GRU or an Elman, step by step; the inputs' products at once. What comes out, and the last state."""
    W, R, b, second = arrays
    gates, hidden = R.shape[:2]
    steps, batch, _ = model.shapes[x]
    if steps > MOST_STEPS:
        raise Unsupported(f"a model that repeats {steps} steps would be large: at most {MOST_STEPS}")
    matrices = [model.constant(matrix.reshape(gates * hidden, -1)) for matrix in (W, R)]
    biases = [model.constant(bias.ravel()) for bias in (b, second)]
    given = model.product(x, matrices[0], biases[0])
    of_steps = [model.tensor(batch, gates * hidden) for _ in range(steps)]
    model.operator("Unpack", [given], of_steps, num=steps, axis=0)
    rows = list[int]()
    for own in of_steps:
        held = model.product(state, matrices[1], biases[1])
        if gates == 1:
            state = model.pointwise("Tanh", model.pointwise("Add", own, held))
        else:
            (r_x, z_x, n_x), (r_h, z_h, n_h) = model.split(own, 3), model.split(held, 3)
            r, z = (model.pointwise("Logistic", model.pointwise("Add", *pair)) for pair in ((r_x, r_h), (z_x, z_h)))
            n = model.pointwise("Tanh", model.pointwise("Add", n_x, model.pointwise("Mul", r, n_h)))
            state = model.pointwise("Add", n, model.pointwise("Mul", z, model.pointwise("Sub", state, n)))
        rows.append(state)
    y = model.tensor(steps, batch, hidden)
    model.operator("Pack", rows, [y], valuesCount=steps, axis=0)
    return y, state


@dataclass(frozen=True)
class Engine:
    """A model that is loaded. run: what it makes of x and states; forget: what it keeps of the calls before."""

    run: Callable[[Sequence[Array]], Sequence[Array]]
    forget: Callable[[], object]


def litert_engines(made: Network) -> tuple[str, dict[str, Engine]]:
    """LiteRT's version, and itself with XNNPACK, and with its own kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    def engine(resolver: object) -> Engine:
        own = Interpreter(model_content=made.content, num_threads=1, experimental_op_resolver_type=resolver)
        own.allocate_tensors()

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            for place, value in zip((made.x, *made.states), arrays, strict=True):
                own.set_tensor(place, value)
            own.invoke()
            return [own.get_tensor(place) for place in (made.y, *made.after)]

        return Engine(run, own.reset_all_variables)

    resolvers = {"XNNPACK": OpResolverType.AUTO, "own kernels": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES}
    found = {f"{name}, 1 thread": engine(resolver) for name, resolver in resolvers.items()}
    return importlib.metadata.version("ai-edge-litert"), found


def micro_engines(made: Network) -> tuple[str, dict[str, Engine]]:
    """The version of LiteRT for Microcontrollers, and itself: plain loops."""
    from tflite_micro import runtime

    own = runtime.Interpreter.from_bytes(made.content, arena_size=len(made.content) * 4 + ARENA)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        for index, value in enumerate(arrays):
            own.set_input(value, index)
        own.invoke()
        return [own.get_output(index) for index in range(1 + len(made.after))]

    return importlib.metadata.version("tflite-micro"), {"1 thread": Engine(run, own.reset)}


# By a peer's name: its package, where the package has the schema, what loads a model.
ENGINES = {
    "litert": ("ai_edge_litert", "ai_edge_litert.schema_py_generated", litert_engines),
    "tflite-micro": (
        "tflite_micro",
        "tflite_micro.tensorflow.lite.micro.python.schema_py_generated",
        micro_engines,
    ),
}


def _loaded(name: str, problem: Problem, steps: int, stream: bool) -> tuple[str, dict[str, Engine]]:
    """A peer's version, and engines by configuration. Raises Unsupported."""
    problem.form(LITERT_CELLS)
    package, schema, engines = ENGINES[name]
    with models.imported(package):
        _, own = map(importlib.import_module, (package, schema))
    if problem.manifest.num_directions != 1:
        raise Unsupported("it reads the future: both directions")
    if problem.x.dtype != np.float32:
        raise Unsupported(f"its recurrent layers in {problem.x.dtype} are not built here")
    return engines(network(problem, own, steps, stream))


def prepare(name: str, problem: Problem) -> Prepared:
    """Whole sequences."""
    version, engines = _loaded(name, problem, len(problem.x), stream=False)

    def run(own: Engine) -> Array:
        own.forget()
        return own.run([problem.x])[0]

    return Prepared(version, {label: lambda own=own: run(own) for label, own in engines.items()})


def stream(name: str, problem: Problem) -> Prepared:
    """A step a call."""
    version, engines = _loaded(name, problem, 1, stream=True)
    count = 0 if problem.manifest.cell == "lstm" else problem.manifest.num_layers
    zeros = [np.zeros((problem.batch, problem.hidden_size), np.float32)] * count
    held: list[Array] = []

    def step(own: Engine, t: int) -> Array:
        if t == 0:
            own.forget()
        y, *held[:] = own.run([problem.x[t : t + 1], *(held if t else zeros)])
        return y[0]

    return Prepared(version, {label: lambda t, own=own: step(own, t) for label, own in engines.items()})
