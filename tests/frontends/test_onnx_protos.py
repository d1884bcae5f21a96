"""The protocols of ONNX's messages name fields that the package's messages have."""

from __future__ import annotations

import pytest

from tvm_rnn.frontends import onnx_protos

onnx = pytest.importorskip("onnx")

MESSAGES = {
    "Dimension": onnx.TensorShapeProto.Dimension,
    "TensorTypeProto": onnx.TypeProto.Tensor,
}
PROTOCOLS = {name: kind for name, kind in vars(onnx_protos).items() if getattr(kind, "__annotations__", None)}
NAMES = [name for name in PROTOCOLS if name != "FieldDescriptor"]


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_those_of_onnx(name: str) -> None:
    message = MESSAGES.get(name) or getattr(onnx, name)
    fields = set(message.DESCRIPTOR.fields_by_name)
    assert set(PROTOCOLS[name].__annotations__) <= fields


def test_all_messages_are_looked_at() -> None:
    assert {"ModelProto", "NodeProto", "TensorProto", "Dimension"} <= {*NAMES}
