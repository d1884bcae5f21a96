"""The C++ and CUDA text of a network: kernels compiled by TVM, and the host program around them.

In: a `Program` and a `Target`. Out: `Source`, the CUDA text of all kernels and one C++ file that launches them, for
`nvcc.py` to compile: the kernels to a cubin, the C++ with the cubin inside to a shared object.

The kernels' launch code (grid, cluster, shared memory, tensor maps) is TVM's own; this file puts `host.h` in front of
it, so that each launch passes one function of ours, and the generated functions behind it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi

from tvm_rnn.errors import BuildError, message
from tvm_rnn.target import Target

from .host_program import ALIGNMENT, Program
from .kernel_writer import Function

# TVM's text that is changed: a launch goes through host::launch; no symbol is exported that two archs would share; no
# headers of C++ objects.
LAUNCH = re.compile(r"template <typename\.\.\. Params.*?\n}\n", re.DOTALL)
LAUNCH_OURS = """template <typename... Params, typename... Args>
static cudaError_t tvm_cuda_host_launch(void (*kernel)(Params...), const cudaLaunchConfig_t* config, Args... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "kernel argument count mismatch");
  auto run = [&](Params... values) {
    void* places[] = {(void*)&values...};
    return ::host::launch((const void*)kernel, config, places);
  };
  return run(((Params)args)...);
}
"""
# TVM's host code has pointers to these; only device code looks inside.
OPAQUE = "struct half;\nstruct nv_bfloat16;\nstruct __nv_fp8_e4m3;"
# Headers of C++ objects, slow to compile. Of them the wrappers use two macros, which host.h has.
HEADERS = "#include <tvm/ffi/extra/cuda/device_guard.h>\n#include <tvm/ffi/function.h>\n"
CONTEXT = "void* __tvm_ffi__library_ctx = NULL;"
ENTRY = re.compile(r"#ifdef __cplusplus\nextern \"C\"\n#endif\nTVM_DLL int32_t __tvm_ffi_main\(.*\Z", re.DOTALL)
DECLARED = re.compile(r'^extern "C" __global__ void (?:__\w+__\([^)]*\) )*(\w+)\((.*)\)(?:;| \{)$', re.MULTILINE)
SETUP = """
  Current current(args[0].v_int64, as_stream(args[1]));
  RUN(current.status);
  const int64_t device = args[0].v_int64;
  RUN(prepare());
  int sms_found = 0;
  RUN(check(cudaDeviceGetAttribute(&sms_found, cudaDevAttrMultiProcessorCount, int(device)), "no facts of this GPU"));
  const int64_t sms = sms_found;
"""


DEFINED = re.compile(r'^(?=extern "C" __global__ void [^;\n]*\{$)', re.MULTILINE)
SHARED = re.compile(r"^ *extern __(?:shared__|attribute__\(\(shared\)\)).*?(\w+)\[\];$", re.MULTILINE)
COMPILER = "tvm_callback_cuda_compile"  # what TVM's C++ calls
_replaced = threading.Lock()
SHARD_BYTES = 60_000  # of CUDA text: about 0.4 s of nvcc, against 0.3 s to start it


@dataclass(frozen=True)
class Source:
    """The texts of one network for one arch. shards: the kernels, in parts that are compiled at the same time."""

    shards: tuple[str, ...]
    host: str
    arch: str
    suffix: str = ""

    @property
    def name(self) -> str:
        """What its functions' names end with."""
        return self.arch + self.suffix


def generate(program: Program, target: Target) -> Source:
    """Compile the kernels with TVM and write the host program. Raises BuildError."""
    ending = target.arch + program.suffix
    symbols = {name: f"{name}_{ending}" for name in program.kernels if name not in program.left_out}
    functions = {
        symbol: program.kernels[name].func.with_attr("global_symbol", symbol) for name, symbol in symbols.items()
    }
    device, wrappers = compile_kernels(functions, target) if functions else ("", "")
    device = unrestricted(device, {symbol for name, symbol in symbols.items() if program.kernels[name].shares})
    shards = split_kernels(device, os.cpu_count() or 1)
    return Source(shards, _host_text(program, symbols, shards, wrappers, ending), target.arch, program.suffix)


def unrestricted(device: str, names: set[str]) -> str:
    """The kernels of these names without `__restrict__`, which TVM gives to every pointer: with it, nvcc moves loads of
    what other threads store to before the barrier between."""
    lines = device.split("\n")
    for at, line in enumerate(lines):
        found = DECLARED.match(line)
        if found and found.group(1).removesuffix("_kernel") in names:
            lines[at] = line.replace(" __restrict__", "")
    return "\n".join(lines)


def split_kernels(device: str, most: int) -> tuple[str, ...]:
    """CUDA text in at most `most` parts of about the same length: each has what all kernels share, and its kernels."""
    shared, *kernels = DEFINED.split(device)
    kernels = [_own_shared_memory(kernel, i) for i, kernel in enumerate(kernels)]
    count = max(1, min(most, len(kernels), sum(map(len, kernels)) // SHARD_BYTES))
    parts: list[list[str]] = [[] for _ in range(count)]
    for kernel in sorted(kernels, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(kernel)
    shared = DECLARED.sub("", shared)
    return tuple(shared + "".join(part) for part in parts) if kernels else ()


def compile_kernels(functions: Mapping[str, Function], target: Target) -> tuple[str, str]:
    """The CUDA text of the kernels and TVM's C++ text that launches them."""
    cuda = target.tvm_target
    try:
        with cuda, _text_alone():
            built = tvm.compile(tvm.IRModule(functions), target=cuda, tir_pipeline="tirx")
        device = "\n".join(module.inspect_source("cuda") for module in built.mod.imports)
        return device, built.mod.inspect_source()
    except Exception as reason:  # TVM raises many classes, none of them meant for users
        text = str(reason).strip().splitlines()
        got = text[-1] if text else type(reason).__name__
        what = message("code generation failed", where=target.name, got=got, do="report this cell")
        raise BuildError(what) from reason


@contextlib.contextmanager
def _text_alone() -> Iterator[None]:
    """TVM compiles the text itself where its CUDA runtime is loaded, as on a machine with a GPU: twice the work, and an
    error where kernels of one text declare their shared memory differently. nvcc.py does it, kernel by kernel. One
    thread at a time: the function is the whole process's."""
    with _replaced:
        before = tvm.get_global_func(COMPILER, allow_missing=True)
        tvm_ffi.register_global_func(COMPILER, lambda code: b"// not compiled here", override=True)
        try:
            yield
        finally:
            if before is None:
                tvm_ffi.registry.remove_global_func(COMPILER)
            else:
                tvm_ffi.register_global_func(COMPILER, before, override=True)


def _own_shared_memory(kernel: str, number: int) -> str:
    """Another name for the kernel's dynamic shared memory: in one file all of a name must have one type and alignment,
    and TVM numbers names anew in each kernel."""
    for name in dict.fromkeys(SHARED.findall(kernel)):
        kernel = re.sub(rf"\b{name}\b", f"{name}_of_{number}", kernel)
    return kernel


def _host_text(program: Program, symbols: dict[str, str], shards: tuple[str, ...], wrappers: str, arch: str) -> str:
    folder = Path(__file__).parent
    parts = [
        f"#define ARCH {arch}",
        OPAQUE,
        (folder / "host.h").read_text(),
        (folder / "exports.h").read_text(),
        *(f'extern "C" const char {cubin_symbol(arch, i)}[];' for i in range(len(shards))),
        *_handles("\n".join(shards)),
        _wrappers(wrappers),
        *_kernel_table(program, symbols, shards, arch),
        *_functions(program),
    ]
    return "\n".join(parts) + "\n"


def _handles(device: str) -> list[str]:
    """One variable per kernel with the kernel's name and type, which TVM's wrappers take for the kernel itself."""
    lines = []
    for name, parameters in DECLARED.findall(device):
        types = []
        for parameter in filter(None, (p.strip() for p in parameters.split(","))):
            words = [w for w in parameter.split() if w not in ("__restrict__", "const", "__grid_constant__")]
            kind = " ".join(words[:-1])
            types.append("void*" if kind.endswith("*") else kind)
        lines.append(f"static void (*{name})({', '.join(types)}) = nullptr;")
    return lines


def _wrappers(text: str) -> str:
    if text and (not LAUNCH.search(text) or CONTEXT not in text or HEADERS not in text):
        raise BuildError(message("this TVM writes other launch code", got=tvm.__version__, do="install the pinned TVM"))
    text = text.replace(HEADERS, "").replace(CONTEXT, "static " + CONTEXT)
    return ENTRY.sub("", LAUNCH.sub(lambda _: LAUNCH_OURS, text))


def cubin_symbol(arch: str, number: int) -> str:
    """The name under which the host program has the cubin of a shard."""
    return f"tvm_rnn_cubin_{arch}_{number}"


def _kernel_table(program: Program, symbols: dict[str, str], shards: tuple[str, ...], arch: str) -> list[str]:
    lines = ["namespace kernels {"]
    for name in sorted(program.left_out):
        lines.append(f'static const host::Kernel {name}{{host::left_out, nullptr, "{name}", 0, 0, 1, false}};')
    for name in symbols:
        kernel = program.kernels[name]
        symbol = f"__tvm_ffi_{symbols[name]}, (void**)&{symbols[name]}_kernel"
        facts = f"{kernel.threads}, {kernel.shared_bytes}, {kernel.cluster}, {str(kernel.resident).lower()}"
        lines.append(f'static const host::Kernel {name}{{{symbol}, "{name}",')
        lines.append(f"                                {facts}}};")
    count, every = len(symbols), ", ".join(f"&{name}" for name in symbols) or "nullptr"
    lines.append(f"static const host::Kernel* const all[] = {{{every}}};")
    names = ", ".join(f'"{symbol}_kernel"' for symbol in symbols.values()) or "nullptr"
    lines += [f"static const char* const names[] = {{{names}}};", "}", "", "using namespace host;", ""]
    if not count:
        return [*lines, "static int prepare() { return 0; }", ""]
    home = {name: i for i, shard in enumerate(shards) for name, _ in DECLARED.findall(shard)}
    cubins = ", ".join(cubin_symbol(arch, i) for i in range(len(shards)))
    cubin_of = ", ".join(str(home[f"{symbol}_kernel"]) for symbol in symbols.values())
    return [
        *lines,
        f"static const char* const cubins[] = {{{cubins}}};",
        f"static const int cubin_of[] = {{{cubin_of}}};",
        f"static int prepare() {{ return load_kernels(cubins, cubin_of, kernels::all, kernels::names, {count}); }}",
        "",
    ]


def statements(program: Program) -> str:
    """The host program alone, without what every module has."""
    return "\n".join(_functions(program))


def _export(name: str, arguments: int, lines: Sequence[str], *comment: str) -> list[str]:
    """A function of the module that takes so many arguments, the device and the stream first."""
    begin = [*(f"// {line}" for line in comment), f"EXPORT({name}) {{", f"  EXPECT({arguments});", SETUP]
    return [*begin, *lines, "  return 0;", "}"]


def _functions(program: Program) -> list[str]:
    layout = ["  " + line for line in program.layout]
    inputs, states, raw = program.inputs, program.states, len(program.parameters)
    size = ["static int64_t workspace(int64_t T, int64_t B, int64_t sms) {", "  int64_t at = 0, most = 0;"]
    sizes = f"  const int64_t T = args[2].v_int64, B = args[3].v_int64 * {program.each};"
    sequence = [
        sizes,
        "  if (T <= 0 || B <= 0) return 0;",
        "  const bool has_lengths = args[4].v_int64 != 0, has_reset = args[5].v_int64 != 0;",
        "  char *output = as_pointer(args[6]), *const packed = as_pointer(args[9]);",
        "  char* const work = as_pointer(args[10]);",
        "  char* lengths = has_lengths ? as_pointer(args[7]) : work;",
        "  char* reset = has_reset ? as_pointer(args[8]) : work;",
        f"  char *input[{inputs}], *state_in[{states + 1}], *state_out[{states + 1}];",
        f"  for (int i = 0; i < {inputs}; ++i) input[i] = as_pointer(args[11 + i]);",
        f"  for (int i = 0; i < {states}; ++i) {{",
        f"    state_in[i] = as_pointer(args[{11 + inputs} + i]);",
        f"    state_out[i] = as_pointer(args[{11 + inputs + states} + i]);",
        "  }",
        *([f"  const bool starts = args[{11 + inputs + 2 * states}].v_int64 != 0;"] if program.tells_starts else []),
        "  CallState call_state(host::stream);",
        "  int64_t at = 0, most = 0;",
        *layout,
        *program.sequence.lines,
    ]
    about = "sequence(device, stream, T, B, has_lengths, has_reset, output, lengths, reset, packed, work, inputs...,"
    both = (about, f"         states before..., states after...{', starts' if program.tells_starts else ''})")
    count = 11 + inputs + 2 * states + program.tells_starts
    least = f"T > 0 && B > 0 ? max<int64_t>({ALIGNMENT}, workspace(T, B, sms)) : {ALIGNMENT}"
    workspace = [sizes, f"  return_int(result, {least});"]
    load = [
        "  (void)sms;",
        f"  for (int i = 0; i < {len(program.kernels) - len(program.left_out)}; ++i) {{",
        "    cudaFuncAttributes facts;",
        "    RUN(check(cudaFuncGetAttributes(&facts, *kernels::all[i]->handle), kernels::all[i]->name));",
        "  }",
    ]
    pack = [
        "  (void)sms;",
        "  char* const packed = as_pointer(args[2]);",
        f"  char* raw[{raw + 1}];",
        f"  for (int i = 0; i < {raw}; ++i) raw[i] = as_pointer(args[3 + i]);",
        "  CallState call_state(host::stream);",
        f"  RUN(fill(packed, 0, {program.packed_bytes}));",
        *program.pack.lines,
    ]
    needs = "workspace(device, stream, T, B) -> bytes that sequence needs; at least 1 allocation unit"
    now = "load(device, stream): every kernel on this GPU now, not in the first launch (which may be captured)"
    order = "pack(device, stream, packed, raw...): weights as the user gave them, into the kernels' order"
    more = [_export(own.name, own.arguments, own.lines, *own.comment) for own in program.exports]
    return [
        *[*size, *layout, "  return most;", "}", ""],
        *[*_export("sequence", count, sequence, *both), ""],
        *[*_export("workspace", 4, workspace, needs), ""],
        *[*_export("load", 2, load, now), ""],
        *_export("pack", 3 + raw, pack, order),
        *(line for lines in more for line in ("", *lines)),
    ]
