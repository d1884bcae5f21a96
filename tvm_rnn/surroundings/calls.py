"""A Relax graph as a straight list of calls of fused loops.

In: a Relax module with one function, from a frontend. Out: `Graph`: functions of blocks (s_tir), in order, with the
values that each reads and makes; or Unsupported, which says what Relax leaves for a virtual machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt

from .demands import Demand, Unequal, demands_of
from .ieee import as_ieee

# Channels come last: vectors run along them, in inputs, filters and results alike.
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "OWI"],
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    # The only ones that TVM has loops for.
    "relax.nn.conv1d_transpose": ["NCW", "IOW"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}
# What TVM does not know to be pointwise, and so to work in any order of axes.
for _name in ("relax.clip", "relax.nn.leakyrelu"):
    tvm.ir.register_op_attr(_name, "FRelaxInferLayout", tvm.ir.Op.get("relax.sigmoid").get_attr("FRelaxInferLayout"))
FIRST = (relax.transform.DecomposeOpsForInference, relax.transform.CanonicalizeBindings)
PASSES = (
    relax.transform.LegalizeOps,
    relax.transform.FoldConstant,
    relax.transform.AnnotateTIROpPattern,
    relax.transform.FuseOps,
    relax.transform.FuseTIR,
    relax.transform.DeadCodeElimination,
)


class Unsupported(Exception):
    """What no straight list of calls can do, in words."""


@dataclass(eq=False)
class Value:
    """An array of the graph. constant: its elements, where they are known."""

    shape: tuple[Expr, ...]
    dtype: str
    constant: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray:
        """A constant's elements."""
        assert self.constant is not None
        return self.constant


@dataclass
class Call:
    """function: loops in blocks; its parameters are inputs, then numbers, then outputs."""

    function: tirx.PrimFunc
    inputs: list[Value]
    numbers: list[Expr]
    outputs: list[Value]


@dataclass
class Look:
    """What must be true of a value's elements, whole numbers, when a model runs: low <= element < high."""

    value: Value
    low: Expr
    high: Expr
    text: str


@dataclass
class Graph:
    """Calls in order, each after those that make its inputs. demands: what they need of the inputs' sizes. looks: what
    of values. numbers: names of sizes that are elements of an input, whose place is the key, in order."""

    inputs: list[Value]
    outputs: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    numbers: dict[int, list[tirx.Var]] = field(default_factory=dict)


def calls_of(module: tvm.IRModule) -> Graph:
    """The calls that a Relax module's main function comes to. Raises Unsupported."""
    try:
        module["main"] = _Clipped(module).visit_expr(module["main"])
        demands = demands_of(module)
        module = tvm.transform.Sequential([make() for make in FIRST])(module)
        module = _channels_last(module)
        module["main"] = _Laid(module).visit_expr(module["main"])
        module = tvm.transform.Sequential([make() for make in PASSES])(module)
    except Unequal as reason:
        raise Unsupported(str(reason)) from None
    except Exception as reason:  # TVM raises many classes, none of them meant for users
        raise Unsupported(_last_line(reason)) from None
    graph = _Reader(module).graph
    graph.demands = demands
    return graph


def _channels_last(module: tvm.IRModule) -> tvm.IRModule:
    """The module with convolutions as LAYOUTS says, where Relax can do that with all that is around them."""
    try:
        return relax.transform.ConvertLayout(LAYOUTS)(module)
    except Exception:  # TVM raises many classes
        return module


def _visit_call(mutator: relax.PyExprMutator, call: tvm.ir.Call) -> relax.Expr:
    """Elements are taken at places inside of the array, whatever the indices are. Axes are counted from the first one:
    of others Relax loses count where it changes layouts. So it does of what is stacked: that is joined along a new axis
    (where scalars are stacked, it divides by their rank, and that ends the process). A factor or dividend 0 gets an
    axis: of a scalar, which is written into loops as a number, TVM holds that 0 times anything is 0."""
    call = mutator.visit_expr_post_order(call)
    if call.op in _VANISHING:
        return _apart(call)
    if call.op == tvm.ir.Op.get("relax.take"):
        return relax.op.take(*call.args, axis=call.attrs.axis, mode="clip")
    if call.op == tvm.ir.Op.get("relax.squeeze") and call.attrs.axis is not None:
        rank = call.args[0].ty.ndim
        return relax.op.squeeze(call.args[0], [int(axis) % rank for axis in call.attrs.axis])
    if call.op == tvm.ir.Op.get("relax.stack") and isinstance(call.args[0], tvm.ir.Tuple):
        axis, parts = int(call.attrs.axis or 0), call.args[0].fields
        axis %= parts[0].ty.ndim + 1
        whole = [mutator.builder_.emit(relax.op.expand_dims(part, axis)) for part in parts]
        return relax.op.concat(whole, axis)
    return call


_VANISHING = (tvm.ir.Op.get("relax.multiply"), tvm.ir.Op.get("relax.divide"))


def _apart(call: tvm.ir.Call) -> relax.Expr:
    """A product or a quotient whose scalar zeros are arrays."""
    arrays = [own.value.numpy() if isinstance(own, tvm.ir.GenericConst) else None for own in call.args]
    zeros = [v is not None and v.ndim == 0 and v.dtype.kind == "f" and not v.any() for v in arrays]
    if not any(zeros) or all(own.ty.ndim == 0 for own in call.args):
        return call
    pairs = zip(call.args, zeros, strict=True)
    args = [relax.const(own.value.numpy().reshape(1)) if zero else own for own, zero in pairs]
    return tvm.ir.Call(call.op, args, call.attrs)


_Clipped = relax.expr_functor.mutator(type("_Clipped", (relax.PyExprMutator,), {"visit_call_": _visit_call}))


def _lay(mutator: relax.PyExprMutator, call: tvm.ir.Call) -> relax.Expr:
    """Constants whose axes are in another order, or of other sizes, are constants: TVM's FoldConstant would build a
    function for each kind of them, and takes longer than all other passes."""
    call = mutator.visit_expr_post_order(call)
    name = str(getattr(call.op, "name", ""))
    array = _array(mutator, call.args[0]) if name in ("relax.permute_dims", "relax.reshape") else None
    shape = getattr(call.ty, "shape", None)
    if array is None or shape is None or not all(isinstance(axis, tirx.IntImm) for axis in shape.values):
        return call
    if name == "relax.reshape":
        made = array.reshape([int(axis) for axis in shape.values])
    else:
        made = array.transpose(None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes])
    return relax.const(np.ascontiguousarray(made), str(call.ty.dtype))


def _array(mutator: relax.PyExprMutator, value: relax.Expr) -> np.ndarray | None:
    """The elements of a constant, or of what is bound to one."""
    value = mutator.lookup_binding(value) if isinstance(value, tirx.Var) else value
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


_Laid = relax.expr_functor.mutator(type("_Laid", (relax.PyExprMutator,), {"visit_call_": _lay}))


def _last_line(reason: Exception) -> str:
    text = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return text[-1] if text else type(reason).__name__


class _Reader:
    """Reads main's bindings one by one."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.module, main = module, module["main"]
        arrays = [param for param in main.params if not isinstance(param.ty, relax.ShapeType)]
        self.values: dict[object, list[Value]] = {param: [_declared(param.ty)] for param in arrays}
        self.graph = Graph([value for values in self.values.values() for value in values])
        for block in main.body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self._bound(binding)
        self.graph.outputs = self._of(main.body.body)

    def _bound(self, binding: relax.VarBinding) -> list[Value]:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            raise Unsupported("sizes that only a run shows")
        if isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.call_tir"):
            return self._call(value, binding.var.ty)
        if isinstance(value, tvm.ir.Call):
            name = str(getattr(value.op, "name", "a function")).removeprefix("relax.")
            raise Unsupported(f"it has sizes that only a run shows, or no loops of TVM's ({name})")
        return self._of(value)

    def _call(self, call: tvm.ir.Call, kind: relax.Type) -> list[Value]:
        function, given = self.module[call.args[0]], call.args[1]
        inputs, numbers, rest = list[Value](), list[Expr](), [*function.params]
        arrays, sizes = list[tirx.Var](), list[tirx.Var]()
        for item in given.fields if isinstance(given, tvm.ir.Tuple) else [given]:
            found = self._of(item) if _is_array(item) else []
            inputs += found
            arrays += [rest.pop(0) for _ in found]
            if not _is_array(item):
                numbers.append(item)
                sizes.append(rest.pop(0))
        function = tirx.PrimFunc(
            [*arrays, *sizes, *rest], _joined(function.body, arrays, inputs), function.ret_type, function.attrs
        )
        outputs = [_declared(own) for own in (kind.fields if isinstance(kind, relax.TupleType) else [kind])]
        self.graph.calls.append(Call(as_ieee(function), inputs, numbers, outputs))
        return outputs

    def _of(self, item: relax.Expr) -> list[Value]:
        """The values of an expression; several of a tuple."""
        if item in self.values:
            return self.values[item]
        if isinstance(item, tvm.ir.Tuple):
            return [value for own in item.fields for value in self._of(own)]
        if isinstance(item, relax.TupleGetItem):
            return [self._of(item.tuple_value)[item.index]]
        if isinstance(item, tvm.ir.GenericConst):
            array = item.value.numpy()
            return self.values.setdefault(item, [Value(tuple(array.shape), str(array.dtype), array)])
        raise Unsupported(f"a {type(item).__name__} as a value")


def _joined(body: Stmt, arrays: Sequence[Buffer], inputs: Sequence[Value]) -> Stmt:
    """The body, reading what it is given twice in one place."""
    first = {value: own for own, value in zip(reversed(arrays), reversed(inputs), strict=True)}
    others = [(own, first[v]) for own, v in zip(arrays, inputs, strict=True) if not own.same_as(first[v])]

    def load(own: tvm.ir.TensorLoad) -> Expr:
        into = next((into for other, into in others if own.source.same_as(other)), None)
        return own if into is None else tirx.BufferLoad(into, own.indices)

    return tvm_ffi.structural_map(body, (tvm.ir.TensorLoad, load)) if others else body


def _is_array(item: relax.Expr) -> bool:
    return isinstance(item.ty, relax.TensorType | relax.TupleType)


def _declared(kind: relax.Type) -> Value:
    if not isinstance(kind, relax.TensorType) or kind.shape is None or not hasattr(kind.shape, "values"):
        raise Unsupported("an array whose number of axes, or sizes, only a run shows")
    return Value(tuple(_axis(axis) for axis in kind.shape.values), str(kind.dtype))


def _axis(axis: Expr) -> Expr:
    return int(axis) if isinstance(axis, tirx.IntImm) else axis
