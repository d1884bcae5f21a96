"""cuda/write_module.py: whole networks to modules for GPUs, without one: what is in the file, and that it loads on its
GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import toolchain

import tvm_rnn as rnn
from tvm_rnn import ConfigError, LoadError
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.runtime.runtime import read_container

Compile = Callable[..., Any]


@pytest.fixture(scope="module")
def gru() -> Any:
    """A module that several tests look at."""
    tools = toolchain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvcc, "find", lambda: tools)
        patch.setenv("FAKE_GPUS", "90")
        return rnn.compile(net(), "nvidia-h200", batch=4, precision="tf32", without=["combine_gemms"])


@pytest.fixture
def fake_compile(monkeypatch: pytest.MonkeyPatch) -> Compile:
    """rnn.compile, linked with the fake CUDA runtime."""
    tools = toolchain()
    monkeypatch.setattr(nvcc, "find", lambda: tools)
    monkeypatch.setenv("FAKE_GPUS", "90")
    return rnn.compile


def net(dtype: str = "float32") -> rnn.RNN:
    return rnn.RNN(rnn.cells.gru, 5, 7, dtype=dtype).init(0)


@pytest.mark.broad
def test_the_manifest_says_what_is_inside(gru: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    m = gru.manifest
    assert (m.dtype, m.precision, m.batch, m.target.kind) == ("float32", "tf32", [4], "cuda")
    assert "combine_gemms" not in m.passes and m.flops_per_row > 0 and m.versions.cuda.startswith("nv")
    (variant,) = m.variants
    assert variant.arch == "sm_90a" and variant.packed_bytes > 0 and variant.templates
    assert {name for name, _ in variant.parameters} <= set(net().weight_shapes)
    assert all(row.registers > 0 for row in variant.kernels)
    gru.export(tmp_path / "m.so")
    _, weights = read_container(tmp_path / "m.so")
    np.testing.assert_array_equal(weights["W_l0"], net().weights["W_l0"])
    assert rnn.load(tmp_path / "m.so").manifest == m


@pytest.mark.broad
def test_a_call_reaches_the_kernels(gru: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    y, state = gru(np.zeros((3, 2, 5), "f4"))
    assert y.shape == (3, 2, 7) and state["h"].shape == (1, 2, 7)


@pytest.mark.broad
def test_weights_of_16_bits_are_kept_in_float32(fake_compile: Compile) -> None:
    module = fake_compile(net("bfloat16"), "nvidia-h200")
    assert module.manifest.precision == "bfloat16" and module.weights["W_l0"].dtype == np.float32
    assert module.init_state(2)["h"].dtype == np.float32


@pytest.mark.broad
def test_a_module_for_another_machine_can_be_exported_but_not_called(
    fake_compile: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAKE_GPUS")
    module = fake_compile(net(), "nvidia-h200")
    module.export(tmp_path / "m.so")
    with pytest.raises(LoadError, match="for a GPU"):
        module(np.zeros((3, 2, 5), "f4"))
    with pytest.raises(LoadError, match="no GPU"):
        rnn.load(tmp_path / "m.so")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"target": "nvidia-h300"}, r"no such target[\s\S]*did you mean 'nvidia-h[12]00'"),
        ({"target": "nvidia-h200", "arch": "sm_91"}, r"no such arch[\s\S]*sm_80"),
        ({"target": "llvm", "arch": ["sm_80"]}, "arch is for GPUs"),
        ({"target": "nvidia-h200", "precision": "bfloat16"}, "cannot be computed in 'bfloat16'"),
        ({"target": "nvidia-h200", "precision": "int4"}, "no such precision"),
        ({"target": "llvm", "precision": "tf32"}, "CPUs compute in float32 and float64 only"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rnn.compile(net(), **arguments)


def test_cpus_have_no_16_bit_networks() -> None:
    with pytest.raises(ConfigError, match="CPUs compute in float32 and float64 only"):
        rnn.compile(net("float16"), "llvm")
