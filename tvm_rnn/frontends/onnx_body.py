"""One step of any cell as an ONNX graph: the body of a Scan.

In: a layer's traced graph, from `onnx_export.py`. Out: ONNX nodes for its values. Shapes in our graphs leave out B;
here what depends on inputs or states has it as its first axis, what depends on weights alone has not, and broadcasting
makes the two fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Graph, Node, depends

Make = Callable[..., str]
INT64 = 7  # of onnx.TensorProto

SAME = {  # our ops whose ONNX name takes the same arguments
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "softplus": "Softplus",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "power": "Pow",
    "floor": "Floor",
    "maximum": "Max",
    "minimum": "Min",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "equal": "Equal",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_not": "Not",
    "where": "Where",
}


@dataclass
class Body:
    """The values of one step. `make` adds a node and returns its output's name; `constant` an initializer's.

    names: what leaves are called. batch: the name of B, as a list of one whole number.
    """

    make: Make
    constant: Callable[[ArrayLike, str], str]
    dtype: str
    names: dict[Node, str]
    batch: str = ""
    batched: dict[Node, bool] = field(default_factory=dict)

    def run(self, graph: Graph) -> list[str]:
        """The names of the new states and of the output, each [B, *shape]."""
        nodes = graph.nodes()
        leaves = depends(nodes)
        self.batched = {node: bool(leaves[node]) for node in nodes}
        self.names_of(nodes)
        shapes = [state.shape for state in graph.states] + [graph.output.shape]
        roots = [*graph.results, graph.output]
        # Copies: a body may not give out one value twice, nor what it was given.
        return [self.make("Identity", self._whole(root, shape)) for root, shape in zip(roots, shapes, strict=True)]

    def names_of(self, nodes: Iterable[Node]) -> dict[Node, str]:
        """Make these, each of which comes after its arguments; all names so far."""
        for node in nodes:
            if node not in self.names:
                self.names[node] = self._made(node)
        return self.names

    def _whole(self, node: Node, shape: Sequence[int]) -> str:
        """A value with B, also where it does not depend on a row."""
        sizes = self.constant(list(shape), "int64")
        wanted = self.make("Concat", self.batch, sizes, axis=0) if shape else self.batch
        return self.make("Expand", self.names[node], wanted)

    def _made(self, node: Node) -> str:
        names = [self.names[arg] for arg in node.args]
        if node.op == "const":
            assert node.value is not None
            return self.constant(node.value, self.dtype)
        if node.op in SAME:
            return self.make(SAME[node.op], *names)
        found: str = getattr(self, f"_{node.op}")(node, names)
        return found

    # --- one method per op that has no counterpart of the same form ----------------------------------------------

    def _not_equal(self, node: Node, names: list[str]) -> str:
        return self.make("Not", self.make("Equal", *names))

    def _to_int8(self, node: Node, names: list[str]) -> str:
        return self._in_a_byte(names[0], -128.0, 127.0)

    def _to_uint8(self, node: Node, names: list[str]) -> str:
        return self._in_a_byte(names[0], 0.0, 255.0)

    def _in_a_byte(self, x: str, low: float, high: float) -> str:
        """0 of NaN, which equals nothing."""
        least, most, zero = (self.constant(value, self.dtype) for value in (low, high, 0.0))
        inside = self.make("Min", self.make("Max", self.make("Round", x), least), most)
        return self.make("Where", self.make("Equal", x, x), inside, zero)

    def _expm1(self, node: Node, names: list[str]) -> str:
        """Exact for small x, as ours: 2 t / (1 - t) for t = tanh(x / 2) below 1; exp(x) - 1 above."""
        (x,) = names
        one, two = self.constant(1.0, self.dtype), self.constant(2.0, self.dtype)
        t = self.make("Tanh", self.make("Div", x, two))
        near = self.make("Div", self.make("Mul", two, t), self.make("Sub", one, t))
        return self.make("Where", self.make("Less", x, one), near, self.make("Sub", self.make("Exp", x), one))

    def _log1p(self, node: Node, names: list[str]) -> str:
        """Exact for small x, as ours: log(u) x / (u - 1) for u = 1 + x (Goldberg 1991, theorem 4); x itself where u
        is 1, and log(u) where it is infinite."""
        (x,) = names
        one = self.constant(1.0, self.dtype)
        u = self.make("Add", one, x)
        log, less = self.make("Log", u), self.make("Sub", u, one)
        corrected = self.make("Div", self.make("Mul", log, x), less)
        corrected = self.make("Where", self.make("Equal", u, x), log, corrected)
        return self.make("Where", self.make("Equal", less, self.constant(0.0, self.dtype)), x, corrected)

    def _mod(self, node: Node, names: list[str]) -> str:
        """The rest that fmod leaves, with the sign of the divisor: ONNX's Mod of numbers has that of the dividend."""
        zero, rest = self.constant(0.0, self.dtype), self.make("Mod", *names, fmod=1)
        differ = self.make("Less", self.make("Mul", self.make("Sign", rest), self.make("Sign", names[1])), zero)
        return self.make("Where", differ, self.make("Add", rest, names[1]), rest)

    def _stop_gradient(self, node: Node, names: list[str]) -> str:
        return names[0]

    def _surrogate(self, node: Node, names: list[str]) -> str:
        return names[0]

    def _take(self, node: Node, names: list[str]) -> str:
        """What is no place is an error in ONNX."""
        lead = node.shape[: len(node.shape) - node.attrs["rank"] + 1]
        sizes = self.constant([*([0] if self.batched[node.args[1]] else []), *lead], "int64")
        places = self.make("Cast", self.make("Reshape", names[1], sizes), to=INT64)
        return self.make("Gather", names[0], places, axis=0)

    def _flip(self, node: Node, names: list[str]) -> str:
        last, before = -1, -(2**63) + 1
        parts = (last, before, int(node.attrs["axis"]), -1)
        return self.make("Slice", names[0], *(self.constant([part], "int64") for part in parts))

    def _reshape(self, node: Node, names: list[str]) -> str:
        sizes = [*([0] if self.batched[node] else []), *node.attrs["to"]]
        return self.make("Reshape", names[0], self.constant(sizes, "int64"))

    def _transpose(self, node: Node, names: list[str]) -> str:
        axes = [int(a) for a in node.attrs["axes"]]
        return self.make("Transpose", names[0], perm=[0, *(a + 1 for a in axes)] if self.batched[node] else axes)

    def _slice(self, node: Node, names: list[str]) -> str:
        parts = (node.attrs[key] for key in ("start", "stop", "axis"))
        return self.make("Slice", names[0], *(self.constant([int(part)], "int64") for part in parts))

    def _index(self, node: Node, names: list[str]) -> str:
        return self.make(
            "Gather", names[0], self.constant(int(node.attrs["at"]), "int64"), axis=int(node.attrs["axis"])
        )

    def _sum(self, node: Node, names: list[str]) -> str:
        axes = self.constant([int(node.attrs["axis"])], "int64")
        return self.make("ReduceSum", names[0], axes, keepdims=int(node.attrs["keepdims"]))

    def _max(self, node: Node, names: list[str]) -> str:
        return self.make("ReduceMax", names[0], axes=[int(node.attrs["axis"])], keepdims=int(node.attrs["keepdims"]))

    def _concat(self, node: Node, names: list[str]) -> str:
        if self.batched[node]:
            names = [
                n if self.batched[arg] else self._whole(arg, arg.shape) for n, arg in zip(names, node.args, strict=True)
            ]
        return self.make("Concat", *names, axis=int(node.attrs["axis"]))

    def _broadcast(self, node: Node, names: list[str]) -> str:
        return self.make(
            "Expand", names[0], self.constant([*([1] if self.batched[node] else []), *node.shape], "int64")
        )

    def _conv(self, node: Node, names: list[str]) -> str:
        kernel, x = node.args
        if self.batched[kernel] or not self.batched[x]:
            what = "ONNX has no convolution whose kernel is made anew for each row"
            raise ConfigError(message(what, where=node.source, do="write the kernel as a parameter"))
        taps = node.attrs["taps"]
        weight = self.make("Reshape", names[0], self.constant([-1, x.shape[0], *taps], "int64"))
        found = self.make("Conv", names[1], weight, dilations=list(node.attrs["dilation"]), kernel_shape=list(taps))
        return self.make("Reshape", found, self.constant([0, *node.shape], "int64"))

    def _einsum(self, node: Node, names: list[str]) -> str:
        inputs, out = node.attrs["spec"].split("->")
        row = next(letter for letter in "zyxwvutsrq" if letter not in inputs)
        left, right = (
            row + letters if self.batched[arg] else letters
            for letters, arg in zip(inputs.split(","), node.args, strict=True)
        )
        return self.make("Einsum", *names, equation=f"{left},{right}->{row * self.batched[node]}{out}")


def constants_of(values: ArrayLike, dtype: str) -> np.ndarray:
    """An array for an initializer; bfloat16 by the type that the onnx package has for it."""
    if dtype != "bfloat16":
        return np.asarray(values, dtype)
    import ml_dtypes  # comes with onnx

    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)
