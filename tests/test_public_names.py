"""What a user sees of tvm_rnn's names: types in an editor, `help`, `repr`, and equations in a notebook."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tvm_rnn as rnn
from tvm_rnn.language import functions

ROOT = Path(__file__).resolve().parent.parent
TYPES = {
    "rnn.RNN(rnn.cells.lstm, 3, 5)": "tvm_rnn.*RNN",
    "rnn.compile(rnn.RNN(rnn.cells.lstm, 3, 5))": "tvm_rnn.*Module",
    "rnn.to_torch(rnn.RNN(rnn.cells.lstm, 3, 5))": "tvm_rnn.*TorchLayer",
    "rnn.cells.lstm": "tvm_rnn.*Cell",
    "rnn.load('m.so')": "tvm_rnn.*Module",
    "rnn.explain(rnn.RNN(rnn.cells.lstm, 3, 5))": "tvm_rnn.*Explanation",
    "rnn.from_onnx('m.onnx')": "tvm_rnn.*RNN.*",
    "rnn.ConfigError('x')": "tvm_rnn.*ConfigError",
}


@pytest.fixture(scope="module")
def net() -> rnn.RNN:
    return rnn.RNN(rnn.cells.lstm, 3, 5, num_layers=2).init()


@pytest.mark.broad
def test_a_type_checker_knows_what_users_get(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "user.py"
    file.write_text("import tvm_rnn as rnn\n" + "".join(f"reveal_type({text})\n" for text in TYPES))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    found = re.findall(r"user\.py:(\d+): note: Revealed type is \"(.*)\"", said)
    assert [int(line) for line, _ in found] == list(range(2, 2 + len(TYPES))), said
    for (text, wanted), (_, got) in zip(TYPES.items(), found, strict=True):
        assert re.fullmatch(wanted, got), f"{text}: {got}"


def test_every_name_is_there() -> None:
    assert all(getattr(rnn, name) is not None for name in rnn.__all__)
    assert {*rnn.__all__} <= {*dir(rnn)}
    with pytest.raises(AttributeError, match="no attribute 'importlib_'"):
        getattr(rnn, "importlib" + "_")
    assert not hasattr(rnn, "FooError")
    for name, meant in (("tanhh", "tanh"), ("compil", "compile"), ("rnn", "RNN")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean '{meant}'"):
            getattr(rnn, name)


def test_every_parameter_has_a_line() -> None:
    """Of what users call; functions of equations have arguments that speak for themselves."""
    own = {name: getattr(rnn, name) for name in rnn.__all__ if name not in vars(functions)}
    called = {n: v for n, v in own.items() if inspect.isfunction(v)} | {"RNN": rnn.RNN, "Cell": rnn.Cell}
    assert {"compile", "explain", "tune", "reference", "load", "from_torch", "to_torch"} <= called.keys()
    for name, value in called.items():
        lines = [line.strip().lstrip("*").partition(":")[0] for line in (value.__doc__ or "").splitlines()]
        assert [p for p in inspect.signature(value).parameters if p not in lines] == [], name


def test_help_shows_the_cell() -> None:
    text = pydoc.render_doc(rnn.cells.lstm, renderer=pydoc.plaintext)
    assert "Long short-term memory (Hochreiter & Schmidhuber 1997" in text and "c' = f c + i g" in text
    assert re.search(r"lstm\(x: 'I', h: 'H', c: 'H', \*, W: '4 H I'", text) and "the function that relates" not in text
    assert list(inspect.signature(rnn.cells.lstm).parameters) == ["x", "h", "c", "W", "R", "b"]
    assert "A recurrent cell" in pydoc.render_doc(rnn.Cell, renderer=pydoc.plaintext)


def test_repr_says_what_it_is(net: rnn.RNN) -> None:
    assert repr(rnn.cells.lstm).startswith("<cell lstm(x[I], state h[H], state c[H], *, W[4, H, I]")
    assert repr(net) == "<RNN lstm H=5, I=3 layers=2 directions=1 float32>"


def drawn(text: str) -> list[str]:
    """The equations, each as its text without markup."""
    rows = re.findall(r"<math.*?</math>", text)
    return ["".join(ElementTree.fromstring(re.sub(r"&(?!amp|lt|gt)\w+;", "?", row)).itertext()) for row in rows]


def test_equations_are_drawn(net: rnn.RNN) -> None:
    rows = drawn(rnn.cells.lstm._repr_html_())
    assert any(row.startswith("ct=") and "tanh" in row for row in rows) and any(row.startswith("ht=") for row in rows)
    assert len(drawn(net._repr_html_())) == 2 * len(rows)  # two layers of two sizes
    assert "&lt;RNN lstm" in net._repr_html_()


def test_every_cell_of_the_zoo_is_drawn() -> None:
    assert [name for name in rnn.cells.names() if not drawn(rnn.cells.get(name)._repr_html_())] == []


@pytest.mark.broad
def test_a_module_draws_the_equations_that_it_was_compiled_from(net: rnn.RNN, tmp_path: Path) -> None:
    module = rnn.compile(net)
    assert module._repr_html_() == net._repr_html_()
    module.export(tmp_path / "m.so")
    assert rnn.load(tmp_path / "m.so")._repr_html_() is None
