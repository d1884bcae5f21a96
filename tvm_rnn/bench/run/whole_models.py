"""Whole torch models of packages before and after `rnn.accelerate(model)`; on a GPU also compiled whole.

In: models of `suites/packages.py`, from `models_suite.py`; the device that torch has. Out: records, one for each model
and way to run it, with the error beside the package's model in float64, and a table. On a CPU one thread, whose CPU
time counts; on a GPU the device's time of calls as a user makes them, and of their CUDA graph.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tvm_rnn.bench.measure.gpu_graphs import Called, Captured, called, capture, rounds_us
from tvm_rnn.bench.suites.packages import PackagedModel
from tvm_rnn.compiler.compile import compile
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.frontends.torch import from_torch
from tvm_rnn.oracle.tolerance import relative_error, tolerance
from tvm_rnn.torch_layer.accelerate import accelerate

from .compare import OURS, spread
from .gpu_suite import Record

if TYPE_CHECKING:
    import torch

ROUND_SECONDS = 0.2
WHOLE, GRAPH = f"{OURS} whole", "-graph"
Call: TypeAlias = "Callable[[], torch.Tensor]"


def check_device(device: str) -> None:
    """Raises ConfigError where torch has none of that name."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(message("--device cuda: torch finds no GPU", do="leave it out to measure on the CPU"))


def facts(device: str) -> Record:
    """What else a record says of where torch's models are measured."""
    import torch

    versions = {"torch": torch.__version__}
    if device != "cuda":
        return {"versions": versions}
    return {
        "device": torch.cuda.get_device_name(),
        "versions": {**versions, "cudnn": str(torch.backends.cudnn.version())},
    }


def measured(models: Sequence[PackagedModel], device: str, rounds: int) -> Iterator[Record]:
    """Measure models on "cpu" or "cuda": their records as they come. One whose package is not installed has a record
    with the reason."""
    import torch

    torch.set_num_threads(1)
    os.environ["TVM_RNN_NUM_THREADS"] = "1"  # ours too: CPU time counts, and threads that wait spend it
    # Errors are compared: torch's layers are not to round what is multiplied.
    torch.backends.cudnn.allow_tf32 = False
    for model in models:
        for record in _measure(model, device, rounds):
            yield {"kind": "point", "point": model.name, "package": model.package, **record}


def _measure(packaged: PackagedModel, device: str, rounds: int) -> Iterator[Record]:
    import torch

    try:
        theirs, ours, exact = (packaged.model().to(device) for _ in range(3))
    except ConfigError as reason:
        yield {"framework": OURS, "reason": " ".join(str(reason).split())}
        return
    replaced = list[str]()
    accelerate(ours, replaced.append)
    x = torch.randn(packaged.shape, generator=torch.Generator().manual_seed(1)).to(device)
    runs, reasons = {OURS: _call(ours, x), "torch": _call(theirs, x)}, dict[str, str]()
    if device == "cuda":
        try:
            runs[WHOLE] = _whole(packaged.model(), x)
        except ConfigError as reason:
            reasons[WHOLE] = " ".join(str(reason).split())
    for way, text in reasons.items():
        yield {"framework": way, "reason": text}
    with torch.inference_mode():
        expected = _call(exact.double(), x.double())().cpu().numpy()
        found = {name: relative_error(run().cpu().numpy(), expected) for name, run in runs.items()}
        limit = tolerance("float32", packaged.steps)
        for name in [own for own in runs if own != "torch" and not found[own] <= limit]:
            got = f"relative error {found[name]:.3g}, at most {limit:.3g}"
            yield {"framework": name, "reason": f"its result differs from float64: {got}"}
            del runs[name]
        if [*runs] == ["torch"]:
            return
        for way, times in (_on_gpu if device == "cuda" else _on_cpu)(runs, rounds).items():
            name = way.removesuffix(GRAPH)
            own = {"replaced": replaced} if name == OURS else {}
            us = statistics.median(times)
            yield {"framework": way, "us": us, "spread": spread(times), "error": found[name], **own}


def _call(model: torch.nn.Module, x: torch.Tensor) -> Call:
    """One call, from the state that the model begins with where it keeps one."""
    state = {name: value.to(x) for name, value in vars(model).items() if hasattr(value, "detach")}

    def call() -> torch.Tensor:
        for name, value in state.items():
            setattr(model, name, value)
        result: torch.Tensor = model(x)
        return result

    return call


def _whole(model: torch.nn.Module, x: torch.Tensor) -> Call:
    """One call of the model that is compiled whole for the GPU of x. Raises ConfigError."""
    net = from_torch(model, x.cpu())
    assert net.program is not None
    module, (name, *_) = compile(net, "cuda", progress=False), [own.name for own in net.program.inputs]

    def call() -> torch.Tensor:
        result: torch.Tensor
        (result, *_) = module.run({name: x}).values()
        return result

    return call


def _on_cpu(runs: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Microseconds of a call in each round, of CPU time."""

    def seconds(call: Call, count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            call()
        return (time.process_time() - start) / count

    counts = {name: max(1, int(ROUND_SECONDS / min(seconds(call, 1) for _ in range(2)))) for name, call in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, call in runs.items():
            found[name].append(1e6 * seconds(call, counts[name]))
    return found


def _on_gpu(runs: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    graphs: dict[str, Captured | Called] = {name: called(call) for name, call in runs.items()}
    return rounds_us(graphs | {f"{name}{GRAPH}": capture(call) for name, call in runs.items()}, rounds)


def table(records: Sequence[Record]) -> str:
    """Markdown: each model's times, and how many times as fast as torch it is."""
    lines = ["| model | package | how | us | torch / this | error |", "|---|---|---|---|---|---|"]
    points = [record for record in records if record["kind"] == "point"]
    us = {(record["point"], record["framework"]): record["us"] for record in points if "us" in record}
    for record in points:
        first, how = f"| {record['point']} | {record['package']} |", record["framework"]
        if "reason" in record:
            lines.append(f"{first} {how} | {record['reason']} | | |")
            continue
        ratio = us[record["point"], how.replace(WHOLE, "torch").replace(OURS, "torch")] / record["us"]
        lines.append(f"{first} {how} | {record['us']:.0f} | {ratio:.2f} | {record['error']:.1e} |")
    return "\n".join(lines)
