"""target: rows of facts, the machine at hand, and names that are none."""

from __future__ import annotations

import platform

import pytest

from tvm_rnn import ConfigError, runtime
from tvm_rnn.target import CHECKED, TABLE, Target, host, names, resolve


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


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("x86-64", "", "avx"),
        ("x86-64-v2", "sse4.2", "avx"),
        ("x86-64-v3", "fma", "avx512f"),
        ("x86-64-v4", "avx512vl", "avx512bf16"),
        ("aarch64", "neon", "avx"),
    ],
)
def test_features_are_those_that_llvm_uses(name: str, has: str, lacks: str) -> None:
    features = resolve(name).features
    assert (not has or has in features) and lacks not in features and set(features) <= set(CHECKED)


@pytest.mark.parametrize("row", tuple(TABLE.values()), ids=lambda t: t.name)
def test_lanes(row: Target) -> None:
    assert row.lanes("float32") == 2 * row.lanes("float64") == row.vector_bytes // 4


def test_a_target_may_be_given_whole() -> None:
    mine = Target("mine", mcpu="haswell", isa="avx2", vector_bytes=32)
    assert "fma" in resolve(mine).features


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no such target[\s\S]*x86-64-v4[\s\S]*did you mean 'x86-64-v3'"):
        resolve("x86-64-v33")
    assert names()[0] == "llvm"
