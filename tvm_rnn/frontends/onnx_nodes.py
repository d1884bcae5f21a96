"""An ONNX graph's values, and its ordinary nodes as steps: attributes checked against the standard's own tables.

In: a model, from `onnx_file.py`; nodes that are not recurrent, from `onnx.py`. Out: `GraphSteps`, whose tensors are
read when they are asked for; steps, or Unreadable with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tvm_rnn.network.program import Declared, Step
from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Fields, Unreadable, integer
from .folding import FOLDED, Steps
from .onnx_file import Array, Source, tensor_array, type_name
from .onnx_integers import FORMS, as_others

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

# Attributes that change no result of ours: storage for training, precision of intermediate sums, saturation of float8.
WITHOUT_EFFECT = {"stash_type", "momentum", "ratio", "seed", "saturate", "round_mode", "output_dtype"}
RECURRENT = ("RNN", "LSTM", "GRU")
ATTENTION = ("LinearAttention",)
# Operators that TVM's Relax compiles, by the first operator set whose form was compared with ONNX's own tests and, at
# sizes that have names, with ONNX Runtime. What Relax reads otherwise than the standard says is not here.
COMPILES = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), 7),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "InstanceNormalization", "DepthToSpace"), 7),
    **dict.fromkeys(("LRN", "MeanVarianceNormalization"), 9),
    **{"Mish": 18, "GroupNormalization": 21, "RMSNormalization": 23},
    **dict.fromkeys(("Acos", "Asin", "Atan", "Cosh", "Sinh", "Tan"), 7),
    **dict.fromkeys(("Acosh", "Asinh", "Atanh"), 9),
    **{"Einsum": 12, "QuantizeLinear": 10, "DequantizeLinear": 10, "DynamicQuantizeLinear": 11, "MatMulInteger": 10},
    **{"Resize": 11, "GlobalLpPool": 7, "Hardmax": 13, "Shrink": 9, "EyeLike": 9, "OneHot": 11, "Trilu": 14},
    **{"IsInf": 10, "IsNaN": 9, "CumSum": 14, "GatherElements": 11, "GridSample": 20, "TopK": 10},
    **{"CumProd": 26, "GatherND": 11, "LpNormalization": 1, "BitShift": 11, "BitCast": 26},
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), 18),
}
KNOWN = FOLDED
BODIES = ("Scan", "Loop")  # nodes with one step of a recurrence in them
READ = {*KNOWN, *COMPILES, *FORMS, *RECURRENT, *ATTENTION, *BODIES, "If", "Constant", "CastLike", "DynamicQuantizeLSTM"}


def label(node: NodeProto) -> str:
    """How messages name a node."""
    name = node.name or next(filter(None, node.output), "")
    return f"{node.op_type} {name!r}"


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node has for attributes."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def nodes_below(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes of the graphs that a node has, and of theirs."""
    for graph in bodies(node):
        for own in graph.node:
            yield own
            yield from nodes_below(own)


class GraphSteps(Steps):
    """The values of a graph, in the making."""

    def __init__(self, source: Source) -> None:
        self.source, self.graph = source, source.model.graph
        super().__init__(spending=source.spending)
        self.problems: list[str] = []
        self.tensors = {t.name: t for t in self.graph.initializer}
        self.inputs = self._declared(self.graph.input)
        self.outputs = self._declared(self.graph.output)
        self.taken = {name for n in self.graph.node for name in (*n.input, *n.output)} | {*self.tensors, *self.declared}

    def _declared(self, values: Sequence[ValueInfoProto]) -> list[Declared]:
        found = []
        for value in values:
            if value.name in self.tensors and values is self.graph.input:
                continue  # old models list their weights among the inputs
            kind = value.type.tensor_type
            try:
                if not value.type.HasField("tensor_type"):
                    raise Unreadable("it is no tensor")
                dtype = type_name(kind.elem_type)
            except Unreadable as reason:
                self.problems.append(f"value {value.name!r}: {reason}")
                continue
            axes = [
                int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or None)
                for d in kind.shape.dim
            ]
            shape = tuple(axes) if kind.HasField("shape") else None
            found.append(Declared(value.name, "float32" if dtype == "bfloat16" else dtype, shape))
            self.dtypes[value.name] = dtype
        return found

    def constant(self, name: str) -> Array | None:
        """The value, if it does not depend on inputs. Raises Unreadable where the file does not hold it."""
        if name not in self.constants and name in self.tensors:
            self.constants[name] = tensor_array(self.tensors[name], self.source)
            self.dtypes.setdefault(name, type_name(self.tensors[name].data_type))
        return self.constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Also one that was not read yet."""
        return name in self.tensors or name in self.constants


def is_compiled(node: NodeProto, opset: int) -> bool:
    """Whether a node becomes a step of a compiled function."""
    return node.domain in ("", "ai.onnx") and COMPILES.get(node.op_type, opset + 1) <= opset


def attributes_of(node: NodeProto, version: int) -> dict[str, object]:
    """A node's attributes by name as Python values. Raises Unreadable for one that the standard's version lacks or that
    has another type there, and where inputs or outputs are too few or too many."""
    defs = import_onnx().defs
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except Exception:  # SchemaError, which lies at another place in each version
        raise Unreadable(f"operator set {version} has no {node.op_type}") from None
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            raise Unreadable(f"it has {len(names)} {what}, {node.op_type} has {least} to {most}")
    single = defs.OpSchema.FormalParameterOption.Single
    for formal, name in zip(schema.inputs, node.input, strict=False):
        if formal.option == single and not name:
            raise Unreadable(f"input {formal.name} is not given")
    found: dict[str, object] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise Unreadable(f"attribute {attribute.name!r} is there twice")
        known = schema.attributes.get(attribute.name)
        if known is None or attribute.type != int(known.type.value) or attribute.ref_attr_name:
            raise Unreadable(f"attribute {attribute.name!r} is not one of {node.op_type}'s in operator set {version}")
        found[attribute.name] = _value(attribute)
    return found


def _value(attribute: AttributeProto) -> object:
    """A number, a text, a list of these, or a message."""
    value = import_onnx().helper.get_attribute_value(attribute)
    try:
        if isinstance(value, bytes):
            return value.decode()
        return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value
    except UnicodeDecodeError:
        raise Unreadable(f"attribute {attribute.name!r} is no text") from None


def _tensor(node: NodeProto) -> TensorProto | None:
    """A node's attribute "value", if it has one."""
    return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)


def add_node(steps: GraphSteps, node: NodeProto) -> None:
    """Add an ordinary node's step. Raises Unreadable."""
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        steps.constants[node.output[0]], steps.dtypes[node.output[0]] = constant_of(steps, node)
        return
    if node.op_type == "CastLike" and node.domain in ("", "ai.onnx"):
        _add_cast(steps, node)
        return
    if node.op_type in FORMS and node.domain in ("", "ai.onnx"):
        attributes_of(node, steps.source.opset)
        others = as_others(steps, node)
        for own in others:
            add_node(steps, own)
        if others:
            return
    if is_compiled(node, steps.source.opset):
        attributes = attributes_of(node, steps.source.opset)
        steps.dtypes.update(dtypes_of(steps, node))
    else:
        attributes = dict(ordinary_attributes(steps, node))
    if attributes.pop("flatten", 0):
        _add_flat(steps, node, attributes)
        return
    steps.add(Step(node.op_type, tuple(node.input), tuple(node.output), attributes, label(node)))


def _add_cast(steps: GraphSteps, node: NodeProto) -> None:
    """To the dtype that another value has."""
    attributes_of(node, steps.source.opset)
    x, other = node.input
    dtype = steps.dtype(other)
    if not dtype:
        raise Unreadable(f"the dtype of {other!r} is not known")
    steps.add(Step("Cast", (x,), tuple(node.output), {"dtype": dtype}, label(node)))


def _add_flat(steps: Steps, node: NodeProto, attributes: Fields) -> None:
    """A softmax of old versions: all axes from one on are one."""
    (x,), where = node.input, label(node)
    flat = steps.emit("Flatten", [x], where, axis=attributes["axis"])
    made, shape = steps.emit(node.op_type, [flat], where, axis=1), steps.emit("Shape", [x], where)
    steps.add(Step("Reshape", (made, shape), tuple(node.output), {}, where))


def dtypes_of(steps: Steps, node: NodeProto) -> dict[str, str]:
    """Of what a compiled node makes, where that is not of its first input's dtype."""
    if node.op_type == "EyeLike":
        kind = next((attribute.i for attribute in node.attribute if attribute.name == "dtype"), 0)
        return {node.output[0]: type_name(kind) if kind else steps.dtype(node.input[0])}
    if node.op_type == "BitCast":
        return {node.output[0]: type_name(next(attribute.i for attribute in node.attribute if attribute.name == "to"))}
    if node.op_type == "DequantizeLinear":
        return {node.output[0]: steps.dtype(node.input[1])}
    quantised = steps.dtype(node.input[2]) if len(node.input) > 2 and node.input[2] else "uint8"
    dtypes = {
        "QuantizeLinear": (quantised,),
        "DynamicQuantizeLinear": ("uint8", "float32", "uint8"),
        "MatMulInteger": ("int32",),
        "TopK": (steps.dtype(node.input[0]), "int64"),
        "IsInf": ("bool",),
        "IsNaN": ("bool",),
        "OneHot": (steps.dtype(node.input[2]) if len(node.input) > 2 else "",),
    }
    return dict(zip(node.output, dtypes.get(node.op_type, ()), strict=False))


def ordinary_attributes(steps: GraphSteps, node: NodeProto, known: Collection[str] = KNOWN) -> Fields:
    """The attributes, as a step has them, of a node of an operator that is in all operator sets. Raises Unreadable."""
    if node.domain not in ("", "ai.onnx"):
        raise Unreadable(f"operator {node.domain}.{node.op_type} is not of the standard set")
    if node.op_type not in known:
        raise Unreadable(not_supported(node, known))
    attributes = attributes_of(node, steps.source.opset)
    if node.op_type in REWRITES:
        attributes = dict(REWRITES[node.op_type](steps, node, attributes))
    outputs = [name for name in node.output if name]
    if node.op_type == "BatchNormalization" and len(outputs) > 1:
        raise Unreadable(f"output {outputs[1]!r} is for training")
    return {name: value for name, value in attributes.items() if name not in WITHOUT_EFFECT}


def not_supported(node: NodeProto, known: Collection[str] = KNOWN) -> str:
    """That its operator is not supported, and which are not in its branches."""
    elsewhere = (*known, *COMPILES, *FORMS, *RECURRENT, *BODIES, *ATTENTION, "CastLike")
    below = Counter(own.op_type for own in nodes_below(node) if own.op_type not in elsewhere)
    more = ", ".join(f"{name} ({count})" for name, count in sorted(below.items()) if name != "Constant")
    return f"operator {node.op_type} is not supported" + (f"; nor is, in its branches: {more}" if more else "")


def constant_of(steps: GraphSteps, node: NodeProto) -> tuple[Array, str]:
    """A Constant's value, and the name of its element type. Raises Unreadable."""
    given = attributes_of(node, steps.source.opset)
    if len(given) != 1:
        raise Unreadable("it has no value, or several")
    ((name, value),) = given.items()
    tensor = _tensor(node)
    if tensor is not None:
        return tensor_array(tensor, steps.source), type_name(tensor.data_type)
    if name in ("value_float", "value_floats", "value_int", "value_ints"):
        dtype = "float32" if "float" in name else "int64"
        return np.array(value, dtype), dtype
    raise Unreadable(f"constants of the form {name!r} are not supported")


# --- what versions and options come to -------------------------------------------------------------------------------

Rewrite: TypeAlias = "Callable[[GraphSteps, NodeProto, Fields], Fields]"


def _softmax(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    return {"axis": 1, **a, "flatten": 1} if steps.source.opset < 13 else a


def _constant_of_shape(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    tensor = _tensor(node)
    if tensor is None:
        return {"value": 0.0, "dtype": "float32"}
    value = tensor_array(tensor, steps.source)
    if value.size != 1:
        raise Unreadable(f"its value has {value.size} elements")
    return {"value": value.reshape(()).item(), "dtype": value.dtype.name}


def _cast(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    dtype = type_name(integer(a, "to", 0))
    if dtype == "bfloat16":
        raise Unreadable("casts to bfloat16 are not supported")
    return {"dtype": dtype}


def _split(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    if "split" in a or (len(node.input) > 1 and node.input[1]):
        return a
    return {"num_outputs": len(node.output), **a}


def _dropout(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    flag = node.input[2] if len(node.input) > 2 else ""
    value = steps.constant(flag) if flag else None
    if flag and (value is None or value.any()):
        raise Unreadable("dropout in training mode is not supported")
    return {}


def _batch_normalization(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    if a.get("training_mode", 0) or not a.get("spatial", 1):
        raise Unreadable("batch normalization in training mode, or per element, is not supported")
    return {name: value for name, value in a.items() if name not in ("training_mode", "spatial")}


def _pad(steps: GraphSteps, node: NodeProto, a: Fields) -> Fields:
    if a.get("mode", "constant") not in ("constant", "edge", "reflect"):
        raise Unreadable(f"mode {a['mode']!r} is not supported")
    return a


REWRITES: dict[str, Rewrite] = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "ConstantOfShape": _constant_of_shape,
    "Cast": _cast,
    "Split": _split,
    "Dropout": _dropout,
    "BatchNormalization": _batch_normalization,
    "Pad": _pad,
}
