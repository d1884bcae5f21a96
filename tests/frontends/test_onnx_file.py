"""ONNX files as data: tensors of every type and form, external data, and sizes that lie."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.onnx_file import TYPES, Source, read_model, tensor_array

SOURCE = Source(onnx.ModelProto())
VALUES = [0, 1, 2, 3, 100, 127]


@pytest.mark.parametrize("raw", [True, False], ids=["bytes", "numbers"])
@pytest.mark.parametrize("code", TYPES)
def test_every_type_in_both_forms(code: int, raw: bool) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    values = np.array(VALUES).astype(dtype).reshape(2, 3)
    data = values.tobytes() if raw else values.reshape(-1).tolist()
    tensor = onnx.helper.make_tensor("t", code, (2, 3), data, raw)
    found = tensor_array(tensor, SOURCE)
    assert found.dtype.name == ("float32" if dtype == ml_dtypes.bfloat16 else np.dtype(dtype).name)
    np.testing.assert_array_equal(found, values.astype(found.dtype))


def test_empty_and_scalar_tensors() -> None:
    assert tensor_array(onnx.numpy_helper.from_array(np.array(2.5)), SOURCE).shape == ()
    assert tensor_array(onnx.helper.make_tensor("t", 1, (0, 3), []), SOURCE).shape == (0, 3)


def tensor(**changes: Any) -> Any:
    found = onnx.numpy_helper.from_array(np.ones((2, 3), "f4"), "t")
    for name, value in changes.items():
        if name == "dims":
            del found.dims[:]
            found.dims.extend(value)
        else:
            setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dims": [2, 4]}, "24 bytes for shape"),
        ({"dims": [2**40, 2**40]}, "has shape"),
        ({"dims": [-2, -3]}, "has shape"),
        ({"dims": [2, 3] + [1] * 62}, "has shape"),  # NumPy has no such arrays
        ({"raw_data": b"123"}, "3 bytes"),
        ({"data_type": 8}, "element type 8"),
        ({"data_type": 17}, "element type 17"),
        ({"data_type": 0}, "element type 0"),
    ],
)
def test_tensors_that_do_not_hold_what_they_say(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        tensor_array(tensor(**changes), SOURCE)
    few = onnx.helper.make_tensor("t", 1, (2,), [1.0, 2.0])
    few.dims[0] = 2**50
    with pytest.raises(Unreadable, match="2 elements for shape"):
        tensor_array(few, SOURCE)


def external(folder: Path, location: str, **entries: Any) -> Any:
    """A tensor [2, 3] of float32 in a file of its own."""
    found = onnx.TensorProto(name="t", data_type=1, dims=[2, 3], data_location=1)
    for key, value in {"location": location, **entries}.items():
        found.external_data.add(key=key, value=str(value))
    return tensor_array(found, Source(onnx.ModelProto(), str(folder / "m.onnx")))


def test_external_data(tmp_path: Path) -> None:
    values = np.arange(6, dtype="f4").reshape(2, 3)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w").write_bytes(b"1234" + values.tobytes())
    np.testing.assert_array_equal(external(tmp_path, "sub/w", offset=4), values)
    np.testing.assert_array_equal(external(tmp_path, "sub/../sub/w", offset=4, length=24), values)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "../outside"}, "outside of the model's folder"),
        ({"location": "sub/../../outside"}, "outside"),
        ({"location": "/etc/passwd"}, "outside"),
        ({"location": "link"}, "outside"),
        ({"location": ""}, "outside"),
        ({"location": "."}, "outside"),
        ({"location": "none"}, "does not exist"),
        ({"location": "a\0b"}, "does not exist"),
        ({"location": "sub"}, "does not exist"),
        ({"location": "w", "offset": 5}, "bytes 5 and 24 more of 28"),
        ({"location": "w", "offset": -4}, "bytes -4"),
        ({"location": "w", "length": 20}, "20 more of 28, for 24"),
        ({"location": "w", "length": 2**62}, "more of 28"),
        ({"location": "w", "offset": "0x4"}, "bytes 0x4"),
        ({"location": "w", "offset": "9" * 5000}, "bytes 9"),
    ],
)
def test_external_data_that_is_refused(entries: dict[str, Any], text: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(bytes(28))
    (folder / "w").write_bytes(bytes(28))
    os.symlink(tmp_path / "outside", folder / "link")
    with pytest.raises(Unreadable, match=text):
        external(folder, **entries)


def test_external_data_of_a_model_in_memory() -> None:
    found = onnx.TensorProto(name="t", data_type=1, dims=[1], data_location=1)
    with pytest.raises(Unreadable, match="give from_onnx the model's path"):
        tensor_array(found, SOURCE)


def test_where_a_model_comes_from(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph([], "g", [], [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)])
    onnx.save(model, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), data, bytearray(data), model):
        found = read_model(source)
        assert found.opset == 14 and (found.path is None) == (found.sha256 is None)
    assert read_model(tmp_path / "m.onnx").folder == str(tmp_path)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"", "no graph"),
        (b"\xff" * 50, "not an ONNX file"),
        (struct.pack("<q", -1), "not an ONNX file"),
        (3, "a path, bytes or an onnx.ModelProto"),
        ("none.onnx", "no such ONNX file"),
        (b"\x3a\x02" + b"\x0a" * 2, "not an ONNX file"),
    ],
)
def test_what_is_no_onnx_file(source: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_model(source)


def test_names_that_are_no_text() -> None:
    """Protobuf takes them, and gives bytes in place of text: in a node, and in what a node has in it."""
    inner = onnx.helper.make_graph([onnx.helper.make_node("Tanh", ["in"], ["out"])], "body", [], [])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Scan", ["x"], ["y"], body=inner)], "g", [], [])
    data = onnx.helper.make_model(graph).SerializeToString()
    read_model(data)
    for name in (b"Tanh", b"Scan", b"out"):
        with pytest.raises(ConfigError, match="not an ONNX file"):
            read_model(data.replace(name, name[:-1] + b"\x80"))


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(1 << 32)  # no block of it is on the disk
    with pytest.raises(ConfigError, match="too large"):
        read_model(tmp_path / "m.onnx")


def test_onnx_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match="onnx is not installed"):
        read_model(b"")
