"""source.py: how TVM's texts are taken apart and put together. What they do is in test_program.py."""

from __future__ import annotations

import pytest
import tvm

import tvm_rnn as rnn
from tvm_rnn import pipeline
from tvm_rnn.cuda import source
from tvm_rnn.cuda.plan import plan
from tvm_rnn.cuda.program import Program
from tvm_rnn.cuda.source import generate, split_kernels, statements, unrestricted
from tvm_rnn.errors import BuildError
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
    kernels = [name for part in parts for name, _ in source.DECLARED.findall(part)]
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
    assert source._handles(given) == ["static void (*k_kernel)(CUtensorMap, void*, int64_t) = nullptr;"]


def test_another_tvm_is_recognised() -> None:
    with pytest.raises(BuildError, match="this TVM writes other launch code"):
        source._wrappers("int main() {}")


def test_tvms_errors_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("first\nthe last line says it")

    monkeypatch.setattr(source.tvm, "compile", broken)
    with pytest.raises(BuildError, match=r"code generation failed[\s\S]*nvidia-a100[\s\S]*the last line says it"):
        source.compile_kernels({}, GPUS["nvidia-a100"])


def test_statements_are_the_host_program_alone() -> None:
    program = Program()
    program.sequence.memset(program.buffer("x", "T"), 1)
    found = statements(program)
    assert "EXPORT(sequence)" in found and "RUN(fill((work + x_1), 0, int64_t(1)));" in found
    assert "class" not in found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_for_a_gpu_before_sm_90_are_generated(dtype: str) -> None:
    """TVM runs other passes for them: one did not take the address of a pointer as a number."""
    net = rnn.RNN(rnn.cells.gru, input_size=8, hidden_size=32, dtype=dtype)
    target = resolve("nvidia-a100")
    layers = pipeline.run(net, target)[-1][1]
    made = generate(plan(net, layers, target, (4,), dtype), target)
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


def test_tvm_compiles_no_text_itself() -> None:
    """It would where its CUDA runtime is loaded, on machines with a GPU."""
    before = tvm.get_global_func(source.COMPILER, allow_missing=True)
    with source._text_alone():
        assert tvm.get_global_func(source.COMPILER)("this is no CUDA", None).startswith("//")
    after = tvm.get_global_func(source.COMPILER, allow_missing=True)
    assert (before is None) == (after is None) or after is not None
