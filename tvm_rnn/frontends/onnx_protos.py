"""What the messages of the onnx package are to the type checker: onnx is an optional dependency.

In: nothing. Out: a Protocol for each message of onnx.proto, under its name there, with the fields that are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class FieldDescriptor(Protocol):
    """What protobuf says of a field of a message."""

    type: int
    TYPE_STRING: int
    TYPE_MESSAGE: int


class Message(Protocol):
    """Any message of protobuf."""

    def ListFields(self) -> list[tuple[FieldDescriptor, Any]]: ...

    def HasField(self, name: str) -> bool: ...


class StringStringEntryProto(Protocol):
    """A key and its value, both text."""

    key: str
    value: str


class TensorProto(Message, Protocol):
    """An array; its elements may lie in another file."""

    name: str
    dims: Sequence[int]
    data_type: int
    data_location: int
    raw_data: bytes
    external_data: Sequence[StringStringEntryProto]

    def ByteSize(self) -> int: ...


class Dimension(Message, Protocol):
    """A size, or the name of one."""

    dim_value: int
    dim_param: str


class TensorShapeProto(Protocol):
    """The sizes of a tensor's axes."""

    dim: Sequence[Dimension]


class TensorTypeProto(Message, Protocol):
    """The element type and shape of a tensor."""

    elem_type: int
    shape: TensorShapeProto


class TypeProto(Message, Protocol):
    """The type of a value: of a tensor, if it is one."""

    tensor_type: TensorTypeProto


class ValueInfoProto(Protocol):
    """The name and type of a value."""

    name: str
    type: TypeProto


class AttributeProto(Message, Protocol):
    """A node's attribute; `type` says which field has its value."""

    name: str
    type: int
    ref_attr_name: str
    g: GraphProto
    t: TensorProto


class NodeProto(Protocol):
    """An operator, with the names of the values that it reads and makes."""

    op_type: str
    domain: str
    name: str
    input: Sequence[str]
    output: Sequence[str]
    attribute: Sequence[AttributeProto]


class GraphProto(Protocol):
    """Nodes in order, and the values that go in and out."""

    name: str
    node: Sequence[NodeProto]
    input: Sequence[ValueInfoProto]
    output: Sequence[ValueInfoProto]
    value_info: Sequence[ValueInfoProto]
    initializer: Sequence[TensorProto]
    sparse_initializer: Sequence[Message]


class OperatorSetIdProto(Protocol):
    """A set of operators, and its version."""

    domain: str
    version: int


class ModelProto(Message, Protocol):
    """A graph, and the sets of operators that it uses."""

    graph: GraphProto
    opset_import: Sequence[OperatorSetIdProto]

    def MergeFromString(self, data: bytes) -> int: ...
    def SerializeToString(self) -> bytes: ...
