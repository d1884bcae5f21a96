"""cuda/codegen/cuda_text.py: how TVM's texts are taken apart and put together. What they do is in test_program.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tvm

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen import cuda_text
from tvm_rnn.cuda.codegen.cuda_text import generate, split_kernels, statements, unrestricted
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.errors import BuildError
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import GPUS, resolve

SHARED = "#include <cstdint>\n__device__ int both() { return 1; }\n"


def text(count: int, size: int) -> str:
    """CUDA as TVM writes it: what is shared, declarations, kernels."""
    head = 'extern "C" __global__ void __launch_bounds__(128, 1) k{}_kernel(float* __restrict__ x_ptr, int n)'
    body = "  extern __shared__ __align__(64) float _ptr_1[];\n  _ptr_1[0] = _ptr_10;\n" + "  both();\n" * size
    declared = "".join(head.format(i) + ";\n" for i in range(count))
    return SHARED + declared + "".join(f"{head.format(i)} {{\n{body}}}\n" for i in range(count))


def test_small_kernels_stay_together() -> None:
    (only,) = split_kernels(text(3, 5), 8)
    assert only.count("k1_kernel") == 1 and only.startswith(SHARED)


def test_large_kernels_are_parted_and_whole() -> None:
    parts = split_kernels(text(5, 8000), 3)
    assert len(parts) == 3 and all(part.startswith(SHARED) for part in parts)
    kernels = [name for part in parts for name, _ in cuda_text.DECLARED.findall(part)]
    assert sorted(kernels) == [f"k{i}_kernel" for i in range(5)]
    assert max(map(len, parts)) < 2.1 * min(map(len, parts))


def test_shared_memory_has_a_name_per_kernel() -> None:
    (only,) = split_kernels(text(2, 1), 1)
    assert "_ptr_1_of_0[]" in only and "_ptr_1_of_1[0] = _ptr_10;" in only and "_ptr_1[" not in only


def test_nothing_to_compile() -> None:
    assert split_kernels(SHARED, 4) == ()


def test_handles_have_the_types_of_the_kernels() -> None:
    given = (
        'extern "C" __global__ void k_kernel(const __grid_constant__ CUtensorMap m, half* __restrict__ x, int64_t n);'
    )
    assert cuda_text._handles(given) == ["static void (*k_kernel)(CUtensorMap, void*, int64_t) = nullptr;"]


def test_another_tvm_is_recognised() -> None:
    with pytest.raises(BuildError, match="this TVM writes other launch code"):
        cuda_text._wrappers("int main() {}")


def test_tvms_errors_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("first\nthe last line says it")

    monkeypatch.setattr(cuda_text.tvm, "compile", broken)
    with pytest.raises(BuildError, match=r"code generation failed[\s\S]*nvidia-a100[\s\S]*the last line says it"):
        cuda_text.compile_kernels({}, GPUS["nvidia-a100"])


def test_statements_are_the_host_program_alone() -> None:
    program = Program()
    program.sequence.memset(program.buffer("x", "T"), 1)
    found = statements(program)
    assert "EXPORT(sequence)" in found and "RUN(fill((work + x_1), 0, int64_t(1)));" in found
    assert "class" not in found


@pytest.mark.broad
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_for_a_gpu_before_sm_90_are_generated(dtype: str) -> None:
    """TVM runs other passes for them: one did not take the address of a pointer as a number."""
    net = rnn.RNN(rnn.cells.gru, input_size=8, hidden_size=32, dtype=dtype)
    target = resolve("nvidia-a100")
    made = generate(plan(passed(net, Options(target, (4,), precision=dtype)), target), target)
    assert made.arch == "sm_80"
    assert any("mma_sync" in shard for shard in made.shards) == (dtype == "bfloat16")


def test_pointers_that_threads_share_are_not_restricted() -> None:
    text = (
        'extern "C" __global__ void __launch_bounds__(64) one_kernel(float* __restrict__ a);\n'
        'extern "C" __global__ void __launch_bounds__(64) two_kernel(float* __restrict__ a);\n'
        'extern "C" __global__ void __launch_bounds__(64) one_kernel(float* __restrict__ a) {\n  int __restrict__;\n}'
    )
    assert unrestricted(text, {"one"}) == text.replace("one_kernel(float* __restrict__", "one_kernel(float*")
    assert unrestricted(text, set()) == text


WITH_A_DRIVER = """
import sys
import tvm
loaded = {*sys.modules}
from tvm_rnn.cuda.codegen import cuda_text as source
assert tvm.get_global_func("runtime.GetCudaDeviceCount", allow_missing=True) is not None, "no CUDA runtime"
before = tvm.get_global_func(source.COMPILER)
import tvm_rnn as rnn
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import GPUS
net, machine = rnn.RNN(rnn.cells.elman, 8, 16, dtype="bfloat16"), GPUS["nvidia-h200"]
made = source.generate(plan(passed(net, Options(machine, (4,), precision="bfloat16")), machine), machine)
assert "__global__" in made.shards[0]
assert not [name for name in {*sys.modules} - loaded if name.startswith("cuda.")]
assert tvm.get_global_func(source.COMPILER).same_as(before)
print("fine")
"""


@pytest.mark.broad
def test_tvm_compiles_no_text_itself_where_its_cuda_runtime_is_loaded(tmp_path: Path) -> None:
    """As on a machine with a GPU. The driver is a stand-in whose functions all fail: nothing may need them."""
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    if not shutil.which("nm") or not shutil.which("gcc") or not runtime.exists():
        pytest.skip("no nm, no gcc, or a TVM without a CUDA runtime")
    listed = subprocess.run(["nm", "-D", "--undefined-only", runtime], capture_output=True, text=True, check=True)
    names = sorted({line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()})
    stubs = [f"int {name}(void) {{ return 999; }}" for name in names if re.match("cu[A-Z]", name)]
    (tmp_path / "driver.c").write_text("\n".join(stubs))
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    here = {**os.environ, "LD_LIBRARY_PATH": paths, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", WITH_A_DRIVER], env=here, capture_output=True, text=True, check=False)
    if "no CUDA runtime" in done.stderr:
        pytest.skip("TVM's CUDA runtime does not load here")
    assert done.stdout.endswith("fine\n"), done.stderr


def test_the_compiler_that_was_there_is_there_again() -> None:
    before = tvm.get_global_func(cuda_text.COMPILER)
    with cuda_text._text_alone():
        assert tvm.get_global_func(cuda_text.COMPILER)("this is no CUDA").startswith(b"//")
    assert tvm.get_global_func(cuda_text.COMPILER).same_as(before)


def test_threads_that_compile_at_the_same_time_do_not_bring_it_back_for_each_other() -> None:
    before, seen = tvm.get_global_func(cuda_text.COMPILER), list[bytes]()

    def compiles(number: int) -> None:
        with cuda_text._text_alone():
            time.sleep(0.01 * (1 + number))
            seen.append(tvm.get_global_func(cuda_text.COMPILER)("this is no CUDA"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(compiles, range(3)))
    assert len(seen) == 3 and all(text.startswith(b"//") for text in seen)
    assert tvm.get_global_func(cuda_text.COMPILER).same_as(before)
