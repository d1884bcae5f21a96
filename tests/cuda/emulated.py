"""Persistent kernels and scans run on the CPU: their CUDA text, compiled by g++ with `emulate_ptx.h` in place of a GPU.

In: a zoo cell, its sizes, a geometry. Out: y and the states after some steps, beside the oracle's. What a GPU's memory
system does to unordered accesses is imitated by a random order of threads, no more: the last word has a GPU.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import re
from math import prod
from typing import Any

import e4m3
import numpy as np
import tvm
import tvm_ffi
from compiled_kernels import SIZES
from emulator import LINKER, MACHINE_OBJECT, machine, made, translated
from persistent_layers import geometry_of
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.cuda_text import compile_kernels
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import exchange_by_polling
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.cell_reads import place_of
from tvm_rnn.cuda.persistent.geometry import COUNTER_WORDS, Geometry
from tvm_rnn.cuda.rowwise.scan_over_time import Scan, scan
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.network.layer import weight_name
from tvm_rnn.oracle.reference import Reference, evaluate
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

POISON = np.nan
Arrays = dict[str, np.ndarray]


@functools.cache
def library(text: str) -> ctypes.CDLL:
    """The text, compiled. What was compiled before, by any process, is taken from a folder of this machine."""
    folder = machine()
    source = folder / f"{hashlib.sha1(text.encode()).hexdigest()}.cc"
    source.write_text(text)
    linked = made(source, source.with_suffix(".so"), "-shared", *LINKER, f"-I{folder}", str(folder / MACHINE_OBJECT))
    found = ctypes.CDLL(str(linked))
    found.launch.restype = ctypes.c_char_p
    return found


@functools.cache
def texts(kernel: Kernel) -> tuple[str, str]:
    """A kernel's CUDA text and the text that launches it."""
    return compile_kernels({kernel.name: kernel.func}, resolve("nvidia-h200"))


@functools.cache
def layer(
    cell: str | rnn.RNN, hidden: int, precision: str, inputs: int = 0, apart: bool = False
) -> tuple[rnn.RNN, Layout]:
    """A cell with random weights, or a network, and how its layer lies in memory. inputs: so many that the step
    multiplies; 0: the product with 5 inputs is hoisted. apart: every gate's products are products of their own."""
    if isinstance(cell, rnn.RNN):
        graph = pipeline.run(cell, resolve("nvidia-h200"))[-1][1].graphs[0]
        return cell, Layout(graph, precision, Weights(graph, 0, precision), cell.dtype)
    found = rnn.cells.get(cell)
    sizes = {axis: size for axis, size in SIZES.items() if axis in found.size_names}
    dtype = "float32" if precision == "tf32" else precision
    net = rnn.RNN(found, (inputs or 5) if "I" in found.size_names else hidden, hidden, **sizes, dtype=dtype).init(3)
    without = (("hoist_gemms",) if inputs else ()) + (("combine_gemms",) if apart else ())
    graph = pipeline.run(net, resolve("nvidia-h200"), without)[-1][1].graphs[0]
    return net, Layout(graph, precision, Weights(graph, 0, precision), dtype)


@functools.cache
def persistent_kernel(
    of: tuple[Any, ...], geometry: tuple[tuple[str, Any], ...], masked: bool
) -> tuple[Geometry, Kernel]:
    """A geometry and its kernel, for a layer."""
    net, layout = layer(*of)
    made: Geometry = geometry_of(step_of(layout), layout.precision, **dict(geometry))
    return made, persistent.kernel("k", made, layout, net.cell.initial if masked else None)


def run(kernel: Kernel, arrays: Arrays, scalars: dict[str, int], blocks: int, seed: int = 0) -> None:
    """Run a kernel in place. arrays and scalars by the names in `kernel`. Raises AssertionError where it hangs."""
    device, wrapper = texts(kernel)
    body = translated(device)
    given = [arrays[name].ctypes.data for name, _ in kernel.pointers] + [scalars[name] for name, _ in kernel.scalars]
    text = f'#include "emulate_ptx.h"\n{body}\n' + (
        f"static void thread(void** emulated) {{\n  {arguments(kernel, wrapper)}\n"
        f"  {call(kernel, body, wrapper)};\n}}\n"
        'extern "C" __attribute__((visibility("default"))) const char* '
        "launch(void** emulated, int blocks, unsigned seed) {\n"
        "  emu::seed(seed);\n"
        f"  return emu::launch(blocks, {kernel.threads}, {kernel.shared_bytes}, {kernel.cluster}, "
        "true, thread, emulated);\n}\n"
    )
    failure = library(text).launch((ctypes.c_void_p * len(given))(*given), blocks, seed)
    assert failure is None, failure.decode()


def arguments(kernel: Kernel, wrapper: str) -> str:
    """C++ of a kernel's pointers and scalars, emulated[0] and on, by the names that they have in the launching text,
    and of what that text computes of them."""
    names = [name for name, _ in kernel.pointers]
    lines = [f"void* {name} = emulated[{i}];" for i, name in enumerate(names)]
    for i, (name, dtype) in enumerate(kernel.scalars, len(names)):
        lines.append(f"{dtype}_t {name} = ({dtype}_t)(long)emulated[{i}];")
        names.append(name)
    computed = [(kind, name, value) for kind, name, value in COMPUTED.findall(wrapper) if name not in names]
    return "\n  ".join([*lines, *(f"{kind} {name} = {value};" for kind, name, value in computed)])


def call(kernel: Kernel, body: str, wrapper: str) -> str:
    """C++ that calls the kernel as the launching text does."""
    types = re.search(rf"{kernel.name}_kernel\((.*?)\)", body)
    assert types
    kinds = [parameter.rsplit(None, 1)[0].replace("__restrict__", "") for parameter in types.group(1).split(",")]
    words = [word for _, word in sorted((int(i or 0), word) for i, word in ARGUMENT.findall(wrapper))]
    passed = ", ".join(f"({kind}){word}" for kind, word in zip(kinds, words, strict=False))
    return f"{kernel.name}_kernel({passed})"


ARGUMENT = re.compile(r"auto cuda_arg(?:_(\d+))? = (\w+);")
COMPUTED = re.compile(r"^ *(int(?:32|64)_t) (\w+) = ([^\[\n]*);$", re.MULTILINE)


def encoded(value: Any, dtype: str) -> np.ndarray:
    """A new array as memory holds it; NumPy has no bfloat16, so that is 16 bits of an integer."""
    if dtype != "bfloat16":
        return np.array(value, "float32" if dtype == "tf32" else dtype)
    bits = np.array(value, np.float32).view(np.uint32)
    upper = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(value)), np.uint16(0x7FC0), upper)


def decoded(array: np.ndarray, dtype: str) -> np.ndarray:
    """In float64, what memory holds."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def rounded(value: Any, dtype: str) -> np.ndarray:
    """In float64, what is left after storing it in that dtype."""
    return decoded(encoded(value, dtype), dtype)


def packed(geometry: Geometry, phase: Any, share: Any, value: np.ndarray) -> np.ndarray:
    """A weight in the order of a geometry's fragments."""
    count = geometry.weight_elements(phase, share)
    out, i = tirx.decl_buffer((count,), "int64"), tirx.Var("i", "int64")
    index, valid = geometry.weight_index(phase, share, i)
    flat: Any = tirx.const(0, "int64")
    for x, size in zip(index, share.operand.weight.shape, strict=True):
        flat = flat * size + tirx.Cast("int64", x)
    store = tirx.BufferStore(out, tirx.Select(valid, flat, tirx.const(-1, "int64")), [i])
    zero = tirx.const(0, "int64")
    loop = tirx.For(i, zero, tirx.const(count, "int64"), tirx.ForKind.SERIAL, store)
    function = tirx.PrimFunc([out], loop).with_attr("global_symbol", "fill")
    places = np.empty(count, np.int64)
    tvm.compile(tvm.IRModule({"fill": function}), "llvm")["fill"](tvm_ffi.from_dlpack(places))
    return np.where(places >= 0, value.ravel()[np.maximum(places, 0)], 0.0)


def check_packed_once(geometry: Geometry) -> None:
    """Every weight of every product is packed once, and padding is 0."""
    for phase, share in geometry.weights:
        shape = share.operand.weight.shape
        value = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        found = packed(geometry, phase, share, value)
        assert np.array_equal(np.sort(found[found != 0]), value.ravel())
        assert found.size == geometry.weight_elements(phase, share)


class Case:
    """A cell with random weights, inputs and states, and a kernel's arrays made of them."""

    def __init__(
        self,
        cell: str | rnn.RNN,
        hidden: int,
        batch: int,
        steps: int,
        precision: str,
        start: int = 0,
        total: int | None = None,
        inputs: int = 0,
        apart: bool = False,
    ) -> None:
        self.of = (cell, hidden, precision, inputs, apart) if inputs else (cell, hidden, precision)
        self.net, self.layout = layer(*self.of)
        graph, dtype = self.layout.graph, self.layout.dtype
        self.graph, self.batch, self.steps, self.precision = graph, batch, steps, precision
        self.start, self.total = start, steps + start if total is None else total
        rng = np.random.default_rng(hidden + batch)
        self.values: dict[Node, np.ndarray] = {}
        for leaf in graph.params:
            self.values[leaf] = rounded(self.net.weights[f"{leaf.name}_l0"], dtype)
        self.inputs = [rounded(0.7 * rng.normal(size=(self.total, batch, *n.shape)), dtype) for n in graph.inputs]
        self.states = [rounded(rng.uniform(-0.5, 0.5, (batch, *n.shape)), dtype) for n in graph.states]
        self.lengths = rng.integers(0, self.total + 1, batch)
        self.lengths[: min(2, batch)] = [self.total, 0][: min(2, batch)]
        self.reset = rng.random((self.total, batch)) < 0.25
        self.rng = rng

    def hoisted(self, node: Node, where: Any) -> np.ndarray:
        """Rows [steps * B, row_stride] of an input or a hoisted value, as memory holds them."""
        values = dict(self.values) | dict(zip(self.graph.inputs, self.inputs, strict=True))
        if node.op != "input":
            evaluate(list(topological([node])), values)
        rows = np.broadcast_to(values[node], (self.total, self.batch, *node.shape)).reshape(self.total * self.batch, -1)
        out = np.full((rows.shape[0], where.row_stride), POISON)
        out[:, : rows.shape[1]] = rows
        end = (self.start + self.steps) * self.batch
        return encoded(out[self.start * self.batch : end], where.dtype)

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """The kernel's steps of an input, as memory holds them."""
        return encoded(x[self.start : self.start + self.steps], self.layout.dtype)

    def kept(self, node: Node) -> np.ndarray:
        values = dict(self.values)
        evaluate(list(topological([node])), values)
        return np.ascontiguousarray(np.broadcast_to(values[node], node.shape or (1,)))

    def arrays(self, read: list[Node], kept: list[Node], place: Any) -> Arrays:
        """What every kernel has; results are poisoned."""
        float_ = self.layout.arithmetic
        found = {f"param_{n}": self.kept(node).astype(float_) for n, node in enumerate(kept)}
        found |= {f"read_{n}": self.hoisted(node, place(node)) for n, node in enumerate(read)}
        found |= {f"x_{n}": self._rows(x) for n, x in enumerate(self.inputs)}
        found |= {f"old_{n}": s.astype(float_) for n, s in enumerate(self.states)}
        found |= {f"new_{n}": np.full_like(s, POISON, float_) for n, s in enumerate(self.states)}
        stride = self.layout.output.row_stride
        found["y"] = encoded(np.full((self.steps, self.batch, stride), POISON), self.layout.output.dtype)
        return found | {"lengths": self.lengths.astype(np.int64), "reset": self.reset.astype(np.uint8)}

    def expected(self, reverse: bool, lengths: bool, reset: bool) -> tuple[np.ndarray, list[np.ndarray]]:
        """The oracle's y of the kernel's steps and the states after them."""
        T, first, last = self.total, self.start, self.start + self.steps
        ends = self.lengths if lengths else np.full(self.batch, T)
        flags = self.reset if reset else np.zeros((T, self.batch), bool)
        way = int(reverse)
        oracle = Reference(copy.copy(self.net))
        oracle.net.weights = {weight_name(n.name, 0, way): v for n, v in self.values.items() if n.op == "param"}
        state = {n.name: s.copy() for n, s in zip(self.graph.states, self.states, strict=True)}
        # A flag right after the last step is the only one of other steps that counts here.
        more = min(T, last + 1) if reverse else last
        flags = flags[first:more]
        inputs = [x[first:more] for x in self.inputs]
        own = np.clip(ends - first, 0, more - first)
        if reverse and more > last:
            y = self._backwards(oracle, inputs, state, own, flags)
        else:
            y, _ = oracle._layer(self.graph, (0, way), inputs, state, (own, flags))
        return y[: self.steps], [state[n.name] for n in self.graph.states]

    def _backwards(self, oracle: Any, inputs: Any, state: Any, own: Any, flags: Any) -> np.ndarray:
        """Without the step behind the last: its flag alone."""
        restart = flags[-1] & (self.steps < own)
        for name in state:
            state[name][restart] = self.net.cell.initial.get(name, 0.0)
        cut = [x[: self.steps] for x in inputs]
        ends = (np.minimum(own, self.steps), flags[: self.steps])
        return oracle._layer(self.graph, (0, 1), cut, state, ends)[0]


@functools.cache
def scan_regime(of: tuple[str, int, str]) -> Scan:
    """The scan of a layer."""
    net, layout = layer(*of)
    return scan(layout, resolve("nvidia-h200"), [8], net.cell.initial)[0]


def scan_error(case: Case, reverse: bool = False, lengths: bool = False, reset: bool = False) -> float:
    """As `persistent_error`, of the scan regime."""
    found = scan_regime(case.of)
    kernel = found.kernels[lengths or reset]
    arrays = case.arrays(found.step.read_nodes, found.step.param_nodes, found.layout.rows)
    scalars = {"steps": case.steps, "reverse": int(reverse), "batch": case.batch}
    scalars |= {"start": case.start, "total": case.total, "has_lengths": int(lengths), "has_reset": int(reset)}
    run(kernel, arrays, scalars, -(-case.batch * found.width // kernel.threads))
    return error(case, arrays, reverse, lengths, reset)


def persistent_error(
    case: Case,
    geometry: dict[str, Any],
    reverse: bool = False,
    lengths: bool = False,
    reset: bool = False,
    seed: int = 0,
    follows: bool = False,
    users: bool = False,
) -> float:
    """The largest error of y and the states, relative as in oracle/tolerance.py. NaN where poison came through.
    follows: a layer below is said to write the input; it has. users: states are in the network's dtype."""
    made, kernel = persistent_kernel(case.of, tuple(sorted(geometry.items())), lengths or reset)
    return kernel_error(case, made, kernel, reverse, lengths, reset, seed, follows, users=users)


def kernel_error(
    case: Case,
    geometry: Geometry,
    kernel: Kernel,
    reverse: bool = False,
    lengths: bool = False,
    reset: bool = False,
    seed: int = 0,
    follows: bool = False,
    also: Arrays | None = None,
    users: bool = False,
) -> float:
    """The same of any geometry and its kernel, with or without masks. also: arrays of pointers that few kernels
    have."""
    arrays = case.arrays(geometry.step.read_nodes, geometry.step.param_nodes, lambda node: place_of(case.layout, node))
    for n, (phase, share) in enumerate(geometry.weights):
        value = case.kept(share.operand.weight)
        if geometry.stored:
            arrays[f"scale_{n}"] = e4m3.scales(value, case.precision).ravel()
            codes = packed(geometry, phase, share, e4m3.codes(value, case.precision))
            arrays[f"weight_{n}"] = e4m3.words(codes, case.precision)
            continue
        arrays[f"weight_{n}"] = encoded(packed(geometry, phase, share, value), case.precision)
    groups = -(-case.batch // geometry.rows)
    places = max(2, min(case.steps + 1, 3 * exchange_by_polling.TURN))  # where values are polled for; else two copies
    arrays |= also or {}
    arrays["exchange"] = np.full(groups * places * geometry.exchange_words // 2, 0xFFFFFFFF, np.uint32)
    arrays["counter"] = np.zeros(groups * COUNTER_WORDS, np.uint32)
    arrays["below"] = np.full(groups * COUNTER_WORDS, 1 << 30, np.uint32)
    scalars = {"steps": case.steps, "direction": -1 if reverse else 1, "batch": case.batch, "row0": 0, "teams": groups}
    scalars |= {"follows": int(follows), "users": int(users)}
    dtype, states = case.layout.dtype, [f"{way}_{n}" for way in ("old", "new") for n in range(len(case.states))]
    if users:
        arrays |= {name: encoded(arrays[name], dtype) for name in states}
    scalars |= {"start": case.start, "total": case.total, "has_lengths": int(lengths), "has_reset": int(reset)}
    run(kernel, arrays, scalars, groups * geometry.ctas, seed)
    if users:
        arrays |= {name: decoded(arrays[name], dtype) for name in states}
    return error(case, arrays, reverse, lengths, reset)


def error(case: Case, arrays: Arrays, reverse: bool, lengths: bool, reset: bool) -> float:
    y, states = case.expected(reverse, lengths, reset)
    """The largest error of what a kernel left in its arrays."""
    width = prod(case.graph.output.shape)
    pairs = [
        (decoded(arrays["y"], case.layout.output.dtype)[:, :, :width], y),
        *((arrays[f"new_{n}"], s) for n, s in enumerate(states)),
    ]
    worst = [np.abs(np.asarray(a, np.float64) - e).max() / max(1.0, np.abs(e).max()) for a, e in pairs]
    return float("nan") if any(np.isnan(worst)) else float(max(worst))
