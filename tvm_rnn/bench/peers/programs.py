"""Programs in C and C++ that call one network again and again, as an audio thread does: ours from a bundle, RTNeural's
from its sources.

In: a `Problem` of one row, whose inputs are a stream's samples; a folder to build in. Out: `Program`s, each of which
computes the whole stream and then times its calls, turn after turn (`calls.h`). `Unsupported` says what cannot be
built, and why.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tvm_rnn.cpu.c_compiler import find_compiler, run
from tvm_rnn.errors import BuildError
from tvm_rnn.locations import PACKAGE
from tvm_rnn.runtime.runtime import load

from .models import Problem, Unsupported

HERE = PACKAGE / "bench" / "peers"
PATIENCE = 120.0  # seconds for a program that should end after a fraction of one
NAME = "network"
OPTIONS = ("-O3", "-march=native", f"-I{HERE}")
# Its own name of a layer, and its gates' places among ours: both have i f g o; z r n where ours are r z n.
RTNEURAL_LAYERS = {"lstm": ("LSTMLayerT", [0, 1, 2, 3]), "gru": ("GRULayerT", [1, 0, 2])}

BUNDLE = """\
#include <stdlib.h>

#include "{name}.h"

enum {{ INPUTS = {inputs}, OUTPUTS = {outputs}, SAMPLES = {samples} }};
static {name} *handle;
static float {arrays}; /* at whole cache lines, as its own arrays are where a framework has some */

static void take(const float *weights, long count) {{
  (void)weights, (void)count;
  if ({name}_open(0, &handle) || {name}_reserve(handle, SAMPLES, 1)) exit(3);
}}

static void begin(void) {{ {name}_init_state(handle, 1, {states}); }}

static inline const float *call(const float *x, float *y) {{
  {call};
  return y;
}}

#include "calls.h"
"""


class Timed(NamedTuple):
    """What a turn found, seconds of a call: CPU time, percentiles, and the last of these for calls that do nothing
    (`calls.h`)."""

    seconds: float
    tail: list[float]
    clock: float


@dataclass(frozen=True)
class Program:
    """A built program. config: how it calls the network. samples: of a call. run_by: what runs its file."""

    framework: str
    version: str
    config: str
    path: Path
    problem: Problem
    samples: int
    run_by: tuple[str, ...] = ()

    def outputs(self) -> np.ndarray:
        """y of the whole stream, [T, 1, outputs]. Raises Unsupported."""
        command = self._command(0.0)
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=PATIENCE)
        except (subprocess.SubprocessError, OSError) as reason:
            raise Unsupported(f"its program failed: {str(reason).splitlines()[0][-200:]}") from None
        y = np.fromfile(self.path.with_suffix(".y"), self.problem.x.dtype)
        return y.reshape(len(self.problem.x), 1, -1)

    @contextlib.contextmanager
    def running(self, seconds: float) -> Iterator[Callable[[], Timed]]:
        """A process of its own, that is ready; each call of what is given is a turn. seconds: of a turn's calls that
        are timed one by one. Raises Unsupported."""
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(self._command(seconds), stdin=pipe, stdout=pipe, stderr=none, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            told, heard = process.stdin, process.stdout

            def answer() -> str:
                line = heard.readline() if select.select([heard], [], [], PATIENCE)[0] else ""
                if not line:
                    raise Unsupported(f"its program failed: no answer, exit code {process.poll()}")
                return line

            def turn() -> Timed:
                with contextlib.suppress(OSError):
                    told.write("\n")
                    told.flush()
                each, *tail, clock = (float(word) * 1e-9 for word in answer().split())
                return Timed(each, tail, clock)

            try:
                answer()  # it is ready
                yield turn
            finally:
                process.kill()

    def _command(self, seconds: float) -> list[str]:
        x, y, weights = (self.path.with_suffix(f".{name}") for name in ("x", "y", "weights"))
        self.problem.x.tofile(x)
        return [*self.run_by, *map(str, (self.path, x, weights, y)), str(seconds)]


def bundle_programs(problem: Problem, folder: Path, samples: int) -> list[Program]:
    """Of the problem's module: the checked call, and the one that checks nothing where the bundle has it."""
    bundle = folder / NAME
    if not bundle.exists():
        load(problem.path).export(bundle=bundle)
    header = (bundle / f"{NAME}.h").read_text()
    sizes = {name.lower(): size for name, size in re.findall(rf"#define {NAME.upper()}_(\w+)_PER_ROW (\d+)", header)}
    x, *states, _ = sizes  # in the order of a call's arguments
    words = ", ".join(states)
    calls = {"checked": f"{NAME}_step(handle, 1, x, {words}, y)"}
    if samples > 1:
        calls = {"checked": f"{NAME}_sequence(handle, SAMPLES, 1, x, {words}, y, 0, 0)"}
    if f"{NAME}_step_unchecked(" in header:
        calls["unchecked"] = f"{NAME}_step_unchecked(handle, x, {words}, y)"
        if samples > 1:
            calls["unchecked"] = f"{NAME}_sequence_unchecked(handle, SAMPLES, x, {words}, y)"
    found = []
    for config, call in calls.items():
        source = folder / f"{config}_{samples}.c"
        facts = {"name": NAME, "inputs": sizes[x], "outputs": sizes["y"], "samples": samples, "states": words}
        arrays = ", ".join(f"{state}[{sizes[state]}] __attribute__((aligned(64)))" for state in states)
        source.write_text(BUNDLE.format(**facts, arrays=arrays, call=call))
        link = (f"-I{bundle}", f"-L{bundle}", f"-l{NAME}", f"-Wl,-rpath,{bundle}")
        path = _built(source, np.zeros(0, np.float32), "-x", "c", "-std=gnu11", after=link)
        found.append(Program("tvm_rnn", problem.manifest.versions["tvm_rnn"], config, path, problem, samples))
    return found


def rtneural_program(problem: Problem, folder: Path, samples: int, sources: str | os.PathLike[str]) -> Program:
    """RTNeural's layer with Eigen, of sizes known to its compiler. sources: its folder, of a clone or a release."""
    root = Path(sources)
    if not (root / "RTNeural" / "RTNeural.h").is_file() or not (root / "modules" / "Eigen").is_dir():
        raise Unsupported(f"{os.fspath(sources)!r} has no RTNeural/RTNeural.h beside modules/Eigen")
    layer, order = problem.form({name: (kind, {"order": order}) for name, (kind, order) in RTNEURAL_LAYERS.items()})
    if problem.manifest.num_layers > 1 or problem.manifest.num_directions > 1:
        raise Unsupported("one layer of it is built here")
    W, R, b, second = (value[order["order"]] for value in problem.gates(0, 0))
    biases = [b, second] if problem.manifest.cell == "gru" else [b + second]
    gates, outputs, inputs = W.shape
    matrices = [matrix.reshape(-1, matrix.shape[-1]).T for matrix in (W, R)]
    weights = np.concatenate([part.ravel() for part in (*matrices, *biases)]).astype(np.float32)
    sizes = {"GATES": gates, "OUTPUTS": outputs, "INPUTS": inputs, "SAMPLES": samples, "LAYER": layer}
    source = folder / f"rtneural_{samples}.cpp"
    source.write_text('#include "calls_rtneural.cpp"\n')
    options = ["-std=c++17", "-DRTNEURAL_USE_EIGEN=1", "-DRTNEURAL_DEFAULT_ALIGNMENT=32", "-w"]
    options += ["-DEIGEN_STACK_ALLOCATION_LIMIT=0"]  # the matrix of an LSTM of 64 is larger than its default
    options += [f"-D{name}={value}" for name, value in sizes.items()]
    options += [f"-I{root}", f"-I{root / 'modules' / 'Eigen'}"]
    return Program("rtneural", _version(root), "Eigen", _built(source, weights, *options), problem, samples)


def _built(source: Path, weights: np.ndarray, *options: str, after: tuple[str, ...] = ()) -> Path:
    """The program of a source, with its weights beside it. Raises Unsupported."""
    program = source.with_suffix("")
    weights.tofile(program.with_suffix(".weights"))
    try:
        run([*find_compiler(), *OPTIONS, *options, str(source), "-o", str(program), *after])
    except BuildError as reason:
        raise Unsupported(" ".join(str(reason).split())[:400]) from None
    return program


def commit_of(root: Path) -> str:
    """The commit of a clone; empty: it is none."""
    command = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if (root / ".git").exists() else None
    return done.stdout.strip() if done is not None and not done.returncode else ""


def _version(root: Path) -> str:
    """The commit of a clone, else what the sources say."""
    if commit := commit_of(root):
        return commit
    said = root / "CMakeLists.txt"
    found = re.search(r"project\(RTNeural VERSION ([\d.]+)", said.read_text()) if said.is_file() else None
    return found[1] if found else ""
