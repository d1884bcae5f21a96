"""ONNX files of whole models on this CPU: each compiled here, compared with ONNX Runtime, and timed beside it.

In: models and the paths of their files, from `models_suite.py`. Out: records, one per model and framework. A model that
fails has the reason. `table` shows them.

Both run in this process, in alternating rounds of ROUND_SECONDS; the fastest round counts, which others on the machine
disturb least: with one thread in CPU time, with more by the clock.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.bench.peers.models import imported
from tvm_rnn.bench.suites.onnx_files import OnnxFile
from tvm_rnn.compiler.compile import compile
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.frontends.onnx import from_onnx
from tvm_rnn.oracle.reference import reference

from .compare import OURS
from .gpu_suite import Progress, Record

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from rich.table import Table

    from tvm_rnn.network.model import Model
    from tvm_rnn.network.rnn import RNN

PEER = "onnxruntime"
ROUND_SECONDS = 0.05
MOST = 1e-4  # difference from the peer; where it is larger, float64 says which of the two is nearer
IDLE = 0.1  # of a core, that a process takes which waits
Call = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """threads: of both; None: all CPUs. limit: seconds for all of it. rounds: of each."""

    threads: int | None = None
    limit: float | None = None
    rounds: int = 7

    @property
    def counted(self) -> int:
        """How many threads that is."""
        return self.threads or len(os.sched_getaffinity(0))


One = Callable[[OnnxFile, Path, Options], Iterable[Record]]


def measured(
    models: Mapping[OnnxFile, Path], options: Options, progress: Progress | None = None, one: One | None = None
) -> Iterator[Record]:
    """Measure the models: their records as they come. one: measures one of them, in another way than here."""
    started = time.monotonic()
    for number, (model, path) in enumerate(models.items()):
        if options.limit is not None and time.monotonic() - started > options.limit:
            yield {"kind": "stopped", "limit": options.limit, "points_left": len(models) - number}
            return
        if progress is not None:
            progress(f"{number + 1} of {len(models)}: {model.name}")
        yield from (one or _measured)(model, path, options)


def of_a_model(model: OnnxFile, path: Path, threads: int) -> Record:
    """What all records of a model say."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"kind": "model", "model": model.name, "file": model.file, "sha256": digest, "threads": threads}


class Question:
    """A model in ONNX Runtime and inputs for it. arrays: those that `run` takes. whole: with those that are given."""

    def __init__(self, model: OnnxFile, path: Path, threads: int) -> None:
        self.version, self.session = _session(path, threads)
        dtypes = {own.name: DTYPES[own.type] for own in self.session.get_inputs() if own.name in model.inputs}
        self.arrays = model.arrays(dtypes)
        whole = {**self.arrays, **{name: np.asarray(value) for name, value in model.given.items()}}
        self.whole = {own.name: whole[own.name].astype(DTYPES[own.type]) for own in self.session.get_inputs()}
        results = self.session.get_outputs()
        self.outputs = [own.name for own in results]
        self.has_halves = any(own.type == "tensor(float16)" for own in results)

    def answer(self) -> list[np.ndarray]:
        """ONNX Runtime's results."""
        return [np.asarray(value) for value in self.session.run(None, self.whole)]


def largest_difference(found: Iterable[object], expected: Iterable[object]) -> float:
    """Of all elements of arrays."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.max(np.abs(np.asarray(a, "f8") - np.asarray(b, "f8")), initial=0.0)) for a, b in pairs)


def _measured(model: OnnxFile, path: Path, options: Options) -> list[Record]:
    """What comes of one model: ours and the peer's time, or why there is none."""
    threads = options.counted
    base, question = of_a_model(model, path, threads), Question(model, path, threads)
    begun = time.process_time()
    try:
        net = from_onnx(path, given=model.given, shapes=model.shapes)
        module = compile(net, progress=False)
        seconds, module.threads = time.process_time() - begun, threads
        found, expected = module.run(question.arrays), question.answer()
        error = largest_difference(found.values(), expected)
        exact = {} if error <= MOST else {"from_float64": _from_float64(net, question, found, expected)}
    except TvmRnnError as reason:
        return [{**base, "framework": OURS, "reason": " ".join(str(reason).split())}]
    clock = time.thread_time if threads == 1 else time.perf_counter
    ours, other = _fastest([lambda: module.run(question.arrays), question.answer], clock, options.rounds)
    known = {"us": ours * 1e6, "error": error, **exact, "compile_cpu_seconds": round(seconds, 1), "ratio": other / ours}
    peer = {"framework": PEER, "version": question.version, "us": other * 1e6}
    return [{**base, "framework": OURS, **known}, {**base, **peer}]


def _from_float64(
    net: RNN | Model, question: Question, found: Mapping[str, object], expected: Sequence[np.ndarray]
) -> dict[str, float]:
    """The largest differences of both from the same model in float64, by framework."""
    exact = reference(net).run(question.arrays)
    return {
        OURS: largest_difference(found.values(), exact.values()),
        PEER: largest_difference(expected, exact.values()),
    }


def _session(path: Path, threads: int) -> tuple[str, InferenceSession]:
    """ONNX Runtime's version, and the model in it."""
    with imported(PEER):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.__version__, onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def until_idle(pause: float = 0.005, most: int = 200) -> None:
    """Wait until no thread of this process runs: a pool whose threads wait awake takes a core from who comes next."""
    for _ in range(most):
        used, begun = time.process_time(), time.perf_counter()
        time.sleep(pause)
        if time.process_time() - used < IDLE * (time.perf_counter() - begun):
            return


def _fastest(calls: Sequence[Call], clock: Callable[[], float], rounds: int) -> list[float]:
    """Seconds a call of each, in its fastest round."""
    counts, best = [1 for _ in calls], [math.inf for _ in calls]
    for number in range(rounds + 1):  # the first one says how many calls a round has
        for i, call in enumerate(calls):
            until_idle()
            call()
            begun = clock()
            for _ in range(counts[i]):
                call()
            seconds = (clock() - begun) / counts[i]
            best[i] = min(best[i], seconds) if number else math.inf
            counts[i] = counts[i] if number else max(1, math.ceil(ROUND_SECONDS / max(seconds, 1e-9)))
    return best


DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


def table(records: Sequence[Record]) -> tuple[Table, str]:
    """A line for each model, and the geometric mean of the ratios. Above 1 ours is faster."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "us", "onnxruntime us", "ratio", "largest difference", "from float64", "note"):
        shown.add_column(column, overflow="fold")
    files = [own for own in records if own["kind"] == "model"]
    peers = {str(own["model"]): own for own in files if own["framework"] == PEER}
    ratios = list[float]()
    for own in files:
        if own["framework"] != OURS:
            continue
        if "ratio" not in own:
            shown.add_row(str(own["model"]), *[""] * 5, str(own["reason"]))
            continue
        ratios.append(float(str(own["ratio"])))
        numbers = (float(str(own["us"])), float(str(peers[str(own["model"])]["us"])))
        both = ", ".join(f"{name} {far:.1e}" for name, far in dict(own.get("from_float64", {})).items())
        shown.add_row(
            str(own["model"]), *(f"{n:.1f}" for n in numbers), f"{ratios[-1]:.2f}", f"{own['error']:.1e}", both, ""
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    return shown, f"geometric mean of {len(ratios)}: {mean:.2f}; least: {min(ratios, default=math.nan):.2f}"
