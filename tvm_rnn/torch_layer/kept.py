"""What a module's weights were made of: parameters of a layer, and whether these are what they were.

In: a module that has weights, and the tensors that these were made of. Out: `holds` says in each call whether the
tensors still have those numbers, byte by byte. A tensor's version would not do: changes through `.data`, through a
NumPy view or by another process do not count there. Making the weights anew and comparing them takes several times as
long as a step does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tvm_rnn.runtime.runtime import Module

from .graph_ops import array_of

_same = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_same.argtypes, _same.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int


@dataclass(frozen=True)
class Values:
    """Numbers that a tensor had. array: it holds their memory, at `place`."""

    dtype: torch.dtype
    shape: torch.Size
    array: np.ndarray
    place: int


@dataclass(frozen=True)
class Kept:
    """The weights that a module was given last, which is a new dict each time, and what they were made of."""

    weights: Mapping[str, np.ndarray]
    values: Sequence[Values]


_kept = weakref.WeakKeyDictionary[Module, Kept]()


def keep(module: Module, tensors: Sequence[Tensor], made: Mapping[str, Tensor]) -> None:
    """Remember that a module's weights, which it has now, were made of these tensors. What is a weight already is
    compared with the module's own; of others there is a copy."""
    if not all(map(_plain, tensors)):
        return
    held, found = {tensor.data_ptr(): module.weights[name] for name, tensor in made.items()}, list[Values]()
    for tensor in tensors:
        array = held.get(tensor.data_ptr())
        if array is None or array.nbytes != tensor.nbytes:
            array = array_of("", tensor).copy()
        found.append(Values(tensor.dtype, tensor.shape, array, array.ctypes.data))
    _kept[module] = Kept(module.weights, found)


def _plain(tensor: Tensor) -> bool:
    """Whether its numbers are those of its memory, in order."""
    dense = tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_neg()
    return tensor.__class__ in (Tensor, torch.nn.Parameter) and dense


def known(module: Module) -> bool:
    """Whether it is known what the module's weights were made of."""
    kept = _kept.get(module)
    return kept is not None and kept.weights is module.weights


def holds(module: Module, tensors: Sequence[Tensor]) -> bool:
    """Whether the module has the weights that these tensors make."""
    # What is no tensor cannot be in a graph. Its first call imports Dynamo, which takes longer than all else of that.
    return (_holds_apart if "torch._dynamo" in sys.modules else _holds)(module, tensors)


def _holds(module: Module, tensors: Sequence[Tensor]) -> bool:
    kept = _kept.get(module)
    if kept is None or kept.weights is not module.weights or len(tensors) != len(kept.values):
        return False
    return all(map(_has, tensors, kept.values))


_holds_apart = torch._disable_dynamo(_holds)


def _has(tensor: Tensor, values: Values) -> bool:
    """Whether a tensor has these numbers."""
    if tensor.dtype is not values.dtype or tensor.shape != values.shape or not _plain(tensor):
        return False
    return not _same(tensor.data_ptr(), values.place, values.array.nbytes)
