"""The tour of this project: a sequence model on real data, compiled, checked, run without the compiler, and timed.

In: scikit-learn's digits, 1797 images of 8 x 8, read row by row. Out: a report, stage by stage, on stdout; the exit
code is 1 if the compiled module does not do what the NumPy float64 oracle does. `make demo` runs it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.graph.graph_text import layers_text
from tvm_rnn.oracle.tolerance import relative_error, tolerance
from tvm_rnn.passes import pipeline
from tvm_rnn.runtime import runtime

Array = np.ndarray

H, TRAIN, RIDGE, ROUNDS = 128, 898, 0.1, 9
STAGES = {
    "passes": "what does not read the state leaves the loop, products become one, the rest hangs on them",
    "lowering": "tensor expressions to TIR functions, and the loop over time around them",
    "code generation": "LLVM machine code for this CPU",
    "linking": "that code and its thread pool, with weights and manifest, in one file",
    "loading": "as any process does it: checksum and CPU features first, then dlopen",
}
# One thread for everyone: how well a small product spreads over cores is another question, see `make bench`.
ONE_THREAD = dict.fromkeys(("TVM_RNN_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def read_digits() -> tuple[Array, Array]:
    """x [T=8, B=1797, I=8] float32 from 0 to 1, one image row per step; and the digit of each image."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("error: this demo needs scikit-learn: run `make demo`, or pip install scikit-learn") from None
    found = load_digits()
    return np.ascontiguousarray(found.images.transpose(1, 0, 2) / 16, np.float32), found.target


def reservoir() -> rnn.RNN:
    """An LSTM that is never trained: random weights that keep the state lively, as in an echo state network."""
    net, rng = rnn.RNN(rnn.cells.lstm, input_size=8, hidden_size=H), np.random.default_rng(0)
    return net.load(
        {
            "W_l0": rng.normal(0, 2 / np.sqrt(8), (4, H, 8)),
            "R_l0": rng.normal(0, 1 / np.sqrt(H), (4, H, H)),
            "b_l0": rng.normal(0, 0.5, (4, H)),
        }
    )


def features(y: Array) -> Array:
    """[T, B, H] as [B, T*H + 1]: the outputs of all steps of an image side by side, and a one for the bias."""
    return np.concatenate([*y, np.ones((y.shape[1], 1))], axis=1)


def fit_readout(y: Array, digits: Array) -> Array:
    """[T*H + 1, 10]: ridge regression on one-hot targets."""
    A = features(y)
    return np.linalg.solve(A.T @ A + RIDGE * np.eye(A.shape[1]), A.T @ np.eye(10)[digits])


def compile_to(path: Path, net: rnn.RNN, batch: list[int]) -> str:
    """Compile, write the file, and print how long each stage took. Returns the name of the CPU it is for."""
    print("3  compile")
    started: list[tuple[str, float]] = []
    module = rnn.compile(net, batch=batch, progress=lambda stage: started.append((stage, time.perf_counter())))
    started.append(("", time.perf_counter()))
    for (stage, begin), (_, end) in itertools.pairwise(started):
        print(f"   {stage:<16}{end - begin:5.2f} s  {STAGES.get(stage, '')}")
    module.export(path)
    print(f"\n   {path.name}: {path.stat().st_size / 1024:.0f} KiB. The step, as compiled:\n")
    _, layers = pipeline.run(net, target.resolve("llvm"))[-1]
    print("\n".join(f"   {line}" for line in layers_text(layers).splitlines()))
    return str(module.manifest.target.mcpu)


class Process:
    """demo_deployed.py in `folder`, with one thread. `facts`: what it says first."""

    def __init__(self, what: str, folder: Path) -> None:
        command = [sys.executable, str(folder / "demo_deployed.py"), what]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.name, self.child = what, subprocess.Popen(command, cwd=folder, env={**os.environ, **ONE_THREAD}, **pipes)
        self.facts = self.answer()

    def answer(self) -> dict[str, Any]:
        """Its next line. Ends this program where there is none: it has said on stderr why."""
        line = self.child.stdout.readline() if self.child.stdout else ""
        if not line:
            raise SystemExit(f"error: the process of {self.name} failed with exit code {self.child.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def times(self) -> dict[str, dict[str, float]]:
        """Microseconds of one round by layer and input; nothing where there is nothing to time."""
        if "skip" in self.facts or not self.child.stdin:
            return {}
        self.child.stdin.write("round\n")
        self.child.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.child.communicate()


def median_times(processes: Sequence[Process]) -> dict[str, dict[str, float]]:
    """Microseconds by layer and input: the medians of rounds in which the processes take turns."""
    rounds = [{key: us for process in processes for key, us in process.times().items()} for _ in range(ROUNDS)]
    return {
        layer: {size: statistics.median(found[layer][size] for found in rounds) for size in sizes}
        for layer, sizes in rounds[0].items()
    }


def problems(y: Array, expected: Array, digits: Array, expected_digits: Array, truth: Array) -> list[str]:
    """What is wrong with the module's outputs y and the digits that it recognised; empty where nothing is."""
    found = []
    error, allowed = relative_error(y, expected), tolerance("float32", len(y))
    if not error <= allowed:
        found.append(f"the outputs differ from the oracle's by {error:.1e}, and {allowed:.0e} is allowed")
    right, expected_right = int((digits == truth).sum()), int((expected_digits == truth).sum())
    if right != expected_right:
        found.append(f"{right} images are recognised, and by the oracle {expected_right}")
    return found


def print_task(y: Array, expected: Array, digits: Array, expected_digits: Array, truth: Array) -> None:
    """Accuracy, agreement and error, beside the oracle's."""
    total = len(truth)
    for name, own in (("module", digits), ("oracle", expected_digits)):
        right = int((own == truth).sum())
        print(f"   accuracy of the {name:<10} {right / total:.2%}  ({right} of {total} test images)")
    print(f"   same prediction            {(digits == expected_digits).sum()} of {total}")
    error, allowed = relative_error(y, expected), tolerance("float32", len(y))
    print(f"   largest relative error     {error:.1e}  (allowed: {allowed:.0e})")


def print_speed(times: Mapping[str, Mapping[str, float]], labels: Mapping[str, str], batch: int) -> None:
    """Microseconds per call, and how many times tvm_rnn's everyone needs."""
    print(f"   {'':<32}{f'{batch} images':>20}{'1 image':>22}")
    for name, sizes in times.items():
        cells = (f"{us:9.0f} us {us / times['tvm_rnn'][size]:5.2f} x" for size, us in sizes.items())
        print(f"   {labels[name]:<32}" + "   ".join(cells))


def deploy(folder: Path, net: rnn.RNN, arrays: Mapping[str, Array]) -> None:
    """Put beside digits.so what the other processes need, and nothing else."""
    for source in (Path(runtime.__file__), Path(__file__).with_name("demo_deployed.py")):
        shutil.copy(source, folder)
    weights = {name.removesuffix("_l0"): value for name, value in net.weights.items()}
    np.savez(folder / "data.npz", x_one=np.ascontiguousarray(arrays["x"][:, :1]), **arrays, **weights)


def use(folder: Path, cpu: str, expected: Array, expected_digits: Array, truth: Array) -> list[str]:
    """Stages 4 and 5: run the module, judge it, time it. Returns what is wrong."""
    processes = [Process(name, folder) for name in ("module", "torch")]
    try:
        facts, peer = (process.facts for process in processes)
        names = " and ".join(f"{name} {version}" for name, version in facts["versions"].items())
        print(f"\n4  use: a second process with {names}, where tvm, tvm_rnn and torch cannot be imported")
        outputs = {path.stem.removeprefix("y_"): np.load(path) for path in folder.glob("y_*.npy")}
        result = (outputs.pop("module"), expected, np.array(facts["digits"]), expected_digits, truth)
        print_task(*result)
        wrong = problems(*result)
        for name, y in outputs.items():  # or their times would mean nothing
            if not relative_error(y, expected) <= tolerance("float32", len(y)):
                wrong.append(f"the LSTM of {name} is another one")
        print(f"\n5  speed: one call for all {len(expected)} steps on one thread of this CPU ({cpu}). Medians of")
        print(f"   {ROUNDS} rounds, all taking turns; x: times tvm_rnn's. `make bench` is the thorough comparison.\n")
        labels = {"tvm_rnn": f"tvm_rnn {rnn.__version__}", "NumPy": f"NumPy {facts['versions']['numpy']}, float32"}
        labels["PyTorch"] = f"PyTorch {peer.get('versions', {}).get('torch')}, nn.LSTM"
        print_speed(median_times(processes), labels, len(truth))
        if "skip" in peer:
            print(f"   PyTorch's nn.LSTM is not compared: {peer['skip']}")
    finally:
        for process in processes:
            process.close()
    return wrong


def main() -> int:
    """Print the report; 0 where the module does what the oracle does, else 1."""
    x, truth = read_digits()
    net = reservoir()
    print(f"1  data: {x.shape[1]} images of handwritten digits, each read as {len(x)} steps of {x.shape[2]} numbers")
    print(f"   (scikit-learn's load_digits). {TRAIN} to fit the read-out, {x.shape[1] - TRAIN} to test it.\n")
    started = time.perf_counter()
    expected, _ = rnn.reference(net)(x)
    readout = fit_readout(expected[:, :TRAIN], truth[:TRAIN])
    seconds = time.perf_counter() - started
    print(f"2  model: an LSTM of {H} units with fixed random weights; a linear read-out of its outputs, fitted to what")
    print(f"   the oracle (NumPy, float64) computes. {seconds:.1f} s\n")
    x, expected, truth = np.ascontiguousarray(x[:, TRAIN:]), expected[:, TRAIN:], truth[TRAIN:]
    expected_digits = np.argmax(features(expected) @ readout, axis=1)
    with tempfile.TemporaryDirectory(prefix="tvm_rnn_demo_") as name:
        folder = Path(name).resolve()
        cpu = compile_to(folder / "digits.so", net, batch=[1, len(truth)])
        deploy(folder, net, {"x": x, "readout": readout})
        wrong = use(folder, cpu, expected, expected_digits, truth)
    print("\n" + ("\n".join(f"error: {text}" for text in wrong) or "passed: the module does what the oracle does"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
