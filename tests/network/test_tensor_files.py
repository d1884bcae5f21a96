"""Safetensors files: every dtype that NumPy has and bfloat16, and files that are damaged or lie about their sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

import tvm_rnn as rnn
from tvm_rnn.errors import WeightError
from tvm_rnn.network.tensor_files import open_safetensors

ARRAYS = {
    "a": np.arange(6, dtype="f4").reshape(2, 3),
    "b": np.array(3.5),
    "c": np.array([[], []], "f2"),
    "d": np.array([True, False]),
    "e": np.array([1, 2**63], "u8"),
    "f": np.array([-1, 127], "i1"),
}


def with_header(header: Any, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_arrays_come_back(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(save(ARRAYS))
    found = open_safetensors(tmp_path / "w")
    assert found.keys() == ARRAYS.keys()
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(found[name].read(), value, strict=True)


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    values = np.array([1.5, -0.0, np.inf, 2.0**-130], np.float32)
    row = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    (tmp_path / "w").write_bytes(with_header({"x": row, "__metadata__": {"k": "v"}}, raw))
    np.testing.assert_array_equal(open_safetensors(tmp_path / "w")["x"].read(), values, strict=True)


def test_dtypes_that_numpy_has_not(tmp_path: Path) -> None:
    row = {"dtype": "F8_E4M3", "shape": [16], "data_offsets": [0, 16]}
    (tmp_path / "w").write_bytes(with_header({"x": row}))
    with pytest.raises(WeightError, match="F8_E4M3"):
        open_safetensors(tmp_path / "w")["x"].read()


ROW = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        with_header({"x": {**ROW, "shape": [2**62, 4]}}),
        with_header({"x": {**ROW, "shape": [5]}}),
        with_header({"x": {**ROW, "shape": [-4]}}),
        with_header({"x": {**ROW, "data_offsets": [0, 2**40]}}),
        with_header({"x": {**ROW, "data_offsets": [16, 0]}}),
        with_header({"x": {**ROW, "dtype": "F33"}}),
        with_header({"x": {"dtype": "F32"}}),
        with_header([1, 2]),
        with_header(b"[" * 100_000),
        with_header(
            b'{"x": ' + json.dumps(ROW).encode() + b', "x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'
        ),
        save(ARRAYS)[:-1],
    ],
    ids=lambda data: f"{data[:40]!r}",
)
def test_files_that_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(WeightError, match="not a safetensors file") as error:
        open_safetensors(tmp_path / "w")
    assert str(tmp_path / "w") in str(error.value)


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(save(ARRAYS))
    found = open_safetensors(tmp_path / "w")
    (tmp_path / "w").write_bytes(save(ARRAYS)[:-40])
    with pytest.raises(WeightError, match="become shorter"):
        for tensor in found.values():
            tensor.read()


@given(st.integers(0, len(save(ARRAYS)) - 1), st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_an_array_or_an_error(tmp_path_factory: Any, place: int, byte: int) -> None:
    path, data = tmp_path_factory.getbasetemp() / "changed", bytearray(save(ARRAYS))
    data[place] = byte
    path.write_bytes(data)
    try:
        for tensor in open_safetensors(path).values():
            tensor.read()
    except WeightError:
        pass


@pytest.mark.parametrize("shape", [[1] * 100, [0, 2**63], [0, 2**62]], ids=["axes", "C", "NumPy"])
def test_shapes_that_numpy_cannot_have(tmp_path: Path, shape: list[int]) -> None:
    size = 4 if all(shape) else 0
    header = {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    (tmp_path / "w").write_bytes(with_header(header, bytes(size)))
    with pytest.raises(WeightError, match="not a safetensors file"):
        open_safetensors(tmp_path / "w")


def test_a_header_of_many_arrays_has_a_budget(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(save(ARRAYS))
    with rnn.Budget(nodes=20), pytest.raises(WeightError, match="nodes of at most 20"):
        open_safetensors(tmp_path / "w")
