"""ONNX's LinearAttention: all of its update rules as cells of ours without weights.

In: a LinearAttention node, from `onnx.py`. Out: a `Recurrent`, one layer, and the steps that turn ONNX's arrays into
ours and back:

    theirs: query [B, T, Hq*K], key [B, T, H*K], value [B, T, H*V], decay [B, T, H*K] or [B, T, H], beta [B, T, H] or
            [B, T, 1]; output [B, T, Hq*V]; states [B, H, K, V]
    ours:   x [T, B, I], all of them side by side; y [T, B, Hq*V]; S [1, B, H, K, V]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.language import functions as f
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.trace import Value
from tvm_rnn.network.program import Step
from tvm_rnn.surroundings.nodes import import_onnx

from .built_cells import Values, build_cell
from .fields import Unreadable, Wrong, integer, number, text
from .folding import Recurrent, add_network
from .onnx_nodes import GraphSteps, attributes_of, label

if TYPE_CHECKING:
    from onnx import NodeProto

# What each update rule reads besides query, key and value.
RULES = {"linear": (), "gated": ("decay",), "delta": ("beta",), "gated_delta": ("decay", "beta")}
INPUTS = ("query", "key", "value", "past_state", "decay", "beta")
DTYPES = ("float32", "float64", "float16", "bfloat16")
MOST_HEADS, MOST_WIDTH = 1 << 12, 1 << 16


@dataclass(frozen=True)
class Form:
    """A node's rule and sizes. queries: heads that read; heads: that are written; widths: of what x is made of."""

    rule: str
    queries: int
    heads: int
    keys: int
    values: int
    scale: float
    widths: Mapping[str, int]

    def cell(self) -> Cell:
        """The rule as a cell whose input is all that a step reads, and whose state is S."""
        doc = f"LinearAttention of ONNX, update rule {self.rule}."
        state = f"{self.heads} {self.keys} {self.values}"
        inputs = {"x": str(sum(self.widths.values()))}
        return build_cell("linear_attention", doc, inputs, {"S": state}, {}, self.equations, output="y")

    def equations(self, v: Values) -> tuple[Value, ...]:
        parts, at = {}, 0
        for name, width in self.widths.items():
            parts[name] = v["x"][at : at + width]
            at += width
        N, K, V, S = self.heads, self.keys, self.values, v["S"]
        k, value = f.reshape(parts["key"], (N, K)), f.reshape(parts["value"], (N, V))
        if "decay" in parts:
            by_key = self.widths["decay"] != N
            S = f.exp(f.reshape(parts["decay"], (N, K if by_key else 1, 1))) * S
        if "beta" in parts:
            beta = f.reshape(parts["beta"], (self.widths["beta"], 1))
            value = beta * (value - f.einsum("nk,nkv->nv", k, S))
        S = S + f.reshape(k, (N, K, 1)) * f.reshape(value, (N, 1, V))
        q = f.reshape(self.scale * parts["query"], (N, self.queries // N, K))
        return S, f.reshape(f.einsum("ngk,nkv->ngv", q, S), (self.queries * V,))


def read_linear_attention(steps: GraphSteps, node: NodeProto, found: list[Recurrent]) -> None:
    """Add a LinearAttention: its layer to `found`, its steps to `steps`. Raises Unreadable with all that is wrong."""
    given = {name: value for name, value in zip(INPUTS, node.input, strict=False) if value}
    form, dtype = _form(steps, node, given), _dtype(steps, given)
    layer = Recurrent(label(node), form.cell(), sum(form.widths.values()), 0, False, dtype, [{}])

    def emit(op: str, *inputs: str, **attributes: object) -> str:
        return steps.emit(op, list(inputs), layer.node, **attributes)

    joined = emit("Concat", *(given[name] for name in form.widths), axis=2)
    past = given.get("past_state", "")
    begin = emit("Unsqueeze", past, steps.keep([0])) if past and not steps.is_zero(past) else ""
    y, last = add_network(steps, layer, emit("Transpose", joined, perm=[1, 0, 2]), "", [begin], len(found))
    results = [emit("Transpose", y, perm=[1, 0, 2]), emit("Squeeze", last, steps.keep([0]))]
    for name, value in zip(node.output, results, strict=False):
        if name:
            steps.add(Step("Identity", (value,), (name,), {}, layer.node))
    found.append(layer)


def _form(steps: GraphSteps, node: NodeProto, given: Mapping[str, str]) -> Form:
    a, wrong = attributes_of(node, steps.source.opset), Wrong()
    rule = text(a, "update_rule", "gated_delta")
    counts = {name: integer(a, name, 0) for name in ("q_num_heads", "kv_num_heads")}
    queries, heads = counts.values()
    if rule not in RULES:
        raise Unreadable(f"update_rule {rule!r} is none of {', '.join(RULES)}")
    if not 0 < heads <= queries <= MOST_HEADS or queries % heads:
        raise Unreadable(f"q_num_heads is {queries} and kv_num_heads {heads}: the first is a multiple of the second")
    names = ("query", "key", "value", *RULES[rule])
    wrong.extend(f"update_rule {rule} needs {name}" for name in names if name not in given)
    wrong.check()
    widths = {name: _width(steps, name, given[name]) for name in names}
    for name, count in (("query", queries), ("key", heads), ("value", heads)):
        if widths[name] % count:
            wrong.append(f"{name} has {widths[name]} features, {count} heads do not divide them")
    keys, values = widths["key"] // heads, widths["value"] // heads
    if widths["query"] != queries * keys:
        wrong.append(f"query has {widths['query']} features, expected {queries} heads of {keys}")
    if widths.get("decay", heads) not in (heads, heads * keys):
        wrong.append(f"decay has {widths['decay']} features, expected {heads} or {heads * keys}")
    if widths.get("beta", heads) not in (heads, 1):
        wrong.append(f"beta has {widths['beta']} features, expected {heads} or 1")
    wrong.check()
    scale = number(a, "scale") if "scale" in a else 0.0
    return Form(rule, queries, heads, keys, values, scale or keys**-0.5, widths)


def _width(steps: GraphSteps, name: str, value: str) -> int:
    """The last axis of one of a node's inputs: as declared, else as the standard's own rules of shapes have it."""
    constant, declared = steps.constant(value), steps.declared.get(value)
    axes = constant.shape if constant is not None else declared.shape if declared is not None else None
    if axes is None:
        axes = _inferred(steps, value)
    if axes is None or len(axes) != 3 or not isinstance(axes[-1], int):
        shape = "no shape" if axes is None else f"shape {[n if isinstance(n, int) else '?' for n in axes]}"
        raise Unreadable(f"{name} ({value!r}) has {shape}; expected 3 axes, the last of a size that is known")
    if not 0 < axes[-1] <= MOST_WIDTH:
        raise Unreadable(f"{name} has {axes[-1]} features, at most {MOST_WIDTH}")
    return axes[-1]


def _inferred(steps: GraphSteps, value: str) -> tuple[int | None, ...] | None:
    """A value's shape by onnx's inference of shapes; None where that fails or does not know it."""
    onnx = import_onnx()
    try:
        graph = onnx.shape_inference.infer_shapes(steps.source.model).graph
    except Exception:  # of several types, none of them public
        return None
    for info in graph.value_info:
        if info.name == value and info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            return tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in dims)
    return None


def _dtype(steps: GraphSteps, given: Mapping[str, str]) -> str:
    found = {name: dtype for name, value in given.items() if (dtype := steps.dtype(value))}
    kinds = {*found.values()}
    if len(kinds) > 1 or not kinds <= {*DTYPES}:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise Unreadable(f"its inputs are not all of one of {', '.join(DTYPES)}: {listed}")
    return next(iter(kinds), "float32")
