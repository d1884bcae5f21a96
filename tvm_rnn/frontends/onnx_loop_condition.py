"""ONNX's Loop that ends by a condition as one that runs all of its steps: what it carries stays, once it has ended.

In: a Loop node, from `onnx_loop.py`. Out: the same without a condition, with one state more.

Rewrite: Loop(M, c, h_0): h' = f(h), c' = g(h)   -->   Loop(M, true, h_0, go_0): h' = where(go > 0.5, f(h), h),
                                                       go' = where(go > 0.5, where(g(h), 1, 0), 0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable
from .folding import held_dtype_of
from .onnx_file import type_name
from .onnx_nodes import GraphSteps, bodies, label, nodes_below

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto


def without_condition(steps: GraphSteps, node: NodeProto, why: str) -> NodeProto:
    """A copy without the condition. why: it has one. Raises Unreadable where a result has as many steps as ran."""
    count = len(node.input) - 2
    listed = [name for name in node.output[count:] if name in _read(steps)]
    if listed or not count:
        shown = ", ".join(map(repr, listed))
        raise Unreadable(f"{why}: only a run shows how many steps {shown} has" if listed else f"{why}: it has no state")
    made = type(node)()
    made.CopyFrom(node)
    (body,) = bodies(made)
    kind = body.input[2].type.tensor_type.elem_type
    dtype = type_name(kind) if kind else steps.dtype(node.input[2])
    go = _Held(steps, body, dtype).hold(count)
    del made.output[count:]
    made.input[1] = ""
    made.input.append(_first(steps, node, dtype))
    made.output.append("")
    body.input.append(go)
    return made


def _read(steps: GraphSteps) -> set[str]:
    every = [own for node in steps.graph.node for own in (node, *nodes_below(node))]
    return {name for own in every for name in own.input} | {value.name for value in steps.graph.output}


def _first(steps: GraphSteps, node: NodeProto, dtype: str) -> str:
    """Whether the first step is taken, as a number [1]."""
    known = steps.constant(node.input[1]) if node.input[1] else np.array(True)
    if known is not None:
        return steps.keep([float(known.all())], held_dtype_of(dtype))
    number = steps.emit("Cast", [node.input[1]], label(node), dtype=held_dtype_of(dtype))
    return steps.emit("Reshape", [number, steps.keep([1])], label(node))


class _Held:
    """A body whose states are held. dtype: theirs."""

    def __init__(self, steps: GraphSteps, body: GraphProto, dtype: str) -> None:
        self.steps, self.body, self.onnx = steps, body, import_onnx()
        self.kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(held_dtype_of(dtype)))
        self.dtype = held_dtype_of(dtype)

    def hold(self, count: int) -> ValueInfoProto:
        """Change the body, of so many states. What it declares the new one as."""
        body, steps, make = self.body, self.steps, self.onnx.helper.make_node
        go, number, then = (steps.fresh(name) for name in ("go", "go", "go"))
        live, ends = body.input[1].name, body.output[0].name
        body.input[1].name = steps.fresh(live)
        first = [
            make("Squeeze", [go, steps.keep([0])], [number])
            if steps.source.opset >= 13
            else make("Squeeze", [go], [number], axes=[0]),
            make("Greater", [number, steps.keep(0.5, self.dtype)], [live]),
        ]
        nodes, last = [*body.node], []
        for new, old in zip(body.output[1 : 1 + count], body.input[2:], strict=True):
            held = steps.fresh(new.name)
            last.append(make("Where", [live, new.name, old.name], [held]))
            new.name = held
        one, zero = (steps.keep([value], self.dtype) for value in (1.0, 0.0))
        last += [make("Where", [ends, one, zero], [then]), make("Where", [live, then, zero], [f"{then}.held"])]
        del body.node[:], body.output[1 + count :]
        body.node.extend([*first, *nodes, *last])
        info = self.onnx.helper.make_tensor_value_info
        body.output.append(info(f"{then}.held", self.kind, [1]))
        return info(go, self.kind, [1])
