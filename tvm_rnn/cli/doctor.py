"""What is installed here, which targets work and why others do not: what a bug report has to say.

In: this machine. Out: facts for --json and a page of text for `tvm-rnn doctor`. Nothing is assumed to work: a check
that fails becomes its reason, and the others go on. `works` is decided by compiling a small cell for this CPU, running
it and comparing it with the oracle.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tvm_rnn import this_machine
from tvm_rnn.errors import BuildError, TvmRnnError
from tvm_rnn.explain.tables import plain_table, size_text
from tvm_rnn.version import __version__

Facts = dict[str, Any]  # what --json prints of one check

PYTHON = (3, 10)
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "rich", "safetensors", "typer")
# What some parts need, and which.
OPTIONAL = {
    "torch": "from_torch, to_torch, arrays on GPUs, bench --against torch",
    "onnx": "from_onnx, to_onnx",
    "h5py": "from_keras of .h5 and .keras files",
    "keras": "from_keras of a layer",
    "onnxruntime": "bench --against onnxruntime",
    "openvino": "bench --against openvino",
    "ncnn": "bench --against ncnn",
    "tract": "bench --against tract",
    "ai-edge-litert": "bench --against litert",
    "tflite-micro": "bench --against tflite-micro",
    "cloudpickle": "tune --rpc-tracker: on the machines that it measures on",
    "cupy": "arrays on GPUs",
    "vl-convert-python": "bench --plot, tune --plot, explain --html",
}
VARIABLES = (
    *("TVM_RNN_CACHE", "TVM_RNN_NUM_THREADS", "TVM_RNN_PROGRESS", "TVM_RNN_RECORDS", "TVM_RNN_SCHEDULES"),
    *("TVM_RNN_WATCHDOG_SECONDS", "OMP_NUM_THREADS", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"),
)


def examine(tell: Callable[[str], None] = lambda stage: None) -> Facts:
    """Everything that is checked, in order.

    works: whether a cell can be compiled and run here. problems: texts, each with what to do. versions: {package:
    {got, expected, ok}}. cpu, compilers, gpu: what was found, or {"missing": why}. targets: {name: {"compiles",
    "runs"}}, True or the reason why not. records, environment, optional.
    """
    tell("versions")
    versions, problems = _versions()
    tell("the CPU")
    cpu = _attempt(_cpu)
    tell("compilers")
    compilers = {"c++": _attempt(_cxx), "cuda": _attempt(_cuda)}
    tell("the GPU")
    gpu = _attempt(_gpu)
    tell("a small cell")
    tried = _attempt(_small_cell)
    works = "missing" not in tried
    if not works:
        problems.append(f"a cell cannot be compiled and run on this CPU: {tried['missing']}")
    targets = _targets(cpu, compilers, gpu) if "missing" not in cpu else {}
    return {
        "works": works,
        "problems": problems,
        "tried": tried,
        "system": {"platform": platform.platform(), "machine": platform.machine(), "tvm_rnn": __version__},
        "versions": versions,
        "cpu": cpu,
        "threads": {"cpus": os.cpu_count(), "allowed": this_machine.cpus()},  # the machine's, this process's
        "compilers": compilers,
        "gpu": gpu,
        "targets": targets,
        "records": _attempt(_records),
        "optional": {name: {"got": _version(name), "for": use} for name, use in OPTIONAL.items()},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _attempt(check: Callable[[], Facts]) -> Facts:
    """What a check found, or why it could not."""
    try:
        return check()
    except TvmRnnError as reason:
        what, *slots = str(reason).split("\n")
        got = next((line.partition("got:")[2].strip() for line in slots if line.strip().startswith("got:")), "")
        return {"missing": f"{what}: {got}" if got else what}
    except Exception as reason:  # whatever is broken here is what is to be found out
        return {"missing": f"{type(reason).__name__}: {' '.join(str(reason).split())}"[:400]}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pins() -> dict[str, str]:
    """What tvm_rnn asks of packages, by its own metadata: {"apache-tvm": "==0.27.0.post1", ...}; empty where it is not
    installed, but found by PYTHONPATH."""
    try:
        required = importlib.metadata.requires("tvm_rnn") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?$", line.strip()) for line in required)
    return {match[1]: match[2].strip() for match in found if match}


def _versions() -> tuple[dict[str, Facts], list[str]]:
    """Python and the packages that everything needs, and what is wrong with them."""
    least = ">=" + ".".join(map(str, PYTHON))
    found = {"python": {"got": platform.python_version(), "expected": least, "ok": sys.version_info >= PYTHON}}
    asked = pins()
    for name in PACKAGES:
        got, expected = _version(name), asked.get(name, "")
        found[name] = {"got": got, "expected": expected, "ok": got is not None and satisfies(got, expected)}
    problems = []
    for name, row in found.items():
        if not row["ok"]:
            do = f"pip install '{name}{row['expected']}'" if name != "python" else "make another environment"
            problems.append(f"{name}: got {row['got'] or 'none'}, expected {row['expected'] or 'any'}; {do}")
    return found, problems


def satisfies(got: str, expected: str) -> bool:
    """Whether a version fits "==1.2" or ">=1.2"; other conditions are taken to be met."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version.split("+")[0])]

    for condition in filter(None, expected.split(",")):
        match = re.match(r"\s*(==|>=)\s*([\w.]+)", condition)
        if match and match[1] == "==" and got.split("+")[0] != match[2]:
            return False
        if match and match[1] == ">=" and numbers(got) < numbers(match[2]):
            return False
    return True


def _cpu() -> Facts:
    from tvm_rnn.target import host

    own = host()
    caches = {"l1_bytes": own.l1_bytes, "l2_bytes": own.l2_bytes}
    return {"mcpu": own.mcpu, "isa": own.isa, "features": list(own.features), **caches}


def _cxx() -> Facts:
    from tvm_rnn.cpu.c_compiler import find_compiler

    command = find_compiler()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return {"command": " ".join(command), "version": (done.stdout or done.stderr).split("\n")[0]}


def _cuda() -> Facts:
    from tvm_rnn.cuda.codegen import nvcc

    tools = nvcc.find()
    return {"command": tools.nvcc or tools.nvrtc, "version": tools.name}


def _gpu() -> Facts:
    from tvm_rnn.target import gpu

    found = gpu()
    known = {"shared_bytes": found.shared_bytes, "l2_bytes": found.l2_bytes}
    return {"name": found.name, "arch": found.arch, "sms": found.sms, **known}


def _small_cell() -> Facts:
    """Compile, run, compare."""
    import numpy as np

    from tvm_rnn.cells import get
    from tvm_rnn.compiler.compile import compile
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.oracle.reference import reference

    net = RNN(get("gru"), 3, 5).init(0)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 2, 3)
    y, expected = compile(net, records="none", progress=False)(x)[0], reference(net)(x)[0]
    error = float(np.abs(y - expected).max())
    if not error < 1e-5:
        raise ValueError(f"it computes something else than the oracle: off by {error:.3g}")
    return {"cell": net.cell.name, "error": error}


def _no_compiler(triple: str) -> str | bool:
    """Why nothing can be compiled for that system, or True."""
    from tvm_rnn.cpu.c_compiler import find_compiler

    try:
        return bool(find_compiler(triple))
    except BuildError as error:
        return str(error).splitlines()[0]


def _targets(cpu: Facts, compilers: Mapping[str, Facts], gpu: Facts) -> dict[str, Facts]:
    """For each name that `compile` takes: whether code can be made for it here, and run here; else why not."""
    from tvm_rnn.target import GPUS, TABLE, resolve

    cxx, cuda = (compilers[name].get("missing") for name in ("c++", "cuda"))
    found: dict[str, Facts] = {"llvm": {"compiles": cxx or True, "runs": cxx or True}}
    for name, row in TABLE.items():
        lacking = sorted({*resolve(name).features} - {*cpu["features"]})
        other = f"this machine is {this_machine.machine()}" if row.machine != this_machine.machine() else ""
        runs = other or (f"this CPU has no {', '.join(lacking)}" if lacking else "")
        found[name] = {
            "compiles": _no_compiler(row.elsewhere) if row.elsewhere else cxx or True,
            "runs": runs or cxx or True,
        }
    for name in ("cuda", *GPUS):
        able: str | bool = cuda or cxx or True
        none = "there is no NVIDIA GPU here" if "missing" in gpu else ""
        here = none or (
            "" if name == "cuda" or GPUS[name].arch == str(gpu["arch"]) else f"the GPU here is {gpu['name']}"
        )
        found[name] = {"compiles": (none if name == "cuda" else "") or able, "runs": here or True}
    return found


def _records() -> Facts:
    from tvm_rnn.schedule.record_files import folders
    from tvm_rnn.tune.record_checks import every

    places = [folder for folder in folders() if folder.is_dir()]
    found, ignored = every(places)
    return {"folders": [str(place) for place in places], "count": len(found), "ignored": ignored}


# --- as text ---------------------------------------------------------------------------------------------------------


def page(found: Facts) -> RenderableType:
    """The same for people."""
    system = found["system"]
    parts: list[RenderableType] = [Text(f"tvm_rnn {system['tvm_rnn']} on {system['platform']}", "bold"), ""]
    table = plain_table("package", "got", "expected")
    for name, row in found["versions"].items():
        table.add_row(name, Text(row["got"] or "none", "" if row["ok"] else "red"), row["expected"] or "any")
    parts += [table, "", _facts(found), ""]
    targets = plain_table("target", "compiles here", "runs here")
    for name, row in found["targets"].items():
        targets.add_row(name, *(Text("yes" if row[what] is True else row[what]) for what in ("compiles", "runs")))
    parts += [targets, ""]
    missing = [f"{name} ({row['for']})" for name, row in found["optional"].items() if not row["got"]]
    there = [f"{name} {row['got']}" for name, row in found["optional"].items() if row["got"]]
    parts += [Text(f"also installed: {', '.join(there) or 'nothing'}")]
    parts += [Text(f"not installed: {', '.join(missing)}")] if missing else []
    parts += [Text(f"problem: {problem}", "red") for problem in found["problems"]]
    verdict = "a cell was compiled and run on this CPU" if found["works"] else "the CPU path does not work"
    return Group(*parts, "", Text(f"{verdict}; {len(found['problems'])} problems", "bold"))


def _facts(found: Facts) -> RenderableType:
    table = plain_table("", "")
    table.show_header = False
    cpu, gpu, threads = found["cpu"], found["gpu"], found["threads"]
    if "missing" not in cpu:
        caches = f"{size_text(cpu['l1_bytes'])} and {size_text(cpu['l2_bytes'])} of cache per core"
        cpu = {"is": f"{cpu['mcpu']}, {cpu['isa']}, {caches}"}
    if "missing" not in gpu:
        gpu = {"is": f"{gpu['name']}, {gpu['arch']}, {gpu['sms']} multiprocessors"}
    rows: Sequence[tuple[str, str]] = [
        ("CPU", cpu.get("is") or cpu["missing"]),
        ("threads", f"{threads['cpus']} CPUs, of which this process may use {threads['allowed']}"),
        *((f"{name} compiler", own.get("version") or own["missing"]) for name, own in found["compilers"].items()),
        ("GPU", gpu.get("is") or gpu["missing"]),
        ("records", found["records"].get("missing") or f"{found['records']['count']}"),
        *((name, value) for name, value in found["environment"].items()),
    ]
    for name, value in rows:
        table.add_row(Text(name, "bold"), Text(value))
    return table
