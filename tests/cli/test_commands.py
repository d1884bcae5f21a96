"""The command line: what each command prints and writes, its exit codes, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import toolchain
from safetensors.numpy import save_file
from typer.testing import CliRunner

import tvm_rnn as rnn
from tvm_rnn.cli.commands import app
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.records import Choice, Record
from tvm_rnn.schedule.record_files import merge
from tvm_rnn.schedule.schedule_template import templates
from tvm_rnn.target import resolve
from tvm_rnn.tune.workload import Trial

pytestmark = pytest.mark.usefixtures("children_without_torch")

SIZES = ["--input-size", "4", "--hidden-size", "8"]
COMMANDS = ("compile", "run", "show", "inspect", "cells", "bench")
Paths = dict[str, str]


def call(*words: str, code: int = 0) -> str:
    """stdout of a command that must exit with `code` (stderr, where that is not 0)."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("lstm") / "lstm.so")
    call("compile", "lstm", "-o", path, *SIZES, "--seed", "3")
    return path


@pytest.fixture
def files(tmp_path: Path) -> Paths:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.uniform(-1, 1, (5, 3, 4)).astype("float32"))
    names = ("x.npy", "y.npy", "s.npz", "n.npy", "r.npy", "w.safetensors", "out.so")
    return {name.split(".")[0]: str(tmp_path / name) for name in names}


def oracle(seed: int = 3) -> Any:
    return rnn.reference(rnn.RNN(rnn.cells.lstm, 4, 8).init(seed))


def test_help_says_what_to_do_and_every_command_gives_an_example() -> None:
    assert all(f" {name} " in call("--help") for name in COMMANDS)
    for name in COMMANDS:
        assert f"$ tvm-rnn {name} " in call(name, "--help")


def test_no_arguments_print_help_and_the_version_is_known() -> None:
    result = CliRunner().invoke(app, [])
    assert "compile" in result.output and "Traceback" not in result.output
    assert call("--version").split() == call("-V").split() == ["tvm-rnn", rnn.__version__]


def test_help_and_lists_do_not_import_the_compiler() -> None:
    code = """
import sys, tvm_rnn.cli as c
for words in (["--help"], ["cells"], ["compile", "--help"]):
    try: c.app(words)
    except SystemExit: assert 'tvm' not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_no_error_of_ours() -> None:
    command = f"{sys.executable} -m tvm_rnn cells --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "[\n" and "Traceback" not in done.stderr


@pytest.mark.broad
def test_tables_in_a_pipe_are_not_folded() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "tvm_rnn", "cells"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert len(done.stdout.splitlines()) == 1 + len(rnn.cells.names())


def test_cells_lists_the_zoo_and_tells_all_about_one() -> None:
    listed = call("cells")
    assert all(name in listed for name in rnn.cells.names())
    assert [row["name"] for row in json.loads(call("cells", "--json"))] == rnn.cells.names()
    one = call("cells", "lstm")
    assert "c' = f c + i g" in one and "[4, H, I]" in one and "--hidden-size" in one
    assert json.loads(call("cells", "lstm", "--json"))["weights"]["W"] == ["4", "H", "I"]


@pytest.mark.broad
def test_compile_says_what_it_wrote(files: Paths, tmp_path: Path) -> None:
    text = call("compile", "lstm", "-o", files["out"], *SIZES)
    assert text.startswith(f"wrote {files['out']}: lstm") and "--weights" in text and "\nSHA-256 " in text
    dump = tmp_path / "stages"
    flags = ["--layers", "2", "--bidirectional", "--dtype", "float64", "--batch", "1,4", "--seed", "0"]
    words = [*SIZES, *flags, "--without", "hoist_gemms", "--dump", str(dump), "--json"]
    facts = json.loads(call("compile", "elman", "-o", files["out"], *words))
    manifest = facts["manifest"]
    assert facts["output"] == files["out"] and facts["bytes"] == os.path.getsize(files["out"])
    assert facts["sha256"] == json.loads(call("inspect", files["out"], "--json"))["sha256"]
    assert (manifest["num_layers"], manifest["num_directions"], manifest["dtype"]) == (2, 2, "float64")
    assert manifest["batch"] == [1, 4] and "hoist_gemms" not in manifest["passes"]
    assert any("trace" in name for name in os.listdir(dump))


@pytest.mark.slow
def test_compile_for_training_with_regularisers_and_a_budget(tmp_path: Path) -> None:
    path = str(tmp_path / "trained.so")
    how = ["--training", "--layers", "2", "--dropout", "0.25", "--zoneout", "h=0.1,c=0.05", "--max-bytes", "20k"]
    call("compile", "lstm", "-o", path, *SIZES, "--seed", "3", *how)
    manifest = json.loads(call("inspect", path, "--json"))["manifest"]
    assert manifest["regularisers"] == {"dropout": 0.25, "zoneout": {"h": 0.1, "c": 0.05}}
    assert manifest["memory"]["max_bytes"] == 20_000 == rnn.load(path).max_bytes
    text = call("inspect", path)
    assert "dropout 0.25; zoneout h 0.1, c 0.05" in text and "20" in text[text.index("budget") :]


@pytest.mark.slow
def test_compile_for_a_gpu(files: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = toolchain()
    monkeypatch.setattr(nvcc, "find", lambda: tools)
    words = ["--target", "nvidia-h200", "--arch", "sm_90a", "--dtype", "float16", "--seed", "0"]
    text = call("compile", "elman", "-o", files["out"], *SIZES, *words, "--weight-dtype", "float8_e4m3")
    assert "elman for sm_90a in float16" in text
    text = call("inspect", files["out"])
    assert "kernels for sm_90a" in text and "float8_e4m3; in the file" in text
    assert json.loads(call("inspect", files["out"], "--json"))["manifest"]["weight_dtype"] == "float8_e4m3"
    monkeypatch.setenv("FAKE_GPUS", "90")
    np.save(files["x"], np.load(files["x"]).astype("f2"))
    call("run", files["out"], "--input", files["x"], "--output", files["y"])
    assert np.load(files["y"]).shape == (5, 3, 8)


@pytest.mark.broad
def test_compile_of_a_cell_in_a_file(files: Paths, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from tvm_rnn import cell, tanh\n@cell\ndef mine(x: 'I', h: 'P', *, W: 'P I', R: 'P P'):\n"
        "    return tanh(W @ x + R @ h)\n"
    )
    words = ["--input-size", "4", "--size", "P=8", "--seed", "0", "--json"]
    facts = json.loads(call("compile", f"{source}:mine", "-o", files["out"], *words))
    assert facts["manifest"]["cell"] == "mine" and facts["manifest"]["output"]["shape"] == [8]


def test_run_gives_what_the_oracle_gives(lstm: str, files: Paths) -> None:
    said = call("run", lstm, "--input", files["x"], "--output", files["y"], "--state-out", files["s"])
    assert f"wrote {files['y']}: y float32 [5, 3, 8]" in said and f"wrote {files['s']}: h float32" in said
    y, state = oracle()(np.load(files["x"]))
    with np.load(files["s"]) as after:
        assert_close((np.load(files["y"]), dict(after)), (y, state), "float32", 5)
    call("run", lstm, "--input", f"x={files['x']}", "--output", files["y"], "--state-in", files["s"])
    assert_close(np.load(files["y"]), oracle()(np.load(files["x"]), state)[0], "float32", 5)


@pytest.mark.broad
def test_run_with_lengths_resets_and_weights_of_their_own(files: Paths) -> None:
    call("compile", "lstm", "-o", files["out"], *SIZES)
    net = rnn.RNN(rnn.cells.lstm, 4, 8).init(7)
    save_file(net.weights, files["w"])
    lengths, reset = np.array([5, 0, 2]), np.zeros((5, 3), bool)
    reset[2, 0] = True
    np.save(files["n"], lengths)
    np.save(files["r"], reset)
    words = ["run", files["out"], "--input", files["x"], "--output", files["y"], "--lengths", files["n"]]
    assert "no weights" in call(*words, code=1)
    call(*words, "--reset", files["r"], "--weights", files["w"])
    expected, _ = oracle(7)(np.load(files["x"]), lengths=lengths, reset=reset)
    assert_close(np.load(files["y"]), expected, "float32", 5)


@pytest.mark.broad
def test_run_takes_further_inputs_by_name(files: Paths, tmp_path: Path) -> None:
    call("compile", "augru", "-o", files["out"], *SIZES, "--seed", "0")
    a = str(tmp_path / "a.npy")
    np.save(a, np.full((5, 3, 1), 0.5, "float32"))
    call("run", files["out"], "--input", files["x"], "--input", f"a={a}", "--output", files["y"])
    net = rnn.RNN(rnn.cells.augru, 4, 8).init(0)
    assert_close(np.load(files["y"]), rnn.reference(net)(np.load(files["x"]), a=np.load(a))[0], "float32", 5)
    wrong = ["run", files["out"], "--input", files["x"], "--output", files["y"]]
    assert "a" in call(*wrong, code=1)
    assert "no such input" in call(*wrong, "--input", f"b={a}", code=2)
    assert "given twice" in call(*wrong, "--input", f"x={files['x']}", code=2)


def test_run_writes_nothing_when_it_fails(lstm: str, files: Paths, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    words = ["run", lstm, "--input", files["x"], "--output"]
    call(*words, files["y"], "--state-out", str(tmp_path / "none" / "s.npz"), code=1)
    call(*words, files["y"], "--state-out", files["y"], code=2)
    np.save(files["n"], np.array([9, 9, 9]))
    call(*words, files["y"], "--lengths", files["n"], code=1)
    os.unlink(files["n"])
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.broad
def test_show_prints_one_stage_or_all() -> None:
    assert "sigmoid" in call("show", "lstm")
    assert "graph lstm backward" in call("show", "lstm", "--stage", "differentiate", "--training")
    assert "==" not in call("show", "lstm_projection", "--stage", "combine_gemms")
    everything = json.loads(call("show", "gru", "--stage", "all", "--json", "--layers", "2"))
    names = [row["stage"] for row in everything]
    assert set(names) >= {"trace", *PASS_NAMES, "te", "tir", "llvm", "asm"} and all(r["text"] for r in everything)
    assert call("show", "gru", "--stage", "all").count("== ") >= len(set(names))


@pytest.mark.broad
def test_show_takes_the_records_that_compile_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Trial()
    rnn.compile(rnn.RNN(rnn.cells.lstm, 8, 16), batch=4, records=asked)
    walk = next(unit for unit in asked.asked.values() if unit.kind == "walk")
    choice = Choice(walk.key, "walk_cpu", templates()["walk_cpu"].version, {"rows": 64})
    work = {"cell": "lstm", "hidden": 16, "batch": 4, "precision": "float32"}
    merge(tmp_path, [Record(resolve("llvm").records_name, work, (choice,), 1.0, 2.0)])
    words = ("show", "lstm", "--stage", "tile_layers_and_time", "--batch", "4")
    assert " 64 rows" not in call(*words)
    monkeypatch.setenv("TVM_RNN_RECORDS", str(tmp_path))
    assert " 64 rows" in call(*words)


def test_show_has_masks() -> None:
    text = call("show", "lstm", "--training", "--recurrent-dropout", "0.2", "--stage", "hoist_gemms")
    assert "mask" in text and "mask" not in call("show", "lstm", "--training", "--stage", "hoist_gemms")


def test_show_of_a_stage_that_was_left_out() -> None:
    message = call("show", "lstm", "--stage", "hoist_gemms", "--without", "hoist_gemms", code=2)
    assert "left out" in message


def test_inspect_reads_the_manifest_and_runs_nothing(lstm: str, files: Paths) -> None:
    text = call("inspect", lstm)
    assert "lstm" in text and "[4, 8, 4]" in text and "in the file" in text
    facts = json.loads(call("inspect", lstm, "--json"))
    assert facts["has_weights"] is True and facts["bytes"] == os.path.getsize(lstm)
    assert facts["manifest"]["weights"][0] == {"name": "W_l0", "shape": [4, 8, 4]}
    Path(files["out"]).write_bytes(Path(lstm).read_bytes()[:-10])
    assert "error: " in call("inspect", files["out"], code=1)


@pytest.mark.slow
def test_bench_prints_a_table_or_json(lstm: str) -> None:
    words = ["bench", lstm, "--against", "numpy", "--steps", "3", "--batch", "2", "--threads", "1", "--rounds", "1"]
    assert "numpy" in call(*words)
    rows = json.loads(call(*words, "--json"))["rows"]
    assert [row["name"] for row in rows] == ["tvm_rnn", "numpy"] and all(row["median_us"] > 0 for row in rows)
