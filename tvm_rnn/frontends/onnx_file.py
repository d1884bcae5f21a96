"""ONNX files as data: the model and its tensors, with every size compared with what is there before it is used, and
all that is made of them counted (`budget.py`).

In: a path, bytes or an onnx.ModelProto; the file may be damaged or hostile. Out: the model, arrays of its tensors, and
where it came from; or ConfigError.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.surroundings.nodes import import_onnx

from ..budget import Spending, is_shape
from ..errors import ConfigError, message
from .fields import Unreadable

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

Array = np.ndarray

MOST_BYTES = (1 << 31) - 1  # protobuf's own limit
# ONNX's number of an element type: NumPy's name, and the field that holds elements where they are not raw bytes.
TYPES = {
    1: ("float32", "float_data"),
    2: ("uint8", "int32_data"),
    3: ("int8", "int32_data"),
    4: ("uint16", "int32_data"),
    5: ("int16", "int32_data"),
    6: ("int32", "int32_data"),
    7: ("int64", "int64_data"),
    9: ("bool", "int32_data"),
    10: ("float16", "int32_data"),
    11: ("float64", "double_data"),
    12: ("uint32", "uint64_data"),
    13: ("uint64", "uint64_data"),
    16: ("bfloat16", "int32_data"),
}


@dataclass(frozen=True)
class Source:
    """A model and where it came from. folder: where its external data may lie; None for a model in memory. spending:
    what reading it has left."""

    model: ModelProto
    path: str | None = None
    sha256: str | None = None
    spending: Spending = field(default_factory=Spending, compare=False)

    @property
    def folder(self) -> str | None:
        return None if self.path is None else os.path.dirname(os.path.abspath(self.path))

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        own = [int(entry.version) for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        return own[0] if own else 0


def read_model(source: object) -> Source:
    """The model in a file (a path), in bytes or in memory (an onnx.ModelProto). External data is not read yet.

    Raises ConfigError for what is no ONNX model.
    """
    onnx = import_onnx()
    path, digest, model, data = None, None, onnx.ModelProto(), b""
    if isinstance(source, onnx.ModelProto):
        model = source
    elif isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if not os.path.isfile(path):
            raise ConfigError(message("no such ONNX file", got=path, do="check the path"))
        size = os.path.getsize(path)
        if size > MOST_BYTES:
            do = "keep its weights in external data, as onnx.save(..., save_as_external_data=True) does"
            raise ConfigError(message("this ONNX file is too large", where=path, got=f"{size} bytes", do=do))
        with open(path, "rb") as file:
            data = file.read()
        digest = hashlib.sha256(data).hexdigest()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    else:
        expected = "a path, bytes or an onnx.ModelProto"
        raise ConfigError(message("from_onnx: not an ONNX model", got=f"{source!r:.80}", expected=expected))
    try:
        model.MergeFromString(data)
    except Exception as reason:  # protobuf has a class of its own for this, at another place in each version
        raise ConfigError(message("not an ONNX file", where=path, got=str(reason), do="export it again")) from None
    if not model.HasField("graph") or not model.opset_import:
        got, do = "no graph, or no version of its operators", "export it again"
        raise ConfigError(message("not an ONNX file", where=path, got=got, do=do))
    found = Source(model, path, digest)
    spending = Spending(path, int(model.ByteSize()) + sum(map(os.path.getsize, _files_beside(found))))
    if not _is_text(model, spending):
        raise ConfigError(message("not an ONNX file", where=path, got="a name that is no UTF-8", do="export it again"))
    return replace(found, spending=spending)


def _is_text(found: ModelProto, spending: Spending, depth: int = 1) -> bool:
    """Whether every string of a message is one: protobuf gives those that are not UTF-8 as bytes."""
    spending.take(f"a {found.DESCRIPTOR.name}", nodes=1, depth=depth)
    for kind, value in found.ListFields():
        if kind.type not in (kind.TYPE_STRING, kind.TYPE_MESSAGE):
            continue
        for item in [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value:
            if isinstance(item, bytes) or (kind.type == kind.TYPE_MESSAGE and not _is_text(item, spending, depth + 1)):
                return False
    return True


def _files_beside(source: Source) -> set[str]:
    """The files with external data that are there, each once, whoever names it."""
    graphs = [source.model.graph, *(a.g for node in source.model.graph.node for a in node.attribute if a.HasField("g"))]
    places = {
        os.path.realpath(os.path.join(source.folder or "", entry.value.replace("\0", "")))
        for graph in graphs
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return {path for path in places if os.path.isfile(path)} if source.folder else set()


def type_name(code: int) -> str:
    """NumPy's name of an element type (and "bfloat16"), or Unreadable."""
    if code not in TYPES:
        raise Unreadable(f"element type {code} is not supported")
    return TYPES[code][0]


def tensor_array(tensor: TensorProto, source: Source) -> Array:
    """A tensor's elements; bfloat16 as float32 of the same values. Raises Unreadable where it does not hold them."""
    name, dims = type_name(tensor.data_type), [int(d) for d in tensor.dims]
    stored = np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    count = math.prod(dims)
    if not is_shape(dims):
        raise Unreadable(f"tensor {tensor.name!r} has shape {dims}")
    if tensor.data_location == 1:
        flat = _external(tensor, stored, count, source)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * stored.itemsize:
            got = f"{len(tensor.raw_data)} bytes for shape {dims} of {name}"
            raise Unreadable(f"tensor {tensor.name!r} has {got}")
        flat = np.frombuffer(tensor.raw_data, stored)
    else:
        values = getattr(tensor, TYPES[tensor.data_type][1])
        if len(values) != count:
            raise Unreadable(f"tensor {tensor.name!r} has {len(values)} elements for shape {dims}")
        bits = name in ("float16", "bfloat16")  # kept as whole numbers, one for each element
        flat = np.array(values, np.int64).astype("<u2").view(stored) if bits else np.array(values).astype(stored)
    if name == "bfloat16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(dims).astype("float32" if name == "bfloat16" else name)


def _external(tensor: TensorProto, stored: np.dtype[np.generic], count: int, source: Source) -> Array:
    """Elements that lie in a file of their own, which must be in the model's folder and as long as it says."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if source.folder is None:
        raise Unreadable(f"tensor {tensor.name!r} is in the file {location!r}: give from_onnx the model's path")
    folder = os.path.realpath(source.folder)
    path = os.path.realpath(os.path.join(folder, location.replace("\0", "")))
    if os.path.isabs(location) or os.path.commonpath([folder, path]) != folder or path == folder:
        raise Unreadable(f"tensor {tensor.name!r} is in {location!r}, outside of the model's folder")
    if not os.path.isfile(path):
        raise Unreadable(f"tensor {tensor.name!r} is in {location!r}, which does not exist")
    wanted, size = count * stored.itemsize, os.path.getsize(path)
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", wanted))
    except ValueError:
        offset, length = -1, -1
    if offset < 0 or length != wanted or offset + length > size:
        got = f"bytes {entries.get('offset', 0)} and {entries.get('length', wanted)} more of {size}, for {wanted}"
        raise Unreadable(f"tensor {tensor.name!r} is in {location!r}, {got}")
    source.spending.take(f"tensor {tensor.name!r} of {wanted} bytes", bytes=wanted)  # others may be the same bytes
    flat = np.fromfile(path, stored, count, offset=offset)
    if flat.size != count:
        raise Unreadable(f"tensor {tensor.name!r} is in {location!r}, which has become shorter")
    return flat
