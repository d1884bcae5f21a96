"""Compile the modules of a suite: on any machine with the compiler, for a GPU that need not be there.

In: the points of a suite and a folder. Out: one module file per network in it, and index.json that says what each is,
how long it took, and why one is missing. Processes of their own compile them, several at a time; a file that is there
already, of the same network and the same sources of this package, is kept. `building` does it beside a measurement.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import select
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tvm_rnn.bench.suites import writers
from tvm_rnn.bench.suites.gpu import Point, batches, network
from tvm_rnn.errors import BuildError, ConfigError, message
from tvm_rnn.locations import PACKAGE
from tvm_rnn.names import file_name
from tvm_rnn.npy_files import text_writer, write_whole
from tvm_rnn.options import Call, asked
from tvm_rnn.whole_files import alone_with
from tvm_rnn.worker_process import Late, Lost, Pool, Reply, Request, WorkerProcess, channel

COMMAND = ("-m", "tvm_rnn.bench.run.build_suite")
INDEX = "index.json"
BEHIND = 10  # the nice value of processes that compile while others are timed
# Files of this package that no compiled module depends on, by how their names begin.
ASIDE = ("bench", "cli", "console", "gpu_", "peer", "reference", "show", "suites", "tables", "tolerance", "torch_model")
SUFFIXES = (".py", ".c", ".h", ".cu")
Progress = Callable[[str], None]
Row = Reply
Ready = Callable[[Point], bool]  # whether a point can be measured, as far as its module is concerned


@functools.cache
def sources_digest() -> str:
    """A hash of the compiler's sources: another one may compile to other code."""
    digest = hashlib.sha256()
    folders = [PACKAGE, PACKAGE.parent / "schedules"]
    for path in sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES):
        if path.name.startswith(ASIDE):
            continue
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def module_file(folder: str | os.PathLike[str], network: Point, sizes: Sequence[int]) -> tuple[str, float | None]:
    """The path of a network's module in a folder, and how many seconds it took to compile, where the index says so.

    sizes: the batch sizes that it is optimised for. Where the folder's index has the network under another name
    (another state of the sources), that is its path.
    """
    found = _indexed(folder).get(_key(network, sizes), {})
    path = os.path.join(folder, found.get("file", ""))
    there = path if os.path.isfile(path) else os.path.join(folder, _file_name(network, _request(network, sizes)))
    return there, found.get("seconds")


def _key(network: Point, sizes: Sequence[int]) -> str:
    return f"{network.network_name} for {'B=' + ','.join(map(str, sizes)) if sizes else 'any B'}"


def _request(
    network: Point,
    sizes: Sequence[int],
    calls: Sequence[Row] = (),
    target: str = "nvidia-h200",
    arch: Sequence[str] = (),
) -> Request:
    """What `build_one` is asked for, but for where its file goes."""
    own = {"network": network.as_dict(), "batches": list(sizes), "calls": list(calls)}
    return {**own, "target": target, "arch": list(arch)}


def _file_name(network: Point, request: Request) -> str:
    key = json.dumps([request, sources_digest()], sort_keys=True)
    return f"{file_name(network.network_name)}-{hashlib.sha256(key.encode()).hexdigest()[:10]}.so"


def _indexed(folder: str | os.PathLike[str]) -> Row:
    try:
        with open(os.path.join(folder, INDEX)) as file:
            rows: Row = json.load(file)
            return rows
    except (OSError, ValueError):
        return {}


def build(
    points: Sequence[Point],
    folder: str | os.PathLike[str],
    *,
    every: Sequence[Point] = (),
    target: str = "nvidia-h200",
    arch: Sequence[str] = (),
    jobs: int | None = None,
    limit: float = 600.0,
    progress: Progress | None = None,
    alone: bool = False,
) -> Row:
    """Compile the networks of the points to a folder. Returns their part of its index: {name: {"file", "reason", ...}}.

    every: all points of the suite, whose batch sizes a module is made for (default: points). target, arch: as `compile`
    has them. jobs: compilations at a time (default: one per CPU). limit: seconds for each. One that fails has a reason
    in the index and stops no other; a file that another one has replaced is removed. alone: on GPUs modules are for the
    calls of these points and no others, which takes a part of the time: a drawn suite has a network for each point.

    Raises ConfigError where the folder cannot be made.
    """
    tell = progress or (lambda text: None)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as reason:
        raise ConfigError(message("--build: this folder cannot be made", got=str(reason))) from None
    asked = _requests(points, every, target, arch, alone)
    sizes = {network: tuple(request["batches"]) for network, request in asked.items()}
    files = {network: _file_name(network, request) for network, request in asked.items()}
    there = [network for network, file in files.items() if os.path.exists(os.path.join(folder, file))]
    missing = [network for network in files if network not in there]
    requests = [
        {**asked[network], "path": os.path.abspath(os.path.join(folder, files[network]))} for network in missing
    ]
    rows: dict[Point, Row] = {}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tvm_rnn-build-"))
        pool = Pool(lambda: WorkerProcess(COMMAND, scratch), jobs or len(os.sched_getaffinity(0)))
        stack.callback(pool.end)
        answers = ((missing[number], _result(answer, limit)) for number, answer in pool.map(requests, limit))
        kept = ((network, {"kept": True}) for network in there)
        for done, (network, result) in enumerate(itertools.chain(kept, answers), 1):
            name = _key(network, sizes[network])
            row = {"file": files[network], "batches": list(sizes[network]), "target": target, **result}
            with alone_with(os.path.join(folder, INDEX)):  # another build may fill the same folder
                index = _indexed(folder)
                before = index.get(name, {})
                same = before.get("file") == row["file"]
                rows[network] = index[name] = {**before, **row} if same and network in there else row
                write_whole({os.path.join(folder, INDEX): text_writer(json.dumps(index, indent=1))})
            tell(f"{done} of {len(files)}: {name}: {row.get('reason') or row['file']}")
            if before and not same:
                Path(folder, before["file"]).unlink(missing_ok=True)
    return {_key(network, found): rows[network] for network, found in sizes.items()}


def _requests(
    points: Sequence[Point], every: Sequence[Point], target: str, arch: Sequence[str], alone: bool
) -> dict[Point, Request]:
    """What is asked for of each network, as `build` says."""
    wanted = {point.network for point in points}
    calls: dict[Point, list[Row]] = {network: [] for network in wanted}
    for point in points if alone else ():
        calls[point.network].append({"steps": point.steps, "batch": point.batch, "lengths": point.lengths})
    sizes = {network: found for network, found in batches(every or points).items() if network in wanted}
    return {network: _request(network, found, calls[network], target, arch) for network, found in sizes.items()}


@contextlib.contextmanager
def building(
    points: Sequence[Point],
    folder: str | os.PathLike[str],
    *,
    every: Sequence[Point] = (),
    target: str = "nvidia-h200",
    arch: Sequence[str] = (),
    jobs: int | None = None,
    alone: bool = False,
) -> Iterator[Ready]:
    """While the body runs, a process beside this one builds the points to the folder, as `build` would, and gives way
    to others. Yields what says whether a point's module is there, or why there is none. The process ends with the body.

    What is yielded raises BuildError where the process ended without that module and without a reason for it.
    """
    os.makedirs(folder, exist_ok=True)
    asked = _requests(points, every, target, arch, alone)
    files = {network: _file_name(network, request) for network, request in asked.items()}
    keys = {network: _key(network, tuple(request["batches"])) for network, request in asked.items()}
    how = {"target": target, "arch": list(arch), "jobs": jobs, "alone": alone}
    listed = {"points": [p.as_dict() for p in points], "every": [p.as_dict() for p in every]}
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-build-", ignore_cleanup_errors=True) as scratch:
        worker = WorkerProcess(COMMAND, scratch, environment={"TMPDIR": scratch})
        worker.send({**listed, "folder": os.path.abspath(folder), "how": how})

        def ready(point: Point) -> bool:
            there = _indexed(folder).get(keys[point.network], {}).get("file") == files[point.network]
            if not there and select.select([worker.pipe], [], [], 0)[0]:
                try:
                    worker.receive()
                except Lost as reason:
                    got = str(reason)
                    raise BuildError(message("the process that compiles modules ended", got=got)) from None
            return there

        try:
            yield ready
        finally:
            worker.end()


def _build_beside(request: Request) -> Reply:
    """What `building` asks of its process: that is `build`, of which the folder's index tells."""
    os.nice(BEHIND)
    points, every = ([Point.from_dict(dict(own)) for own in request[name]] for name in ("points", "every"))
    build(points, request["folder"], every=every, **request["how"])
    return {}


def _result(answer: Reply | Lost, limit: float) -> Reply:
    if isinstance(answer, Late):
        return {"seconds": limit, "reason": f"stopped after {limit:g} s"}
    return {"reason": str(answer)} if isinstance(answer, Lost) else answer


def build_one(request: Request) -> Reply:
    """Compile one network, as `build` asks for it, and write its file. What goes wrong is the reason."""
    from tvm_rnn.compiler.compile import built
    from tvm_rnn.schedule import record_files

    started = time.perf_counter()
    point = Point.from_dict(dict(request["network"]))
    options: Reply = {} if point.precision == point.dtype else {"precision": point.precision}
    options |= {"generate": True} if point.cell in writers.CELLS else {}
    options |= {"training": True} if point.training else {}
    result: Reply = {}
    try:
        machine, targets = record_files.machines(request["target"], request["arch"], None, lambda text: None)
        how = asked(machine, targets, batch=tuple(request["batches"]), without=point.without, **options)
        how = replace(how, calls=tuple(Call(**call) for call in request.get("calls", ())))
        module = built(network(point), how, None, lambda text: None)
        module.export(request["path"])
        result["bytes"] = os.path.getsize(request["path"])
    except Exception as reason:
        result["reason"] = traceback.format_exception_only(reason)[0].splitlines()[0][:400]
    return {"seconds": round(time.perf_counter() - started, 1), **result}


if __name__ == "__main__":
    with channel() as reply:
        for line in sys.stdin:
            asked_for = json.loads(line)
            reply(_build_beside(asked_for) if "points" in asked_for else build_one(asked_for))
