"""gpu_arrays.py: which arrays are where, and 16-bit floats of the CPU. Calls with them are in test_runtime_cuda.py."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_rnn.dtypes import rounded
from tvm_rnn.runtime import gpu_arrays
from tvm_rnn.runtime.gpu_arrays import HostArrays, TorchArrays, gpu_of, kind_of, narrow, sender, to_numpy, widen


class OnGpu:
    """Something with DLPack on a device."""

    def __init__(self, kind: int, number: int) -> None:
        self.device = kind, number

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.zeros(2), None), ([1], None), ("x", None), (None, None), (OnGpu(2, 3), 3), (OnGpu(1, 0), None), (OnGpu, None)],
)
def test_where_an_array_is(value: Any, number: int | None) -> None:
    assert gpu_of(value) == number


def test_torch_knows_its_gpu() -> None:
    torch = pytest.importorskip("torch")
    assert gpu_of(torch.zeros(2)) is None
    assert gpu_of(SimpleNamespace(is_cuda=True, get_device=lambda: 1)) == 1


def test_bfloat16_by_its_bits() -> None:
    given = np.random.default_rng(0).standard_normal((7, 3)).astype("f4") * 1e5
    given[0] = [np.nan, np.inf, -0.0]
    assert narrow(given, "bfloat16").dtype == np.uint16
    np.testing.assert_array_equal(widen(narrow(given, "bfloat16")), rounded(given, "bfloat16"))
    assert narrow(given.T, "float32").flags.c_contiguous


def test_weights_of_16_bits_are_widened() -> None:
    half = np.array([0.5, 2], np.float16)
    assert to_numpy(half).dtype == np.float16 and to_numpy(half, widens=True).dtype == np.float32
    torch = pytest.importorskip("torch")
    wide = to_numpy(torch.tensor([0.5, 2], dtype=torch.bfloat16, requires_grad=True), widens=True)
    assert wide.dtype == np.float32 and wide.tolist() == [0.5, 2]
    assert to_numpy("no array") == "no array"


def module(dtype: str) -> Any:
    return SimpleNamespace(device=0, manifest={"dtype": dtype}, _kinds={})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_of_the_cpu(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.5, -2]], dtype=getattr(torch, dtype))
    arrays = kind_of(x, module(dtype))
    piece = arrays.adopt(x)
    assert isinstance(arrays, HostArrays) and arrays.dtype(piece) == dtype and piece.array.itemsize == 2
    back = arrays.result(piece, (2, 1))
    assert back.dtype == x.dtype and back.tolist() == [[1.5], [-2]]


def test_numpy_has_no_bfloat16_so_float32_stands_for_it() -> None:
    x = np.array([1 + 2**-9, 3], "f4")
    arrays = kind_of(x, module("bfloat16"))
    piece = arrays.adopt(x)
    assert piece.dtype == "bfloat16" and arrays.result(piece, (2,)).tolist() == [1, 3]
    assert arrays.adopt(x.astype("f8")).dtype == "float64"  # for the module to refuse


def test_ml_dtypes_has_it() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1, 3], ml_dtypes.bfloat16)
    arrays = kind_of(x, module("bfloat16"))
    back = arrays.result(arrays.adopt(x), (2,))
    assert back.dtype == x.dtype and (back == x).all()


def test_big_endian_is_turned_round() -> None:
    x = np.array([1, 2], ">f4")
    piece = kind_of(x, module("float32")).adopt(x)
    assert piece.dtype == "float32" and piece.array.dtype == np.dtype("f4").newbyteorder("=")


def test_results_do_not_share_the_users_memory() -> None:
    x = np.array([1, 2], "f4")
    arrays = kind_of(x, module("float32"))
    piece = arrays.copy(arrays.adopt(x))
    x[:] = 9
    assert arrays.result(piece, (2,)).tolist() == [1, 2]


def test_an_array_of_a_gpu_needs_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "cupy"):
        monkeypatch.setitem(gpu_arrays.sys.modules, name, None)
    with pytest.raises(ImportError):
        kind_of(OnGpu(2, 0), module("float32"))


def test_cupy_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_arrays.sys.modules, "cupy", SimpleNamespace())
    with pytest.raises(ValueError, match="use torch"):
        gpu_arrays.CupyArrays(module("bfloat16"), 0, None)


def test_results_go_where_an_array_is() -> None:
    """Of torch's on the CPU, for want of a GPU: the kind and the place are the array's."""
    array = np.arange(3.0)
    assert sender(array)(array) is array and sender(None)(array) is array
    torch = pytest.importorskip("torch")
    sent = sender(torch.ones(2))(array)
    assert isinstance(sent, torch.Tensor) and sent.device.type == "cpu" and sent.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("width", "always", "copied"), [(4, False, True), (3, False, False), (3, True, True)])
def test_what_begins_between_multiples_of_16_bytes(width: int, always: bool, copied: bool) -> None:
    """Rows that are no whole pieces of 16 bytes are copied for the kernels that want that of all arrays."""
    torch = pytest.importorskip("torch")
    arrays, memory = object.__new__(TorchArrays), torch.zeros(2 * width + 1)
    whole, odd = (memory[first:][: 2 * width].reshape(2, width) for first in (0, 1))
    assert arrays.aligned(whole, always) is whole and (arrays.aligned(odd, always) is not odd) == copied
    piece = gpu_arrays.Piece(np.ones(3, "f4"), "float32", 4098)
    assert object.__new__(HostArrays).aligned(piece, always) is piece


def test_parts_of_an_array_are_the_same_memory() -> None:
    held = list[np.ndarray]()

    def allocate(number: int, size: int) -> int:
        held.append(np.zeros(size, np.uint8))
        return int(held[-1].ctypes.data)

    def transfer(number: int, stream: int, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    owner = SimpleNamespace(device=0, manifest={"dtype": "float32"}, _local=threading.local())
    arrays = HostArrays(owner, np.zeros(1, "f4"))
    arrays.use({"allocate": allocate, "transfer": transfer, "release": lambda *given: None})
    piece = arrays.adopt(np.arange(6, dtype="f4"))
    part = arrays.part(piece, 2, (2, 2))
    held[0].view("f4")[4] = 9  # as a kernel writes
    np.testing.assert_array_equal(arrays.numpy(part), [[2, 3], [9, 5]])
    np.testing.assert_array_equal(arrays.join([part, piece]).array, [2, 3, 9, 5, 0, 1, 2, 3, 9, 5])
    assert arrays.adopt(part) is part


def test_working_memory_stays_with_a_thread_on_the_first_stream() -> None:
    kept, made = gpu_arrays.KeptWork(), list[int]()

    def make(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    first = kept.take(0, 0, 100, make)
    assert kept.take(0, 0, 60, make) is first and made == [100]
    assert len(kept.take(1, 0, 60, make)) == 60 and len(kept.take(0, 7, 50, make)) == 50
    assert len(kept.take(0, 0, 200, make)) == 200 and made == [100, 60, 50, 200]
    large = gpu_arrays.KEPT_WORK_BYTES + 1
    assert kept.take(0, 0, large, lambda size: size) == large and len(kept.take(0, 0, 10, make)) == 200
    others = list[object]()
    thread = threading.Thread(target=lambda: others.append(kept.take(0, 0, 200, make)))
    thread.start()
    thread.join()
    assert others[0] is not kept.take(0, 0, 200, make)
    kept.forget()
    kept.take(0, 0, 10, make)
    assert made[-1] == 10
