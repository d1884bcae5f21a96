"""The parts of `tvm-rnn tune` for GPUs: plan here, measure there, collect here; or all of it where the GPU is.

In: what `tune.py` was given. Out: a folder of candidates, results beside it, records; tables or JSON on stdout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.dtypes import precision_name
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.frontends.spec import parse_sizes
from tvm_rnn.target import GPUS

from .console import progress, show
from .options import Search, Tuning

CANDIDATES = 24  # per point, about


@dataclass(frozen=True)
class Building:
    """How candidates are built: for which GPU, how many of a point, how many at a time; what the records say of it."""

    target: str
    count: int
    jobs: int | None
    command: str


def wanted(asked: Tuning) -> bool:
    """Whether a command line is about a GPU."""
    gpu, target = asked.gpu, asked.measured.target
    parts = (gpu.suite, gpu.plan, gpu.measure, gpu.collect)
    return any(part is not None for part in parts) or target == "cuda" or target in GPUS


def tune(asked: Tuning, as_json: bool) -> None:
    """What the options say. Raises ConfigError where they do not go together."""
    gpu, search = asked.gpu, asked.search
    for name, value in asdict(asked.devices).items():
        if value is not None:
            do = "leave it out: GPUs are tuned with --plan, --measure and --collect"
            raise ConfigError(message(f"--{name.replace('_', '-')} is for CPUs", got=repr(value), do=do))
    folders = [name for name in ("plan", "measure", "collect") if getattr(gpu, name) is not None]
    if len(folders) > 1:
        raise ConfigError(
            message("tune does one thing at a time", got=", ".join(f"--{n}" for n in folders), do="give one")
        )
    if gpu.measure is not None:
        measure(gpu.measure, search.seconds, as_json)
    elif gpu.collect is not None:
        collect(gpu.collect, search.records, as_json)
    else:
        from tvm_rnn.bench.suites import gpu as suites

        own, target = [point for point in (_point(asked),) if point is not None], asked.measured.target
        if (gpu.suite is None) == (not own):
            got = "both" if own else "neither"
            raise ConfigError(message("tune takes a SPEC with its sizes, or --suite", got=got, do="give one of them"))
        points = suites.select(suites.suite(gpu.suite), gpu.only) if gpu.suite is not None else own
        target = "nvidia-h200" if target == "llvm" else target  # --suite alone
        how = Building(target, search.trials or CANDIDATES, search.jobs, _command(asked))
        if gpu.plan is not None:
            plan(points, gpu.plan, how, as_json)
        else:
            on_the_spot(points, how, search, as_json)


def _point(asked: Tuning) -> Point | None:
    """The network that SPEC and its sizes name."""
    if asked.spec is None:
        return None
    own, measured = asked.sizes, asked.measured
    if own.input_size is None or own.hidden_size is None:
        do = "give --input-size and --hidden-size"
        raise ConfigError(message("tune: which network?", got=f"{asked.spec} without sizes", do=do))
    sizes = []
    for name, value in parse_sizes(own.size or []).items():
        if not isinstance(value, int):
            raise ConfigError(message("tune: --size", got=f"{name}={value}", expected="one number for all layers"))
        sizes.append((name, value))
    return Point(
        asked.spec,
        own.input_size,
        own.hidden_size,
        measured.steps,
        measured.batch,
        precision_name(asked.dtype, measured.precision),
        layers=own.layers,
        directions=1 + own.bidirectional,
        sizes=tuple(sizes),
    )


def _command(asked: Tuning) -> str:
    """What made the records, as a command line."""
    gpu, own = asked.gpu, asked.sizes
    if gpu.suite:
        return f"tvm-rnn tune --suite {gpu.suite}" + (f" --only {gpu.only}" if gpu.only else "")
    sizes = f"--input-size {own.input_size} --hidden-size {own.hidden_size}"
    return f"tvm-rnn tune {asked.spec} {sizes} --steps {asked.measured.steps} --batch {asked.measured.batch}"


def plan(points: Sequence[Point], folder: str, how: Building, as_json: bool) -> None:
    """Build candidates into a folder."""
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.tune.gpu_plan import build_candidates

    with progress(as_json) as stage:
        made = build_candidates(points, folder, progress=stage, **asdict(how))
    table = plain_table("point", "candidates", "not built")
    for row in made["points"]:
        failed = sum("reason" in c for c in row["candidates"])
        table.add_row(row["name"], str(len(row["candidates"])), str(failed or ""))
    show(as_json, made, table, "", f"On the GPU machine: tvm-rnn tune --measure {folder}")


def measure(folder: str, seconds: float | None, as_json: bool) -> None:
    """Measure a plan on this machine's GPU."""
    from tvm_rnn.tune.gpu_measure import measure as run

    with progress(as_json) as stage:
        found = run(folder, limit=seconds, progress=stage)
    counts = {
        "measured": sum("us" in row for row in found.first.values()),
        "failed": sum("reason" in row for row in found.first.values()),
        "results": str(found.path),
    }
    said = f"{counts['measured']} measured, {counts['failed']} failed: {found.path}"
    show(as_json, counts, said, f"Where the compiler is: tvm-rnn tune --collect {folder}")


def collect(folder: str, records: str | None, as_json: bool) -> None:
    """Records from a plan's results."""
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.schedule.record_files import own_folder
    from tvm_rnn.tune.gpu_plan import collect as run

    into = records or str(own_folder())
    found = run(folder, into)
    rows = [record.as_dict() for record in found.records]
    facts = {"records": rows, "failed": dict(found.failed), "unmeasured": found.unmeasured, "folder": into}
    table = plain_table("workload", "us", "defaults", "gain", "templates")
    for record in found.records:
        names = ", ".join(dict.fromkeys(choice.template for choice in record.choices))
        table.add_row(record.name, f"{record.median_us:.4g}", f"{record.default_us:.4g}", f"{record.gain:.3f}", names)
    left = [f"not measured: {', '.join(found.unmeasured)}"] if found.unmeasured else []
    show(as_json, facts, table, "", f"{len(found.records)} records in {into}", *left)


def on_the_spot(points: Sequence[Point], how: Building, search: Search, as_json: bool) -> None:
    """Plan, measure and collect on a machine that has the compiler and the GPU."""
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-tune-") as folder:
        from tvm_rnn.tune.gpu_measure import measure as run
        from tvm_rnn.tune.gpu_plan import build_candidates

        with progress(as_json) as stage:
            build_candidates(points, folder, progress=stage, **asdict(how))
            run(folder, limit=search.seconds, progress=stage)
        collect(folder, search.records, as_json)
