"""build: from an RNN to a loaded module, its manifest, and every way in which that can fail."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_rnn as rnn
from tvm_rnn import BuildError, ConfigError, WeightError, target
from tvm_rnn.cli.console import print_rich
from tvm_rnn.compiler import compile as build
from tvm_rnn.compiler.compile import weight_error
from tvm_rnn.cpu import c_compiler
from tvm_rnn.explain.tables import manifest_page
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.runtime import runtime

NET = rnn.RNN(rnn.cells.elman, 3, 5).init()


@pytest.mark.broad
def test_the_manifest_says_what_was_built() -> None:
    net = rnn.RNN(rnn.cells.elman, 3, [5, 4], num_layers=2, bidirectional=True).init()
    m = rnn.compile(net, batch=[16, 1, 16], without=["combine_gemms"]).manifest
    assert (m.cell, m.dtype, m.num_layers, m.num_directions, m.batch) == ("elman", "float32", 2, 2, [1, 16])
    assert m.states[0].shapes == [[5], [4]] and m.output.shape == [4] and m.inputs[0].shape == [3]
    assert [w.name for w in m.weights] == list(net.weight_shapes)
    assert m.passes == [p for p in PASS_NAMES if p != "combine_gemms"]
    assert m.versions["tvm"] == tvm.__version__ and m.target.features == list(target.host().features)
    assert {t["template"] for t in m.templates} == {"gemm_cpu", "walk_cpu"}
    assert all(t["record"] == "default" for t in m.templates)


def test_progress_names_the_stages() -> None:
    seen: list[str] = []
    rnn.compile(NET, progress=seen.append)
    assert seen == ["passes", "lowering", "code generation", "linking", "loading"]


def test_cycles_are_not_looked_for_meanwhile() -> None:
    seen: list[bool] = []
    rnn.compile(NET, progress=lambda stage: seen.append(gc.isenabled()))
    assert not any(seen) and gc.isenabled()
    with pytest.raises(ConfigError):
        rnn.compile(NET, precision="none")
    assert gc.isenabled()
    gc.disable()
    try:
        rnn.compile(NET, progress=False)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.broad
def test_dump_writes_every_stage(tmp_path: Path) -> None:
    rnn.compile(NET, dump=tmp_path / "stages")
    names = sorted(p.name for p in (tmp_path / "stages").iterdir())
    assert names[0] == "00_trace.txt" and [n.split("_", 1)[1] for n in names[-4:]] == [
        "te.txt",
        "tir.txt",
        "llvm.txt",
        "asm.txt",
    ]
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot write the stages"):
        rnn.compile(NET, dump=tmp_path / "file")


def test_without_weights_they_are_loaded_later(tmp_path: Path) -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.elman, 3, 5))
    x = np.ones((2, 1, 3), "float32")
    with pytest.raises(WeightError, match="load_weights first"):
        module(x)
    module.load_weights(NET.weights)
    np.testing.assert_allclose(module(x)[0], rnn.reference(NET)(x)[0], rtol=1e-6)
    module.export(tmp_path / "m.so")
    np.testing.assert_array_equal(rnn.load(tmp_path / "m.so")(x)[0], module(x)[0])


def test_array_constants_travel_with_the_module(tmp_path: Path) -> None:
    table = np.arange(5.0) / 5

    @rnn.cell(states="h")
    def shifted(x: "I", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + h * table)

    net = rnn.RNN(shifted, 3, 5).init()
    module = rnn.compile(net)
    module.export(tmp_path / "m.so")
    x = np.ones((4, 2, 3), "float32")
    np.testing.assert_allclose(rnn.load(tmp_path / "m.so")(x)[0], rnn.reference(net)(x)[0], rtol=1e-6)
    assert "constant.0" not in module.weights


@pytest.mark.parametrize(
    ("batch", "shown"),
    [(0, "0"), ([1, -2], "-2"), ([True], "True"), ("8", "'8'"), ([1.5], "1.5"), (1.5, "1.5"), (None, "None")],
)
def test_batch_sizes_are_checked(batch: Any, shown: str) -> None:
    with pytest.raises(ConfigError, match=rf"compile: batch[\s\S]*{shown}"):
        rnn.compile(NET, batch=batch)


def test_arguments_of_the_wrong_kind() -> None:
    with pytest.raises(ConfigError, match="compile needs an RNN"):
        rnn.compile(rnn.cells.lstm)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="training keeps weights in the network's dtype"):
        rnn.compile(NET, training=True, weights="bfloat16")
    with pytest.raises(ConfigError, match=r"only training keeps anything[\s\S]*max_bytes=9[\s\S]*leave max_bytes out"):
        rnn.compile(NET, max_bytes=9)
    wrong: Any
    for wrong in (-1, 1.5, True, "2G"):
        with pytest.raises(ConfigError, match=r"max_bytes is wrong[\s\S]*a number of bytes, or None"):
            rnn.compile(NET, training=True, max_bytes=wrong)
    with pytest.raises(ConfigError, match=r"no such target[\s\S]*did you mean 'x86-64-v4'"):
        rnn.compile(NET, "x86-64-v5")
    with pytest.raises(ConfigError, match="no such pass"):
        rnn.compile(NET, without=["fuse"])
    kinds = {
        "target": "a target is a name or a Target",
        "arch": "arch is a name, or several",
        "without": "without is a name, or several",
        "records": "records: no folder",
        "dump": "dump: no folder",
    }
    for name, text in kinds.items():
        for wrong in (3, [None]):
            with pytest.raises(ConfigError, match=text):
                rnn.compile(NET, **{name: wrong})


def test_a_full_disk_is_an_error_before_llvm_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LLVM ends the process where it cannot write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(BuildError, match=rf"no room for temporary files[\s\S]*{tmp_path}[\s\S]*TMPDIR"):
        rnn.compile(NET)
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(BuildError, match="no folder for temporary files"):
        rnn.compile(NET)


def test_weights_that_do_not_fit_are_found_before_anything_is_built() -> None:
    net = rnn.RNN(rnn.cells.elman, 3, 5).init()
    net.weights["R_l0"] = np.zeros((5, 4), "float32")
    with pytest.raises(WeightError, match=r"R_l0: shape \[5, 4\], expected \[5, 5\]"):
        rnn.compile(net)


def test_no_compiler_to_link_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler[\s\S]*install g\+\+"):
        rnn.compile(NET)


def test_another_machine_needs_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "aarch64-linux-gnu" if target.host().machine == "x86_64" else "x86-64-v3"
    monkeypatch.setattr(c_compiler.shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"no C compiler for \w+-linux-gnu[\s\S]*pip install ziglang"):
        rnn.compile(NET, other)


def test_a_failure_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runtime, "load", lambda path, anywhere: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rnn.compile(NET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.broad
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3"])
def test_code_for_lesser_instruction_sets_runs_here(name: str) -> None:
    if target.host().machine != "x86_64" or not set(target.resolve(name).features) <= set(target.host().features):
        pytest.skip(f"this CPU does not run {name}")
    net = rnn.RNN(rnn.cells.gru, 5, 33).init()
    x = np.random.default_rng(0).normal(size=(7, 5, 5)).astype("float32")
    np.testing.assert_allclose(rnn.compile(net, name)(x)[0], rnn.reference(net)(x)[0], rtol=1e-5, atol=1e-6)


def test_the_manifest_and_inspect_say_it_until_weights_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = rnn.RNN(rnn.cells.gru, 6, 18).init(1)
    module = rnn.compile(net, weights="int8")
    error = module.manifest.weight_error
    assert 1e-5 < error < 2e-2 and error == weight_error(net, module)
    module.export(tmp_path / "m.so")
    again = rnn.load(tmp_path / "m.so")
    assert again.manifest.weight_error == error
    print_rich(manifest_page("m.so", again.manifest, again.weights, 1))
    assert f"error {error:.1e}" in capsys.readouterr().out
    again.load_weights(net.weights)
    assert "weight_error" not in again.manifest


@pytest.mark.broad
def test_without_weights_or_fewer_bits_there_is_none() -> None:
    net = rnn.RNN(rnn.cells.elman, 6, 18)
    assert "weight_error" not in rnn.compile(net, weights="bfloat16").manifest
    assert "weight_error" not in rnn.compile(net.init(0)).manifest


def test_what_is_no_number_is_none() -> None:
    net = rnn.RNN(rnn.cells.elman, 6, 18).init(0)
    net.weights["W_l0"][0, 0] = np.nan
    assert rnn.compile(net, weights="bfloat16").manifest.weight_error is None
