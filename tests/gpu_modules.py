"""Modules for the tests marked `gpu`: compiled here, or in a folder beforehand for a machine that has no compiler.

In: a network. Out: its module, loaded. TVM_RNN_MODULES names a folder: what is not in it yet is compiled into it, also
on a machine without a GPU (run the tests there once, and then where the GPU is, with that folder).
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import LoadError
from tvm_rnn.runtime import runtime


@functools.cache
def folder() -> Path:
    """Where this process has its modules."""
    return Path(os.environ.get("TVM_RNN_MODULES") or tempfile.mkdtemp(prefix="tvm_rnn_"))


def gpu_module(name: str, net: rnn.RNN, **how: Any) -> Any:
    """The module of a network, under a name that is its own. Skips the test where there is no GPU."""
    path = folder() / f"{name}.so"
    if not path.exists():
        keep = os.environ.get("TVM_RNN_MODULES")
        if not (keep or has_gpu()):
            pytest.skip("needs an NVIDIA GPU")
        path.parent.mkdir(parents=True, exist_ok=True)
        usual = os.environ.get("TVM_RNN_GPU") or ("cuda" if has_gpu() else "nvidia-h200")
        rnn.compile(net, how.pop("target", usual), **how).export(path)
    try:
        return rnn.load(path)
    except LoadError as reason:
        pytest.skip(str(reason).splitlines()[0])


@functools.cache
def has_gpu() -> bool:
    from tvm_rnn.target import resolve

    try:
        return resolve("cuda").kind == "cuda"
    except rnn.ConfigError:
        return False


class Allocations:
    """Memory on GPUs that modules hold which are loaded from here on, in bytes: this process's, whatever others use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: dict[tuple[int, int], int] = {}
        opened = runtime._open_library
        monkeypatch.setattr(runtime, "_open_library", lambda *given: _Counted(opened(*given), self))

    @property
    def bytes(self) -> int:
        """What is held now."""
        return sum(self.held.values())


class _Counted:
    """A module's library, whose functions for memory are counted."""

    def __init__(self, library: Any, counts: Allocations) -> None:
        self.library, self.held = library, counts.held

    def get_function(self, name: str) -> Any:
        function = self.library.get_function(name)

        def allocate(number: int, size: int) -> int:
            address = int(function(number, size))
            self.held[number, address] = size
            return address

        def release(number: int, address: int) -> None:
            del self.held[number, address]
            function(number, address)

        return {"allocate": allocate, "release": release}.get(name.partition("_")[0], function)
