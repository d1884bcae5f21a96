"""A GPU for torch layers where there is none: emulated kernels on tensors of the CPU, which are taken for a GPU's.

In: a network. Out: its module for nvidia-h200, whose "GPU" reads and writes the memory of torch's tensors of the CPU.
Needs CUDA's headers and g++.
"""

from __future__ import annotations

from typing import Any

import emulator
import pytest

from tvm_rnn.runtime import gpu_arrays

torch = pytest.importorskip("torch")


class Arrays(gpu_arrays.TorchArrays):
    """torch's tensors of the CPU as those of GPU 0."""

    def __init__(self, module: Any, number: int, back: type | None) -> None:
        gpu_arrays.GpuArrays.__init__(self, torch, module, number, back)
        self.place = torch.device("cpu")

    def stream(self) -> int:
        return gpu_arrays.PER_THREAD_STREAM


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take tensors of the CPU for a GPU's, which are read without waiting."""
    monkeypatch.setenv("FAKE_AT_ONCE", "1")
    monkeypatch.setattr(gpu_arrays, "gpu_of", lambda value: 0 if isinstance(value, torch.Tensor) else None)
    monkeypatch.setattr(gpu_arrays, "_on_a_gpu", lambda x, module, number: Arrays(module, number, None))


def module(net: Any, **options: Any) -> Any:
    """The module of a network without weights, for training."""
    return emulator.compile(net, training=True, **options)
