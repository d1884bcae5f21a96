"""Run a suite on the GPU: every point beside its peers, in a process that may crash or hang without ending the run.

In: points of a suite, a folder of modules that `build_suite.py` compiled, here or on another machine. Out: records, one
per point and framework, written to a file as they come: a run that is stopped, by its time limit or from outside, loses
nothing but the point at hand. Points of one network that differ in what was left out of its compilation share their
peers: these run beside the one of which the least was left out. Needs torch, tvm_ffi and a GPU, and no compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm_rnn.bench.measure.floors import shares
from tvm_rnn.bench.suites.gpu import Point, batches, beside_peers
from tvm_rnn.errors import ConfigError, TvmRnnError, message
from tvm_rnn.stages import duration
from tvm_rnn.worker_process import Ended, Late, Reply, Request, WorkerProcess

from .build_suite import Ready, module_file
from .compare import OURS, check

# Also the names in gpu_worker.py's table, which is not imported here: it is the other process's.
PEERS = ("torch", "cudnn", "cudnn-fp16", "torch-loop", "torch-compile", "triton", "flashrnn")
# No stage may take longer without a word: a persistent kernel that waits for ever is ended with its process.
PATIENCE_SECONDS = 90.0
# A peer's configuration that has ended so many processes is not tried again: each takes seconds to start.
MOST_ENDS = 2
WAIT_SECONDS = 0.1  # for a module that is being compiled, from look to look
COMMAND = ("-m", "tvm_rnn.bench.run.gpu_worker")
# Where torch.compile and Triton keep what they have compiled.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
Progress = Callable[[str], None]
Record = Reply


@dataclass(frozen=True)
class Options:
    """How a run is made. limit: seconds for all of it. rounds: alternating, of which the median counts."""

    against: tuple[str, ...] = ("torch",)
    limit: float | None = None
    rounds: int = 9
    compile_seconds: float = 60.0
    patience: float = PATIENCE_SECONDS


@dataclass
class Run:
    """A run: where its records go, when it began, and how long all of it may take."""

    write: Callable[[Record], None]
    limit: float | None
    progress: Progress | None
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return float("inf") if self.limit is None else self.limit - (time.monotonic() - self.started)

    def tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)

    def _ahead(self, done: int, count: int) -> str:
        """The share that is done, and the time for the rest, if each point takes as long as those did."""
        if not done:
            return ""
        seconds = time.monotonic() - self.started
        return f" ({done / count:.0%}, about {duration(min(self.left, seconds / done * (count - done)))} left)"

    def each(self, points: Sequence[Point]) -> Iterator[Point]:
        for number, point in enumerate(points):
            if self.left <= 0:
                self.write({"kind": "stopped", "limit": self.limit, "points_left": len(points) - number})
                return
            self.tell(f"{number + 1} of {len(points)}{self._ahead(number, len(points))}: {point.name}")
            yield point


def check_asked(options: Options, modules: str | os.PathLike[str], peers: Sequence[str]) -> None:
    """Raises ConfigError for a peer that is none of these, or where there are no modules."""
    check(options.against, peers)
    if not os.path.isdir(modules):
        do = "compile them first: tvm-rnn bench --suite NAME --build DIR"
        raise ConfigError(message("--modules: no such folder", got=repr(os.fspath(modules)), do=do))


def run(
    points: Sequence[Point],
    modules: str | os.PathLike[str],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    every: Sequence[Point] = (),
    ready: Ready | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Measure the points and return the records; the first says what they were measured on.

    modules: the folder of compiled modules; a point without one is measured for its peers. every: all points of the
    suite, which decide what a module was compiled for (default: points). records: a file of lines of JSON to write.
    ready: whether a point's module is there, where others are compiled meanwhile; points keep their order, so that
    those of a run that is cut are a fair sample.

    Raises ConfigError for a peer that is none or a folder that is missing, TvmRnnError where there is no GPU.
    """
    check_asked(options, modules, PEERS)
    modules = os.path.abspath(modules)  # the workers start in a folder of their own
    sizes, with_peers, found = batches(every or points), beside_peers(points), list[Record]()
    ended = Counter[str]()  # how often a peer's configuration has ended the process
    with writing(found, records) as write, process() as worker:
        this = Run(write, options.limit, progress)
        this.tell("starting")
        facts = ask(worker, {"facts": True}, options.patience)["facts"]
        write({"kind": "facts", **facts})
        for point in this.each(points):
            while ready is not None and not ready(point) and this.left > 0:
                time.sleep(WAIT_SECONDS)
            path, seconds = module_file(modules, point.network, sizes[point.network])
            request = {
                "point": point.as_dict(),
                "module": path if os.path.exists(path) else None,
                "frameworks": (OURS, *options.against) if point in with_peers else (OURS,),
                "rounds": options.rounds,
                "compile_seconds": options.compile_seconds,
            }
            rows = _measure(worker, request, options, this, ended)
            flops = next((row["flops_per_row"] for row in rows if row.get("flops_per_row")), 0.0)
            flops *= point.batch * point.steps
            for row in rows:
                own = {"compile_seconds": seconds} if row["framework"] == OURS and seconds is not None else {}
                known = shares({**point.record, **row, "flops": flops}, facts.get("ceilings") or {})
                write({**point.record, **own, **row, **known})
    return found


@contextlib.contextmanager
def writing(found: list[Record], path: str | os.PathLike[str] | None) -> Iterator[Callable[[Record], None]]:
    """A function that notes a record, and writes it to a file of lines of JSON at once, if there is to be one."""
    with contextlib.nullcontext() if path is None else open(path, "w") as file:

        def write(record: Record) -> None:
            record = {**record, **_made()} if record["kind"] == "facts" else record
            found.append(record)
            if file is not None:
                print(json.dumps(record), file=file, flush=True)

        yield write


def _made() -> Record:
    """When and how records are made, of which commit where that is known, and what else the machine did then."""
    command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    made = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": command, "load": os.getloadavg()[0]}
    commit = _commit(Path(__file__).resolve().parents[3])
    return {**made, "commit": commit} if commit else made


def _commit(checkout: Path) -> str:
    """The commit that is checked out, with a "+" where files differ from it. Where this is no checkout, what
    TVM_RNN_COMMIT says: copies of sources on other machines have no history."""
    if not (checkout / ".git").exists():
        return os.environ.get("TVM_RNN_COMMIT", "")
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _measure(worker: WorkerProcess, request: Request, options: Options, this: Run, ended: Counter[str]) -> list[Record]:
    """All rows of one point. What ends the process is left out of the next try, with the reason."""
    skip = {blamed: f"it ended the process at {n} points before" for blamed, n in ended.items() if n >= MOST_ENDS}
    names = request["frameworks"]
    while True:
        patience = min(options.patience + options.compile_seconds, max(1.0, this.left))
        try:
            return list(ask(worker, {**request, "skip": skip}, patience)["rows"])
        except WorkerEnded as end:
            if this.left <= 0 or end.framework not in names or end.blamed in skip:
                return [{"framework": name, "reason": skip.get(name, str(end))} for name in names]
            skip[end.blamed] = str(end)
            if end.config and end.framework != OURS:
                ended[end.blamed] += 1


class WorkerEnded(Exception):
    """The worker's process ended or fell silent; the text says how. framework, config: what it was working on."""

    def __init__(self, reason: str, framework: str, config: str = "") -> None:
        super().__init__(reason)
        self.framework, self.config = framework, config

    @property
    def blamed(self) -> str:
        return f"{self.framework}: {self.config}" if self.config else self.framework


@contextlib.contextmanager
def process() -> Iterator[WorkerProcess]:
    """The process that uses the GPU. Its compilers' caches are its own: peers compile as for the first time, and their
    seconds say so."""
    # What a peer's compiler left running may still write there at the end.
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-bench-", ignore_cleanup_errors=True) as folder:
        caches = {name: os.path.join(folder, name.lower()) for name in CACHES}
        worker = WorkerProcess(COMMAND, folder, environment=caches)
        try:
            yield worker
        finally:
            worker.end()


def ask(worker: WorkerProcess, request: Request, patience: float) -> Reply:
    """The answer, which is waited for as long as a stage begins every `patience` seconds. Raises WorkerEnded where the
    process ended or was ended for its silence, TvmRnnError where this machine cannot run benchmarks at all."""
    stage, framework, config = "starting", "", ""
    try:
        answer = worker.ask(request, patience)
        while "stage" in answer:
            stage, framework, config = answer["stage"], answer["framework"], answer.get("config", "")
            worker.extend(patience)
            answer = worker.receive()
    except Late:
        raise WorkerEnded(f"no answer within {patience:.0f} s of {stage}", framework, config) from None
    except Ended as reason:
        raise WorkerEnded(f"the process ended while {stage}: {reason}", framework, config) from None
    if "failed" in answer:
        do = "run it on a machine with an NVIDIA GPU, torch for CUDA and apache-tvm-ffi"
        raise TvmRnnError(message("this machine cannot run GPU benchmarks", got=answer["failed"], do=do))
    return answer
