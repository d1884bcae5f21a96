"""Count what a step of a network takes on a Cortex-M4: instructions, in QEMU, of plain C as `write_c` writes it.

In: points of the suite; CMSIS-NN's sources, where there are some: what tflite-micro runs LSTMs with on Arm. Out:
records, one for each point, framework and kind of numbers. `error`: the largest one of y over the samples, relative to
its largest magnitude in float64. gcc compiles everybody with -O3, which the folders' READMEs say. An instruction is no
cycle: a Cortex-M4 takes one for most, two and more for some, and waits for its flash.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.bench.peers import cortex_m
from tvm_rnn.bench.peers.cmsis_nn import quantised
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.peers.programs import commit_of
from tvm_rnn.bench.suites.gpu import Point, network, tamed
from tvm_rnn.errors import BuildError, message
from tvm_rnn.oracle.reference import reference

from .compare import OURS, cpu_facts
from .gpu_suite import Progress, Record, Run, writing

if TYPE_CHECKING:
    from rich.table import Table

CORE = "cortex-m4"
CMSIS_NN = "cmsis-nn"
NUMBERS = {0: "float32", 8: "weights in 8 bits, values in 16", 16: "weights and values in 16 bits"}
THEIRS = {8: "weights and values in 8 bits", 16: NUMBERS[8]}
KIND = "instructions"


def run(
    points: Sequence[Point],
    write_c: Callable[..., object],
    records: str | os.PathLike[str] | None = None,
    *,
    limit: float | None = None,
    packages: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Count the points' instructions and return the records.

    write_c: `rnn.write_c`, which is made of more than benchmarks may use. packages: the folder of CMSIS-NN's sources;
    None: without it. records: a file of lines of JSON to write. Raises BuildError where the compiler or QEMU is
    missing."""
    if cortex_m.missing():
        raise BuildError(message("--suite cortex-m: a tool is missing", got=cortex_m.missing()))
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", **cpu_facts(1), "target": CORE, "clock": "instructions in QEMU"})
        for point in Run(write, limit, progress).each(points):
            for record in _counted(point, write_c, packages):
                write({**point.record, "kind": KIND, **record})
    return found


def _counted(point: Point, write_c: Callable[..., object], packages: str | os.PathLike[str] | None) -> Iterator[Record]:
    """Ours in floats and in fixed point, and theirs."""
    net = tamed(network(point).init(0))
    x = np.random.default_rng(0).normal(size=(point.steps, 1, point.input)).astype(np.float32)
    expected = reference(net)(x)[0][:, 0]

    def said(framework: str, numbers: str, y: np.ndarray, count: int) -> Record:
        error = float(np.abs(y - expected).max() / np.abs(expected).max())
        return {"framework": framework, "numbers": numbers, "instructions": count, "error": error}

    with tempfile.TemporaryDirectory(prefix="tvm_rnn-cortex-m-") as name:
        folder = Path(name)
        for bits, numbers in NUMBERS.items():
            own_folder = folder / f"own{bits}"
            write_c(net, own_folder, **({"bits": bits, "samples": x} if bits else {}))
            yield said(OURS, numbers, *_ours(own_folder, x[:, 0], bits))
        for bits, numbers in THEIRS.items() if packages is not None else ():
            assert packages is not None
            (folder / f"theirs{bits}").mkdir()
            try:
                own = quantised(net, x, bits, folder / f"theirs{bits}", packages)
            except Unsupported as reason:
                yield {"framework": CMSIS_NN, "numbers": numbers, "reason": str(reason)}
                continue
            y, count = cortex_m.results(own.folder, {"x": own.x}, CORE, own.options, own.sources)
            yield {**said(CMSIS_NN, numbers, y * own.scale, count), "version": commit_of(Path(packages))}


def _ours(folder: Path, x: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """y as floats, and the instructions of a step."""
    options = ("-std=c99", "-O3")
    if not bits:
        return cortex_m.results(folder, {"x": x}, CORE, options)
    scales = dict(re.findall(r"_([XY])_EXPONENT = (-?\d+)", (folder / f"{folder.name}.h").read_text()))
    integers = np.clip(np.round(x * 2.0 ** int(scales["X"])), -(2**15), 2**15 - 1).astype(np.int16)
    y, count = cortex_m.results(folder, {"x": integers}, CORE, options)
    return y * 2.0 ** -int(scales["Y"]), count


def table(records: Sequence[Record]) -> Table:
    """A line for each record."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("point", "framework", "numbers", "instructions", "error", "note"):
        shown.add_column(column, overflow="fold", justify="right" if column in ("instructions", "error") else "left")
    for own in records:
        if own["kind"] == KIND:
            figures = ("", "") if "reason" in own else (f"{own['instructions']:,}", f"{own['error']:.1e}")
            words = (str(own["point"]), str(own["framework"]), str(own["numbers"]))
            shown.add_row(*words, *figures, str(own.get("reason", "")))
    return shown
