"""Whole models of packages before and after `rnn.accelerate(model)`: `python -m tvm_rnn.bench.run.whole_models`.

In: names of `suites/packages.py`; the device that torch has. Out: records, one for each model and way to run it, with
the error beside the package's model in float64, and a table. On a CPU one thread, whose CPU time counts; on a GPU the
device's time of calls as a user makes them, and of their CUDA graph.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tvm_rnn.bench.measure.gpu_graphs import Called, Captured, called, capture, rounds_us
from tvm_rnn.bench.suites.packages import MODELS, PackagedModel
from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.oracle.tolerance import relative_error, tolerance
from tvm_rnn.torch_layer.accelerate import accelerate

from .compare import OURS, cpu_facts, spread
from .gpu_suite import Record, writing

if TYPE_CHECKING:
    import torch

ROUND_SECONDS = 0.2
Call: TypeAlias = "Callable[[], torch.Tensor]"


def run(names: Sequence[str] = (), device: str = "cpu", records: str | None = None, rounds: int = 7) -> list[Record]:
    """Measure the models, all unless some are named, and return the records.

    device: "cpu" or "cuda". records: a file of lines of JSON to write. Raises ConfigError for a name or a device that
    is none. A model whose package is not installed has a record with the reason.
    """
    import torch

    if wrong := [name for name in names if name not in MODELS]:
        raise ConfigError(message("no such model", **unknown("model", wrong[0], MODELS)))
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(message("--device cuda: torch finds no GPU", do="leave it out to measure on the CPU"))
    torch.set_num_threads(1)
    os.environ["TVM_RNN_NUM_THREADS"] = "1"  # ours too: CPU time counts, and threads that wait spend it
    # Errors are compared: torch's layers are not to round what is multiplied.
    torch.backends.cudnn.allow_tf32 = False
    facts = cpu_facts(1)
    facts["versions"] |= {"torch": torch.__version__}
    if device == "cuda":
        facts["device"], facts["versions"]["cudnn"] = torch.cuda.get_device_name(), str(torch.backends.cudnn.version())
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", **facts, "clock": "the device's" if device == "cuda" else "CPU time of the thread"})
        for name in names or MODELS:
            for record in _measure(MODELS[name], device, rounds):
                write({"kind": "point", "point": name, "package": MODELS[name].package, **record})
    return found


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
    runs = {OURS: _call(ours, x), "torch": _call(theirs, x)}
    with torch.inference_mode():
        expected = _call(exact.double(), x.double())().cpu().numpy()
        found = {name: relative_error(run().cpu().numpy(), expected) for name, run in runs.items()}
        if not found[OURS] <= (limit := tolerance("float32", packaged.steps)):
            got = f"relative error {found[OURS]:.3g}, at most {limit:.3g}"
            yield {"framework": OURS, "reason": f"its result differs from float64: {got}"}
            return
        for way, times in (_on_gpu if device == "cuda" else _on_cpu)(runs, rounds).items():
            name = way.partition("-")[0]
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
    return rounds_us(graphs | {f"{name}-graph": capture(call) for name, call in runs.items()}, rounds)


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
        ratio = us[record["point"], how.replace(OURS, "torch")] / record["us"]
        lines.append(f"{first} {how} | {record['us']:.0f} | {ratio:.2f} | {record['error']:.1e} |")
    return "\n".join(lines)


def main() -> None:
    """The command: words of the shell in, a table out."""
    parser = argparse.ArgumentParser(description="Whole models of packages, before and after rnn.accelerate.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--records", help="a file of records to write")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds, of which the median counts")
    given = parser.parse_args()
    print(table(run(given.models, given.device, given.records, given.rounds)))


if __name__ == "__main__":
    main()
