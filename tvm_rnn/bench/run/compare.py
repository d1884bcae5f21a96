"""Time a module beside its peers: torch, onnxruntime, OpenVINO and NumPy, with the same weights and inputs.

In: a module's .so file (`compare`), from which everything is derived. Out: a `Report` of one row per framework, as a
table or as JSON. Every framework has a process of its own (`bench/peers/worker.py`). They get ready side by side; when
all results have been compared with the oracle's, one works at a time, in alternating rounds. A result that differs gets
no ratio.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.bench.peers.generation import SEED, WRITERS
from tvm_rnn.bench.peers.models import Unsupported, net_of
from tvm_rnn.bench.peers.worker import FRAMEWORKS
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.errors import ConfigError, TvmRnnError, WeightError, message, unknown
from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import relative_error, tolerance
from tvm_rnn.runtime.runtime import Manifest, Module, read_container
from tvm_rnn.worker_process import Lost, Reply, Request, WorkerProcess

if TYPE_CHECKING:
    from rich.table import Table

Weights = Mapping[str, np.ndarray]
OURS = "tvm_rnn"
PEERS = tuple(name for name in dict.fromkeys((*FRAMEWORKS, *WRITERS)) if name != OURS)
USUAL = ("torch", "onnxruntime", "openvino", "numpy")
# Thread pools that have just worked spin for up to 20 ms (libgomp, onnxruntime) before they sleep: wait that out.
SETTLE_SECONDS = 0.05
# A round that takes more than this share of the fastest one before is not faster: then rounds count.
STABLE, MOST_WARM_UPS = 0.97, 5
MOST_OTHER_TOKENS = 0.1  # two tokens may be as likely but for rounding, and what follows in that row is another text
# Of a batch that generates without drawing; the others repeat them: the oracle takes minutes for many rows and a large
# vocabulary. A prime: rows that repeat lie at other places of their tiles.
DISTINCT_ROWS = 29
# Of generation the oracle makes as many steps as these take it, in tens of seconds; all of them are compared.
ORACLE_FLOPS, FLOPS_OF_A_DRAW = 1e12, 3000
MOST_SPREAD = 0.5  # on a machine with nothing else to do rounds differ by a few percent
TAILS = ("p99", "p99.9")
THREAD_VARIABLES = (
    "TVM_RNN_NUM_THREADS",
    "TVM_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


@dataclass(frozen=True)
class Row:
    """One framework's result, or the reason why it has none.

    median_us: per time step, of the whole batch; the median of the rounds of its best configuration. least_us: of its
    fastest round, which others on the machine slow down least. spread: (slowest - fastest round) / median. gflops:
    GFLOP/s by the manifest's count of FLOPs. ratio: median_us / ours, above 1 where ours is faster. error: relative to
    the float64 oracle; of tokens the share that differs (None: there is no oracle for a user's own cell).
    """

    name: str
    version: str = ""
    config: str = ""
    median_us: float | None = None
    spread: float | None = None
    gflops: float | None = None
    ratio: float | None = None
    error: float | None = None
    reason: str = ""
    configs: Mapping[str, float] = field(default_factory=dict)  # the median of each, us per step
    least_us: float | None = None
    tail_us: tuple[float, ...] = ()  # of a stream: the 99th and the 99.9th percentile of its calls


@dataclass(frozen=True)
class Report:
    """What was measured, and on what: module, cell, sizes, steps, batch, threads, rounds, CPU, versions, load."""

    rows: tuple[Row, ...]
    facts: Request = field(default_factory=dict)

    def as_dict(self) -> Reply:
        """Ready for json.dumps: {"facts": {...}, "rows": [{...}, ...], "warnings": [...]}."""
        return {"facts": dict(self.facts), "rows": [asdict(row) for row in self.rows], "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        return doubts(row.spread for row in self.rows)

    def table(self) -> Table:
        from rich.table import Table

        table = Table(caption=self._caption(), caption_justify="left", box=None, header_style="bold", pad_edge=False)
        table.add_column("framework", no_wrap=True)
        table.add_column("configuration", min_width=12)
        tails = TAILS if any(row.tail_us for row in self.rows) else ()
        for title in ("us/step", "least", *tails, "spread", "GFLOP/s", "ratio", "error"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in self.rows:
            name = f"{row.name} {row.version}".strip()
            if row.median_us is None:
                table.add_row(name, row.reason)
                continue
            ratio = "" if row.name == OURS or row.ratio is None else f"{row.ratio:.2f}"
            error = "unchecked" if row.error is None else f"{row.error:.1e}"
            spread, gflops = f"{row.spread or 0:.0%}", f"{row.gflops or 0:.1f}"
            tail = [f"{value:.3g}" for value in row.tail_us] + [""] * (len(tails) - len(row.tail_us))
            times = (f"{row.median_us:.3g}", f"{row.least_us or row.median_us:.3g}", *tail)
            table.add_row(name, row.config, *times, spread, gflops, ratio, error)
        return table

    def _caption(self) -> str:
        facts = self.facts
        shapes = [f"{name} {shape}" for name, shape in facts["inputs"].items()]
        shapes += [f"{name} {list_of[0]}" for name, list_of in facts["states"].items()]
        on_cpu = facts["threads"] == 1 and not any(row.tail_us for row in self.rows)
        rounds = f"{facts['rounds']} rounds{', CPU time' if on_cpu else ''}"
        lines = [
            "",
            f"{facts['module']}: {facts['cell']} {facts['dtype']}, {', '.join(shapes)}, "
            f"layers {facts['num_layers']}, directions {facts['num_directions']}",
            f"T {facts['steps']}, B {facts['batch']}, threads {facts['threads']}; medians of {rounds}; "
            "ratio: this framework's time / tvm_rnn's",
            f"{facts['cpu']} (compiled for {facts['target']}), load average "
            + " to ".join(f"{load:.2f}" for load in facts["load"]),
            ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
            *self.warnings(),
        ]
        return "\n".join(lines)


def _with_weights(path: str, others: Weights) -> tuple[Manifest, Weights]:
    """What is in a file that can be compared: one network, with its weights, or others that were given."""
    manifest, weights = read_container(path)
    weights = {**weights, **others}
    if "networks" in manifest:
        got, do = f"a model of {len(manifest.networks)}", "time a module of each: rnn.compile(model.networks[0])"
        raise ConfigError(message("one network is compared at a time", where=path, got=got, do=do))
    if "variants" in manifest and _way(manifest, False) != "generation":
        got = f"one for {manifest.variants[0].arch}"
        do = "--training times both passes on a GPU; a suite with --build and --modules times networks there"
        raise ConfigError(message("only modules of CPUs are compared one by one", where=path, got=got, do=do))
    if any(getattr(state, "constant", False) for state in manifest.states):
        do = "call the module, and time it"
        raise ConfigError(message("a module of a cell with constants is not compared", where=path, do=do))
    if not {item.name for item in manifest.weights} <= weights.keys():
        do = "compile it with weights (tvm-rnn compile --seed 0 or --weights w.safetensors)"
        raise WeightError(message("a module without weights cannot be compared", where=path, do=do))
    return manifest, weights


def _expected(manifest: Manifest, weights: Weights, inputs: dict[str, np.ndarray], new_steps: int) -> np.ndarray | None:
    """The oracle's y, of generation where there are new steps; None for a user's own cell, of which only the module
    itself is timed."""
    try:
        net = net_of(manifest)
    except Unsupported:
        return None
    exact = reference(net.load({name: weights[name] for name in net.weight_shapes}))
    if not new_steps:
        return exact(inputs)[0]
    prompt = next(iter(inputs.values()))
    return exact.generate(_oracle_steps(net, manifest, prompt.shape[1], new_steps), prompt=prompt, seed=SEED)[0]


def _oracle_steps(net: RNN, manifest: Manifest, rows: int, steps: int) -> int:
    """How many of the steps of generation the oracle makes: all, but where rows or the numbers they draw are many."""
    graphs = (layer.graph for layer in net.layers)
    drawn = sum(prod(node.shape) for graph in graphs for node in graph.nodes() if node.random)
    return min(steps, max(1, int(ORACLE_FLOPS / (rows * (manifest.flops_per_row + FLOPS_OF_A_DRAW * drawn)))))


def _way(manifest: Manifest, stream: bool) -> str:
    """What is timed: a name that `bench/peers/worker.py` knows."""
    if stream:
        return "stream"
    return "generation" if manifest.get("generation") and len(manifest.inputs) == 1 else "sequence"


def _inputs(manifest: Manifest, steps: int, batch: int, way: str) -> dict[str, np.ndarray]:
    """Random numbers in -1..1, and tokens. Of generation the first is a prompt of one step."""
    rng, inputs = np.random.default_rng(0), dict[str, np.ndarray]()
    tokens = (manifest.get("generation") or {}).get("tokens")
    for number, item in enumerate(manifest.inputs):
        shape = (1 if way == "generation" and number == 0 else steps, batch, *item.shape)
        if tokens and number == 0:
            drawn = rng.integers(tokens, size=shape)
            inputs[item.name] = drawn if way == "generation" else drawn.astype(manifest.dtype)
        else:
            inputs[item.name] = rng.uniform(-1, 1, shape).astype(manifest.dtype)
    return inputs


def compare(
    module: Module | str | os.PathLike[str],
    against: Sequence[str] = USUAL,
    *,
    steps: int = 100,
    batch: int = 1,
    threads: int | None = None,
    rounds: int = 7,
    round_seconds: float = 0.2,
    stream: bool = False,
    weights: Weights | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Time a module and the frameworks named in `against`, on inputs [steps, batch, ...] of random numbers in -1..1.

    threads: for each framework; None: the CPUs that this process may use. A round times every configuration for
    `round_seconds`. stream: one step a call, the state carried from call to call, over and over through `steps` steps;
    figures are of one call. Otherwise a module that was compiled to generate makes `steps` steps from a prompt of one,
    and figures are of one step; where it draws no tokens, rows of a large batch repeat, and where the oracle would
    take minutes it makes the first steps alone (oracle_steps of the facts), which are compared. weights: by name, for a
    file without them. progress is told what is being done. A framework that is not installed, has no such cell, fails,
    or whose result differs from the oracle gets a row with the reason and no figures.

    Raises ConfigError for wrong arguments, LoadError for the file, WeightError for a module without weights, and
    TvmRnnError where the module itself fails or differs from the oracle.
    """
    check(against, PEERS, steps=steps, batch=batch, rounds=rounds, threads=1 if threads is None else threads)
    threads = threads or len(os.sched_getaffinity(0))
    tell = progress or (lambda text: None)
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-bench-") as folder:
        path = os.path.join(folder, "module.so") if isinstance(module, Module) else os.path.abspath(os.fspath(module))
        if isinstance(module, Module):
            module.export(path)
        manifest, weights = _with_weights(path, own := weights or {})
        way = _way(manifest, stream)
        distinct, rows = _rows(manifest, batch, way)
        drawn = _inputs(manifest, steps, distinct, way)
        inputs = {name: array[:, rows] for name, array in drawn.items()}
        files = {"inputs": _saved(folder, "input", inputs), "weights": _saved(folder, "weight", own)}
        new_steps = steps if way == "generation" else 0
        request = {"path": path, **files, "folder": folder, "threads": threads, "way": way, "steps": new_steps}
        load = [os.getloadavg()[0]]
        with contextlib.ExitStack() as stack:
            contenders = _started((OURS, *against), stack, folder, request, tell)
            tell("computing the oracle")
            expected = _expected(manifest, weights, drawn, new_steps)
            expected = None if expected is None else expected[:, rows]
            for contender in contenders:
                contender.prepare(expected, _limit(manifest, steps, expected))
            _take_turns(contenders, rounds, round_seconds, tell)
        load.append(os.getloadavg()[0])
        facts = run_facts(path, manifest, load, steps=steps, batch=batch, threads=threads, rounds=rounds)
        facts["oracle_steps"] = 0 if expected is None else len(expected)
    flops, each = manifest.flops_per_row * batch, 1 if stream else steps
    ours = contenders[0].row(each, flops, None)
    return Report((ours, *(c.row(each, flops, ours.median_us) for c in contenders[1:])), facts)


def _take_turns(contenders: Sequence[Contender], rounds: int, seconds: float, tell: Callable[[str], None]) -> None:
    """Time everyone in alternating rounds, once all are warm."""
    for contender in contenders:
        tell(f"warming {contender.name} up")
        contender.warm_up(seconds)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for contender in contenders:
            contender.time_once(seconds)


def _started(
    names: Iterable[str], stack: contextlib.ExitStack, folder: str, request: Request, tell: Callable[[str], None]
) -> list[Contender]:
    """Ours and its peers, each of which gets ready in a process of its own."""
    contenders = []
    for name in names:
        tell(f"starting {name}")
        contender = Contender(name)
        contender.start(stack, folder, request)
        contenders.append(contender)
    return contenders


def _saved(folder: str, kind: str, arrays: Weights) -> dict[str, str]:
    """Arrays by name as .npy files, whose paths have the same names."""
    paths = {name: os.path.join(folder, f"{kind}_{number}.npy") for number, name in enumerate(arrays, 1)}
    for name, array in arrays.items():
        np.save(paths[name], array)
    return paths


def check(against: Sequence[str], peers: Sequence[str] = PEERS, **counts: int) -> None:
    """Raises ConfigError for a peer that is none, and for a count below 1."""
    for name in against:
        if name not in peers:
            raise ConfigError(message("no such peer", **unknown("peer", name, peers)))
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ConfigError(message(f"the number of {name} is wrong", got=repr(count), expected="at least 1"))


def _rows(manifest: Manifest, batch: int, way: str) -> tuple[int, np.ndarray]:
    """How many rows of a batch differ, and which of them each row is: what is drawn depends on a row's number."""
    repeats = way == "generation" and not manifest.get("draws")
    distinct = min(batch, DISTINCT_ROWS) if repeats else batch
    return distinct, np.arange(batch) % distinct


def _of_tokens(result: np.ndarray | None) -> bool:
    return result is not None and result.dtype.kind == "i"


def _limit(manifest: Manifest, steps: int, expected: np.ndarray | None) -> float:
    """What `_error` may be."""
    dtype = manifest.get("weight_dtype") or manifest.dtype
    return MOST_OTHER_TOKENS if _of_tokens(expected) else tolerance(dtype, steps)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Relative; of tokens: the share of those that differ."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found != expected).mean()) if _of_tokens(expected) else relative_error(found, expected)


class Contender:
    """One framework: its process, its configurations, and what was measured of each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version, self.reason = "", ""
        self.errors: dict[str, float | None] = {}
        self.seconds: dict[str, list[float]] = {}
        self.tails: dict[str, list[list[float]]] = {}
        self.worker: WorkerProcess | None = None

    def start(self, stack: contextlib.ExitStack, folder: str, request: Request) -> None:
        """Start the process and ask for its results: imports and compilers take long, so all processes are started
        before the first is waited for."""
        environment = dict.fromkeys(THREAD_VARIABLES, str(request["threads"]))
        command = ("-m", "tvm_rnn.bench.peers.worker", self.name)
        self.worker = WorkerProcess(command, folder, environment=environment)
        stack.callback(self.worker.end)
        self.worker.send(request)

    def prepare(self, expected: np.ndarray | None, limit: float) -> None:
        """Wait for its results and compare them with what is expected, whose steps are the first of all; None: nothing
        is. What is wrong with a peer becomes its reason; ours is an error."""
        worker, self.worker = self.worker, None
        assert worker is not None
        try:
            answer = self._answer(worker.receive)
        except TvmRnnError as problem:
            if self.name == OURS:
                raise
            self.reason = " ".join(str(problem).split())
            return
        if "skip" in answer:
            self.reason = answer["skip"]
            return
        self.version = answer["version"]
        differing: list[str] = []
        for config, path in answer["results"].items():
            error, found = None, np.load(path, allow_pickle=False)
            if expected is not None:
                error = _error(found[: len(expected)], expected)
            if error is not None and not error <= limit:
                differing.append(f"{config}: error {error:.3g}, at most {limit:.3g} is allowed")
            else:
                self.errors[config], self.seconds[config] = error, []
        if differing and self.name == OURS:
            do = "if this cell is your own, give it a name that the zoo does not have; else report this as a bug"
            raise TvmRnnError(message("the module's result differs from the oracle's", got=differing[0], do=do))
        if not self.seconds:
            self.reason = f"not timed, its result differs from the oracle's ({'; '.join(differing)})"
        else:
            self.worker = worker

    def _answer(self, ask: Callable[[], Reply]) -> Reply:
        """The answer. Raises TvmRnnError, with the last line of what the process printed, where it ended instead."""
        try:
            return ask()
        except Lost as reason:
            raise TvmRnnError(message(f"the benchmark's process of {self.name} ended early", got=str(reason))) from None

    def warm_up(self, seconds: float) -> None:
        """Rounds of each configuration that do not count, until one is not faster than those before: the first ones may
        find slow clocks, and memory that nobody has touched."""
        for config in self.seconds if self.worker is not None else ():
            least = math.inf
            for _ in range(MOST_WARM_UPS):
                found = self._time(config, seconds)["seconds"]
                if found > least * STABLE:
                    break
                least = min(least, found)

    def _time(self, config: str, seconds: float) -> Reply:
        """A configuration's round, after a pause in which everyone's threads fall asleep."""
        assert self.worker is not None
        time.sleep(SETTLE_SECONDS)
        return self._answer(partial(self.worker.ask, {"config": config, "seconds": seconds}))

    def time_once(self, seconds: float) -> None:
        """One round: each configuration once."""
        if self.worker is None:
            return
        for config, found in self.seconds.items():
            answer = self._time(config, seconds)
            found.append(answer["seconds"])
            self.tails.setdefault(config, []).append(answer.get("tail", []))

    def row(self, steps: int, flops: float, ours_us: float | None) -> Row:
        """The best configuration's figures. flops: of one step. ours_us: what ratios are made with, None for ours."""
        if self.worker is None:
            return Row(self.name, self.version, reason=self.reason)
        medians = {config: statistics.median(times) / steps * 1e6 for config, times in self.seconds.items()}
        config = min(medians, key=lambda c: medians[c])
        us, tails = medians[config], zip(*self.tails[config], strict=True)
        figures = (us, spread(self.seconds[config]), flops / us * 1e-3, us / (ours_us or us), self.errors[config])
        tail_us = tuple(1e6 * statistics.median(values) for values in tails)
        least_us = min(self.seconds[config]) / steps * 1e6
        return Row(self.name, self.version, config, *figures, configs=medians, least_us=least_us, tail_us=tail_us)


def records_of(report: Report, point: Point, ours: Reply, writes: bool) -> Iterator[Reply]:
    """A suite's record of each framework. ours: what the first one's says besides. writes: whether it generates."""
    for row in report.rows:
        record: Reply = {**point.record, **(ours if row.name == OURS else {}), "framework": row.name}
        if row.median_us is None:
            yield {**record, "reason": row.reason}
            continue
        record |= {"version": row.version, "us_per_step": row.median_us, "us": row.median_us * point.steps}
        record |= {"least_us_per_step": row.least_us, "spread": row.spread, "config": row.config}
        record |= {"tokens_per_second": point.batch / row.median_us * 1e6} if writes else {}
        record |= {"tail_us": list(row.tail_us)} if row.tail_us else {}
        record |= {} if row.error is None else {"error": row.error}
        yield {**record, "configs": dict(row.configs)}


def spread(times: Sequence[float]) -> float:
    """(slowest - fastest) / median."""
    return (max(times) - min(times)) / statistics.median(times)


def doubts(spreads: Iterable[float | None]) -> list[str]:
    """What is to be said where rounds of one framework differ so much that no figure of the run can be trusted."""
    most = max((each or 0.0 for each in spreads), default=0.0)
    if most <= MOST_SPREAD:
        return []
    return [f"warning: rounds differ by up to {most:.0%}: this machine is busy, times and ratios are not reliable"]


def run_facts(
    path: str, manifest: Manifest, load: Sequence[float], *, steps: int, batch: int, threads: int, rounds: int
) -> Reply:
    """What a Report of one module is made on: its caption needs all of it."""
    return {
        "module": os.path.basename(path),
        "cell": manifest.cell,
        "dtype": manifest.dtype,
        "inputs": {item.name: item.shape for item in manifest.inputs},
        "states": {item.name: item.shapes for item in manifest.states},
        "num_layers": manifest.num_layers,
        "num_directions": manifest.num_directions,
        "steps": steps,
        "batch": batch,
        "threads": threads,
        "rounds": rounds,
        "cpu": _cpu_name(),
        "target": manifest.target.mcpu or manifest.target.name,
        "versions": {"python": platform.python_version(), **manifest.versions},
        "load": list(load),
    }


def cpu_facts(threads: int) -> Reply:
    """What a run is made on: device, versions, threads."""
    from tvm_rnn.version import __version__

    versions = {"python": platform.python_version(), "tvm_rnn": __version__, "numpy": np.__version__}
    return {"device": f"{_cpu_name()}, {threads} thread{'s' * (threads > 1)}", "versions": versions, "ceilings": {}}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
