"""Compile the modules of a suite: on any machine with the compiler, for a GPU that need not be there.

In: the points of a suite and a folder. Out: one module file per network in it, and index.json that says what each is,
how long it took, and why one is missing. Each is compiled by a process of its own, several at a time; a file that is
there already, of the same network and the same sources of this package, is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tvm_rnn.bench.suites.gpu import Point, batches, network
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.locations import PACKAGE, PYTHONPATH

INDEX = "index.json"
# Files of this package that no compiled module depends on, by how their names begin.
ASIDE = ("bench", "cli", "console", "gpu_", "peer", "reference", "show", "suites", "tables", "tolerance", "torch_model")
SUFFIXES = (".py", ".c", ".h", ".cu")
Progress = Callable[[str], None]
Row = dict[str, Any]


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


def module_file(folder: str | os.PathLike[str], network: Point, sizes: Sequence[int]) -> str:
    """The path of a network's module in a folder. sizes: the batch sizes that it is to be quickest at.

    Where the folder's index has the network under another name (another state of the sources), that is its path.
    """
    found = _indexed(os.fspath(folder)).get(_key(network, sizes), {})
    if "file" in found and os.path.exists(os.path.join(folder, found["file"])):
        return os.path.join(folder, found["file"])
    return os.path.join(folder, _file_name(network, sizes))


def module_seconds(folder: str | os.PathLike[str], network: Point, sizes: Sequence[int]) -> float | None:
    """How long a network's module took to compile, where it was compiled; None where the index does not say."""
    seconds = _indexed(os.fspath(folder)).get(_key(network, sizes), {}).get("seconds")
    return None if seconds is None else float(seconds)


def _key(network: Point, sizes: Sequence[int]) -> str:
    return f"{network.network_name} for B={','.join(map(str, sizes))}"


def _file_name(network: Point, sizes: Sequence[int]) -> str:
    key = json.dumps([network.as_dict(), list(sizes), sources_digest()], sort_keys=True)
    return f"{network.network_name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}.so"


def _indexed(folder: str) -> Row:
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
    jobs: int | None = None,
    limit: float = 600.0,
    progress: Progress | None = None,
) -> Row:
    """Compile the networks of the points to a folder. Returns their part of its index: {name: {"file", "reason", ...}}.

    every: all points of the suite, whose batch sizes a module is made for (default: points). jobs: compilations at a
    time (default: one per CPU). limit: seconds for each. One that fails has a reason in the index and stops no other; a
    file that another one has replaced is removed.

    Raises ConfigError where the folder cannot be made.
    """
    tell = progress or (lambda text: None)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as reason:
        raise ConfigError(message("--build: this folder cannot be made", got=str(reason))) from None
    wanted = {point.network for point in points}
    sizes = {network: found for network, found in batches(every or points).items() if network in wanted}
    index = _indexed(os.fspath(folder))
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        work = {pool.submit(_build, network, found, folder, target, limit): network for network, found in sizes.items()}
        for done, future in enumerate(as_completed(work), 1):
            name, row = _key(work[future], sizes[work[future]]), future.result()
            before = index.get(name, {})
            same = before.get("file") == row["file"]
            index[name] = {**before, **row} if same and row.get("kept") else row
            tell(f"{done} of {len(work)}: {name}: {row.get('reason') or row['file']}")
            _write(folder, index)
            if before and not same:
                Path(folder, before["file"]).unlink(missing_ok=True)
    names = [_key(network, found) for network, found in sizes.items()]
    return {name: index[name] for name in names}


def _write(folder: str | os.PathLike[str], index: Row) -> None:
    path = os.path.join(folder, INDEX)
    with open(f"{path}.tmp", "w") as file:
        json.dump(index, file, indent=1)
    os.replace(f"{path}.tmp", path)


def _build(network: Point, sizes: Sequence[int], folder: str | os.PathLike[str], target: str, limit: float) -> Row:
    """One row of the index."""
    row: Row = {"file": _file_name(network, sizes), "batches": list(sizes), "target": target}
    path = os.path.abspath(os.path.join(folder, row["file"]))
    if os.path.exists(path):
        return {**row, "kept": True}
    request = {"network": network.as_dict(), "batches": list(sizes), "target": target, "path": path}
    paths = os.pathsep.join([PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tvm_rnn.bench.run.build_suite", json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": paths},
            check=False,
        )
        reason = "" if done.returncode == 0 else _reason(done.stderr, done.returncode)
    except subprocess.TimeoutExpired:
        reason = f"stopped after {limit:g} s"
    row["seconds"] = round(time.perf_counter() - started, 1)
    if not reason:
        row["bytes"] = os.path.getsize(path)
        return row
    return {**row, "reason": reason}


def _reason(printed: str, code: int) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or [f"exit code {code}"])[-1][:400]


def build_one(request: Row) -> None:
    """Compile one network, as `build` asks for it, and write its file."""
    from tvm_rnn.compiler.compile import compile

    point = Point.from_dict(dict(request["network"]))
    options: Row = {"without": point.without}
    if point.precision != point.dtype:
        options["precision"] = point.precision
    compile(network(point), request["target"], tuple(request["batches"]), **options).export(request["path"])


if __name__ == "__main__":
    build_one(json.loads(sys.argv[1]))
