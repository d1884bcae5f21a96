"""Bundles of compiled modules: the examples, built with a C and a C++ compiler alone, print what a module computes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build, examples, run, tiny_bundle
from tiny_module import Tiny

import tvm_rnn as rnn
from tvm_rnn import whole_files
from tvm_rnn.bundle import folder as folder_module
from tvm_rnn.bundle import write_bundle
from tvm_rnn.errors import BuildError, ConfigError
from tvm_rnn.runtime import runtime

EMPTY_LSTM_BYTES = 1_000_000  # issue: the bundle of an LSTM without its weights


def agrees(module: Any, bundle: Path, folder: Path, steps: int = 7, batch: int = 2) -> None:
    """What the examples print and write is what the module gives, bit for bit."""
    rng, dtype = np.random.default_rng(0), np.dtype(module.manifest.dtype)
    shapes = {item.name: item.shape for item in module.manifest.inputs}
    inputs = {name: rng.uniform(-1, 1, (steps, batch, *shape)).astype(dtype) for name, shape in shapes.items()}
    expected, _ = module(inputs)
    in_c, in_cpp, whole = examples(bundle, folder, inputs)
    np.testing.assert_array_equal(whole, expected.ravel())
    for printed in (in_c, in_cpp):
        np.testing.assert_allclose(printed, expected[-1].reshape(batch, -1), rtol=1e-6)


@pytest.mark.slow
def test_examples_of_a_compiled_module(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.gru, 3, 10, bidirectional=True, dtype="float64").init(seed=1)
    module = rnn.compile(net)
    module.export(bundle=tmp_path / "both")
    agrees(module, tmp_path / "both", tmp_path)
    names = {"README.md", "CMakeLists.txt", "both.h", "both.so", "libboth.so", "example.c", "example.cpp"}
    assert {path.name for path in (tmp_path / "both").iterdir()} == names  # no step: no stream
    assert sum(path.stat().st_size for path in (tmp_path / "both").iterdir()) < EMPTY_LSTM_BYTES


@pytest.mark.slow
def test_states_that_are_called_as_variables_of_the_programs_are(tmp_path: Path) -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.lstm_fgr, 3, 4).init(seed=1))  # its states: h c i f o
    module.export(bundle=tmp_path / "fgr")
    agrees(module, tmp_path / "fgr", tmp_path)
    build(tmp_path / "fgr" / "stream.c", tmp_path / "stream", tmp_path / "fgr")


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    net = rnn.RNN(rnn.cells.lstm, 5, 20).init(seed=2)
    module = rnn.compile(net, batch=[1], weights="int8")
    module.export(bundle=tmp_path_factory.mktemp("lstm") / "lstm")
    return module


@pytest.fixture(scope="module")
def lstm_bundle(lstm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("again") / "lstm"
    lstm.export(bundle=path)
    return path


@pytest.mark.broad
def test_small_weights_and_small_bundles(lstm: Any, lstm_bundle: Path, tmp_path: Path) -> None:
    agrees(lstm, lstm_bundle, tmp_path, batch=3)
    weights = sum(array.nbytes for array in lstm.weights.values())
    assert sum(path.stat().st_size for path in lstm_bundle.iterdir()) < EMPTY_LSTM_BYTES + weights


@pytest.mark.broad
def test_a_stream_of_steps_and_its_times(lstm: Any, lstm_bundle: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(30, 1, 5)).astype("f4")
    program = build(lstm_bundle / "stream.c", tmp_path / "stream", lstm_bundle)
    written = run(program, lstm_bundle, given=x.tobytes())
    np.testing.assert_allclose(np.frombuffer(written, "f4"), lstm(x)[0].ravel(), rtol=1e-6, atol=1e-7)
    x.tofile(tmp_path / "x.raw")
    example = build(lstm_bundle / "example.c", tmp_path / "example", lstm_bundle)
    last = run(example, lstm_bundle, "--time", 1000, tmp_path / "x.raw").decode().splitlines()[-1]
    numbers = [float(word) for word in last.replace(",", "").split() if word.replace(".", "").isdecimal()]
    assert last.startswith("lstm_step, one step: p50 ") and last.endswith("(1000 calls)")
    assert 0 < numbers[0] <= numbers[1] <= numbers[2]


@pytest.mark.broad
def test_examples_say_what_is_wrong(lstm_bundle: Path, tmp_path: Path) -> None:
    np.ones(7, "f4").tofile(tmp_path / "x.raw")
    example = build(lstm_bundle / "example.c", tmp_path / "example", lstm_bundle)
    assert b"does not hold [steps][1][5] numbers" in run(example, lstm_bundle, tmp_path / "x.raw", code=1)
    assert b"not a file" in run(example, lstm_bundle, tmp_path / "none.raw", code=1)
    cpp = build(lstm_bundle / "example.cpp", tmp_path / "cpp", lstm_bundle)
    assert b"does not fit the batch size" in run(cpp, lstm_bundle, tmp_path / "x.raw", code=1)


@pytest.mark.broad
def test_the_lines_of_the_readme_build_it(lstm_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(lstm_bundle, tmp_path / "copy")
    text = (lstm_bundle / "README.md").read_text()
    lines = text.split("```bash\n")[1].split("```")[0]
    np.ones((4, 5), "f4").tofile(tmp_path / "copy" / "x.raw")
    subprocess.run(["bash", "-ec", lines], cwd=tmp_path / "copy", check=True, capture_output=True)
    assert {"example_c", "example_cpp", "stream"} <= {path.name for path in (tmp_path / "copy").iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_builds_it(tmp_path: Path) -> None:
    bundle, x = tiny_bundle(tmp_path, Tiny()), np.ones((3, 1, 5), "f4")
    for words in (["cmake", "-S", bundle, "-B", tmp_path / "out"], ["cmake", "--build", tmp_path / "out"]):
        subprocess.run(words, check=True, capture_output=True)
    x.tofile(tmp_path / "x.raw")
    printed = run(tmp_path / "out" / "example_c", bundle, tmp_path / "x.raw").decode().splitlines()[-1]
    np.testing.assert_allclose(np.array(printed.split(), "f4"), Tiny().expected(x)[0][-1, 0], rtol=1e-6)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.10)\nproject(own C)\nadd_subdirectory({bundle} bundle)\n"
        f"add_executable(own {bundle / 'stream.c'})\ntarget_link_libraries(own PRIVATE tiny::tiny)\n"
    )
    for words in (["cmake", "-S", tmp_path / "own", "-B", tmp_path / "o"], ["cmake", "--build", tmp_path / "o"]):
        subprocess.run(words, check=True, capture_output=True)
    assert len(run(tmp_path / "o" / "own", bundle, given=x.tobytes())) == x.nbytes


def test_two_bundles_in_one_program(tmp_path: Path) -> None:
    """Their functions have names of their own, and each finds its own code."""
    first = tiny_bundle(tmp_path, Tiny(), "one")
    second = tiny_bundle(tmp_path, Tiny(), "two", Tiny().weights(seed=7))
    source = tmp_path / "main.c"
    source.write_text(
        '#include <stdio.h>\n#include "one.h"\n#include "two.h"\nint main(void) {\n'
        "float x[5] = {1, 1, 1, 1, 1}, h[5], g[5], y[5], z[5];\none *a;\ntwo *b;\n"
        "if (one_open(NULL, &a) || two_open(NULL, &b)) return 1;\n"
        "if (one_init_state(a, 1, h) || two_init_state(b, 1, g)) return 1;\n"
        "if (one_step(a, 1, x, h, y) || two_step(b, 1, x, g, z)) return 1;\n"
        'printf("%.9g %.9g\\n", y[0], z[0]);\none_close(a);\ntwo_close(b);\nreturn 0;\n}\n'
    )
    more = [f"-I{second}", f"-L{second}", "-ltwo"]
    program = build(source, tmp_path / "main", first, *more)
    env = {"LD_LIBRARY_PATH": f"{first}:{second}"}
    done = subprocess.run([program], env=env, capture_output=True, check=True)
    expected = [1 + np.float32(0.5) * Tiny().weights(seed)["decay_l0"][0] for seed in (0, 7)]
    np.testing.assert_allclose(np.array(done.stdout.split(), "f4"), expected, rtol=1e-6)


def test_a_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = runtime.load(Tiny().write(tmp_path / "m.so"))
    folder = tmp_path / "out" / "tiny"
    with pytest.raises(BuildError, match="cannot write the bundle"):
        module.export(bundle=folder)
    no_path: Any = []
    with pytest.raises(BuildError, match="cannot write"):
        module.export(no_path)
    folder.parent.mkdir()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="C compiler failed"):
        module.export(bundle=folder)
    assert list(folder.parent.iterdir()) == []
    monkeypatch.delenv("CXX")
    folder.mkdir()  # an empty one is taken
    module.export(bundle=folder)
    before = sorted(path.name for path in folder.iterdir())
    module.export(bundle=folder)  # and a bundle is replaced
    assert sorted(path.name for path in folder.iterdir()) == before and len(before) == 8
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not a bundle of this name[\s\S]*'mine.txt' is in it"):
        module.export(bundle=folder)
    with pytest.raises(ConfigError, match="it is no folder"):
        module.export(bundle=folder / "mine.txt", name="mine")
    with pytest.raises(ConfigError, match="not a bundle of this name"):
        module.export(bundle=folder, name="other")


def test_a_folder_that_cannot_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny_bundle(tmp_path, Tiny())
    work, rename = tmp_path / ".work", os.rename
    shutil.copytree(bundle, work)

    def refuses(old: str, new: str) -> None:
        if old == str(work):
            raise PermissionError(13, "refused")
        rename(old, new)

    monkeypatch.setattr(whole_files, "_exchanged", lambda one, other: False)
    monkeypatch.setattr(whole_files.os, "rename", refuses)
    with pytest.raises(PermissionError):
        whole_files._put(str(work), str(bundle))
    assert (bundle / "tiny.h").exists()  # the old one is back


def test_names(tmp_path: Path) -> None:
    module = runtime.load(Tiny().write(tmp_path / "m.so"))
    module.export(bundle=tmp_path / "my-model.v2")
    assert (tmp_path / "my-model.v2" / "libmy_model_v2.so").exists()
    module.export(tmp_path / "also.so", bundle=tmp_path / "x1", name="voice")
    assert (tmp_path / "x1" / "voice.h").exists() and (tmp_path / "also.so").exists()
    for name in ("int", "1st", "two words", ""):
        with pytest.raises(ConfigError, match="not a name in C"):
            module.export(bundle=tmp_path / "n", name=name)


def test_what_cannot_be_a_bundle(tmp_path: Path) -> None:
    empty = runtime.load(Tiny().write(tmp_path / "m.so", {}))
    with pytest.raises(ConfigError, match="the module has no weights"):
        empty.export(bundle=tmp_path / "b")
    gpu = type("Module", (), {"manifest": {"target": {"kind": "cuda", "name": "nvidia-h200"}}})()
    with pytest.raises(ConfigError, match="only modules for CPUs"):
        write_bundle(gpu, tmp_path / "b")
    mac = type(
        "Module", (), {"manifest": {"target": {"kind": "llvm", "name": "aarch64-macos", "machine": "aarch64"}}}
    )()
    with pytest.raises(ConfigError, match=r"bundle: not for macOS[\s\S]*write_c"):
        write_bundle(mac, tmp_path / "b")
    old = runtime.load(Tiny().write(tmp_path / "m2.so"))
    data = bytes(old._file[:]).replace(folder_module.MARK, b"x" * len(folder_module.MARK))
    own = {
        "is_as_checked": lambda self: True,
        "__getitem__": lambda self, at: data[at],
        "__len__": lambda self: len(data),
    }
    old._file = type("File", (), own)()
    with pytest.raises(ConfigError, match="from an older tvm_rnn"):
        old.export(bundle=tmp_path / "b")
    assert not (tmp_path / "b").exists()


CELLS = [("augru", {}), ("mlstm", {}), ("lstm_projection", {"P": 6}), ("gru_reset_before", {}), ("lstm_layer_norm", {})]


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "bfloat16", "float16", "int8"])
@pytest.mark.parametrize(("cell", "sizes"), CELLS, ids=[name for name, _ in CELLS])
def test_cells_and_stored_weights(cell: str, sizes: dict[str, int], weights: str | None, tmp_path: Path) -> None:
    net = rnn.RNN(getattr(rnn.cells, cell), 4, 12, num_layers=2, **sizes).init(seed=3)
    module = rnn.compile(net, batch=[1, 4], weights=weights)
    module.export(bundle=tmp_path / "b", name=cell)
    shutil.move(tmp_path / "b", tmp_path / cell)
    agrees(module, tmp_path / cell, tmp_path, steps=5)


@pytest.mark.parametrize("directions", [1, 2])
def test_readme_and_cmake_name_every_file(directions: int, tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, Tiny(directions=directions))
    table = re.findall(r"^\| (`.*) \|", (bundle / "README.md").read_text(), re.M)
    named = {name for row in table for name in re.findall(r"[\w.]+\.\w+", row.split(" | ")[0])}
    assert named | {"README.md"} == {path.name for path in bundle.iterdir()}
    cmake = (bundle / "CMakeLists.txt").read_text()
    assert ("stream" in cmake) == (directions == 1) and "tiny::tiny" in cmake
