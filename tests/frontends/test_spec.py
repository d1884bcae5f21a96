"""What a command line names: cells, sizes, batches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.errors import CellError, ConfigError
from tvm_rnn.frontends.spec import (
    build_net,
    find_cell,
    is_model,
    parse_batch,
    parse_bytes,
    parse_names,
    parse_probabilities,
    parse_shapes,
    parse_sizes,
    parse_values,
    read_model,
)

SOURCE = """
from tvm_rnn import cell, tanh
from beside import factor

@cell
def mine(x: "I", h: "H", *, W: "H I", R: "H H"):
    return tanh(W @ x + R @ h) * factor

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("factor = 0.5\n")
    path = tmp_path / "mycell.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_name_of_the_zoo() -> None:
    assert find_cell("lstm") is cells.lstm


def test_a_function_of_a_file_that_imports_its_neighbour(file: str) -> None:
    before = list(sys.path)
    assert find_cell(f"{file}:mine").name == "mine"
    assert find_cell(file).name == "mine"
    assert sys.path == before


def test_unknown_names_give_the_nearest_or_the_form() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lstm'"):
        find_cell("lsmt")
    with pytest.raises(ConfigError, match=r"file\.py:function"):
        find_cell("/nowhere")
    with pytest.raises(ConfigError, match="a network, not a cell"):
        find_cell("model.onnx")
    with pytest.raises(ConfigError, match="no such file"):
        find_cell("/nowhere.py:mine")


def test_what_is_wrong_inside_a_file(file: str) -> None:
    with pytest.raises(ConfigError, match=r"no such cell(.|\n)*'mine'"):
        find_cell(f"{file}:mime")
    with pytest.raises(ConfigError, match=r"not a cell(.|\n)*int(.|\n)*@cell"):
        find_cell(f"{file}:number")


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("x = 1\ny = 1 / 0\n", ConfigError, r"broken\.py:2(.|\n)*ZeroDivisionError"),
        ("def f(:\n", ConfigError, r"broken\.py:1(.|\n)*SyntaxError"),
        ("import not_there\n", ConfigError, r"broken\.py:1(.|\n)*not_there"),
        ("x = 1\n", ConfigError, "which cell"),
        ("from tvm_rnn import cell\n@cell\ndef f(x, h): ...\n", CellError, "dims"),
    ],
)
def test_a_file_that_fails_names_the_line(tmp_path: Path, source: str, error: type[Exception], text: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(error, match=text):
        find_cell(str(path))


def test_sizes_are_one_number_or_one_per_layer() -> None:
    assert parse_sizes(["P=16", "H=64, 32"]) == {"P": 16, "H": [64, 32]}
    for word in ("P", "P=", "=3", "P=x", "P=0", "P=-1", "2P=1", "P=1,,2"):
        with pytest.raises(ConfigError, match="NAME=INT"):
            parse_sizes([word])


def test_batches() -> None:
    assert parse_batch("1,16") == [1, 16] and parse_batch("") == []
    for text in ("0", "a", "1,", "1.5"):
        with pytest.raises(ConfigError, match="--batch"):
            parse_batch(text)


def test_numbers_of_bytes() -> None:
    assert [parse_bytes(text) for text in ("", "1500", "2k", "1.5M", "2G", "1T")] == [
        None,
        1500,
        2000,
        1_500_000,
        2_000_000_000,
        1_000_000_000_000,
    ]
    for text in ("many", "1X", "1.5", "M", "infG", "1e999k"):
        with pytest.raises(ConfigError, match="no number of bytes"):
            parse_bytes(text)


def test_names() -> None:
    assert parse_names("sm_80, sm_90a,") == ["sm_80", "sm_90a"] and parse_names(" ") == []


def test_probabilities() -> None:
    assert parse_probabilities("--dropout", "0.2") == 0.2 == parse_probabilities("--dropout", " .2")
    assert parse_probabilities("--zoneout", "h=0.1, c=0.05") == {"h": 0.1, "c": 0.05}
    for text in ("", "much", "h=", "h=0.1,c", "0.1,0.2", "h=0.1,h=0.2", "=0.1,0.2"):
        with pytest.raises(ConfigError, match=r"--zoneout[\s\S]*a probability, such as 0.1, or NAME=P,NAME=P"):
            parse_probabilities("--zoneout", text)


def test_a_net_with_regularisers() -> None:
    net = build_net(cells.get("lstm"), 8, 16, layers=2, regularisers={"dropout": 0.2, "zoneout": {"c": 0.05}})
    assert net.regularisers.facts() == {"dropout": 0.2, "zoneout": {"c": 0.05}}
    with pytest.raises(ConfigError, match="no such state"):
        build_net(cells.get("lstm"), 8, 16, regularisers={"zoneout": {"d": 0.05}})


def test_a_net_with_sizes_given_and_filled() -> None:
    net = build_net(cells.get("lstm"), 8, 16, layers=2, bidirectional=True, dtype="float64")
    assert (net.input_size, net.hidden_size, net.num_layers, net.num_directions, net.dtype) == (8, 16, 2, 2, "float64")
    assert build_net(cells.get("lstm"), 8, None, layers=2, sizes={"H": [4, 5]}).hidden_size == 5
    filled = build_net(cells.get("lstm_projection"), 8, None, fill=3)
    assert filled.output_size == 3 and filled.hidden_size == 3
    with pytest.raises(CellError, match="no size"):
        build_net(cells.get("lstm_projection"), 8, 16)


def test_every_cell_of_the_zoo_can_be_looked_at_with_small_sizes() -> None:
    for cell in cells.ZOO.values():
        assert build_net(cell, 4, None, fill=4).layers


def test_inputs_that_are_fixed() -> None:
    assert parse_values(["sr=16000", "s=0.5,-1", "t=1e3"]) == {"sr": 16000, "s": [0.5, -1], "t": 1000.0}
    assert isinstance(parse_values(["sr=16000"])["sr"], int)
    assert parse_shapes(["x=B, 576", "s=1"]) == {"x": ["B", 576], "s": [1]}
    for parse, words in ((parse_values, ["sr", "sr=", "=1", "sr=a"]), (parse_shapes, ["x", "x=", "x=-1", "=2"])):
        for word in words:
            with pytest.raises(ConfigError, match="expected: NAME="):
                parse([word])


def test_files_of_networks(tmp_path: Path) -> None:
    assert is_model("a/b.onnx") and not is_model("lstm") and not is_model("onnx") and not is_model("m.onnx:cell")
    with pytest.raises(ConfigError, match=r"--layers, --dtype"):
        read_model("m.onnx", ["--layers", "--dtype"])
    with pytest.raises(ConfigError, match="got:      --given\n"):
        read_model("m.keras", given={"sr": 1}, shapes={})
    rnn.to_onnx(rnn.RNN(cells.gru, 3, 4).init(), tmp_path / "m.onnx")
    assert read_model(str(tmp_path / "m.onnx")).cell is cells.gru


def test_a_module_is_no_cell() -> None:
    with pytest.raises(ConfigError, match=r"compiled already[\s\S]*tvm-rnn inspect"):
        find_cell("m.so")
