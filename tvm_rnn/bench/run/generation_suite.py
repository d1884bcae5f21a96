"""Run a suite of networks that generate on the GPU: every module beside its peers, as `compare.py` times them.

In: points of a suite, a folder of modules that `build_suite.py` compiled. Out: records, one per point and framework,
written to a file as they come. What is timed is a call: unlike a sequence's (`gpu_suite.py`) it ends on the CPU, with
all tokens there, and a peer's loop is one of Python's. Needs torch, tvm_ffi and a GPU, and no compiler.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tvm_rnn.bench.peers.gpu import regime
from tvm_rnn.bench.suites.gpu import Point, batches, beside_peers, network
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.runtime.runtime import Manifest, read_container

from .build_suite import module_file
from .compare import OURS, PEERS, compare, cpu_facts, records_of
from .gpu_suite import Options, Progress, Record, Run, check_asked, writing

ROUND_SECONDS = 0.1


def run(
    points: Sequence[Point],
    modules: str | os.PathLike[str],
    options: Options,
    records: str | os.PathLike[str] | None = None,
    *,
    every: Sequence[Point] = (),
    progress: Progress | None = None,
) -> list[Record]:
    """Measure the points and return the records; arguments and errors are those of `gpu_suite.run`."""
    check_asked(options, modules, PEERS)
    found, sizes, with_peers = list[Record](), batches(every or points), beside_peers(points)
    with writing(found, records) as write:
        write({"kind": "facts", **cpu_facts(1), "device": _device()})
        for point in Run(write, options.limit, progress).each(points):
            path, seconds = module_file(modules, point.network, sizes[point.network])
            peers = options.against if point in with_peers else ()
            for record in _measure(point, path, peers, options.rounds):
                own = {"compile_seconds": seconds} if record["framework"] == OURS and seconds is not None else {}
                write({**own, **record})
    return found


def _device() -> str:
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "no GPU that torch finds"


def _measure(point: Point, path: str, peers: Sequence[str], rounds: int) -> Iterator[Record]:
    """Modules are built without weights: a large vocabulary's are larger than all code."""
    try:
        manifest, _ = read_container(path)
        report = compare(
            path,
            peers,
            steps=point.steps,
            batch=point.batch,
            rounds=rounds,
            round_seconds=ROUND_SECONDS,
            weights=network(point).init(0).weights,
        )
    except TvmRnnError as reason:
        yield {**point.record, "framework": OURS, "reason": " ".join(str(reason).split())}
        return
    ran = regime(_loop_of(manifest), point.batch, point.steps)
    ours = {"regime": ran, "flops_per_row": manifest.flops_per_row, "oracle_steps": report.facts["oracle_steps"]}
    yield from records_of(report, point, ours, writes=True)


def _loop_of(manifest: Manifest) -> Manifest:
    """What a manifest says of the program of the loop."""
    first = manifest.variants[0]
    return Manifest(templates=first.get("generate", first).templates)
