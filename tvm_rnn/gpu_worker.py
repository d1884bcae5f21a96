"""The process of a GPU benchmark that uses the GPU: `python -m tvm_rnn.gpu_worker`, started by `bench_gpu.py`.

In: requests as lines of JSON on stdin: {"facts": true}, or a point with the frameworks to compare. Out: lines of JSON
on stdout: {"stage", "framework"} as each stage of the work begins, then the answer. It is a process of its own because
a kernel that fails takes the process's GPU context with it, and one that hangs can only be ended with its process.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import __version__
from .errors import TvmRnnError
from .gpu_timing import (
    Captured,
    Run,
    capture,
    ceilings,
    memory_of,
    poison,
    rounds_us,
    run_poisoned,
    same_bits,
    tensors,
)
from .peer_models import Unsupported
from .peers_gpu import FRAMEWORKS, GpuProblem
from .rnn import RNN
from .suites import Point, network, tamed
from .tolerance import tolerance
from .torch_model import TorchModel

OURS = "tvm_rnn"
REPEATS = 20
Tell = Callable[[dict[str, Any]], None]


@dataclass
class Contender:
    """One framework on one point: its configurations, captured, and what is known of them."""

    name: str
    version: str = ""
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    graphs: dict[str, Captured] = field(default_factory=dict)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)

    def row(self, steps: int, found: Mapping[str, list[float]]) -> dict[str, Any]:
        """The record of its best configuration, or of the reason why there is none."""
        facts = {"framework": self.name, "version": self.version, **self.facts}
        times = {config: found[f"{self.name}\t{config}"] for config in self.graphs}
        if not times:
            return {**facts, "reason": self.reason}
        config = min(times, key=lambda c: statistics.median(times[c]))
        median = statistics.median(times[config])
        spread = (max(times[config]) - min(times[config])) / median
        largest, relative = self.errors[config]
        timing = {"config": config, "us_per_step": median / max(1, steps), "us": median, "spread": spread}
        return {**facts, **timing, "error": relative, "largest_error": largest}


class Bench:
    """Points, one after the other; the network of the last one is kept for the next. device: as torch names it."""

    device = "cuda"

    def __init__(self, tell: Tell) -> None:
        import torch

        if not torch.cuda.is_available():
            raise TvmRnnError("torch finds no NVIDIA GPU on this machine")
        self.tell = tell
        self.network: Point | None = None
        self.net: RNN | None = None

    def facts(self) -> dict[str, Any]:
        """The device, versions and measured ceilings."""
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
            "ceilings": ceilings(),
        }

    def measure(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of one point, one per framework, in the order in which they were asked for."""
        import torch

        point = Point.from_dict(request["point"])
        allow_tf32 = point.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow_tf32
        self._stage("preparing", "")
        torch.cuda.empty_cache()
        problem = self._problem(point, request)
        expected = self._oracle(problem)
        contenders = []
        for name in request["frameworks"]:
            contender = Contender(name, reason=request["skip"].get(name, ""))
            if not contender.reason:
                self._prepare(contender, problem, expected)
            contenders.append(contender)
        self._stage("timing", OURS)
        graphs = {f"{c.name}\t{config}": graph for c in contenders for config, graph in c.graphs.items()}
        with torch.no_grad():
            found = rounds_us(graphs, request["rounds"])
        torch.cuda.synchronize()
        work = {"bytes": self._bytes(problem, expected)}
        return [{**contender.row(point.steps, found), **work} for contender in contenders]

    def _stage(self, stage: str, framework: str) -> None:
        self.tell({"stage": stage, "framework": framework})

    def _problem(self, point: Point, request: Mapping[str, Any]) -> GpuProblem:
        import torch

        dtype = getattr(torch, point.dtype)
        if self.network != point.network or self.net is None:
            self.net, self.network = tamed(network(point).init(0)), point.network
        generator = torch.Generator(self.device).manual_seed(0)
        shapes = [node.shape for node in self.net.layers[0].graph.inputs]
        options = {"generator": generator, "device": self.device}
        inputs = [torch.rand(point.steps, point.batch, *shape, **options).mul_(2).sub_(1).to(dtype) for shape in shapes]
        return GpuProblem(point, self.net, tuple(inputs), request["module"], request["compile_seconds"])

    def _oracle(self, problem: GpuProblem) -> Any:
        """(y, state) by the graph in float64, from the weights and inputs that everyone gets."""
        import torch

        self._stage("computing the oracle", "")
        model = TorchModel(problem.net, torch.float64, problem.device)
        with torch.no_grad():
            return model([x.double() for x in problem.inputs])

    def _prepare(self, contender: Contender, problem: GpuProblem, expected: Any) -> None:
        """Compare and capture every configuration. What is wrong becomes the contender's reason."""
        import torch

        self._stage("preparing", contender.name)
        limit = tolerance(problem.point.precision, problem.point.steps)
        limit *= 1 if contender.name == OURS else 10  # peers that keep states in 16 bits are theirs to judge
        try:
            with torch.no_grad():
                prepared = FRAMEWORKS[contender.name](problem)
                contender.version, contender.facts = prepared.version, dict(prepared.facts)
                for config, run in prepared.runs.items():
                    self._stage(f"checking {config}", contender.name)
                    self._check(contender, config, run, expected, limit)
        except Unsupported as reason:
            contender.reason = str(reason)
        except torch.AcceleratorError:
            raise  # the context is lost, and this process with it
        except Exception as reason:  # a peer may raise anything, and ours is to be reported, not to end the run
            torch.cuda.synchronize()  # raises where the context is lost
            first = next((line for line in str(reason).splitlines() if line.strip()), "")
            contender.reason = f"{type(reason).__name__}: {first}"

    def _check(self, contender: Contender, config: str, run: Run, expected: Any, limit: float) -> None:
        if contender.name == OURS:
            contender.facts["memory_bytes"] = memory = memory_of(run)
            first = run_poisoned(run, memory)
            equal = all(same_bits(first, run_poisoned(run, memory)) for _ in range(REPEATS))
            contender.facts["repeats_equal"] = equal
        captured = capture(run)
        poison(captured.result)
        captured.graph.replay()
        if contender.name == OURS:
            contender.facts["repeats_equal"] = equal and same_bits(first, captured.result)
        largest, relative = errors(captured.result, expected)
        if not relative <= limit:  # not the largest: one unit of a bistable cell may end on the other side
            differing = f"{config}: error {relative:.2g}, at most {limit:.2g} is allowed"
            contender.reason = "; ".join(filter(None, [contender.reason, differing]))
            contender.facts.setdefault("wrong", {})[config] = [largest, relative]
            return
        contender.graphs[config], contender.errors[config] = captured, (largest, relative)

    def _bytes(self, problem: GpuProblem, expected: Any) -> int:
        """What must move through memory at least: inputs, the output and the weights, once each."""
        size = problem.inputs[0].element_size()
        weights = sum(array.size for array in problem.net.weights.values())
        elements = sum(x.numel() for x in problem.inputs) + expected[0].numel() + weights
        return int(size * elements)


def errors(result: Any, expected: Any) -> tuple[float, float]:
    """(max |a - e| / max(1, max |e|), |a - e| / |e| in the Euclidean norm), the worst of y and the states.

    A framework that does not give the state is compared by y alone. NaN anywhere gives infinity.
    """
    y, state = result
    pairs = [(y, expected[0])]
    for name in state or {}:
        pairs += zip(tensors(state[name]), tensors(expected[1][name]), strict=True)
    largest = relative = 0.0
    for actual, wanted in pairs:
        if actual.shape != wanted.shape:
            return float("inf"), float("inf")
        gap = (actual.to(wanted.dtype) - wanted).abs()
        if not wanted.numel():
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
        tell({"facts": bench.facts()} if "facts" in request else {"rows": bench.measure(request)})


def main() -> None:
    """Serve on stdin and stdout. What libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        serve(sys.stdin, lambda answer: print(json.dumps(answer), file=channel, flush=True))


if __name__ == "__main__":
    main()
