"""ONNX files of whole models as C programs serve them: one call after the other, ours beside ONNX Runtime's C API.

In: models and the paths of their files, from `models_suite.py`. Out: records, one per model and framework: p50 and
tails of a call on one thread, by a clock on the wall. A model that fails has the reason. `table` shows them.

Programs take turns in processes of their own. Of each round p50, p99 and p99.9 are taken; medians of these count.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.peers.whole_programs import Calls, WholeProgram, bundle_program, onnxruntime_program
from tvm_rnn.bench.suites.onnx_files import OnnxFile
from tvm_rnn.compiler.compile import compile
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.frontends.onnx import from_onnx

from .compare import OURS
from .gpu_suite import Record
from .onnx_files import PEER, Options, Question, of_a_model

if TYPE_CHECKING:
    from rich.table import Table

ROUND_SECONDS = 0.5
FEWEST, MOST = 20, 20000  # calls of a round


def measured(model: OnnxFile, path: Path, options: Options) -> Iterator[Record]:
    """What comes of one model."""
    base, question = of_a_model(model, path, 1), Question(model, path, 1)
    expected = np.concatenate([value.astype(np.float64).ravel() for value in question.answer()])
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-models-") as folder:
        try:
            net = from_onnx(path, given=model.given, shapes=model.shapes)
            # What is float16 becomes float32 in C.
            module = compile(net, precision="float32" if question.has_halves else None, progress=False)
            programs = [
                bundle_program(module, question.arrays, Path(folder)),
                onnxruntime_program(path, question.whole, question.outputs, Path(folder)),
            ]
            errors = [float(np.max(np.abs(program.run(1)[1] - expected), initial=0.0)) for program in programs]
            found = _in_turn(programs, options.rounds)
        except (TvmRnnError, Unsupported) as reason:
            yield {**base, "framework": OURS, "reason": " ".join(str(reason).split())}
            return
    medians = [[statistics.median(own) for own in zip(*calls, strict=True)] for calls in found]
    for program, (us, *tail), error in zip(programs, medians, errors, strict=True):
        figures: Record = {"us": us, "tail_us": tail, "error": error, "config": "C"}
        figures |= {"ratio": medians[1][0] / us} if program.framework == OURS else {"version": question.version}
        yield {**base, "framework": program.framework, **figures}


def _in_turn(programs: Sequence[WholeProgram], rounds: int) -> list[list[Calls]]:
    """What each took in each round."""
    first = [program.run(FEWEST)[0].p50 for program in programs]
    counts = [min(MOST, max(FEWEST, math.ceil(ROUND_SECONDS * 1e6 / us))) for us in first]
    found: list[list[Calls]] = [[] for _ in programs]
    for _ in range(rounds):
        for own, program, count in zip(found, programs, counts, strict=True):
            own.append(program.run(count)[0])
    return found


def table(records: Sequence[Record]) -> Table:
    """A line for each model: p50 and p99.9 of both."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "p50 us", "p99.9 us", f"{PEER} p50", "p99.9", "ratio of p50", "largest difference", "note"):
        shown.add_column(column, overflow="fold")
    files = [own for own in records if own["kind"] == "model"]
    peers = {str(own["model"]): own for own in files if own["framework"] == PEER}
    for own in files:
        if own["framework"] != OURS:
            continue
        if "ratio" not in own:
            shown.add_row(str(own["model"]), *[""] * 6, str(own["reason"]))
            continue
        numbers = [f"{us:.1f}" for one in (own, peers[str(own["model"])]) for us in (one["us"], one["tail_us"][-1])]
        shown.add_row(str(own["model"]), *numbers, f"{own['ratio']:.2f}", f"{own['error']:.1e}", "")
    return shown
