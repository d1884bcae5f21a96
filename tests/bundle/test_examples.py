"""The example programs of networks with several inputs and states; those of one input are in test_folder.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import build, examples, run, tiny_bundle
from tiny_module import H, Tiny

from tvm_rnn.bundle.examples import arguments, model_example
from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.runtime import runtime

ITEM = {"name": 'a"b', "dtype": "int32", "shape": None}
MODEL = {"inputs": [ITEM, {**ITEM, "name": "x"}], "outputs": [ITEM], "constants": [], "steps": []}


@pytest.mark.broad
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_several_inputs_and_states(dtype: str, tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, Tiny(2, 1, dtype, True))
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(5, 2, H)).astype(dtype), rng.normal(size=(5, 2)).astype(dtype)
    expected, _ = runtime.load(bundle / "tiny.so")((x, a))
    in_c, in_cpp, whole = examples(bundle, tmp_path, {"x": x, "a": a})
    np.testing.assert_array_equal(whole, expected.ravel())
    np.testing.assert_allclose(in_c, expected[-1], rtol=1e-6)
    np.testing.assert_allclose(in_cpp, expected[-1], rtol=1e-6)
    stream = build(bundle / "stream.c", tmp_path / "stream", bundle)
    steps = np.concatenate([x[:, 0], a[:, :1]], axis=1)
    expected, _ = runtime.load(bundle / "tiny.so")((x[:, :1].copy(), a[:, :1].copy()))
    np.testing.assert_array_equal(np.frombuffer(run(stream, bundle, given=steps.tobytes()), dtype), expected.ravel())


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, Tiny(2, extra=True))
    np.ones((5, H), "f4").tofile(tmp_path / "x.raw")
    np.ones(4, "f4").tofile(tmp_path / "a.raw")
    program = build(bundle / "example.c", tmp_path / "c", bundle)
    assert b"a.raw does not hold" in run(program, bundle, tmp_path / "x.raw", tmp_path / "a.raw", code=1)
    cpp = build(bundle / "example.cpp", tmp_path / "cpp", bundle)
    assert b"a.raw does not fit" in run(cpp, bundle, tmp_path / "x.raw", tmp_path / "a.raw", code=1)
    assert b"usage" in run(cpp, bundle, tmp_path / "x.raw", code=1)


def test_names_are_written_as_c_has_them(tmp_path: Path) -> None:
    path = Tiny().write(tmp_path / "m.so", model=MODEL)
    facts = read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")
    assert arguments(facts) == " input_0.raw SHAPE input_1.raw SHAPE"
    for cpp in (False, True):
        text = model_example(facts, cpp)
        assert '"a\\042b"' in text and "{1, 1, 0}" in text and "tiny_run(" in text
