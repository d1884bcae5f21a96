"""A process that measures candidates on one device of an RPC tracker: `python -m
tvm_rnn.tune.rpc_worker device`.

In: requests from `rpc.py`; a server of TVM's own, `python -m tvm.exec.rpc_server`, with nothing of ours there.
Out: what `Bench` says of candidates: they run, and are timed, on the device, in turns with the defaults; results come
back and are compared here. A session with a server is opened and closed on request.
"""

from __future__ import annotations

import gc
import math
import statistics
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import tvm
from tvm import rpc
from tvm.runtime import Tensor

from tvm_rnn.runtime.runtime import Module, _open_container
from tvm_rnn.worker_process import Reply, Request

from .cpu_worker import Bench, main
from .rpc_tracker import NoDevice, Server, Tracker

Argument: TypeAlias = int | np.ndarray | Tensor  # of a module's function
CONNECT_SECONDS = 10.0  # a server that is free answers at once, but for one that is frozen


class Device:
    """A session with a server. Files go there once, arrays when they are asked for."""

    def __init__(self, server: Server, session: rpc.RPCSession, guard: str) -> None:
        self.server, self.session, self.cpu = server, session, session.cpu(0)
        self.inputs: dict[tuple[int, int], Tensor] = {}
        self.weights: dict[str, Tensor] = {}
        self.guard = self.load(guard)
        self.guard["guard_install"]()

    def load(self, path: str) -> tvm.runtime.Module:
        self.session.upload(path)
        return self.session.load_module(path.rpartition("/")[2])

    def tensor(self, array: np.ndarray) -> Tensor:
        return tvm.runtime.tensor(np.ascontiguousarray(array).ravel(), self.cpu)

    def like(self, array: np.ndarray) -> Tensor:
        return tvm.runtime.empty((array.size,), str(array.dtype), self.cpu)

    def zeros(self, elements: int, dtype: np.dtype) -> Tensor:
        found = tvm.runtime.empty((elements,), str(dtype), self.cpu)
        self.guard["guard_clear"](found)
        return found

    def arm(self, seconds: float) -> None:
        """The device ends the session unless this is called again by then; 0: it does not. Fails where it has ended."""
        self.guard["guard_arm"](math.ceil(seconds))


class RemoteModule(Module):
    """A module whose code is on a device: what the runtime would call here is called there, with copies of the same
    arguments, which stay there. weights: of the network."""

    _library: Any  # of TVM's RPC

    def __init__(self, path: str, device: Device, weights: Mapping[str, np.ndarray]) -> None:
        # Not Module's own: it opens the code here, where this CPU may not be able to run it.
        self.path, self._file, self.manifest, arrays, self._elf_size = _open_container(path)
        self._read_manifest(self.manifest)
        self._device, self._library = device, device.load(path)
        self._library["pool_install"]()
        self._tensor, self._sequence = device.like, self._call_there
        self._no_rows = [device.tensor(np.zeros(1, dtype)) for dtype in (np.int64, np.uint8)]
        self._local, self._threads, self._plans, self.weights = threading.local(), 0, dict[int, Any](), {}
        self._placed: dict[int, list[Argument]] = {}
        self._pack({**arrays, **weights})

    def _pack(self, arrays: Mapping[str, np.ndarray]) -> None:
        held = self._device.weights
        self._packed = self._device.zeros(max(1, self._packed_elements), self._dtype)
        for pack in self._packs:
            for name in pack.weights:
                if name not in held:
                    held[name] = self._device.tensor(arrays[name])
            self._library[pack.function](*(held[name] for name in pack.weights), self._packed, int(pack.offset))

    def _call_there(self, *given: Argument) -> None:
        """In the place of `sequence`. What it does not write is NaN."""
        first = 6 + len(self._inputs)  # behind T, B, tile, threads, whether there are lengths and resets, and inputs
        states = len(self._states)
        written = [first, *range(first + 1 + states, first + 1 + 2 * states)]
        steps = int(given[0])
        if steps not in self._placed:
            self._placed[steps] = [self._place(i, value, i < first) for i, value in enumerate(given)]
        there = self._placed[steps]
        for i in written:
            there[i].copyfrom(np.full_like(given[i], np.nan))
        self._library["sequence"](*there)
        for i in written:
            given[i][:] = there[i].numpy()

    def _place(self, number: int, value: Argument, is_input: bool) -> Argument:
        if not isinstance(value, np.ndarray):
            return value  # a number, or an array that is there
        if not is_input:
            return self._device.tensor(value)
        key = (number, value.size)  # those of all modules are the same
        if key not in self._device.inputs:
            self._device.inputs[key] = self._device.tensor(value)
        return self._device.inputs[key]

    def seconds(self, inputs: list[np.ndarray], calls: int) -> float:
        if len(inputs[0]) not in self._placed:
            self(tuple(inputs) if len(inputs) > 1 else inputs[0])
        evaluate = self._library.time_evaluator("sequence", self._device.cpu, number=1, repeat=calls)
        return float(statistics.median(evaluate(*self._placed[len(inputs[0])]).results))


class RemoteBench(Bench):
    """A `Bench` whose modules are on a device. first: as for `Bench`, and tracker: host, port, key; guard: a file."""

    def __init__(self, first: Request) -> None:
        super().__init__([np.load(path, allow_pickle=False) for path in first["inputs"]], first.get("weights"))
        self.cpus = []  # nothing runs here, so no thread needs a CPU of its own
        self.tracker, self.guard = Tracker(*first["tracker"]), str(first["guard"])
        self.device: Device | None = None

    def answer(self, request: Request) -> Reply:
        """open: seconds to wait for a device; session: seconds that it may be held; at_most: that an answer may take.
        Replies with `none` or `unfit` and the reason where there is no device, or it does not run the defaults; with
        `lost` and the reason where it ended meanwhile, `late` if for time."""
        if "open" in request:
            return self._open(request)
        if "close" not in request:
            return self._measure(request)
        self._close()
        return {"closed": True}

    def _open(self, request: Request) -> Reply:
        self._close()
        try:
            server = self.tracker.request(float(request["open"]))
            session = connect(server, float(request["session"]))
        except NoDevice as reason:
            return {"none": str(reason)}
        try:
            self.device = Device(server, session, self.guard)
            del session
            self.device.arm(request["at_most"])
            found = self.default(request)
            self.device.arm(0)
        except Exception as reason:
            ended = self.device is None or not self._there()
            why = "its session ended" if ended else _text(reason)
            return {"unfit": f"{server.name} does not run the defaults: {why}"}
        return {"device": server.name, **found}

    def _measure(self, request: Request) -> Reply:
        assert self.device is not None  # it was opened
        started, limit = time.monotonic(), float(request["at_most"])
        try:
            self.device.arm(limit)
            found = self.turns(request)
            self.device.arm(0)
        except Exception as reason:
            late = time.monotonic() - started >= limit
            return {"failed": _text(reason)} if self._there() else {"lost": _text(reason), "late": late}
        return found

    def _there(self) -> bool:
        """Whether the session lives; it has all the time again."""
        try:
            assert self.device is not None
            self.device.arm(0)
        except Exception:
            return False
        return True

    def _close(self) -> None:
        """A session ends with the last thing that knows it."""
        self.reference = self.device = None
        gc.collect()

    # --- what Bench does here, done there ------------------------------------------------------------------------

    def _load(self, path: str) -> Module:
        assert self.device is not None
        module = RemoteModule(path, self.device, self.weights)
        self.threads = module.threads
        return module

    def _time(self, module: Module, calls: int) -> float:
        return cast(RemoteModule, module).seconds(self.inputs, calls)


def connect(server: Server, seconds: float) -> rpc.RPCSession:
    """A session with a server, for so many seconds. Raises NoDevice, also where the server accepts and says nothing."""
    found: list[rpc.RPCSession | Exception] = []

    def run() -> None:
        try:
            found.append(rpc.connect(server.host, server.port, server.match, session_timeout=seconds))
        except Exception as reason:
            found.append(reason)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if not found or isinstance(found[0], Exception):
        why = _text(found[0]) if found else f"no answer after {CONNECT_SECONDS:g} s"
        raise NoDevice(f"{server.name}: {why}")
    return found[0]


def _text(reason: Exception) -> str:
    """The last line of what TVM says: those before it are its own source lines."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return f"{type(reason).__name__}: {lines[-1] if lines else ''}"[:400]


if __name__ == "__main__":
    main({"device": lambda first: RemoteBench(first).answer})
