"""Target: one row of facts per kind of CPU and GPU, and those at hand.

In: a name from the user ("llvm" means this machine's CPU, "cuda" its GPU). Out: what schedules need (vector width,
registers, caches, multiprocessors), what TVM needs (`tvm_target`), and what the runtime must check before it loads the
code (`features`, `arch`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn import this_machine
from tvm_rnn.records import Records

from .errors import ConfigError, message, nearest, unknown

if TYPE_CHECKING:
    import tvm

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Features that generated code may use and that the runtime can recognise, by machine; names as LLVM has them.
FEATURES = {
    "x86_64": (
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
        "avxvnni",
    ),
    "aarch64": ("neon", "dotprod", "sve"),
    "riscv64": ("v",),
    "wasm32": ("simd128", "relaxed-simd"),
}


@dataclass(frozen=True)
class Target:
    """A machine that code is compiled for.

    name: what the user says. kind: TVM's ("llvm"). mcpu: LLVM's name of the CPU. isa: "avx512", "avx2", "neon",
    "rvv", "simd128" or "plain". vector_bytes, vector_registers: what a register tile is made of. l1_bytes, l2_bytes:
    per core. features: what the code needs from the CPU, by LLVM's names. machine: as Linux calls it.
    triple: what compilers for it call it; empty: this machine. attributes, abi: what LLVM has to be told besides.

    GPUs (kind "cuda"): arch: as nvcc has it. sms: multiprocessors. shared_bytes: what one block may have of shared
    memory; sm_shared_bytes: what a multiprocessor has for all its blocks. registers: 32-bit ones of a multiprocessor.
    l2_bytes: of the whole GPU. machine: of the host program.

    records: what was learnt about schedules on it; `compile` reads them.
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
    attributes: tuple[str, ...] = ()
    abi: str = ""
    features: tuple[str, ...] = ()
    arch: str = ""
    sms: int = 0
    shared_bytes: int = 0
    sm_shared_bytes: int = 0
    registers: int = 65536
    records: Records = field(default_factory=Records, compare=False, repr=False)

    @property
    def records_name(self) -> str:
        """What records are filed under: the kind of CPU where this one was detected, else the target's name."""
        return self.mcpu if self.name == "llvm" else self.name

    @property
    def accumulators(self) -> int:
        """Vector registers that a tile's sums may take: operands need some too."""
        return min(self.vector_registers * 3 // 4, self.vector_registers - 4)

    def lanes(self, dtype: str) -> int:
        """Elements of one vector register."""
        return self.vector_bytes // np.dtype(dtype).itemsize

    @property
    def tvm_target(self) -> tvm.target.Target:
        import tvm

        if self.kind == "cuda":
            return tvm.target.Target({"kind": "cuda", "arch": self.arch.replace(PTX, REAL)}, host="cuda_host")
        # LLVM's third level takes a fifth to a third longer for the same speed: our code is unrolled and vectorised.
        mcpu = _COMPILED_AS.get(self.mcpu, self.mcpu)
        options: dict[str, str | int | list[str]] = {"kind": self.kind, "mcpu": mcpu, "opt-level": 2}
        if self.elsewhere:
            options["mtriple"] = _LLVM_TRIPLES.get(self.elsewhere, self.elsewhere)
        if self.attributes:
            options["mattr"] = list(self.attributes)
        if self.abi:
            options["mabi"] = self.abi
        if self.isa == "simd128":  # of which TVM knows nothing
            options["vector-width"] = 8 * self.vector_bytes
        return tvm.target.Target(options)

    @property
    def host(self) -> Target:
        """The CPU that works for it: itself, or of a GPU one that all of its hosts have."""
        if self.kind != "cuda":
            return self
        return resolve("x86-64-v3" if self.machine == "x86_64" else f"{self.machine}-linux-gnu")

    @property
    def elsewhere(self) -> str:
        """What compilers call its system, where that is not this machine's; else empty."""
        here = self.machine == this_machine.machine() and self.triple in ("", this_machine.system())
        return "" if here else self.triple or f"{self.machine}-linux-gnu"

    @property
    def is_macos(self) -> bool:
        """Whether its system is Apple's."""
        return (self.elsewhere or this_machine.system()).endswith("macos")

    @property
    def loads_code(self) -> bool:
        """Whether its system loads shared objects. Elsewhere code is an object file, and is linked to what uses it."""
        return self.machine != "wasm32"


# CPUs whose cache of decoded operations LLVM takes for a buffer of loops, which it unrolls until they fill it: much
# code, and much time, for loops that are as long as they should be. Beside each one of the same vectors.
_COMPILED_AS = {"znver3": "znver2"}
# What LLVM calls systems that compilers have a shorter name for: the first macOS on Arm.
_LLVM_TRIPLES = {"aarch64-macos": "arm64-apple-macosx11.0.0"}


def _arm(triple: str, mcpu: str = "generic") -> Target:
    return Target(triple, mcpu=mcpu, machine="aarch64", isa="neon", vector_registers=32, triple=triple)


def _riscv(name: str, isa: str, registers: int, more: tuple[str, ...]) -> Target:
    """more: what it has besides what every 64-bit RISC-V has that runs Linux. Without vectors a tile of 16 bytes takes
    4 registers of the 32."""
    attributes = ("+m", "+a", "+f", "+d", "+c", *more)
    return Target(
        name,
        mcpu="generic-rv64",
        machine="riscv64",
        isa=isa,
        vector_registers=registers,
        triple="riscv64-linux-gnu",
        attributes=attributes,
        abi="lp64d",
    )


_ROWS = (
    Target("x86-64", mcpu="x86-64", triple="x86_64-linux-gnu"),
    Target("x86-64-v2", mcpu="x86-64-v2", triple="x86_64-linux-gnu"),
    Target("x86-64-v3", mcpu="x86-64-v3", triple="x86_64-linux-gnu", isa="avx2", vector_bytes=32),
    Target(
        "x86-64-v4", mcpu="x86-64-v4", triple="x86_64-linux-gnu", isa="avx512", vector_bytes=64, vector_registers=32
    ),
    _arm("aarch64-linux-gnu"),
    _arm("aarch64-linux-android"),
    _arm("aarch64-macos", "apple-m1"),
    _riscv("riscv64-linux-gnu", "rvv", 32, ("+v",)),
    _riscv("riscv64gc-linux-gnu", "plain", 8, ()),
    Target("wasm32", mcpu="generic", machine="wasm32", isa="simd128", triple="wasm32-wasi", attributes=("+simd128",)),
)


def _gpu(name: str, arch: str, sms: int, shared_kb: tuple[int, int], l2_mb: int) -> Target:
    """shared_kb: of one block, of a multiprocessor."""
    block, whole = (kb << 10 for kb in shared_kb)
    machine = this_machine.machine()
    return Target(
        name,
        "cuda",
        machine=machine,
        arch=arch,
        sms=sms,
        shared_bytes=block,
        sm_shared_bytes=whole,
        l2_bytes=l2_mb << 20,
    )


REAL, PTX = "sm_", "compute_"  # what begins the name of an arch, and of one that later GPUs run too
HOPPER = "sm_90a"  # the arch that has clusters with bulk copies between them, and wgmma
# Sources: CUDA C++ Programming Guide, technical specifications per compute capability; NVIDIA's data sheets and, of the
# GeForce cards, its whitepapers on GA102, Ada and RTX Blackwell. B200: 148 multiprocessors in two dies and its L2 as
# chipsandcheese.com/p/nvidias-b200-keeping-the-cuda-juggernaut has them (other pages say 65 and 96 MB). Only
# the rows of Hopper were ever run.
_GPUS = (
    _gpu("nvidia-h200", "sm_90a", 132, (227, 228), 50),
    _gpu("nvidia-h100", "sm_90a", 132, (227, 228), 50),
    _gpu("nvidia-h100-pcie", "sm_90a", 114, (227, 228), 50),
    _gpu("nvidia-gh200", "sm_90a", 132, (227, 228), 50),
    _gpu("nvidia-a100", "sm_80", 108, (163, 164), 40),
    _gpu("nvidia-a10", "sm_86", 72, (99, 100), 6),
    _gpu("nvidia-rtx-3090", "sm_86", 82, (99, 100), 6),
    _gpu("nvidia-l40s", "sm_89", 142, (99, 100), 96),
    _gpu("nvidia-l4", "sm_89", 58, (99, 100), 48),
    _gpu("nvidia-rtx-4090", "sm_89", 128, (99, 100), 72),
    _gpu("nvidia-b200", "sm_100", 148, (227, 228), 126),
    _gpu("nvidia-rtx-5090", "sm_120", 170, (99, 100), 96),
)
TABLE = {row.name: row for row in _ROWS}
SHORT = {"aarch64": "aarch64-linux-gnu", "riscv64": "riscv64-linux-gnu"}
GPUS = {row.name: row for row in _GPUS}


def names() -> list[str]:
    return ["llvm", *TABLE, "cuda", *GPUS]


def resolve(target: str | Target) -> Target:
    """A Target from its name, with the features that LLVM will use. "llvm" detects the CPU at hand, "cuda" the GPU.

    Behind a CPU's name, "+" and a feature says that the machine has that, too: "aarch64-linux-gnu+dotprod".

    Raises ConfigError for an unknown name or feature, and for "cuda" where there is no GPU.
    """
    if isinstance(target, Target):
        return target if target.features or target.kind == "cuda" else replace(target, features=_features(target))
    if not isinstance(target, str):
        got, do = f"{target!r:.80}", 'target="llvm"; tvm_rnn.target.names() has all of them'
        raise ConfigError(message("a target is a name or a Target", got=got, do=do))
    if target in ("llvm", "native", "cpu"):
        return host()
    if target == "cuda":
        return gpu()
    if target in GPUS:
        return GPUS[target]
    if (row := table_row(target)) is not None:
        return replace(row, features=_features(row))
    slots = unknown("target", target, names())
    own = "llvm is this CPU, cuda this GPU; whatever else has a C compiler: rnn.write_c"
    slots["do"] = f"{slots['do']} ({own})" if nearest(target, names()) else f"name one of these: {own}"
    raise ConfigError(message("no such target", **slots))


def table_row(name: str) -> Target | None:
    """The table's row of a CPU's name, with the features that follow it, each behind a "+"; None: no row has it.

    Raises ConfigError for a feature that its machine does not know.
    """
    first, *more = name.split("+")
    row = TABLE.get(SHORT.get(first, first))
    if row is None or not more:
        return row
    known = FEATURES[row.machine]
    for feature in more:
        if feature not in known:
            raise ConfigError(message(f"no such feature of {row.machine}", **unknown("feature", feature, known)))
    own = dict.fromkeys(more)  # once each
    return replace(row, name="+".join([row.name, *own]), attributes=(*row.attributes, *(f"+{f}" for f in own)))


def host() -> Target:
    """This machine. LLVM is asked for the CPU's name: mcpu="native" would silently mean a generic CPU in TVM."""
    import tvm

    mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    found = Target("llvm", mcpu=mcpu, machine=this_machine.machine())
    features = set(_features(found))
    if "avx512f" in features:
        row = TABLE["x86-64-v4"]
    elif {"avx2", "fma"} <= features:
        row = TABLE["x86-64-v3"]
    elif "neon" in features:
        row = TABLE["aarch64-linux-gnu"]
    else:
        row = TABLE["x86-64"]
    return replace(
        found,
        isa=row.isa,
        vector_bytes=row.vector_bytes,
        vector_registers=row.vector_registers,
        l1_bytes=_cache(1, row.l1_bytes),
        l2_bytes=_cache(2, row.l2_bytes),
        features=tuple(sorted(features)),
    )


# Of the driver's cuDeviceGetAttribute: multiprocessors, L2, shared memory of a block (opt-in) and of a multiprocessor,
# registers, compute capability.
_ATTRIBUTES = {"sms": 16, "l2_bytes": 38, "shared_bytes": 97, "sm_shared_bytes": 81, "registers": 82}
_CAPABILITY = (75, 76)


def gpu(number: int = 0) -> Target:
    """The GPU at hand, as its driver describes it. Raises ConfigError where there is none, or none of our kind."""
    do = f"name the GPU to compile for, or give no target for this CPU: {', '.join(GPUS)}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as reason:
        raise ConfigError(
            message('target "cuda" means this machine\'s GPU', got=f"no driver: {reason}", do=do)
        ) from None
    device, value, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        raise ConfigError(message('target "cuda" means this machine\'s GPU', got="none", do=do))

    def ask(attribute: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return value.value

    driver.cuDeviceGetName(text, len(text), device)
    major, minor = map(ask, _CAPABILITY)
    if major < 8:
        raise ConfigError(message("this GPU is too old", got=f"compute capability {major}.{minor}", expected="8.0 on"))
    # Only sm_90a has Hopper's matrix and bulk copy instructions; later GPUs do not run it.
    arch = HOPPER if (major, minor) == (9, 0) else f"sm_{major}{minor}"
    name = text.value.decode(errors="replace").lower().replace(" ", "-")
    return Target(
        name,
        "cuda",
        machine=this_machine.machine(),
        arch=arch,
        sms=ask(_ATTRIBUTES["sms"]),
        l2_bytes=ask(_ATTRIBUTES["l2_bytes"]),
        shared_bytes=ask(_ATTRIBUTES["shared_bytes"]),
        sm_shared_bytes=ask(_ATTRIBUTES["sm_shared_bytes"]),
        registers=ask(_ATTRIBUTES["registers"]),
    )


def for_archs(target: Target, archs: Sequence[str]) -> tuple[Target, ...]:
    """The target, or one per arch: the given one where it has that arch, else the table's first GPU of it. The kernels
    of "compute_80" are those of "sm_80", as PTX too, which the driver of every later GPU compiles.

    Raises ConfigError for a CPU and for an arch that no GPU of the table has.
    """
    if not archs:
        return (target,)
    if target.kind != "cuda":
        raise ConfigError(message("arch is for GPUs", got=f"target {target.name}", do="leave arch out"))
    known = {row.arch: row for row in reversed(_GPUS)} | {target.arch: target}
    every = [replace(row, arch=arch.replace(REAL, PTX)) for arch, row in known.items() if arch[-1].isdigit()]
    known |= {row.arch: row for row in every}
    found = []
    for arch in dict.fromkeys(archs):
        if arch not in known:
            raise ConfigError(message("compile: no such arch", **unknown("arch", arch, known)))
        found.append(known[arch])
    return tuple(found)


def _cache(level: int, default: int) -> int:
    """Bytes of this machine's data cache of a level, where its system has them as Linux has."""
    for folder in CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            own, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            if own == str(level) and kind != "Instruction":
                return int(size.removesuffix("K")) << 10
    return default


def _features(target: Target) -> tuple[str, ...]:
    import tvm

    has: Callable[..., object] = tvm.get_global_func("target.llvm_cpu_has_feature")
    with target.tvm_target:
        return tuple(name for name in FEATURES.get(target.machine, ()) if has(name, target.tvm_target))
