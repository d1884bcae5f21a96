"""Times on a GPU: functions captured in CUDA graphs, their replays in alternating rounds, and what the device can do.

In: functions that launch work on torch's current stream. Out: `Captured` graphs, microseconds per replay, and the
measured ceilings (copies from memory and from the L2 cache, matrix products).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.runtime.gpu_arrays import kept_work

if TYPE_CHECKING:
    import torch

Result = object  # tensors in nested tuples, lists and dicts
Run = Callable[[], Result]
# A round of a captured function is at least so long: the two events around it cost about a microsecond.
ROUND_US = 1000.0
SMALL_BLOCKS = (1 << 18,) * 32


@dataclass(frozen=True)
class Captured:
    """A CUDA graph and what it writes: the same tensors at every replay.

    run is kept because the graph uses what it holds: a module's code and weights are unloaded with the module. calls:
    how many the graph has, one after the other; the result is the last one's.
    """

    graph: torch.cuda.CUDAGraph
    result: Result
    run: Run | None = None
    calls: int = 1

    def again(self) -> Result:
        """The result of another replay, which writes everything."""
        poison(self.result)
        self.graph.replay()
        return self.result

    def replay(self) -> None:
        """Run it, as it is timed."""
        self.graph.replay()


@dataclass(frozen=True)
class Called:
    """A function that is called each time, after two calls in which it may compile, choose and allocate."""

    run: Run
    calls: int = 1

    def again(self) -> Result:
        return self.run()

    def replay(self) -> None:
        self.run()


def called(run: Run) -> Called:
    """The function, ready to be timed without a graph."""
    for _ in range(2):
        run()
    return Called(run)


def capture(run: Run, calls: int = 1) -> Captured:
    """So many calls of the function as CUDA graph, after two ordinary ones in which it may compile, choose and
    allocate."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            result = run()
    return Captured(graph, result, run, calls)


def replay_us(captured: Captured | Called, count: int) -> float:
    """Microseconds per call, of `count` replays one after the other.

    A replay before them keeps the device busy while they are submitted: what is measured is the device's time, and of
    calls without a graph the host's, where that is longer.
    """
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    captured.replay()
    before.record()
    for _ in range(count):
        captured.replay()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e3 / (count * captured.calls)


def rounds_us(
    graphs: Mapping[str, Captured | Called], rounds: int, readings: Mapping[str, float] | None = None
) -> dict[str, list[float]]:
    """Microseconds per call of each graph in each round. Everyone has a turn in every round, after one to warm up.
    readings: such microseconds, of everyone, where they are known: that was their warm-up."""
    known = {name: replay_us(graph, 1) for name, graph in graphs.items()} if readings is None else readings
    counts = {name: max(1, math.ceil(ROUND_US / max(1.0, known[name] * g.calls))) for name, g in graphs.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, captured in graphs.items():
            found[name].append(replay_us(captured, counts[name]))
    return found


def tensors(value: Result) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def poison(result: Result) -> None:
    """Fill floating-point results with NaN, so that an element nobody writes is noticed."""
    for tensor in tensors(result):
        if tensor.is_floating_point():
            tensor.fill_(math.nan)


def run_poisoned(run: Run, size: int) -> Result:
    """The function's result, where the memory that torch hands out to it is full of NaN (in any floating type).

    size: the bytes that it needs. The allocator keeps blocks of up to 1 MB apart from larger ones: both get NaN.
    """
    import torch

    kept_work.forget()
    torch.cuda.empty_cache()  # so that it has no other blocks to hand out
    waste = [torch.empty(count, dtype=torch.uint8, device="cuda").fill_(255) for count in (size, *SMALL_BLOCKS)]
    del waste
    return run()


def memory_of(run: Run) -> int:
    """The most bytes that torch's allocator holds for one call, above what is there already."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def same_bits(one: Result, other: Result) -> bool:
    """Whether two results are equal bit for bit, NaN included."""
    import torch

    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs)


# Precision -> dtype of the operands, and whether float32 is multiplied as TF32.
MATMULS = {
    "bfloat16": ("bfloat16", False),
    "float16": ("float16", False),
    "tf32": ("float32", True),
    "float32": ("float32", False),
}


def ceilings() -> dict[str, float]:
    """What this device does at best, measured: copies in TB/s (read + written), matrix products in TFLOP/s."""
    import torch

    def best(run: Run, launches: int) -> float:
        captured = capture(lambda: [run() for _ in range(launches)])
        return min(replay_us(captured, 1) for _ in range(5)) / launches

    def copy(size: int, launches: int) -> float:
        source, target = (torch.zeros(size, dtype=torch.float32, device="cuda") for _ in range(2))
        # A sum, not copy_: a copy captured in a graph goes to the copy engine, which is slower than the memory.
        return 2 * size * 4 / best(lambda: torch.add(source, 1.0, out=target), launches) * 1e-6

    found = {"memory_tb_s": copy(1 << 29, 1), "l2_tb_s": copy(1 << 21, 100)}
    for name, (dtype, tf32) in MATMULS.items():
        size = 4096 if name == "float32" else 8192
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
        found[f"{name}_tflops"] = 2 * size**3 / best(functools.partial(torch.mm, a, b.t()), 1) * 1e-6
    torch.cuda.empty_cache()
    return found
