"""A process that builds candidates, or one that measures them: `python -m tvm_rnn.tune.cpu_worker
build|measure|device`.

In: requests as lines of JSON on stdin from `cpu_builders.py`; the first says what all others are about. Out: replies as
lines of JSON on stdout, and .so files. A candidate may crash or hang its process: that is why it is one of its own,
which ends with its parent, however that ends. The measuring one needs the runtime alone, not the compiler.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tvm_rnn.oracle.tolerance import relative_error
from tvm_rnn.worker_process import Reply, Request, channel

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.runtime.runtime import Module

SAMPLE_SECONDS = 0.004  # one turn of one module: at least one call, and so many that the clock does not matter
FEWEST_ROUNDS = 3
WARM_UP_BELOW = 0.02  # seconds of a call: a longer one does not notice its first steps
PRIORITY = -20  # of a process that measures, where the user may have it


# --- a network without its equations ---------------------------------------------------------------------------------


def _no_equations(*given: object) -> None:
    raise TypeError("a network in a tuning process has graphs, not equations")


def pickled(net: RNN) -> bytes:
    """A network without weights, for another process of this package. Its cell's function may be defined anywhere, such
    as in a notebook: the graphs made of it are enough to compile."""
    bare = copy.copy(net)
    bare.weights, bare.cell = {}, replace(net.cell, function=_no_equations)
    return pickle.dumps(bare)


# --- building --------------------------------------------------------------------------------------------------------


def builder(first: Request) -> Callable[[Request], Reply]:
    """first: net (a file with `pickled`), target (a file), batch, precision. Requests: choices, path."""
    from tvm_rnn.compiler.compile import compile
    from tvm_rnn.records import Choice

    from .workload import Candidate, Trial

    with open(first["net"], "rb") as file:
        net, target = pickle.load(file)

    def build(request: Request) -> Reply:
        candidate = Candidate(tuple(map(Choice.from_dict, request["choices"])))
        module = compile(net, target, first["batch"], precision=first["precision"], records=Trial(candidate))
        module.export(request["path"])
        return {"path": request["path"]}

    return build


# --- measuring -------------------------------------------------------------------------------------------------------


def measurer(first: Request) -> Callable[[Request], Reply]:
    """first: inputs (.npy files in order), weights (.npz or none). Requests: see `Bench.default` and `Bench.turns`."""
    bench = Bench([np.load(path, allow_pickle=False) for path in first["inputs"]], first.get("weights"))
    return lambda request: bench.default(request) if "default" in request else bench.turns(request)


class Bench:
    """Modules of one workload, timed in turns with the defaults' module, after their results were compared."""

    def __init__(self, inputs: list[np.ndarray], weights: str | None) -> None:
        self.inputs = inputs
        self.weights: dict[str, np.ndarray] = {}
        if weights is not None:
            with np.load(weights, allow_pickle=False) as file:
                self.weights = {name: file[name] for name in file.files}
        self.reference: Module | None = None
        self.expected: dict[str, np.ndarray] = {}
        self.limit, self.seconds, self.threads = 0.0, 0.0, 0
        self.cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []

    def default(self, request: Request) -> Reply:
        """What the others are compared with. default: its file; expected: the oracle's y and states, .npz; limit: the
        largest relative error. Replies with its error and its time."""
        with np.load(request["expected"], allow_pickle=False) as file:
            self.expected = {name: file[name] for name in file.files}
        self.limit = float(request["limit"])
        module = self._load(request["default"])
        error = self._error(module)
        self.reference, self.seconds = module, min(self._time(module, 1) for _ in range(3))
        return {"error": error, "seconds": self.seconds, "threads": self.threads}

    def turns(self, request: Request) -> Reply:
        """candidates: files; rounds: of turns at most; seconds: for all of them; give_up: the ratio above which a
        single candidate is not timed to the end. Replies with a result each: ratio, median_us, default_us, spread,
        error; or with the error alone where it is too large."""
        assert self.reference is not None
        modules, results = [], []
        for path in request["candidates"]:
            module = self._load(path)
            error = self._error(module)
            results.append({"error": error})
            modules.append(module)
        right = [i for i, result in enumerate(results) if result["error"] <= self.limit]
        times = self._rounds([self.reference, *(modules[i] for i in right)], request)
        for at, i in enumerate(right, 1):
            ratios = [own / default for own, default in zip(times[at], times[0], strict=True)]
            ratio = statistics.median(ratios)
            results[i] |= {
                "ratio": ratio,
                "faster": sum(r < 1 for r in ratios) / len(ratios),
                "median_us": statistics.median(times[at]) * 1e6,
                "default_us": statistics.median(times[0]) * 1e6,
                "spread": (max(ratios) - min(ratios)) / ratio,
            }
        return {"results": results}

    def _rounds(self, modules: list[Module], request: Request) -> list[list[float]]:
        """Seconds of a call in each round. The order is turned around every time, so that drift cancels."""
        times: list[list[float]] = [[] for _ in modules]
        if len(modules) == 1:
            return times
        calls = max(1, round(SAMPLE_SECONDS / self.seconds))
        started, order = time.perf_counter(), [*range(len(modules))]
        for number in range(int(request["rounds"])):
            for i in order if number % 2 else reversed(order):
                times[i].append(self._time(modules[i], calls))
            if number + 1 < FEWEST_ROUNDS:
                continue
            ratio = min(statistics.median(own) for own in times[1:]) / statistics.median(times[0])
            if time.perf_counter() - started > float(request["seconds"]) or ratio > float(request["give_up"]):
                break
        return times

    def _time(self, module: Module, calls: int) -> float:
        """The median time of a call, after one that warms its caches up where that matters."""
        if self.seconds < WARM_UP_BELOW:
            self._call(module)
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            self._call(module)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def _call(self, module: Module, steps: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        inputs = tuple(array[:steps] for array in self.inputs)
        result: tuple[np.ndarray, dict[str, Any]] = module(inputs if len(inputs) > 1 else inputs[0])
        return result

    def _load(self, path: str) -> Module:
        from tvm_rnn.runtime.runtime import load

        module = load(path)
        self.threads = module.threads  # asked before threads are kept apart: it is the pool's size from then on
        if self.weights:
            module.load_weights(self.weights)
        return module

    def _error(self, module: Module) -> float:
        """The largest relative error of y and the states, twice: what is left in memory by a first run shows."""
        worst = 0.0
        for _ in range(2):
            y, state = self._call(module, len(self.expected["y"]))
            found = {"y": y, **named_states(state)}
            errors = [relative_error(found[name], expected) for name, expected in self.expected.items()]
            worst = max(worst, *errors)
        if self.cpus:
            keep_apart(self.cpus)  # the first parallel loop has started the pool's threads
        return worst


def named_states(state: Mapping[str, object]) -> dict[str, Any]:
    """{"state h": array}, and "state h 0", "state h 1" for layers of their own shapes."""
    found = dict[str, Any]()
    for name, value in state.items():
        parts = value if isinstance(value, list) else [value]
        found |= {f"state {name}" + (f" {i}" if len(parts) > 1 else ""): part for i, part in enumerate(parts)}
    return found


# --- the process -----------------------------------------------------------------------------------------------------


Roles = Mapping[str, Callable[[Request], Callable[[Request], Reply]]]
ROLES: Roles = {"build": builder, "measure": measurer}


def serve(role: str, requests: Iterator[str], reply: Callable[[Reply], None], roles: Roles = ROLES) -> None:
    """Answer requests until there are no more. What goes wrong with one is its answer."""
    answer = roles[role](json.loads(next(requests)))
    reply({"ready": role})
    for line in requests:
        try:
            reply(answer(json.loads(line)))
        except Exception as reason:
            reply({"failed": " ".join(f"{type(reason).__name__}: {reason}".split())[:600]})


def keep_apart(cpus: list[int]) -> None:
    """Each thread of this process on a CPU of its own, before others where that is allowed: on a busy machine the
    scheduler would put two of the pool on one, and a measurement would tell more of that than of the code."""
    threads = sorted(int(name) for name in os.listdir("/proc/self/task")) if cpus else []
    for number, thread in enumerate(threads):
        with contextlib.suppress(OSError):  # one that has just ended; a system that does not allow it
            os.sched_setaffinity(thread, {cpus[number % len(cpus)]})
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, PRIORITY)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(PRIORITY))  # where Linux shares CPUs among sessions first


def main(roles: Roles = ROLES) -> None:
    """Serve on stdin and stdout, in the role that the command names."""
    # Neither compiler nor runtime needs torch, and tvm_ffi imports it, in two seconds, where it is installed.
    sys.modules["torch"] = cast(Any, None)
    with channel() as reply:
        serve(sys.argv[1], sys.stdin, reply, roles)


if __name__ == "__main__":
    main()
