"""Inputs of an ONNX model that the user fixes: to a value, or to sizes.

In: a model, values and shapes by the names of its inputs. Out: the model with constants in place of these inputs, and
with the sizes that were given; or ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.network.program import Axis
from tvm_rnn.surroundings.nodes import import_onnx

from ..errors import ConfigError, message, unknown
from .fields import Unreadable
from .onnx_file import Source, type_name

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto, ValueInfoProto

Values = Mapping[str, ArrayLike]
Shapes = Mapping[str, Sequence[Axis]]


def with_given(source: Source, values: Values, shapes: Shapes) -> Source:
    """The model with these inputs fixed. values: what an input is. shapes: its axes; a name or None: any size."""
    if not values and not shapes:
        return source
    model: ModelProto = type(source.model)()
    model.CopyFrom(source.model)
    initial = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in initial}
    for name in (*values, *shapes):
        if name not in inputs:
            raise ConfigError(message("from_onnx: no such input", where=source.path, **unknown("input", name, inputs)))
    for name, shape in shapes.items():
        _fix_sizes(inputs[name], shape, source)
    for name, value in values.items():
        model.graph.initializer.append(_tensor(inputs[name], value, source))
        model.graph.input.remove(inputs[name])
    return replace(source, model=model)


def _axes(declared: ValueInfoProto) -> list[Axis] | None:
    kind = declared.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [int(d.dim_value) if d.HasField("dim_value") else (d.dim_param or None) for d in kind.shape.dim]


def _fits(one: Axis, two: Axis) -> bool:
    return one == two or not isinstance(one, int) or not isinstance(two, int)


def _fix_sizes(declared: ValueInfoProto, shape: Sequence[Axis], source: Source) -> None:
    own, axes = _axes(declared), list(shape)
    rank_fits = own is None or (len(own) == len(axes) and all(map(_fits, own, axes)))
    if not rank_fits or not all(axis is None or isinstance(axis, str) or axis >= 0 for axis in axes):
        what = f"from_onnx: this shape does not fit input {declared.name!r}"
        raise ConfigError(message(what, where=source.path, got=axes, expected="any" if own is None else own))
    dims = declared.type.tensor_type.shape
    kept = own or [None] * len(axes)
    del dims.dim[:]
    for axis, before in zip(axes, kept, strict=True):
        known = before if axis is None or isinstance(before, int) else axis
        dim = dims.dim.add()
        if isinstance(known, int):
            dim.dim_value = known
        elif known is not None:
            dim.dim_param = known


def _tensor(declared: ValueInfoProto, value: ArrayLike, source: Source) -> TensorProto:
    """A value of the input's type; one of another rank is taken where it has a single element."""
    try:
        dtype = type_name(declared.type.tensor_type.elem_type)
    except Unreadable as reason:
        raise ConfigError(
            message("from_onnx: given", where=declared.name, got=reason, do="leave it an input")
        ) from None
    array, own = np.asarray(value), _axes(declared)
    found = array.astype("float32" if dtype == "bfloat16" else dtype) if array.dtype.kind in "biuf" else array
    shape = [1 if axis is None or isinstance(axis, str) else axis for axis in own or array.shape]
    if found.size == 1 and own is not None and all(axis == 1 for axis in shape):
        found = found.reshape(shape)
    fits = own is None or (found.ndim == len(own) and all(map(_fits, own, found.shape)))
    exact = array.dtype.kind in "biuf" and bool(np.all((found == array) | (found != found)))
    if not fits or not (exact or (found.dtype.kind == "f" and array.dtype.kind == "f")):
        what = f"from_onnx: this value does not fit input {declared.name!r}"
        got, expected = f"{value!r:.80} ({array.dtype}, {list(array.shape)})", f"{dtype} of shape {own}"
        raise ConfigError(message(what, where=source.path, got=got, expected=expected))
    made: TensorProto = import_onnx().numpy_helper.from_array(found, declared.name)
    return made
