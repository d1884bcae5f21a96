"""runtime_cuda_tape: sizes of tapes, inputs that kernels can read where they are, and what is said of changed ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_rnn import InputError, gpu_arrays
from tvm_rnn.runtime_cuda_tape import ALIGNMENT, CudaTape, check_tape, fresh, readable, tape_bytes

MANIFEST = {"cell": "lstm", "tape": [[10, 0], [6, 1], [8, 0, 1]], "reads_inputs": True}


class Arrays:
    """Arrays of a GPU are SimpleNamespaces with an address."""

    lasting = staticmethod(lambda size: SimpleNamespace(size=size, address=4096))
    address = staticmethod(lambda array: array.address)
    copy = staticmethod(lambda array: SimpleNamespace(address=8192, copied=array))


def tape(module: Any, flagged: bool = False, steps: int | None = None, x: Any = None) -> CudaTape:
    return CudaTape(module, Arrays(), x, (5, 3), module.weights, [x], flagged, steps)


class Manifest(dict[str, Any]):
    __getattr__ = dict.__getitem__


def module(**more: Any) -> Any:
    return SimpleNamespace(manifest=Manifest({**MANIFEST, **more}), weights={}, path="m.so")


def test_arrays_are_rounded_up_and_those_of_flagged_calls_counted_there() -> None:
    assert tape_bytes(MANIFEST, 20, 7, False) == 1536 + 1024
    assert tape_bytes(MANIFEST, 20, 7, True) == 1536 + 1024 + 1280
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


def test_what_begins_between_multiples_of_16_bytes_is_copied() -> None:
    whole, odd = SimpleNamespace(address=48), SimpleNamespace(address=50)
    piece = gpu_arrays.Piece(np.ones(3, "f4"), "float32", 4098)
    first, second, third = readable(Arrays(), [whole, odd, piece])
    assert first is whole and second.copied is odd and third is piece


def test_an_input_that_changed_is_noticed() -> None:
    x, own = SimpleNamespace(address=1024, _version=3), module()
    made = tape(own, x=x)
    check_tape(own, made)
    x._version = 4
    with pytest.raises(InputError, match=r"backward reads x, which was changed[\s\S]*x\.clone"):
        check_tape(own, made)
    with pytest.raises(InputError, match="another module's"):
        check_tape(module(), tape(own, x=SimpleNamespace(address=0)))
