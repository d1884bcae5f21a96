"""What a CPU benchmark measures: named suites of points in float32, as data.

In: the name of a suite. Out: `Point`s, as for GPUs (`gpu.py`), whose sizes are those that people run on CPUs.
"""

from __future__ import annotations

from dataclasses import replace

from . import gpu as suites
from . import writers
from .gpu import PASSES, Point
from .random_networks import random_sizes

DTYPE = "float32"


def cpu_grid() -> list[Point]:
    """LSTM and GRU from small to large, one row to many, T=50."""
    sizes = [(hidden, batch) for hidden in (64, 128, 256, 512, 1024, 2048) for batch in (1, 4, 16, 64)]
    return [Point(cell, h, h, 50, b, DTYPE) for cell in ("lstm", "gru") for h, b in sizes]


def cpu_random(seed: int = 0) -> list[Point]:
    """LSTMs and GRUs of sizes that no grid has, T=50."""
    return [Point(cell, i, h, 50, b, DTYPE) for cell, i, h, b in random_sizes(seed)]


def fastrnns() -> list[Point]:
    """The network of PyTorch's fastrnns benchmark: T=100, I=H=512, B=64."""
    return [Point(cell, 512, 512, 100, 64, DTYPE) for cell in ("lstm", "lstm_layer_norm")]


def deepbench() -> list[Point]:
    """DeepBench's rows that a CPU finishes in seconds: server inference, and the devices' LSTM."""
    shapes = [("lstm", h, b, 25) for h in (512, 1024, 2048) for b in (1, 2, 4)]
    shapes += [("lstm", 1536, b, 50) for b in (1, 2, 4)] + [("lstm", 256, b, 150) for b in (1, 2, 4)]
    shapes += [("elman_relu", 1760, 16, 50), ("elman_relu", 2560, 16, 50), ("gru", 1024, 1, 1500), ("gru", 512, 32, 1)]
    return [Point(cell, h, h, t, b, DTYPE) for cell, h, b, t in shapes]


def zoo() -> list[Point]:
    """Every cell at H=256, B=16, T=50; at H=64 those whose state is a matrix or an image."""

    def smaller(point: Point) -> Point:
        hidden = min(256, point.hidden)
        sizes = tuple((name, min(size, hidden // 2) if name == "P" else size) for name, size in point.sizes)
        return replace(point, input=hidden, hidden=hidden, steps=50, batch=16, precision=DTYPE, sizes=sizes)

    return [smaller(point) for point in suites.zoo()]


def ablation() -> list[Point]:
    """Two layers of an LSTM with no pass at all, then one pass more at a time; for one row and for sixteen."""
    networks = [Point("lstm", 256, 256, 50, batch, DTYPE, layers=2) for batch in (1, 16)]
    return [replace(n, without=PASSES[done:]) for n in networks for done in range(len(PASSES) + 1)]


def linear() -> list[Point]:
    """Linear recurrences, each with and without the pass that runs them over all time: 4096 steps of one row and of
    sixteen."""
    matrices = [(cell, 64) for cell in ("gated_delta_net", "mlstm", "delta_net", "gla")]
    cells = (*matrices, ("min_gru", 512), ("sru", 512))
    points = [Point(cell, h, h, 4096, batch, DTYPE) for cell, h in cells for batch in (1, 16)]
    return [replace(point, without=off) for point in points for off in ((), suites.IN_STEPS)]


def heads() -> list[Point]:
    """Recurrences of several heads and matrix states, as on GPUs, at H=64, T=50; of sixteen rows, and of one."""
    own = {
        point.network: point for point in suites.heads() if point.hidden == 64 and not (point.training or point.resets)
    }
    points = [replace(point, steps=50, precision=DTYPE) for point in own.values()]
    return [replace(point, batch=batch) for point in points for batch in (1, 16)]


def streaming() -> list[Point]:
    """One row, one step a call, as a device or a server of a stream calls it: LSTM and GRU from small to large."""
    return [Point(cell, h, h, 1, 1, DTYPE) for cell in ("lstm", "gru") for h in (16, 64, 128, 256, 512, 1024)]


def audio() -> list[Point]:
    """One row of a small LSTM or GRU, one sample a call and 64: as a plug-in or a device calls it, in C."""
    sizes = [(n, samples) for n in (4, 8, 16, 32, 64) for samples in (1, 64)]
    return [Point(cell, n, n, samples, 1, DTYPE) for cell in ("lstm", "gru") for n, samples in sizes]


def browser() -> list[Point]:
    """One row, one step a call, as a page calls it: an amplifier, and a voice detector's LSTM (Silero's has 128)."""
    return [Point(cell, n, n, 1, 1, DTYPE) for cell in ("lstm", "gru") for n in (16, 64, 128)]


def cortex_m() -> list[Point]:
    """One row, a step a call, as a microcontroller calls it: 60 steps."""
    return [Point(cell, n, n, 60, 1, DTYPE) for cell in ("lstm", "gru") for n in (16, 32, 64)]


def generate() -> list[Point]:
    """An LSTM that writes, token after token, of a small vocabulary and of a large one: the surest token, and a drawn
    one. Fewer steps where a token takes longer: seconds a call for the slowest peer."""
    steps = {(256, 1): 1000, (256, 16): 200, (256, 256): 20, (32000, 1): 100, (32000, 16): 50, (32000, 256): 5}
    return [
        Point(cell, 1, 512, count, batch, DTYPE, sizes=(("V", tokens),))
        for cell in writers.CELLS
        for (tokens, batch), count in steps.items()
    ]


PEERS = {
    "audio": "onnxruntime,ncnn,tract,litert,tflite-micro",
    "generate": "torch,torch-compile",
}  # of suites that other peers run than usual
STREAMS = ("streaming",)  # timed call by call
EVERY = (
    *(cpu_grid, cpu_random, fastrnns, deepbench, zoo, ablation, linear, heads),
    *(streaming, audio, browser, cortex_m, generate),
)
SUITES: suites.Suites = {f.__name__.replace("_", "-"): f for f in EVERY}
