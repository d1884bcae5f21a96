"""Whole modules for a GPU, run on the CPU: the real host program and the real kernels, emulated by emulate_ptx.h.

In: an RNN, precision, batch sizes. Out: a loaded Module whose arrays are numpy's and whose kernels run thread by
thread. Slow: a step of 32 units takes milliseconds, 128 rows by 256 columns of wgmma a second. Needs CUDA's headers and
g++, no GPU.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from fake_gpu import toolchain

from tvm_rnn import RNN
from tvm_rnn.compiler import compile as build
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.codegen.cuda_text import DECLARED, Source
from tvm_rnn.cuda.model import choose_regime

HERE = Path(__file__).parent
RUNTIME = HERE / "emulated_runtime.cc"
MACHINE = [*sorted(HERE.glob("emulate*.h")), HERE / "emulate.cc", RUNTIME]
MACHINE_OBJECT = "emulate.o"
KEPT = 86400  # seconds
# One process loads many such objects: none may see another's variables. -O0: few steps run, and -O1 compiles for longer
# than they take.
FLAGS = ["-std=c++17", "-O0", "-fPIC", "-w", "-fno-strict-aliasing", "-fvisibility=hidden", "-fno-gnu-unique"]
# gold looks at no symbols that nobody asks for: a tenth of the time.
LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
HELPER = re.compile(r"^__forceinline__ __device__ (.*?)(tvm_builtin_\w+)(\([^)]*\)) \{", re.MULTILINE)
# A from shared memory or registers, no operand negated or transposed.
WGMMA = re.compile(r"tvm_builtin_ptx_wgmma_(\w+)_(ss|rs)_mma_async_sync_aligned_m64n\d+k\d+_f32_\1_\1_1_1((?:_[01])*)")
OPENS = "griddepcontrol_launch_dependents();"
DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
FIXED = re.compile(r"__shared__ (?:alignas\(\d+\) )?([\w ]+?) (\w+)\[(\d+)\];")


def compile(net: RNN, least: int = 1, **options: Any) -> Any:
    """`tvm_rnn.compile` for nvidia-h200, with emulated kernels. least: from so many steps on persistent kernels run,
    whatever the model says of a GPU: nobody emulates many."""
    sources: list[Source] = []
    fake = toolchain()
    with tempfile.TemporaryDirectory() as folder:

        def tools() -> nvcc.Toolchain:
            every = Source(tuple(shard for own in sources for shard in own.shards), "", "")
            objects = [*emulated(every, Path(folder), fake.include), str(fake.static)]
            joined = Path(folder, "gpu.o")
            subprocess.run(["ld", "-r", "-o", str(joined), *objects], check=True)
            return replace(fake, static=str(joined))

        real = nvcc.build

        def linked(found: list[Source], *rest: Any) -> Any:
            sources.extend(found)
            with mock.patch.object(nvcc, "find", tools), mock.patch.object(nvcc, "compile_cubin", _no_cubin):
                return real(found, *rest)

        fixed = mock.patch.object(choose_regime, "least_steps", lambda *given: least)
        with mock.patch.object(nvcc, "build", linked), fixed:
            return build.compile(net, "nvidia-h200", **options)


def _no_cubin(code: str, arch: str, output: Path, fast: bool, tools: nvcc.Toolchain) -> str:
    output.write_bytes(b"emulated")
    return ""


def emulated(source: Source, folder: Path, include: tuple[str, ...]) -> list[str]:
    """Object files: the kernels of one arch with a table of them by name, and the machine that runs them."""
    parts, table = ['#include "emulate_ptx.h"'], []
    for number, shard in enumerate(source.shards):
        parts.append(f"namespace shard_{number} {{\n{translated(shard)}\n}}")
        table += [_runner(name, parameters, number) for name, parameters in DECLARED.findall(shard)]
    names = [name for shard in source.shards for name, _ in DECLARED.findall(shard)]
    parts += table
    opens = {name for shard in source.shards for name in _opening(shard)}
    rows = "".join(f'{{"{name}", run_{name}, sizes_{name}, {int(name in opens)}}}, ' for name in names)
    parts.append(f"extern const emu::Kernel emulated_kernels[] = {{{rows}{{}}}};")
    text, output = folder / "emulated.cc", folder / "emulated.o"
    text.write_text("\n".join(parts))
    made(text, output, "-c", f"-I{machine()}")
    runtime = made(RUNTIME, machine() / RUNTIME.with_suffix(".o").name, "-c", *(f"-I{path}" for path in include))
    return [str(output), str(machine() / MACHINE_OBJECT), str(runtime)]


@functools.cache
def machine() -> Path:
    """A folder with these very headers, precompiled, and emulate.cc as an object: g++ takes a third of the time for a
    small kernel. The next run finds what this one has made, for a day."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    content = b"".join([version, " ".join(FLAGS).encode(), *(source.read_bytes() for source in MACHINE)])
    root = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir(), "tvm_rnn_emulated")
    folder = root / hashlib.sha1(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for old in root.glob("*/*"):
        with suppress(FileNotFoundError):  # another worker did
            if old.stat().st_mtime < time.time() - KEPT:
                old.unlink()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker makes them, the others wait
        made(HERE / "emulate_ptx.h", folder / "emulate_ptx.h.gch", "-x", "c++-header")
        made(HERE / "emulate.cc", folder / MACHINE_OBJECT, "-c", "-O2")
    return folder


def made(source: Path, output: Path, *flags: str) -> Path:
    """What g++ makes of a source. Other processes may do the same at the same time."""
    if not output.exists():
        own = output.with_name(f"{os.getpid()}-{output.name}")
        done = subprocess.run(["g++", *FLAGS, *flags, str(source), "-o", str(own)], capture_output=True, text=True)
        assert not done.returncode, done.stderr[:4000]
        os.replace(own, output)
    return output


def translated(shard: str) -> str:
    """A shard's text as C++: no includes, nothing that emulate_ptx.h has, shared arrays in the block's arena."""
    start = shard.index('extern "C" __global__')
    body = shard[start:]
    kept = []
    for kind, name, parameters in HELPER.findall(shard[:start]):
        if "setmaxnreg" in name:
            kept.append(f"inline {kind}{name}{parameters} {{}}")
        elif found := WGMMA.fullmatch(name):
            d = ", ".join(f"&{word}" for word in re.findall(r"__d\d+", parameters))
            product, a = ("wgmma", "__a_desc") if found[2] == "ss" else ("wgmma_registers", "{__a0, __a1, __a2, __a3}")
            which = found[3].split("_")[1:]  # whether a (from shared memory) and b are turned
            turned = f", {', '.join(which)}" if "1" in which else ""
            call = f'emu::{product}({{{d}}}, "{found[1]}", {a}, __b_desc, __scale_d{turned})'
            kept.append(f"inline {kind}{name}{parameters} {{ {call}; }}")
    body = body.replace('extern "C" ', "")
    body = DYNAMIC.sub(r"\1* \2 = (\1*)emu::dynamic();", body)
    body = FIXED.sub(r'\1* \2 = (\1*)emu::fixed("\2", sizeof(\1) * \3);', body)
    return "\n".join([*kept, body])


def _opening(shard: str) -> set[str]:
    """The kernels that let the one behind them begin before they end."""
    kernels = re.split(r'^(?=extern "C" __global__)', shard, flags=re.MULTILINE)[1:]
    return {name for text in kernels for name, _ in DECLARED.findall(text) if OPENS in text}


def _runner(name: str, parameters: str, number: int) -> str:
    """void run_NAME(void** arguments): the kernel, one thread of it; and the bytes of each argument."""
    kinds = []
    for parameter in filter(None, (p.strip() for p in parameters.split(","))):
        words = [w for w in parameter.split() if w not in ("__restrict__", "const", "__grid_constant__")]
        kinds.append(" ".join(words[:-1]))
    given = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(kinds))
    sizes = "".join(f"sizeof({kind}), " for kind in kinds)
    return (
        f"static void run_{name}(void** arguments) {{ shard_{number}::{name}({given}); }}\n"
        f"static const size_t sizes_{name}[] = {{{sizes}0}};"
    )


def arrays(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Inputs that bf16 represents exactly."""
    return (rng.integers(-64, 65, shape) / 32).astype(np.float32)
