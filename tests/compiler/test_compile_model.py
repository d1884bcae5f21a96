"""A Model of several networks in one file: names of functions, what is shared, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tests.runtime.test_runtime_model import WIDTH, B, T, two
from tvm_rnn.compiler import compile as build
from tvm_rnn.errors import BuildError, ConfigError
from tvm_rnn.explain.tables import has_weights, manifest_page
from tvm_rnn.module_file.manifest import validate
from tvm_rnn.module_file.schema import SHARED
from tvm_rnn.runtime.runtime import read_container


@pytest.mark.broad
def test_one_file_says_what_all_share_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "texts", lambda net, options: [("trace", f"of {net.cell.name}")])
    rnn.compile(two(), batch=[1, 16], without=["fuse_pointwise"], dump=tmp_path / "stages").export(tmp_path / "m.so")
    manifest, arrays = read_container(tmp_path / "m.so")
    assert manifest.batch == [1, 16] and "fuse_pointwise" not in manifest.passes
    assert [own.sequence for own in manifest.networks] == ["sequence", "n1_sequence"]
    assert {pack.function for own in manifest.networks for pack in own.packs} == {"pack_0", "n1_pack_0"}
    assert not any(set(SHARED) & own.keys() for own in manifest.networks) and manifest.networks[1].reverse
    assert has_weights(manifest, arrays) and set(arrays) == set(two().weights)
    assert {path.name for path in (tmp_path / "stages").iterdir()} == {"0", "1"}
    assert (tmp_path / "stages" / "1" / "00_trace.txt").read_text() == "of leaky\n"
    manifest_page("m.so", manifest, arrays, 1)
    broken = {**manifest, "networks": [manifest.networks[0], {**manifest.networks[1], "num_layers": 0}]}
    with pytest.raises(BuildError, match="num_layers"):
        validate(broken)


@pytest.mark.broad
def test_layers_of_one_kind_twice_have_code_of_their_own() -> None:
    """Both networks have the same function names; the constants of each belong to it alone."""

    @rnn.cell
    def scaled(x: "I", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + h * np.linspace(0.1, 0.9, 4))

    model = two()
    model.networks = [rnn.RNN(scaled, WIDTH, 4, bidirectional=True).init(3), model.networks[1]]
    x = np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f4")
    expected = rnn.reference(model).run({"X": x})["Y"]
    np.testing.assert_allclose(rnn.compile(model).run({"X": x})["Y"], expected, atol=1e-5)


@pytest.mark.slow
def test_one_file_for_gpus_has_functions_of_each_network(tmp_path: Path) -> None:
    rnn.compile(two(), "nvidia-h200", batch=[1]).export(tmp_path / "m.so")
    manifest, arrays = read_container(tmp_path / "m.so")
    assert manifest.archs == ["sm_90a"] and [own.get("part") for own in manifest.networks] == [None, "n1"]
    assert {d["subject"].get("network", 1) for d in manifest.networks[1].decisions} == {1}
    assert has_weights(manifest, arrays) and set(arrays) == set(two().weights)
    manifest_page("m.so", manifest, arrays, 1)
    module = rnn.load(tmp_path / "m.so", anywhere=True)
    assert type(module).__name__ == "CudaModelModule" and len(module.networks) == 2
    with pytest.raises(rnn.InputError, match=r"mod\.run"):
        module(np.zeros((T, B, WIDTH), "f4"))


def test_what_is_refused() -> None:
    alone = two()
    alone.networks, alone.program = [], replace(alone.program, steps=(), outputs=())
    with pytest.raises(ConfigError, match="a model without networks is for CPUs"):
        rnn.compile(alone, "nvidia-h200")
    with pytest.raises(ConfigError, match="does not train as a whole"):
        rnn.compile(two(), training=True)
    model = two()
    model.networks[1] = "no network"
    with pytest.raises(ConfigError, match="needs an RNN"):
        rnn.compile(model)
