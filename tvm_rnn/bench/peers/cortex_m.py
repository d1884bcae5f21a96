"""Folders of plain C on a bare Cortex-M: Debian's arm-none-eabi-gcc with newlib, and QEMU's boards.

In: a folder as `write_c` makes them, inputs of one row. Out: y, and how many instructions a step takes. Where a tool
is not installed, `missing` names it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
# Of each core: a board that runs its code, and the compiler's options. A Cortex-M3 runs all that a Cortex-M0 does.
CORES = {
    "cortex-m0": ("mps2-an385", ["-mfloat-abi=soft"]),
    "cortex-m4": ("mps2-an386", ["-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]),
}
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
C_TYPES = {"float32": "float", "float64": "double", "int16": "int16_t", "int8": "int8_t"}


def missing() -> str:
    """What is not installed; empty: nothing."""
    if not shutil.which("arm-none-eabi-gcc"):
        return "no arm-none-eabi-gcc: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
    return "" if shutil.which("qemu-system-arm") else "no qemu-system-arm: apt-get install qemu-system-arm"


def results(
    folder: Path,
    inputs: Mapping[str, np.ndarray],
    core: str,
    options: Sequence[str] = STRICT,
    sources: Sequence[Path] = (),
) -> tuple[np.ndarray, int]:
    """y [T, elements] of inputs [T, ...] in the type of C, and the instructions of a step.

    options: of the compiler; sources: what the folder's source calls."""
    name, (board, machine) = folder.name, CORES[core]
    arrays, work = list(inputs.values()), folder.parent / f"{folder.name}_{core}"
    work.mkdir(exist_ok=True)
    steps = len(arrays[0])
    (work / "x.raw").write_bytes(b"".join(x[t].tobytes() for t in range(steps) for x in arrays))
    named = (folder / f"{name}.h").read_text().split("enum {")[1].split("}")[0]
    *sizes, outputs = (int(size) for size in re.findall(r" = (\d+)", named))
    given = ", ".join(f"x + {sum(sizes[:i])}" for i in range(len(sizes)))
    facts = {"HEADER": f'"{name}.h"', "NAME": name, "NUMBER": C_TYPES[arrays[0].dtype.name], "GIVEN": given}
    facts |= {"INPUTS": str(sum(sizes)), "OUTPUTS": str(outputs)}
    compiler = ["arm-none-eabi-gcc", f"-mcpu={core}", *machine, "-mthumb"]
    objects = [work / f"{source.stem}.o" for source in (folder / f"{name}.c", *sources)]
    for source, made in zip((folder / f"{name}.c", *sources), objects, strict=True):
        subprocess.run([*compiler, *options, "-c", str(source), "-o", str(made)], check=True)
    defined = [f"-D{key}={value}" for key, value in facts.items()]
    link = ["--specs=rdimon.specs", f"-I{folder}", f"-T{HERE / 'cortex_m.ld'}", "-o", str(work / "program.elf"), "-lm"]
    program = [str(HERE / "cortex_m.c"), *map(str, objects)]
    subprocess.run([*compiler, "-std=gnu99", "-O2", *defined, *program, *link], check=True)
    words = ["qemu-system-arm", "-M", board, "-icount", "shift=0", "-display", "none", "-monitor", "none", "-serial"]
    words += ["none", "-semihosting-config", "enable=on,target=native", "-kernel", "program.elf"]
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=True, timeout=300)
    said = re.search(r"instructions (\d+)", done.stdout + done.stderr)
    assert said is not None, done.stdout + done.stderr
    return np.fromfile(work / "y.raw", arrays[0].dtype).reshape(steps, -1), int(said[1])
