"""Tapes of training on GPUs: their sizes, the caller's inputs, what is said of changed ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_rnn import InputError
from tvm_rnn.runtime import gpu_arrays
from tvm_rnn.runtime.runtime_cuda_training import (
    ALIGNMENT,
    CudaTape,
    fresh,
    new_output,
    reads_output,
    tape_bytes,
    version_of,
)

MANIFEST = {"cell": "lstm", "tape": [[10, 0], [6, 1], [8, 0, 1]], "reads_inputs": True}


class Arrays:
    """Arrays of a GPU are SimpleNamespaces with an address."""

    lasting = staticmethod(lambda size: SimpleNamespace(size=size, address=4096))
    address = staticmethod(lambda array: array.address)
    empty = staticmethod(lambda shape: SimpleNamespace(shape=shape, address=128))

    @staticmethod
    def within(memory: Any, first: int, shape: tuple[int, ...]) -> Any:
        assert 2 * int(np.prod(shape)) + first <= memory.size
        return SimpleNamespace(shape=shape, address=memory.address + first)


def tape(module: Any, flagged: bool = False, steps: int | None = None, x: Any = None) -> CudaTape:
    return CudaTape(module, Arrays(), x, (5, 3), [x], flagged, steps=steps)


class Manifest(dict[str, Any]):
    __getattr__ = dict.__getitem__


def module(**more: Any) -> Any:
    return SimpleNamespace(manifest=Manifest({**MANIFEST, **more}), weights={}, path="m.so")


def test_arrays_are_rounded_up_and_those_of_flagged_calls_counted_there() -> None:
    assert tape_bytes(MANIFEST, 20, 7, False) == 1536 + 1024
    assert tape_bytes(MANIFEST, 20, 7, True) == 1536 + 1024 + 1280
    now_and_then = {**MANIFEST, "tape": [[10, 0], [100, 0, 0, 64]]}  # a matrix before each 64th step
    assert [tape_bytes(now_and_then, steps, 7, False) for steps in (20, 64, 65)] == [
        1536 + 768,
        4608 + 768,
        4608 + 1536,
    ]
    own = module()
    assert tape(own).nbytes == 2 * ALIGNMENT and tape(own, True).nbytes == 3 * ALIGNMENT
    assert tape(own, steps=100).nbytes == tape_bytes(MANIFEST, 100, 3, False)
    assert repr(tape(own)) == "<CudaTape of lstm, 5 steps of 3 rows, 512 bytes>"


def test_inputs_are_the_caller_s_but_where_the_tape_has_a_copy() -> None:
    x, own = SimpleNamespace(address=1024), module()
    assert tape(own, x=x).given == [x]
    assert tape(own, True, x=x).given == [None] and tape(own, True, 2, x).given == [x]
    assert tape(module(reads_inputs=False), x=x).given == []
    piece = gpu_arrays.Piece(np.ones(3, "f4"), "float32", 4096)
    assert fresh(piece).address == 0 and fresh(piece).array is piece.array and fresh(x) is x
    assert tape(own, x=piece).given[0].address == 0


def test_an_input_that_changed_is_noticed() -> None:
    x, own = SimpleNamespace(address=1024, _version=3), module()
    made = tape(own, x=x)
    made.check_arrays()
    x._version = 4
    with pytest.raises(InputError, match=r"backward reads x, which was changed[\s\S]*x\.clone"):
        made.check_arrays()
    own.weights = {}
    assert made.stale


@pytest.mark.parametrize("reverse", [False, True])
def test_y_has_room_for_the_state_before_its_first_step(reverse: bool) -> None:
    """Behind its last in a network that goes backwards; in calls whose tapes have all states none."""
    manifest = {**MANIFEST, "reads_output": True, "reverse": reverse, "dtype": "bfloat16"}
    y, kept = new_output(Arrays(), manifest, (5, 3, 8), False)
    assert kept is y and y.address == 4096 + (0 if reverse else 3 * 8 * 2)
    for flagged, own in ((True, manifest), (False, {**manifest, "reads_output": False}), (False, MANIFEST)):
        assert not reads_output(own, flagged)
        y, kept = new_output(Arrays(), own, (5, 3, 8), flagged)
        assert kept is None and y.address == 128


def test_torch_s_y_is_no_view_and_its_changes_are_noticed() -> None:
    """Of the CPU, for want of a GPU."""
    torch = pytest.importorskip("torch")
    arrays = gpu_arrays.TorchArrays(SimpleNamespace(manifest={"dtype": "bfloat16"}), 0, None)
    arrays.place = torch.device("cpu")
    manifest = {**MANIFEST, "reads_output": True, "dtype": "bfloat16"}
    y, kept = new_output(arrays, manifest, (5, 3, 8), False)
    assert y.shape == (5, 3, 8) and y.is_contiguous() and not y._is_view() and y.dtype is torch.bfloat16
    assert kept.data_ptr() == y.data_ptr() == y.untyped_storage().data_ptr() + 3 * 8 * 2
    assert y.untyped_storage().nbytes() == 6 * 3 * 8 * 2
    own = module()
    made = tape(own, x=SimpleNamespace(address=0))
    made.keep(kept)
    made.check_arrays()
    assert not made.stale
    y.mul_(2)
    with pytest.raises(InputError, match=r"backward reads y, which was changed[\s\S]*y\.clone"):
        made.check_arrays()


def test_tensors_of_inference_mode_have_no_count_of_changes() -> None:
    torch = pytest.importorskip("torch")
    assert version_of(np.ones(2)) is None and version_of(torch.ones(2)) == 0
    with torch.inference_mode():
        assert version_of(torch.ones(2)) is None
