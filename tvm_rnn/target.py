"""Target: one row of facts per CPU kind, and the CPU at hand.

In: a name from the user ("llvm" means this machine). Out: what schedules need (vector width, registers, caches), what
TVM needs (`tvm_target`), and what the runtime must check before it loads the code (`features`).
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import ConfigError, message, unknown

# Features that generated code may use and that the runtime can recognise; names as LLVM has them.
CHECKED = [
    "sse4.1",
    "sse4.2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "avx512fp16",
    "neon",
    "sve",
]


@dataclass(frozen=True)
class Target:
    """A machine that code is compiled for.

    name: what the user says. kind: TVM's ("llvm"). mcpu: LLVM's name of the CPU. isa: "avx512", "avx2", "neon" or
    "plain". vector_bytes, vector_registers: what a register tile is made of. l1_bytes, l2_bytes: per core.
    features: what the code needs from the CPU, by LLVM's names. machine: as platform.machine() says it.
    """

    name: str
    kind: str = "llvm"
    mcpu: str = ""
    machine: str = "x86_64"
    isa: str = "plain"
    vector_bytes: int = 16
    vector_registers: int = 16
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    triple: str = ""
    features: tuple[str, ...] = ()

    def lanes(self, dtype: str) -> int:
        """Elements of one vector register."""
        return self.vector_bytes // np.dtype(dtype).itemsize

    @property
    def tvm_target(self) -> Any:
        import tvm

        options: dict[str, Any] = {"kind": self.kind, "mcpu": self.mcpu}
        if self.triple:
            options["mtriple"] = self.triple
        return tvm.target.Target(options)


_ROWS = (
    Target("x86-64", mcpu="x86-64"),
    Target("x86-64-v2", mcpu="x86-64-v2"),
    Target("x86-64-v3", mcpu="x86-64-v3", isa="avx2", vector_bytes=32),
    Target("x86-64-v4", mcpu="x86-64-v4", isa="avx512", vector_bytes=64, vector_registers=32),
    Target(
        "aarch64",
        mcpu="generic",
        machine="aarch64",
        isa="neon",
        vector_registers=32,
        triple="aarch64-unknown-linux-gnu",
    ),
)
TABLE = {row.name: row for row in _ROWS}


def names() -> list[str]:
    return ["llvm", *TABLE]


def resolve(target: str | Target) -> Target:
    """A Target from its name, with the features that LLVM will use. "llvm" detects the CPU at hand.

    Raises ConfigError for an unknown name.
    """
    if isinstance(target, Target):
        return target if target.features else replace(target, features=_features(target))
    if target in ("llvm", "native", "cpu"):
        return host()
    if target in TABLE:
        return replace(TABLE[target], features=_features(TABLE[target]))
    raise ConfigError(message("no such target", **unknown("target", target, names())))


def host() -> Target:
    """This machine. LLVM is asked for the CPU's name: mcpu="native" would silently mean a generic CPU in TVM."""
    import tvm

    mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    found = Target("llvm", mcpu=mcpu, machine=platform.machine())
    features = set(_features(found))
    if "avx512f" in features:
        row = TABLE["x86-64-v4"]
    elif {"avx2", "fma"} <= features:
        row = TABLE["x86-64-v3"]
    elif "neon" in features:
        row = TABLE["aarch64"]
    else:
        row = TABLE["x86-64"]
    return replace(
        found,
        isa=row.isa,
        vector_bytes=row.vector_bytes,
        vector_registers=row.vector_registers,
        l1_bytes=_cache("LEVEL1_DCACHE", row.l1_bytes),
        l2_bytes=_cache("LEVEL2_CACHE", row.l2_bytes),
        features=tuple(sorted(features)),
    )


def _cache(level: str, default: int) -> int:
    try:
        size = os.sysconf(f"SC_{level}_SIZE")
    except (ValueError, OSError, AttributeError):
        return default
    return size if size > 0 else default


def _features(target: Target) -> tuple[str, ...]:
    import tvm

    has = tvm.get_global_func("target.llvm_cpu_has_feature")
    return tuple(name for name in CHECKED if _asks(has, name, target))


def _asks(has: Any, name: str, target: Target) -> bool:
    if (name in ("neon", "sve")) != (target.machine in ("aarch64", "arm64")):
        return False
    with target.tvm_target:
        return bool(has(name, target.tvm_target))
