"""target: rows of facts, the machine at hand, and names that are none."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from tvm_rnn import ConfigError, target, this_machine
from tvm_rnn.runtime import runtime
from tvm_rnn.target import FEATURES, GPUS, TABLE, Target, for_archs, host, names, resolve
from tvm_rnn.tir.statements import buffer, function, load, loop, store, variable


def test_the_host_is_named_and_not_generic() -> None:
    found = resolve("llvm")
    assert found.machine == platform.machine() and found.mcpu not in ("", "native")
    assert found.isa in ("avx512", "avx2", "neon", "plain")
    assert found == host() == resolve("native")


def test_what_the_host_needs_it_has() -> None:
    known = runtime.cpu_features()
    if known is None:
        pytest.skip("this system does not list its CPU's features")
    facts = {"name": "llvm", "machine": platform.machine(), "features": list(host().features)}
    runtime._check_machine("here", runtime.Manifest(facts))


def test_code_of_another_system_is_refused_before_it_is_loaded() -> None:
    own = runtime.Manifest({"name": "llvm", "machine": this_machine.machine(), "features": []})
    assert runtime._other_machine("m.so", own, b"\x7fELF") is None
    error = runtime._other_machine("m.so", own, b"\xcf\xfa\xed\xfe")
    assert re.search(r"'m.so' is for another system[\s\S]*darwin[\s\S]*linux[\s\S]*compile for this", str(error))


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("x86-64", "", "avx"),
        ("x86-64-v2", "sse4.2", "avx"),
        ("x86-64-v3", "fma", "avx512f"),
        ("x86-64-v4", "avx512vl", "avx512bf16"),
        ("aarch64", "neon", "avx"),
        ("aarch64-linux-android", "neon", "sve"),
        ("aarch64-macos", "dotprod", "sve"),
        ("riscv64", "v", "neon"),
        ("riscv64gc-linux-gnu", "", "v"),
    ],
)
def test_features_are_those_that_llvm_uses(name: str, has: str, lacks: str) -> None:
    features = resolve(name).features
    assert (not has or has in features) and lacks not in features and {*features} <= {*FEATURES[resolve(name).machine]}


@pytest.mark.parametrize("row", tuple(TABLE.values()), ids=lambda t: t.name)
def test_lanes(row: Target) -> None:
    assert row.lanes("float32") == 2 * row.lanes("float64") == row.vector_bytes // 4


def test_which_targets_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("x86-64-v3", "aarch64-linux-gnu", "aarch64-linux-android", "aarch64-macos")
    found = {}
    for machine, system in (("x86_64", "linux"), ("aarch64", "linux"), ("arm64", "darwin")):
        monkeypatch.setattr(this_machine.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(this_machine.sys, "platform", system)
        found[machine] = [TABLE[name].elsewhere for name in names]
        assert TABLE["aarch64-macos"].is_macos and not TABLE["aarch64-linux-gnu"].is_macos
        assert Target("llvm", machine=this_machine.machine()).is_macos == (system == "darwin")
    assert found == {
        "x86_64": ["", "aarch64-linux-gnu", "aarch64-linux-android", "aarch64-macos"],
        "aarch64": ["x86_64-linux-gnu", "", "aarch64-linux-android", "aarch64-macos"],
        "arm64": ["x86_64-linux-gnu", "aarch64-linux-gnu", "aarch64-linux-android", ""],
    }
    assert Target("mine", machine="riscv64").elsewhere == "riscv64-linux-gnu"


def test_a_target_may_be_given_whole() -> None:
    mine = Target("mine", mcpu="haswell", isa="avx2", vector_bytes=32)
    assert "fma" in resolve(mine).features


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no such target[\s\S]*x86-64-v4[\s\S]*did you mean 'x86-64-v3'"):
        resolve("x86-64-v33")
    assert names()[0] == "llvm"


@pytest.mark.parametrize("row", tuple(GPUS.values()), ids=lambda t: t.name)
def test_gpus(row: Target) -> None:
    assert resolve(row.name) == row == resolve(row)
    assert row.kind == "cuda" and row.arch.startswith("sm_") and row.sms > 0
    assert 0 < row.shared_bytes < row.sm_shared_bytes <= 228 << 10
    assert str(row.tvm_target.attrs["arch"]) == row.arch


def test_a_target_per_arch() -> None:
    h100, a100 = GPUS["nvidia-h100"], GPUS["nvidia-a100"]
    assert for_archs(h100, ()) == (h100,)
    assert for_archs(h100, ["sm_80", "sm_90a", "sm_80"]) == (a100, h100)
    (later,) = for_archs(h100, ["compute_80"])
    assert later == replace(a100, arch="compute_80") and str(later.tvm_target.attrs["arch"]) == "sm_80"
    with pytest.raises(ConfigError, match=r"no such arch[\s\S]*compute_80[\s\S]*sm_80, sm_86, sm_89, sm_90a"):
        for_archs(h100, ["sm_75"])
    with pytest.raises(ConfigError, match="arch is for GPUs"):
        for_archs(resolve("x86-64"), ["sm_80"])


class Driver:
    """The functions of libcuda.so.1 that `gpu` asks, for a GPU of the given facts."""

    def __init__(self, facts: dict[int, int], status: int = 0) -> None:
        self.facts, self.status = facts, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGet(self, device: Any, number: int) -> int:
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.facts.get(attribute, 1)
        return 0


@pytest.mark.parametrize(("major", "minor", "arch"), [(9, 0, "sm_90a"), (8, 6, "sm_86"), (12, 0, "sm_120")])
def test_the_gpu_at_hand(monkeypatch: pytest.MonkeyPatch, major: int, minor: int, arch: str) -> None:
    monkeypatch.setattr(target.ctypes, "CDLL", lambda name: Driver({75: major, 76: minor, 16: 132, 97: 232448}))
    found = resolve("cuda")
    assert (found.name, found.arch, found.sms, found.shared_bytes) == ("nvidia-h200", arch, 132, 232448)


def test_no_gpu_or_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError("libcuda.so.1: not there")

    monkeypatch.setattr(target.ctypes, "CDLL", missing)
    with pytest.raises(ConfigError, match=r"this machine's GPU[\s\S]*libcuda.so.1[\s\S]*nvidia-h200"):
        resolve("cuda")
    monkeypatch.setattr(target.ctypes, "CDLL", lambda name: Driver({}, status=100))
    with pytest.raises(ConfigError, match="this machine's GPU"):
        resolve("cuda")
    monkeypatch.setattr(target.ctypes, "CDLL", lambda name: Driver({75: 7, 76: 5}))
    with pytest.raises(ConfigError, match=r"too old[\s\S]*7\.5"):
        resolve("cuda")


def test_features_behind_a_name_are_the_machine_s() -> None:
    found = resolve("aarch64+dotprod+dotprod")
    assert found.name == "aarch64-linux-gnu+dotprod" and {"neon", "dotprod"} <= {*found.features}
    assert found.elsewhere == TABLE["aarch64-linux-gnu"].elsewhere and resolve(found.name) == found
    with pytest.raises(ConfigError, match=r"no such feature of aarch64[\s\S]*'dotprd'[\s\S]*did you mean 'dotprod'"):
        resolve("aarch64+dotprd")
    with pytest.raises(ConfigError, match="no such target"):
        resolve("arch64+dotprod")


def test_the_caches_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = (("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", "2048K"), ("3", "Unified", "huge"))
    for number, own in enumerate(facts):
        for name, value in zip(("level", "type", "size"), own, strict=True):
            (tmp_path / f"index{number}").mkdir(exist_ok=True)
            (tmp_path / f"index{number}" / name).write_text(f"{value}\n")
    monkeypatch.setattr(target, "CACHES", tmp_path)
    assert (host().l1_bytes, host().l2_bytes) == (48 << 10, 2 << 20)
    monkeypatch.setattr(target, "CACHES", tmp_path / "none")
    assert (host().l1_bytes, host().l2_bytes) == (32 << 10, 1 << 20)


def test_llvm_does_not_unroll_loops_to_fill_a_cache_of_operations() -> None:
    row = replace(TABLE["x86-64-v3"], triple="", mcpu="znver3")
    x, y, n = buffer("x", "float32"), buffer("y", "float32"), variable("n")
    own = function("add", [n, x, y], loop("i", n, lambda i: store(y, 3 * i, load(x, 3 * i) + 1.0)))
    text = tvm.compile(tvm.IRModule({"add": own}), row.tvm_target).mod.inspect_source("ll")
    assert text.count("fadd") == 1
