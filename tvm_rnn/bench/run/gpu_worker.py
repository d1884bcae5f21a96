"""The process of a GPU benchmark that uses the GPU: `python -m tvm_rnn.bench.run.gpu_worker`, started by
`gpu_suite.py`.

In: requests as lines of JSON on stdin: {"facts": true}; a point with the frameworks to compare, and what to leave out
("skip": a reason by "framework" or "framework: configuration"); or, for `tune/gpu_measure.py`, a point with the files
of its candidates. Out: lines of JSON on stdout: {"stage", "framework", "config"} as each stage of the work begins, then
the answer. It is a process of its own because a kernel that fails takes the process's GPU context with it, and one that
hangs can only be ended with its process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tvm_rnn.bench.measure import gpu_graphs
from tvm_rnn.bench.peers.gpu import FRAMEWORKS, prepare_tvm_rnn, time_limit
from tvm_rnn.bench.peers.models import GpuProblem, Prepared, Unsupported, in_a_line
from tvm_rnn.bench.suites.gpu import RESET_EVERY, Point, network, tamed
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.oracle.torch_graph import TorchModel
from tvm_rnn.version import __version__
from tvm_rnn.worker_process import Reply, Request, channel

from .compare import OURS, spread
from .training import measure_on_gpu

if TYPE_CHECKING:
    import torch

REPEATS = 20
# Times what a rounding of the inputs moves exact results, as kernels round in a few places; the most of so many draws.
MOVED, DRAWS = 4.0, 3
# How many times the time of the framework's best, by one reading each: a configuration that takes more is not timed
# again; where it takes far more, others of its family are not tried.
BEHIND, FAR_BEHIND = 1.5, 3.0
CHECKED = 4096  # steps that the oracle computes, of sequences without lengths: a minute of launches for 65,536
Exact = tuple["torch.Tensor", dict[str, gpu_graphs.Result]]  # y and the state
Tell = Callable[[Reply], None]


@dataclass
class Contender:
    """One framework on one point: its configurations and what is known of them.

    graphs: those of which one may be the best, captured. reason: why there are none. left_out: why one is not among
    them. seconds: of the first call of those that compile. readings: microseconds of one call, by which those that are
    behind are timed no more. families: as `Prepared` has.
    """

    name: str
    version: str = ""
    reason: str = ""
    facts: Reply = field(default_factory=dict)
    graphs: dict[str, gpu_graphs.Captured | gpu_graphs.Called] = field(default_factory=dict)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    readings: dict[str, float] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=dict)

    def read(self, config: str, us: float) -> None:
        """Note a captured configuration's reading. Who is behind the best so far is not kept, nor is its memory."""
        self.readings[config] = us
        most = BEHIND * min(self.readings.values())
        self.graphs = {config: graph for config, graph in self.graphs.items() if self.readings[config] <= most}

    def behind(self, config: str) -> str:
        """The reason not to try one: another one of its family is far behind. "": there is none."""
        family, best = self.families.get(config, ""), min(self.readings.values(), default=0.0)
        own = {c: us for c, us in self.readings.items() if family and self.families.get(c) == family}
        if not own or min(own.values()) <= FAR_BEHIND * best:
            return ""
        known = min(own, key=lambda c: own[c])
        return f"{known} takes {own[known] / best:.1f} times as long as the best"

    def row(self, steps: int, found: Mapping[str, list[float]]) -> Reply:
        """The record of its best configuration, or of the reason why there is none."""
        facts = {"framework": self.name, "version": self.version, **self.facts}
        if self.left_out:
            facts["left_out"] = self.left_out
        times = {config: found.get(f"{self.name}\t{config}", [us]) for config, us in self.readings.items()}
        if not times:
            reasons = [f"{config}: {reason}" for config, reason in self.left_out.items()]
            return {**facts, "reason": self.reason or "; ".join(reasons)}
        medians = {config: statistics.median(us) for config, us in times.items()}
        config = min(medians, key=lambda c: medians[c])
        median = medians[config]
        largest, relative = self.errors[config]
        timing = {
            "config": config,
            "us_per_step": median / max(1, steps),
            "us": median,
            "spread": spread(times[config]),
        }
        timing["configs"] = {config: us / max(1, steps) for config, us in medians.items()}
        if config in self.seconds:
            timing["compile_seconds"] = round(self.seconds[config], 2)
        return {**facts, **timing, "error": relative, "largest_error": largest}


class Bench:
    """Points, one after the other; the network of the last one is kept for the next, and of candidates the oracle.
    device: as torch names it."""

    device = "cuda"
    problem: GpuProblem | None = None  # of candidates
    expected: Exact

    def __init__(self, tell: Tell) -> None:
        import torch

        if not torch.cuda.is_available():
            raise TvmRnnError("torch finds no NVIDIA GPU on this machine")
        self.tell = tell
        self.network: Point | None = None
        self.net: RNN | None = None

    def facts(self) -> Reply:
        import torch

        self.tell({"stage": "measuring the ceilings", "framework": ""})
        properties = torch.cuda.get_device_properties(0)
        versions = {"tvm_rnn": __version__, "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
        versions |= {"cuda": str(torch.version.cuda), "python": platform.python_version()}
        return {
            "device": properties.name,
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "versions": versions,
            "ceilings": gpu_graphs.ceilings(),
        }

    def measure(self, request: Request) -> list[Reply]:
        """The records of one point, one per framework, in the order in which they were asked for."""
        import torch

        point = Point.from_dict(request["point"])
        torch.backends.cuda.matmul.allow_tf32 = point.precision == "tf32"
        # Without it torch asks cuDNN for plain FMAs also in bfloat16.
        torch.backends.cudnn.allow_tf32 = point.precision != "float32"
        self._stage("preparing", "")
        torch.cuda.empty_cache()
        problem = self._problem(point, request)
        if point.training:
            return self._training(problem, request)
        expected = self._oracle(problem)
        contenders = []
        for name in request["frameworks"]:
            contender = Contender(name, reason=request["skip"].get(name, ""))
            if not contender.reason:
                self._prepare(contender, problem, expected, request["skip"])
            contenders.append(contender)
        self._stage("timing", OURS)
        graphs = {f"{c.name}\t{config}": graph for c in contenders for config, graph in c.graphs.items()}
        readings = {f"{c.name}\t{config}": us for c in contenders for config, us in c.readings.items()}
        with torch.no_grad():
            found = gpu_graphs.rounds_us(graphs, request["rounds"], readings)
        torch.cuda.synchronize()
        work = {"bytes": problem.bytes}
        return [{**contender.row(point.steps, found), **work} for contender in contenders]

    def _training(self, problem: GpuProblem, request: Request) -> list[Reply]:
        """The same of both passes."""
        self._stage("checking", OURS)
        skip, every = request["skip"], request["frameworks"]
        able = [name for name in every if name not in skip]
        found = measure_on_gpu(problem, request["rounds"], able, self._stage) if OURS in able else {}
        missing = skip.get(OURS, "it was not measured")
        return [found.get(name, {"framework": name, "reason": skip.get(name, missing)}) for name in every]

    def candidates(self, request: Request) -> list[Reply]:
        """A row per file: us (of the whole sequence), spread and error, or the reason why there is none. A final
        measurement is of candidates that compute the same every time."""
        import torch

        point = Point.from_dict(request["point"])
        if self.problem is None or self.problem.point != point:
            torch.cuda.empty_cache()
            self.problem = self._problem(point, {"module": None, "compile_seconds": 0.0})
            self.expected = self._oracle(self.problem)
        limit, ours = tolerance(point.precision, point.steps), Contender(OURS)
        for file in request["files"]:
            self._stage("preparing", OURS, file)
            with torch.no_grad(), _reasons(ours.left_out, file):
                problem = replace(self.problem, module=os.path.join(request["folder"], file))
                (run,) = prepare_tvm_rnn(problem).runs.values()
                self._stage("checking", OURS, file)
                self._check(ours, file, run, self.expected, limit, repeatedly=bool(request.get("final")))
                if not ours.facts.get("repeats_equal", True):
                    ours.graphs.pop(file, None)
                    raise TvmRnnError("the result differs from run to run")
        self._stage("timing", OURS, request["files"][0])
        with torch.no_grad():
            times = gpu_graphs.rounds_us(ours.graphs, request["rounds"]) if ours.graphs else {}
        torch.cuda.synchronize()
        found: dict[str, Reply] = {file: {"file": file, "reason": reason} for file, reason in ours.left_out.items()}
        for file, own in times.items():
            us, error = round(statistics.median(own), 3), ours.errors[file][1]
            found[file] = {"file": file, "us": us, "spread": round(spread(own), 4), "error": error}
        return [found[file] for file in request["files"]]

    def _stage(self, stage: str, framework: str, config: str = "") -> None:
        self.tell({"stage": stage, "framework": framework, "config": config})

    def _problem(self, point: Point, request: Request) -> GpuProblem:
        import torch

        dtype = getattr(torch, point.dtype)
        if self.network != point.network or self.net is None:
            self.net, self.network = tamed(network(point).init(0)), point.network
        generator = torch.Generator(self.device).manual_seed(0)
        shapes = list(self.net.input_shapes.values())
        options = {"generator": generator, "device": self.device}
        inputs = [torch.rand(point.steps, point.batch, *shape, **options).mul_(2).sub_(1).to(dtype) for shape in shapes]
        inputs = [_unaligned(x) for x in inputs] if point.unaligned else inputs
        given = (point, self.net, tuple(inputs), request["module"], request["compile_seconds"])
        lengths = lengths_of(point, generator) if point.lengths else None
        return GpuProblem(*given, lengths, resets_of(point, generator) if point.resets else None)

    def _oracle(self, problem: GpuProblem) -> Exact:
        """(y, state) by the graph in float64, from the weights and inputs that everyone gets; of a longer sequence the
        y of its first steps alone, which later ones do not change."""
        import torch

        self._stage("computing the oracle", "")
        model = TorchModel(problem.net, torch.float64, problem.device)
        count = problem.point.steps if problem.point.lengths or problem.net.num_directions > 1 else CHECKED
        with torch.no_grad():
            reset = None if problem.reset is None else problem.reset[:count]
            y, state = model([x[:count].double() for x in problem.inputs], problem.lengths, reset)
        return y, state if count >= problem.point.steps else {}

    def _explained(self, problem: GpuProblem, result: gpu_graphs.Result, expected: Exact, limit: float) -> bool:
        """Whether results are off by no more than `limit` and what a rounding of the inputs moves exact ones, in all of
        the steps and in the first ones: a spike is there or is not, and what follows from it is another sequence."""
        import torch

        generator = torch.Generator(self.device).manual_seed(1)
        rounding = 2.0**-10 if problem.point.precision == "tf32" else torch.finfo(problem.dtype).eps

        def near(x: torch.Tensor) -> torch.Tensor:
            off = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64).mul_(2).sub_(1)
            return x.double() * (1 + rounding * off)

        draws = [self._oracle(replace(problem, inputs=tuple(map(near, problem.inputs)))) for _ in range(DRAWS)]
        moved = [_gaps(draw, expected)[0] for draw in draws]
        for number, (gap, exact) in enumerate(zip(*_gaps(result, expected), strict=True)):
            most = torch.stack([own[number] for own in moved]).amax(0)
            if not bool((gap <= limit * exact + MOVED * most).all()):
                return False
        return True

    def _prepare(self, contender: Contender, problem: GpuProblem, expected: Exact, skip: Mapping[str, str]) -> None:
        """Compare and capture every configuration. What is wrong becomes the contender's reason, or leaves out one."""
        import torch

        self._stage("preparing", contender.name)
        limit = tolerance(problem.point.precision, problem.point.steps)
        limit *= 1 if contender.name == OURS else 10  # peers that keep states in 16 bits are theirs to judge
        prepared = Prepared("", {})
        with torch.no_grad(), _reasons({}, "") as failed:
            prepared = FRAMEWORKS[contender.name](problem)
            contender.version, contender.facts = prepared.version, dict(prepared.facts)
        contender.reason, contender.families = failed.get("", ""), prepared.families
        for config, run in prepared.runs.items():
            if reason := skip.get(f"{contender.name}: {config}") or contender.behind(config):
                contender.left_out[config] = reason
                continue
            self._stage(f"checking {config}", contender.name, config)
            with torch.no_grad(), _reasons(contender.left_out, config):
                if config in prepared.compiling:
                    contender.seconds[config] = _first_call(run, problem.compile_seconds)
                ours = contender.name == OURS
                calls = 0 if problem.point.eager else problem.point.calls
                explained = partial(self._explained, problem, expected=expected, limit=limit)
                self._check(contender, config, run, expected, limit, repeatedly=ours, calls=calls, explained=explained)
                if config in contender.graphs:
                    contender.read(config, gpu_graphs.replay_us(contender.graphs[config], 1))

    def _check(
        self,
        contender: Contender,
        config: str,
        run: gpu_graphs.Run,
        expected: Exact,
        limit: float,
        *,
        repeatedly: bool,
        calls: int = 1,
        explained: Callable[[gpu_graphs.Result], bool] = lambda result: False,
    ) -> None:
        """calls: of a graph; 0: there is none. explained: whether a result beyond the limit is right all the same."""
        if repeatedly:
            contender.facts["memory_bytes"] = memory = gpu_graphs.memory_of(run)
            first = gpu_graphs.run_poisoned(run, memory)
            equal = all(gpu_graphs.same_bits(first, gpu_graphs.run_poisoned(run, memory)) for _ in range(REPEATS))
            contender.facts["repeats_equal"] = equal
        captured = gpu_graphs.capture(run, calls) if calls else gpu_graphs.called(run)
        result = captured.again()
        if repeatedly:
            contender.facts["repeats_equal"] = equal and gpu_graphs.same_bits(first, result)
        largest, relative = errors(result, expected)
        # Not the largest: one unit of a bistable cell may end on the other side.
        if not relative <= limit and not (math.isfinite(relative) and explained(result)):
            contender.left_out[config] = f"error {relative:.2g}, at most {limit:.2g} is allowed"
            contender.facts.setdefault("wrong", {})[config] = [largest, relative]
            return
        contender.graphs[config], contender.errors[config] = captured, (largest, relative)


def lengths_of(point: Point, generator: torch.Generator) -> torch.Tensor:
    """How many steps each row has, the longest first: one has all of them."""
    import torch

    options = {"generator": generator, "device": generator.device}
    found = torch.randint(1, point.steps + 1, (point.batch,), **options).sort(descending=True).values.int()
    found[0] = point.steps
    return found


def resets_of(point: Point, generator: torch.Generator) -> torch.Tensor:
    """Where rows begin anew."""
    import torch

    options = {"generator": generator, "device": generator.device}
    return torch.rand(point.steps, point.batch, **options) * RESET_EVERY < 1


def _unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values one element behind a multiple of 16 bytes."""
    return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)


@contextlib.contextmanager
def _reasons(found: dict[str, str], name: str) -> Iterator[dict[str, str]]:
    """Makes of an exception in the body the entry `name` of `found`."""
    import torch

    try:
        yield found
    except Unsupported as reason:
        found[name] = str(reason)
    except torch.AcceleratorError:
        raise  # the context is lost, and this process with it
    except Exception as reason:  # a peer may raise anything, and ours is to be reported, not to end the run
        torch.cuda.synchronize()  # raises where the context is lost
        found[name] = in_a_line(reason)


def _first_call(run: gpu_graphs.Run, limit: float) -> float:
    import torch

    started = time.perf_counter()
    with time_limit(limit):
        run()
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _pairs(result: gpu_graphs.Result, expected: Exact) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What is compared, and with what: y first, then the states where both have them."""
    assert isinstance(result, tuple)
    y, state = result
    pairs = [(y if expected[1] else y[: len(expected[0])], expected[0])]
    for name in (state or {}) if expected[1] else ():
        pairs += zip(gpu_graphs.tensors(state[name]), gpu_graphs.tensors(expected[1][name]), strict=True)
    return pairs


def _gaps(result: gpu_graphs.Result, expected: Exact) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """|a - e| and |e| in the Euclidean norm: of y up to its first, second, fourth, ... and last step, of each state."""
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for number, (actual, wanted) in enumerate(_pairs(result, expected)):
        steps = 1 if number else len(wanted)
        ends = sorted({steps - 1, *(2**n - 1 for n in range(steps.bit_length()))})
        for place, value in zip(found, (actual.to(wanted.dtype) - wanted, wanted), strict=True):
            place.append(value.reshape(steps, -1).square().sum(1).cumsum(0)[ends].sqrt())
    return found


def errors(result: gpu_graphs.Result, expected: Exact) -> tuple[float, float]:
    """(max |a - e| / max(1, max |e|), |a - e| / |e| in the Euclidean norm), the worst of y and the states.

    A framework that does not give the state is compared by y alone, and so is everyone where there is only the y of
    the first steps; of later ones it is asked whether they are finite. NaN anywhere gives infinity.
    """
    assert isinstance(result, tuple)  # as a framework's function gives it
    if not expected[1] and not bool(result[0][len(expected[0]) :].isfinite().all()):
        return float("inf"), float("inf")
    largest = relative = 0.0
    for actual, wanted in _pairs(result, expected):
        if actual.shape != wanted.shape:
            return float("inf"), float("inf")
        gap = (actual.to(wanted.dtype) - wanted).abs()
        if not bool(gap.any()):  # nothing is off, also of what is all 0
            continue
        found = [float(gap.max() / wanted.abs().max().clamp(min=1.0)), float(gap.norm() / wanted.norm())]
        found = [value if value == value else float("inf") for value in found]
        largest, relative = max(largest, found[0]), max(relative, found[1])
    return largest, relative


def serve(requests: Iterator[str], tell: Tell) -> None:
    """Answer requests until there are no more. Points' answers: {"rows": [record, ...]}; facts: {"facts": {...}}."""
    try:
        bench = Bench(tell)
    except (ImportError, TvmRnnError) as reason:
        tell({"failed": str(reason)})
        return
    for line in requests:
        request = json.loads(line)
        if "facts" in request:
            tell({"facts": bench.facts()})
        else:
            tell({"rows": (bench.candidates if "files" in request else bench.measure)(request)})


if __name__ == "__main__":
    with channel() as answer:
        serve(sys.stdin, answer)
