"""Find a CUDA compiler and make one shared object of the texts that cuda_text.py wrote.

In: `Source` texts, one per arch. Out: an ELF shared object that holds a cubin per arch (where later GPUs run it too,
with its PTX) and needs libtvm_ffi and the GPU's driver only (the CUDA runtime is linked statically), and what each
kernel takes (registers, spills, shared memory).

The compiler is nvcc where there is one ($CUDA_HOME, PATH, the usual folder, the package nvidia-cuda-nvcc), else NVRTC,
the same compiler as a library (package nvidia-cuda-nvrtc). The host program needs a C++ compiler either way.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi

from tvm_rnn.errors import BuildError, message
from tvm_rnn.target import PTX, REAL

from .cuda_text import Source, cubin_symbol

OLDEST = (12, 8)  # the first runtime that can load a cubin from memory (cudaLibraryLoadData)
PACKAGES = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"
CUBIN = """    .section .rodata
    .balign 64
    .globl {symbol}
    .hidden {symbol}
{symbol}:
    .incbin "{symbol}.cubin"
"""
NO_STACK_CODE = '    .section .note.GNU-stack,"",@progbits\n'
RESOURCES = re.compile(
    r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
Taken = dict[str, object]  # of a kernel, by name: registers, bytes of stack, spills and shared memory


@dataclass(frozen=True)
class Toolchain:
    """A CUDA compiler. nvcc: the program, or None: then nvrtc is the library. include: folders of the CUDA headers;
    static: libcudart_static.a."""

    nvcc: str | None
    nvrtc: str | None
    include: tuple[str, ...]
    static: str
    version: tuple[int, int]

    @property
    def name(self) -> str:
        return ("nvcc" if self.nvcc else "nvrtc") + " {}.{}".format(*self.version)


# --- finding it ------------------------------------------------------------------------------------------------------


def find() -> Toolchain:
    """The CUDA compiler at hand. Raises BuildError that says where it was looked for and what to install."""
    tried = []
    for root in _roots():
        found, problem = _toolchain(root)
        if found is not None:
            return found
        tried.append(f"{root} ({problem})")
    got = "; ".join(tried) or "no nvcc in PATH, $CUDA_HOME, /usr/local/cuda; none of the packages nvidia-cuda-*"
    do = f"install the CUDA toolkit {OLDEST[0]}.{OLDEST[1]} or newer and set CUDA_HOME, or: {PACKAGES}"
    raise BuildError(message("no CUDA compiler was found", got=got, do=do))


def _roots() -> Iterator[Path]:
    """Folders that may hold a toolkit, the user's choice first, each once."""
    seen: set[Path] = set()
    for root in _all_roots():
        real = root.resolve()
        if real not in seen and real.is_dir():
            seen.add(real)
            yield real


def _all_roots() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    if program := shutil.which("nvcc"):
        yield _root_of(program)
    yield from sorted(Path("/usr/local").glob("cuda"))
    yield from sorted(Path("/opt").glob("cuda"))
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(folder).glob("cu[0-9]*"), reverse=True)


@functools.cache
def _root_of(program: str) -> Path:
    """The toolkit of an nvcc; a program of that name in PATH may be a script that calls another."""
    command = [program, "--dryrun", "-c", "-x", "cu", "none.cu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    top = re.search(r"^#\$ TOP=(.*)$", done.stderr, re.MULTILINE)
    return Path(top.group(1)) if top else Path(program).resolve().parent.parent


def _toolchain(root: Path) -> tuple[Toolchain | None, str]:
    include = [root / "include", *root.glob("targets/*/include"), root / "include" / "cccl"]
    headers = next((folder for folder in include if (folder / "cuda_runtime.h").exists()), None)
    library = next(_libraries(root, "libcudart_static.a"), None)
    program = root / "bin" / "nvcc" if os.access(root / "bin" / "nvcc", os.X_OK) else None
    if program is not None and not ((root / "nvvm" / "bin" / "cicc").exists() or any(root.glob("**/cicc"))):
        program = None  # the package nvidia-cuda-nvcc without its other half, nvidia-nvvm
    rtc = max(_libraries(root, "libnvrtc.so*"), default=None)
    if headers is None or library is None:
        return None, "without cuda_runtime.h or libcudart_static.a"
    if program is None and rtc is None:
        return None, "without nvcc and NVRTC"
    version = _version(headers)
    if version < OLDEST:
        return None, f"CUDA {version[0]}.{version[1]}, which is too old"
    paths = tuple(str(folder) for folder in include if folder.is_dir())
    nvcc, nvrtc = (str(p) if p else None for p in (program, rtc))
    return Toolchain(nvcc, nvrtc, paths, str(library), version), ""


def _libraries(root: Path, pattern: str) -> Iterator[Path]:
    for folder in ("lib64", "lib", "targets/*/lib"):
        yield from root.glob(f"{folder}/{pattern}")


def _version(headers: Path) -> tuple[int, int]:
    for name in ("cuda_runtime_api.h", "cuda.h"):
        path = headers / name
        found = re.search(r"#define (?:CUDART|CUDA)_VERSION\s+(\d+)", path.read_text()) if path.exists() else None
        if found:
            return int(found.group(1)) // 1000, int(found.group(1)) % 1000 // 10
    return 0, 0


# --- using it --------------------------------------------------------------------------------------------------------


def compile_cubin(code: str, arch: str, output: Path, fast: bool, tools: Toolchain) -> str:
    """Compile CUDA text to a cubin, for "compute_80" to one of sm_80 with PTX; returns the assembler's remarks. fast:
    subnormals are 0 (not --use_fast_math: expressions choose their own approximations). Raises BuildError with the
    compiler's words."""
    text = output.with_suffix(".cu")
    text.write_text(code, encoding="utf-8")
    flags = ["-std=c++17", *(["--ftz=true"] if fast else []), *(f"-I{path}" for path in tools.include)]
    if tools.nvcc is None:
        return _nvrtc(code, arch, output, flags, tools)
    real = arch.replace(PTX, REAL)
    own = ["-cubin", f"-arch={arch}"] if real == arch else ["-fatbin", f"-gencode=arch={arch},code=[{arch},{real}]"]
    own += ["-O3", "-w", "-Xptxas=-v", "--expt-relaxed-constexpr"]
    return _run([tools.nvcc, *own, *flags, str(text), "-o", str(output)])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failed(done.stderr or done.stdout, command[0])
    return done.stderr + done.stdout


def _failed(words: str, compiler: str) -> BuildError:
    """The first errors of a compiler's many words."""
    lines = words.strip().splitlines()
    errors = [line[:300] for line in lines if re.search(r"\berror\b|undefined|fatal", line)][:4] or lines[-4:]
    got, do = "\n            ".join(errors), f"check {compiler}, or report this cell"
    return BuildError(message("the CUDA build failed", got=got, do=do))


def _nvrtc(code: str, arch: str, output: Path, flags: Sequence[str], tools: Toolchain) -> str:
    library = ctypes.CDLL(str(tools.nvrtc))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def ask(function: str, *arguments: object) -> int:
        return int(getattr(library, function)(*arguments))

    def read(what: str) -> bytes:
        ask(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        ask(f"nvrtcGet{what}", program, held)
        return held.raw

    if ask("nvrtcCreateProgram", ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None):
        raise BuildError(message("NVRTC cannot be used", where=str(tools.nvrtc), do=PACKAGES))
    words = [f"--gpu-architecture={arch}", "-w", "--ptxas-options=-v", "-default-device", *flags]
    options = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    failed = ask("nvrtcCompileProgram", program, len(words), options)
    log = read("ProgramLog").rstrip(b"\0").decode()
    if failed:
        raise _failed(log, str(tools.nvrtc))
    output.write_bytes(read("PTX" if arch.startswith(PTX) else "CUBIN"))
    ask("nvrtcDestroyProgram", ctypes.byref(program))
    return log


def resources(remarks: str) -> list[Taken]:
    """What each kernel takes, from the assembler's remarks."""
    return [
        {
            "kernel": name.removesuffix("_kernel").removesuffix(f"_{arch}").removesuffix(f"_{arch.replace(REAL, PTX)}"),
            "registers": int(registers),
            "stack_bytes": int(stack),
            "spill_bytes": int(stores) + int(loads),
            "shared_bytes": int(shared.group(1)) if (shared := re.search(r"(\d+) bytes smem", rest)) else 0,
        }
        for name, arch, stack, stores, loads, registers, rest in RESOURCES.findall(remarks)
    ]


def build(
    sources: Sequence[Source], folder: Path, fast: bool, more: Sequence[str] = ()
) -> tuple[bytes, dict[str, list[Taken]], str]:
    """The shared object, {arch: what its kernels take}, and the compiler's name. more: object files to link in. Raises
    BuildError."""
    tools, compiler = find(), host_compiler()
    includes = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), *tools.include)
    # Host code only starts what runs on the GPU: -O2 takes twice as long for nothing.
    common = [compiler, "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-w", *(f"-I{path}" for path in includes)]

    def host(source: Source) -> str:
        text = folder / f"{source.name}.cc"
        text.write_text(source.host, encoding="utf-8")
        _run([*common, "-c", str(text), "-o", str(text.with_suffix(".o"))])
        return str(text.with_suffix(".o"))

    shards = [(source, i, code) for source in sources for i, code in enumerate(source.shards)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        cubins = [
            pool.submit(compile_cubin, code, own.arch, folder / f"{cubin_symbol(own.name, i)}.cubin", fast, tools)
            for own, i, code in shards
        ]
        objects = [future.result() for future in [pool.submit(host, source) for source in sources]]
        remarks = [future.result() for future in cubins]
    taken: dict[str, list[Taken]] = {source.name: [] for source in sources}
    for (own, _, _), words in zip(shards, remarks, strict=True):
        taken[own.name] += resources(words)
    assembled = folder / "cubins.s"
    blobs = [CUBIN.format(symbol=cubin_symbol(own.name, i)) for own, i, _ in shards]
    assembled.write_text("".join(blobs) + NO_STACK_CODE)
    _run([compiler, "-c", str(assembled), f"-Wa,-I,{folder}", "-o", str(assembled.with_suffix(".o"))])
    linked, ffi = folder / "code.so", Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    objects += [*more, str(assembled.with_suffix(".o")), tools.static, f"-L{ffi}", "-ltvm_ffi"]
    _run([compiler, "-shared", *objects, "-Wl,--exclude-libs,ALL", "-lrt", "-lpthread", "-ldl", "-o", str(linked)])
    return linked.read_bytes(), taken, tools.name


def host_compiler() -> str:
    """The C++ compiler of this machine. Raises BuildError."""
    compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++", "c++") if c and shutil.which(c)), None)
    if compiler is None:
        got = "none of $CXX, g++, clang++, c++"
        raise BuildError(message("no C++ compiler for the host program", got=got, do="install g++"))
    return compiler
