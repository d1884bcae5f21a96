"""The demo and the tutorials run as a reader would run them, each in a process and a folder of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.oracle.tolerance import assert_close

ROOT = Path(__file__).resolve().parent.parent
LONG = (
    "03_watch_the_passes",
    "04_compile_for_a_gpu",
    "05_tune_for_your_machine",
    "06_write_a_schedule",
    "07_train",
    "09_linear_attention_of_your_own",
    "10_train_spikes",
    "11_predict_frames",
    "12_write_text",
    "13_accelerate_a_model",
    "14_attend",
    "15_learn_by_reward",
    "16_torchrl",
    "17_flax",
    "18_lightning",
    "19_forecast",
    "20_read_digits",
    "21_play_an_amplifier",
)
NEEDS = {"16_torchrl": "torchrl", "17_flax": "flax", "18_lightning": "pytorch_lightning"}  # beside what tests have
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))

# Parts of lines that each must print; figures are left out.
PRINTED = {
    "demo": [
        "tvm, tvm_rnn and torch cannot be imported",
        "same prediction            899 of 899",
        "NumPy",
        "passed: the module does what the oracle does",
    ],
    "01_compile_an_lstm": [
        "y (100, 16, 256)   state {'h': (2, 16, 256), 'c': (2, 16, 256)}",
        "a second process: (100, 16, 256) compiler imported: False",
    ],
    "02_write_a_cell": [
        "02_write_a_cell.py:",  # the error names the line of the wrong cell
        "got:      R[32, 32] @ x[8]",
        "memory: y (50, 4, 16) is the oracle's; states {'M': (1, 4, 16, 16)}",
        "both LSTMs: the same ",
        "NaN in row 1 from step 20 on, and nowhere else",
    ],
    "03_watch_the_passes": [
        "products: 8 before combine_gemms, 2 after it",
        "gru_reset_before: 2 phase(s)",
        "without hoist_gemms",
        "@T.prim_func",
    ],
    "04_compile_for_a_gpu": [
        "made for sm_90a in bfloat16",
        "persistent_cluster_cuda   0.",
        "registers, 0 bytes spilled",
        'extern "C" __global__ void',
    ],
    "05_tune_for_your_machine": [
        "gemm_cpu: ",
        "ways to schedule the step's product; the first is the default",
        "leaky_gate H=96: record: minimal H=96 B=8 float32",
        "leaky_gate H=80: nearest record: minimal",
        "leaky_gate H=400: default",
        "1 records",
    ],
    "06_write_a_schedule": [
        "gemm_unrolled_cpu",
        "'unroll': 2}, of {'rows': (2,",
        "lstm_projection   H=7   B=16  largest error",
        "for k_1 in T.unroll(4)",
        "x the defaults",
    ],
    "07_train": [
        "both find the same gradients",
        "Sobel: the error is ",
        "   256 ",
        "frames: the error is ",
    ],
    "10_train_spikes": [
        "lif: step 300",
        "of 1000 new rows are right",
        "own: step 300",
        "W_l0: the gradients differ by ",
    ],
    "11_predict_frames": [
        "<RNN predictor H=16, Y=16, X=16, I=1",
        "step  400   loss 0.",
        "overlap of what it says and what comes: ",
        "R_l0: the gradients differ by ",
    ],
    "12_write_text": [
        "step  600   perplexity ",
        "--- temperature 0.5\nKING",
        "drawn as the oracle draws: True",
        "greedy as a loop in float64: True",
        "one call: ",
    ],
    "13_accelerate_a_model": [
        "lstm: tvm_rnn.LSTM(16, 32, batch_first=True, bidirectional=True)",
        "the largest difference is below 1e-5: True",
        "both learn the same: True",
        "an LSTM of torch's: True",
    ],
    "14_attend": [
        "step  600   loss 0.0",
        "of 500 new rows are written without a fault",
        "\n.   ",
    ],
    "15_learn_by_reward": [
        "update  30   ",
        "as a loop with states cleared by hand: True",
        "without resets it is another: True",
    ],
    "16_torchrl": ["update   4 ", "update  12 "],
    "17_flax": ["step  600   loss 0.", "the file does what the model does: True"],
    "18_lightning": ["step  600   loss 0.0", "found at: ", "the compiled layer is the trained one: True"],
    "19_forecast": ["within the budget: True", "step   90   error 0.", "error an hour ahead: 0."],
    "21_play_an_amplifier": [
        "step  100   part of the power that is wrong 0.0",
        "of a new note: 0.0",
        "in C the largest difference is below 1e-4: True",
    ],
    "20_read_digits": [
        "step   800   loss 0.0",
        "the largest difference is below 1e-4: True",
        "of 500 new pictures are read without a fault",
        "500 pictures in C, ",
    ],
    "08_bring_your_model": [
        "<RNN lstm H=16, I=8 layers=2 directions=1 float32> with ['Network', ",
        "classes (4, 3) each row sums to 1: True",
        "LSTM 'lower', LSTM 'upper'",
        "NonZero 'odd': operator NonZero is not supported",
        "LSTM 'lower': clip -1 is no threshold above 0",
        "mgu as ONNX: True and the LSTM: True",
        "liblstm.so",
        "steps in C: 200 the same as here: True",
        "lstm_step, one step: p50 ",
    ],
    "09_linear_attention_of_your_own": [
        "stands in the way: one step after the other",
        "step  120  perplexity",
        "at first, ",
        "KING",
    ],
}


def output(folder: Path, *words: str) -> str:
    """stdout of a Python process in `folder` that finds this repository's tvm_rnn and must end well."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tutorials" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.broad
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in PRINTED])
def test_it_runs_and_prints_what_matters(name: str, tmp_path: Path) -> None:
    if "gpu" in name:
        try:
            nvcc.find()
        except rnn.BuildError:
            pytest.skip("needs a CUDA compiler")
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    printed = output(tmp_path, str(ROOT / "tutorials" / f"{name}.py"))
    for part in PRINTED[name]:
        assert part in printed, f"{part!r} in:\n{printed}"


@pytest.mark.gpu
def test_digits_are_read_on_a_gpu(tmp_path: Path) -> None:
    """The whole model as kernels: what the CPU and torch find, called and as a CUDA graph, timed beside torch."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    printed = output(tmp_path, str(ROOT / "tutorials" / "20_read_digits.py"))
    print(printed)
    for part in (
        "on the GPU, compiled: the largest difference is below 1e-4: True\n  a graph gives the same: True",
        "on the GPU, torch: the largest difference is below 1e-4: True",
        " us for 32 pictures, ",
    ):
        assert part in printed, f"{part!r} in:\n{printed}"


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS} | {"demo"} == set(PRINTED)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_says_what_it_does_and_what_comes_next(path: Path) -> None:
    cells = re.split(r"^# %%", path.read_text(), flags=re.M)[1:]
    assert cells[0].startswith(f" [markdown]\n# # {int(path.stem[:2])}. ")
    assert "In this tutorial you will" in cells[0]
    assert cells[-1].startswith(" [markdown]\n# ## What to read next\n")
    named = re.findall(r"`([\w/]+\.py)`", cells[-1])
    folder = path.parent
    assert named or "`tvm_rnn/" in cells[-1]
    for name in named:
        assert (folder / name).exists() or (ROOT / name).exists(), name


def test_the_demo_finds_fault_with_wrong_results() -> None:
    demo = module("demo")
    y, digits = np.zeros((8, 5, 2)), np.array([1, 2, 3, 4, 5])
    assert demo.problems(y + 1e-7, y, digits, digits, digits) == []
    assert "differ from the oracle's by 1.0e-03" in demo.problems(y + 1e-3, y, digits, digits, digits)[0]
    assert "inf" in demo.problems(y * np.nan, y, digits, digits, digits)[0]
    assert (
        "4 images are recognised, and by the oracle 5"
        in demo.problems(y, y, np.array([1, 2, 3, 4, 9]), *[digits] * 2)[0]
    )


def test_the_demo_compares_with_the_same_lstm_in_numpy() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 5, dtype="float64").init(seed=1)
    x = np.random.default_rng(0).normal(size=(7, 4, 3))
    layer = module("demo_deployed").numpy_lstm(*(net.weights[f"{name}_l0"] for name in ("W", "R", "b")))
    first = layer(x)
    assert_close(first, rnn.reference(net)(x)[0], "float64", 7)
    assert np.array_equal(layer(x), first)


def test_the_demo_does_without_torch(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tutorials" / "demo_deployed.py", tmp_path)
    np.savez(tmp_path / "data.npz", x=np.zeros(1))
    program = "import sys; sys.modules['torch'] = None; import demo_deployed; demo_deployed.main()"
    assert "torch" in json.loads(output(tmp_path, "-c", program, "torch"))["skip"]
