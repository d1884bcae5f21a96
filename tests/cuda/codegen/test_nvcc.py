"""cuda/codegen/nvcc.py: finding a CUDA compiler, its remarks, its errors; the shared object it makes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.codegen.cuda_text import Source
from tvm_rnn.errors import BuildError

KERNEL = """
extern "C" __global__ void __launch_bounds__(32) k_sm_80_kernel(float* x) {
  __shared__ float y[64];
  y[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = y[0];
}
"""


@pytest.fixture
def tools() -> nvcc.Toolchain:
    try:
        return nvcc.find()
    except BuildError:
        pytest.skip("needs a CUDA compiler")


def toolkit(root: Path, version: int = 13000, program: bool = True) -> Path:
    """A folder that looks like a toolkit."""
    for name in ("include/cuda_runtime.h", "lib64/libcudart_static.a", "nvvm/bin/cicc", "bin/nvcc"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
    (root / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {version}\n")
    (root / "bin/nvcc").chmod(0o755 if program else 0o644)
    return root


def test_cuda_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "mine")))
    found = nvcc.find()
    assert found.nvcc == str(tmp_path / "mine/bin/nvcc") and found.name == "nvcc 13.0"


@pytest.mark.parametrize(
    ("version", "program", "says"),
    [(12040, True, r"CUDA 12.4, which is too old"), (13000, False, "without nvcc and NVRTC")],
)
def test_what_is_found_but_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, program: bool, says: str
) -> None:
    root = toolkit(tmp_path / "other", version, program)
    monkeypatch.setattr(nvcc, "_all_roots", lambda: iter([root, tmp_path / "missing"]))
    with pytest.raises(BuildError, match=rf"no CUDA compiler was found[\s\S]*{says}[\s\S]*CUDA_HOME"):
        nvcc.find()


def test_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "_all_roots", lambda: iter(()))
    with pytest.raises(BuildError, match=r"none of the packages[\s\S]*pip install nvidia-cuda-nvrtc"):
        nvcc.find()


def test_nvrtc_where_there_is_no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = toolkit(tmp_path / "rtc", program=False)
    (root / "lib64/libnvrtc.so.13").write_text("")
    monkeypatch.setattr(nvcc, "_all_roots", lambda: iter([root]))
    found = nvcc.find()
    assert found.nvcc is None and found.name == "nvrtc 13.0"
    with pytest.raises(OSError, match="libnvrtc"):
        nvcc.compile_cubin(KERNEL, "sm_80", tmp_path / "k.cubin", False, found)


def test_remarks() -> None:
    remarks = """ptxas info    : Compiling entry function 'a_sm_90a_kernel' for 'sm_90a'
ptxas info    : Function properties for a_sm_90a_kernel
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'b_sm_90a_kernel' for 'sm_90a'
ptxas info    : Function properties for b_sm_90a_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers
"""
    first, second = nvcc.resources(remarks)
    assert first == {"kernel": "a", "registers": 255, "stack_bytes": 8, "spill_bytes": 16, "shared_bytes": 1024}
    assert second["kernel"] == "b" and second["shared_bytes"] == 0


def test_a_cubin(tools: nvcc.Toolchain, tmp_path: Path) -> None:
    (row,) = nvcc.resources(nvcc.compile_cubin(KERNEL, "sm_80", tmp_path / "k.cubin", True, tools))
    assert row["kernel"] == "k" and row["registers"] > 0 and row["shared_bytes"] == 256
    assert (tmp_path / "k.cubin").read_bytes()[:4] == b"\x7fELF"


def test_a_cubin_with_ptx_for_later_gpus(tools: nvcc.Toolchain, tmp_path: Path) -> None:
    text = KERNEL.replace("_sm_80", "_compute_80")
    (row,) = nvcc.resources(nvcc.compile_cubin(text, "compute_80", tmp_path / "k.cubin", True, tools))
    assert row["kernel"] == "k" and row["shared_bytes"] == 256
    held = (tmp_path / "k.cubin").read_bytes()
    assert b"\x7fELF" in held and held[:4] != b"\x7fELF"


def test_the_compilers_first_errors_are_told(tools: nvcc.Toolchain, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"the CUDA build failed[\s\S]*error: this declaration"):
        nvcc.compile_cubin("nonsense;", "sm_80", tmp_path / "k.cubin", True, tools)


def test_an_object_needs_no_cuda_library(tools: nvcc.Toolchain, tmp_path: Path) -> None:
    host = (
        '#include <cuda_runtime.h>\nextern "C" __attribute__((visibility("default"))) int f() { return cudaFree(0); }\n'
    )
    elf, taken, name = nvcc.build([Source((KERNEL,), host, "sm_80")], tmp_path, False)
    (tmp_path / "m.so").write_bytes(elf)
    needed = subprocess.run(
        ["readelf", "-d", str(tmp_path / "m.so")], capture_output=True, text=True, check=True
    ).stdout
    assert "libc.so" in needed and "libcuda" not in needed and name == tools.name
    assert [row["kernel"] for row in taken["sm_80"]] == ["k"]


def test_no_host_compiler(tools: nvcc.Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc.shutil, "which", lambda name: None)
    monkeypatch.setattr(nvcc, "find", lambda: replace(tools))
    with pytest.raises(BuildError, match="no C\\+\\+ compiler for the host program"):
        nvcc.build([], tmp_path, False)
