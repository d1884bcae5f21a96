"""The command line with networks from files: compile, show, run and inspect a .onnx file as a user would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from typer.testing import CliRunner

import tvm_rnn as rnn
from tvm_rnn.cli.commands import app
from tvm_rnn.cli.networks import name_inputs
from tvm_rnn.errors import ConfigError

RUN = CliRunner()


def write_model(path: Path, kinds: tuple[str, ...] = ("RNN",)) -> None:
    """Nodes one on top of the other with a tanh between them."""
    rng, nodes, constants, above = np.random.default_rng(0), [], [], "X"
    for i, kind in enumerate(kinds):
        rows = {"RNN": 3, "GRU": 9}[kind]
        for name in "WR":
            value = rng.uniform(-0.5, 0.5, (1, rows, 3)).astype("f4")
            constants.append(onnx.numpy_helper.from_array(value, f"{name}{i}"))
        nodes.append(make_node(kind, [above, f"W{i}", f"R{i}", "", "n"], [f"y{i}", f"h{i}"], kind.lower()))
        nodes += [make_node("Squeeze", [f"y{i}", "one"], [f"s{i}"]), make_node("Tanh", [f"s{i}"], [f"z{i}"])]
        above = f"z{i}"
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    inputs = [make_tensor_value_info("X", 1, ["T", "B", 3]), make_tensor_value_info("n", 6, ["B"])]
    outputs = [make_tensor_value_info(name, 1, None) for name in (above, "h0")]
    graph = make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 14)], ir_version=8), path)


def call(*words: Any) -> Any:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cli")
    write_model(found / "m.onnx")
    write_model(found / "two.onnx", ("RNN", "GRU"))
    np.save(found / "x.npy", np.ones((4, 2, 3), "f4"))
    np.save(found / "n.npy", np.array([4, 2], "i4"))
    done = call("compile", found / "m.onnx", "-o", found / "m.so")
    assert done.exit_code == 0, done.output
    assert f"run {found / 'm.so'} --input X=FILE.npy --input n=FILE.npy --output results.npz" in done.output
    return found


def test_run_takes_the_models_names(folder: Path) -> None:
    given = ["--input", f"X={folder / 'x.npy'}", "--input", f"n={folder / 'n.npy'}"]
    feeds = {"X": np.load(folder / "x.npy"), "n": np.load(folder / "n.npy")}
    expected = rnn.reference(rnn.from_onnx(folder / "m.onnx")).run(feeds)
    assert call("run", folder / "m.so", *given, "--output", folder / "all.npz").exit_code == 0
    found = np.load(folder / "all.npz")
    assert set(found.files) == {"z0", "h0"}
    for name in found.files:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
    assert call("run", folder / "m.so", *given, "--output", folder / "first.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(folder / "first.npy"), found["z0"])


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["--input", "x.npy"], "the inputs are not the model's", 1),
        (["--input", "x.npy", "--input", "n=n.npy", "--lengths", "n.npy"], "this module is a whole model", 2),
        (["--input", "Y=x.npy"], "no such input", 2),
    ],
)
def test_run_says_what_is_wrong(
    folder: Path, words: list[str], text: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = call("run", "m.so", *words, "--output", "wrong.npz")
    assert done.exit_code == code and text in done.output and not (folder / "wrong.npz").exists()


def test_inspect_says_where_it_is_from_and_what_it_does(folder: Path) -> None:
    text = call("inspect", folder / "m.so").output.replace("\n", "")
    for part in ("made from", "RNN 'rnn'", "m.onnx", "sha256", "steps: ", "Compiled (", "X, float32", "run"):
        assert part in text, part
    facts = json.loads(call("inspect", folder / "m.so", "--json").output)["manifest"]
    assert facts["origin"]["sha256"] and [d["name"] for d in facts["model"]["outputs"]] == ["z0", "h0"]


@pytest.mark.slow
def test_several_networks(folder: Path) -> None:
    done = call("compile", folder / "two.onnx", "-o", folder / "two.so", "--json")
    assert done.exit_code == 0, done.output
    assert [m["cell"] for m in json.loads(done.output)["manifest"]["networks"]] == ["elman", "gru_reset_before"]
    text = call("inspect", folder / "two.so").output
    assert "network 1" in text and "gru_reset_before, 1 layer" in text
    done = call("bench", folder / "two.so")
    assert done.exit_code == 2 and "one network is compared at a time" in done.output
    shown = call("show", folder / "two.onnx", "--stage", "hoist_gemms").output
    assert "== 0 hoist_gemms" in shown and "graph gru_reset_before" in shown


def test_show_of_one_network(folder: Path) -> None:
    assert call("show", folder / "m.onnx").output.startswith("graph elman")


@pytest.mark.parametrize(
    "options",
    [
        ["--input-size", 3],
        ["--hidden-size", 3],
        ["--layers", 2],
        ["--dtype", "float32"],
        ["--size", "P=3"],
        ["--seed", 0],
        ["--bidirectional"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_says_itself_what_it_is(folder: Path, options: list[Any]) -> None:
    done = call("compile", folder / "m.onnx", "-o", folder / "never.so", *options)
    assert done.exit_code == 2 and options[0] in done.output and "whole network" in done.output


def test_cells_have_sizes_of_the_users(folder: Path) -> None:
    done = call("compile", "lstm", "-o", folder / "never.so")
    assert done.exit_code == 2 and "--input-size 64 --hidden-size 256" in done.output
    done = call("compile", "lstm_projection", "-o", folder / "never.so", "--input-size", 2, "--hidden-size", 3)
    assert done.exit_code == 2 and "sizes of P" in done.output and "--size P=8" in done.output
    done = call("compile", folder / "none.onnx", "-o", folder / "never.so")
    assert done.exit_code == 2 and "no such ONNX file" in done.output
    done = call("cells", folder / "m.onnx")
    assert done.exit_code == 2 and "this is a network, not a cell" in done.output


def test_names_of_inputs() -> None:
    assert name_inputs(["a.npy", "n=b.npy"], ["x", "n"]) == {"x": "a.npy", "n": "b.npy"}
    with pytest.raises(ConfigError, match="given twice"):
        name_inputs(["a.npy", "x=b.npy"], ["x", "n"])


@pytest.mark.broad
def test_a_bundle_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    done = call("compile", folder / "m.onnx", "--bundle", tmp_path / "own")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "own" / "own.h").exists() and "next: read" in done.output and "README.md" in done.output
    found = call("inspect", tmp_path / "own" / "own.so").output
    assert "RNN 'rnn'" in found and f"{folder / 'm.onnx'}, sha256 " in found
    sizes = ("--input-size", 3, "--hidden-size", 4)
    done = call("compile", "elman", *sizes, "--seed", 0, "-o", tmp_path / "e.so", "--bundle", tmp_path / "e", "--json")
    facts = json.loads(done.stdout)
    assert facts["bundle"] == str(tmp_path / "e") and facts["bundle_bytes"] > facts["bytes"] > 0
    assert facts["output"] == str(tmp_path / "e.so")


def test_bundles_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    sizes = ("--input-size", 3, "--hidden-size", 4)
    for words, code, text in (
        (["elman", *sizes, "--bundle", tmp_path / "b"], 2, "--bundle needs weights"),
        (["elman", *sizes, "--seed", 0], 2, "nothing to write"),
        (["elman", *sizes, "--seed", 0, "--bundle", tmp_path / "none" / "b"], 2, "--bundle: no such folder"),
        (["elman", *sizes, "--seed", 0, "--bundle", tmp_path / "2b"], 2, "not a name in C"),
        (["elman", *sizes, "--seed", 0, "--bundle", folder], 2, "is not a bundle"),
        (["elman", *sizes, "--seed", 0, "--bundle", tmp_path / "b", "--target", "wasm32"], 2, "--web DIR"),
        (["elman", *sizes, "--seed", 0, "--web", tmp_path / "b"], 2, "--target wasm32"),
        (["elman", *sizes, "--seed", 0, "--web", tmp_path / "2b", "--target", "wasm32+relaxed-simd"], 2, "a name in C"),
    ):
        done = call("compile", *words)
        assert done.exit_code == code and text in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def test_inputs_are_fixed(folder: Path) -> None:
    done = call("show", folder / "m.onnx", "--shape", "X=9,B,3")
    assert done.exit_code == 0, done.output
    for words, said in (
        (["m.onnx", "--given", "z=1"], "no such input"),
        (["m.onnx", "--shape", "X=9"], "does not fit"),
        (["lstm", "--given", "sr=1"], "this is a cell"),
    ):
        done = call("show", folder / words[0] if ".onnx" in words[0] else words[0], *words[1:])
        assert done.exit_code != 0 and said in done.output, done.output
