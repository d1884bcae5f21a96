"""ONNX's own tests through from_onnx and compile: passed, refused by name, wrong.

In: names of groups (none: all), and how many processes work. Out: a line per group, then every test that is not passed,
with the reason. The exit status is 1 where a result is wrong. Needs the onnx package alone.

    python tests/frontends/onnx_cases.py [--jobs N] [--part I/N] [--limit S] [--after FILE] [--records FILE] [GROUP ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import queue
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tvm_rnn as rnn
from tvm_rnn.bench.run.compare import cpu_facts
from tvm_rnn.bench.run.gpu_suite import writing
from tvm_rnn.errors import TvmRnnError

OPERATORS = {
    "recurrence": ("RNN", "LSTM", "GRU", "Scan", "Loop", "If", "LinearAttention"),
    "convolution": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "CausalConvWithState"),
    "pooling": ("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "MaxUnpool"),
    "quantised": ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"),
    "resizing": ("Resize",),
    "moves": ("Transpose", "Concat", "Slice", "Split", "Pad", "Gather", "Reshape", "Squeeze", "Unsqueeze", "Expand"),
    "numbers": ("Clip", "Pow", "Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization", "Gemm", "MatMul"),
}
OTHERS, SEVERAL, SMALL, CONVERTED = "other operators", "several operators", "small models", "converted by torch"
GROUPS = (*OPERATORS, SEVERAL, SMALL, CONVERTED, OTHERS)
KINDS = ("passed", "refused", "wrong")
FOLDERS = {SMALL: ("simple",), CONVERTED: ("pytorch-converted", "pytorch-operator")}


@dataclass(frozen=True)
class Case:
    """A model, arrays of its inputs, and of its outputs; rtol and atol are of the standard."""

    name: str
    model: Any
    inputs: list[Any]
    outputs: list[Any]
    rtol: float = 1e-3
    atol: float = 1e-5


@dataclass
class Found:
    """What came of a group's tests, by name: "passed", "refused: why", "wrong: what"."""

    group: str
    outcomes: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, str]:
        return {name: text for name, text in self.outcomes.items() if text.split(":")[0] == kind}

    def __str__(self) -> str:
        counts = Counter(text.split(":")[0] for text in self.outcomes.values())
        return f"{self.group:<20}" + "".join(f"{counts[kind]:>5} {kind}" for kind in KINDS)


def cases(group: str, modules: tuple[str, ...] = ()) -> Iterator[Case]:
    """The tests of a group. modules: of ONNX, that define tests of nodes; else all."""
    if group in FOLDERS:
        yield from _stored(FOLDERS[group])
        return
    from onnx.backend.test.case import model as model_tests
    from onnx.backend.test.case import node as node_tests

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
        found = [*node_tests._NodeTestCases] if modules else node_tests.collect_testcases(None)
        found += [] if modules else [case for case in model_tests.collect_testcases() if case.model is not None]
    for case in found:
        if case.model is not None and case.data_sets and _group(case.model) == group:
            yield Case(case.name, case.model, *case.data_sets[0], case.rtol, case.atol)


def _group(model: Any) -> str:
    operators = [node.op_type for node in model.graph.node]
    if len(operators) > 1:
        return SEVERAL
    return next((group for group, own in OPERATORS.items() if operators[0] in own), OTHERS)


def _stored(folders: Sequence[str]) -> Iterator[Case]:
    """The tests that the onnx package has as files."""
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(path for folder in folders for path in (root / folder).glob("*/model.onnx")):
        parts = [sorted(path.parent.glob(f"test_data_set_0/{kind}_*.pb"), key=_number) for kind in ("input", "output")]
        try:
            arrays = [[onnx.numpy_helper.to_array(onnx.load_tensor(own)) for own in part] for part in parts]
        except Exception:  # a sequence, of many classes
            arrays = [[object()], []]
        yield Case(path.parent.name, onnx.load(path), *arrays)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def fixed(model: Any, inputs: list[Any]) -> tuple[Any, dict[str, Any]]:
    """The model with small inputs behind the first as constants, as files have them, and the others by name."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = {tensor.name for tensor in model.graph.initializer}
    given = dict(zip([value.name for value in model.graph.input if value.name not in names], inputs, strict=True))
    for value in [own for own in made.graph.input if own.name in given][1:]:
        array = np.asarray(given[value.name])
        small = array.dtype.kind in "iub" or array.size == 1 or value.name in ("roi", "scales")
        if small or len(given) > 2:
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            made.graph.input.remove(value)
            del given[value.name]
    return made, given


def outcome(case: Case) -> str:
    """What comes of a test."""
    arrays = [value for value in (*case.inputs, *case.outputs) if value is not None]
    if any(not isinstance(value, np.ndarray | np.generic | onnx.TensorProto) for value in arrays):
        return "refused: values that are no arrays"
    inputs, outputs = ([_array(value) for value in own] for own in (case.inputs, case.outputs))
    if any(value is None or value.dtype.kind in "OUSV" or value.dtype.name not in DTYPES for value in inputs):
        return "refused: element types that NumPy lacks"
    try:
        made, given = fixed(case.model, inputs)
        found = rnn.compile(rnn.from_onnx(made)).run(given)
    except TvmRnnError as reason:
        return "refused: " + " ".join(str(reason).split())
    for got, expected in zip(found.values(), outputs, strict=False):
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return f"wrong: {got.dtype} {got.shape}, not {expected.dtype} {expected.shape}"
        rounding = 4 * float(np.finfo(got.dtype).eps) if got.dtype.kind == "f" else 0.0
        limits = max(case.rtol, rounding), max(case.atol, 1e-5)
        if not np.allclose(got.astype("f8"), expected.astype("f8"), *limits, equal_nan=True):
            return f"wrong: values, by {np.nanmax(abs(got.astype('f8') - expected.astype('f8'))):.3g}"
    return "passed"


DTYPES = {np.dtype(own).name for own in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]}


def _array(value: Any) -> Any:
    if value is None:
        return None
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _worked(given: tuple[str, Case]) -> tuple[str, str, str]:
    group, case = given
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return group, case.name, outcome(case)
        except Exception as reason:  # an error that is not ours is a fault of ours
            return group, case.name, f"wrong: {type(reason).__name__}: {' '.join(str(reason).split())}"


class _Worker:
    """A process that works on one test after another. A test that ends it, or that does not end, is wrong."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def __call__(self, work: tuple[str, Case]) -> tuple[str, str, str]:
        try:
            self.pipe.send(work)
            if self.pipe.poll(self.limit):
                found: tuple[str, str, str] = self.pipe.recv()
                return found
            text = f"wrong: no result in {self.limit:.0f} s"
        except (EOFError, OSError):
            self.process.join()
            text = f"wrong: it ends the process ({self.process.exitcode})"
        self.end()
        self._start()
        return work[0], work[1].name, text

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any) -> None:
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(_worked(pipe.recv()))


def _all_worked(work: Sequence[tuple[str, Case]], jobs: int, limit: float) -> Iterator[tuple[str, str, str]]:
    """What comes of each, in the order in which they end."""
    left, ready = queue.SimpleQueue[tuple[str, Case]](), queue.SimpleQueue[tuple[str, str, str]]()
    for own in work:
        left.put(own)

    def run() -> None:
        worker = _Worker(limit)
        with contextlib.suppress(queue.Empty):
            while True:
                ready.put(worker(left.get_nowait()))
        worker.end()

    for _ in range(jobs):
        threading.Thread(target=run, daemon=True).start()
    for _ in work:
        yield ready.get()


def _passed(path: Path | None) -> set[tuple[str, str]]:
    """Groups and names of the tests that passed in these records."""
    lines = [] if path is None else [json.loads(line) for line in path.read_text().splitlines()]
    return {(own["group"], own["name"]) for own in lines if own.get("outcome") == "passed"}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="ONNX's own tests: passed, refused by name, wrong")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(map(repr, GROUPS))}; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth test from the Ith on (0/1)")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one test (240)")
    parser.add_argument("--records", type=Path, help="a file that gets every test with its outcome, as it ends")
    parser.add_argument("--after", type=Path, help="earlier records: only tests that were not passed there")
    given = parser.parse_args(arguments)
    if unknown := {*given.groups} - {*GROUPS}:
        parser.error(f"unknown groups: {', '.join(unknown)}")
    first, every = map(int, given.part.split("/"))
    passed = _passed(given.after)
    own = [(group, case) for group in given.groups or GROUPS for case in cases(group)]
    work = [(group, case) for group, case in own if (group, case.name) not in passed][first::every]
    found = {group: Found(group) for group in given.groups or GROUPS}
    with writing([], given.records) as note:
        facts = cpu_facts(1)
        facts["versions"] |= {"onnx": onnx.__version__}
        note({"kind": "facts", **facts})
        for group, name, text in _all_worked(work, given.jobs, given.limit):
            found[group].outcomes[name] = text
            kind, _, reason = text.partition(": ")
            note({"kind": "test", "group": group, "name": name, "outcome": kind, "reason": reason})
            if text != "passed":
                print(f"{group}: {name}: {text:.300}", flush=True)
    print(*found.values(), sep="\n")
    return int(any(own.of("wrong") for own in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
