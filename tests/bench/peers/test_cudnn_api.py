"""cuDNN's functions through ctypes: what a status becomes, who destroys descriptors, where the library is found."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys

import fake_cudnn
import pytest

from tvm_rnn.bench.peers import cudnn_api as api
from tvm_rnn.bench.peers.models import Unsupported


class Owner:
    """Of a descriptor."""


def test_the_version_is_three_numbers() -> None:
    assert fake_cudnn.library().version == "9.19.1"


def test_a_status_becomes_a_reason() -> None:
    cudnn, owner = fake_cudnn.library(), Owner()
    rnn = cudnn.descriptor("RNN", owner)
    sizes = (4, 8, 5, 1)  # 8 units projected to 5

    def call(cell: int, biases: int) -> None:
        types = (api.LINEAR_INPUT, api.DATA["float32"], api.DATA["float32"], api.FMA_MATH)
        cudnn.call("cudnnSetRNNDescriptor_v8", rnn, 0, cell, biases, 0, *types, *sizes, None, 0)

    call(api.LSTM, api.DOUBLE_BIAS)
    with pytest.raises(Unsupported, match=r"^cudnnSetRNNDescriptor_v8: CUDNN_STATUS_NOT_SUPPORTED a projection$"):
        call(api.GRU, api.DOUBLE_BIAS)
    with pytest.raises(api.CudnnError, match="CUDNN_STATUS_BAD_PARAM unexpected"):
        call(api.LSTM, 1)


def test_descriptors_go_with_their_owner() -> None:
    cudnn, owner = fake_cudnn.library(), Owner()
    before = fake_cudnn.alive(cudnn)
    kept = [cudnn.descriptor(kind, owner) for kind in ("Tensor", "RNN", "RNNData")]
    assert all(kept) and fake_cudnn.alive(cudnn) == before + 3
    del owner
    gc.collect()
    assert fake_cudnn.alive(cudnn) == before


def test_the_library_that_is_loaded_already_is_found_first() -> None:
    code = (
        f"import ctypes, sys; ctypes.CDLL({fake_cudnn.path()!r})\n"
        "from tvm_rnn.bench.peers import cudnn_api as api\n"
        "print(api.load().version, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "9.19.1 False\n"


def test_a_library_beside_torch_is_opened_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [("no-such-library.so", os.RTLD_NOW), (fake_cudnn.path(), os.RTLD_NOW)]
    monkeypatch.setattr(api, "candidates", lambda: iter(places))
    assert api.load.__wrapped__().version == "9.19.1"


def test_what_is_no_cudnn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "candidates", lambda: iter([("libm.so.6", os.RTLD_NOW)]))
    with pytest.raises(Unsupported, match=r"libm\.so\.6 is no cuDNN 9"):
        api.load.__wrapped__()
    monkeypatch.setattr(api, "candidates", lambda: iter([("no-such-library.so", os.RTLD_NOW)]))
    with pytest.raises(Unsupported, match="neither in this process nor beside torch"):
        api.load.__wrapped__()


def test_places_are_tried_from_the_surest_on() -> None:
    pytest.importorskip("torch")
    places = list(api.candidates())
    assert places[0] == (api.LIBRARY, os.RTLD_NOW | os.RTLD_NOLOAD) and places[-1] == (api.LIBRARY, os.RTLD_NOW)
    assert all(os.path.exists(path) for path, _ in places[1:-1])


def test_integers_are_a_c_array() -> None:
    made = api.integers(range(3))
    assert list(made) == [0, 1, 2] and ctypes.sizeof(made) == 3 * ctypes.sizeof(ctypes.c_int)
