"""Messages in four slots, unknown names with the nearest known one, and one family of classes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn import errors
from tvm_rnn.errors import message, not_installed, unknown

ROOT = Path(__file__).resolve().parent.parent


def test_message_has_four_slots_in_order() -> None:
    text = message("it failed", do="this", expected=4, got=[3], where="cell.py:12")
    assert text.splitlines() == [
        "it failed",
        "  where:    cell.py:12",
        "  got:      [3]",
        "  expected: 4",
        "  do:       this",
    ]


def test_empty_slots_are_left_out() -> None:
    assert message("it failed") == "it failed"
    assert message("it failed", got=0).splitlines() == ["it failed", "  got:      0"]


@pytest.mark.parametrize(
    ("name", "known", "do"),
    [
        ("lsmt", ["gru", "lstm"], "did you mean 'lstm'?"),
        ("zzz", ["gru", "lstm"], "use a known cell"),
        (4, ["gru"], "use a known cell"),
        ("x", [], "use a known cell"),
        ("LSTM", ["gru", "lstm"], "did you mean 'lstm'?"),
        ("tile", ["te", "tile_layers_and_time"], "did you mean 'tile_layers_and_time'?"),
    ],
)
def test_unknown_names_list_the_known_ones(name: object, known: list[str], do: str) -> None:
    slots = unknown("cell", name, reversed(known))
    assert slots["got"] == repr(name) and slots["do"] == do
    assert slots["expected"] == f"one of: {', '.join(known) or 'none'}"


def test_every_error_is_public_and_of_one_family() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) == 9
    for kind in classes:
        assert issubclass(kind, rnn.TvmRnnError) and getattr(rnn, kind.__name__) is kind and kind.__doc__


def test_what_is_missing_is_installed_by_the_name_that_an_index_has() -> None:
    """tvm_rnn is in none: its extras cannot be what pip is told to install. They ask for the same packages."""
    tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML from Python 3.11 on")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, package in (
        ("onnx", "onnx"),
        ("keras", "h5py"),
        ("report", "grandalf"),
        ("report", "vl-convert-python"),
    ):
        words = shlex.split(not_installed(package).split("do:")[1])
        assert words == ["pip", "install", *extras[extra]]
    assert not_installed("torch", "or do without").endswith("pip install torch; or do without")


def test_no_message_tells_to_install_an_extra_from_an_index() -> None:
    for path in [*ROOT.glob("tvm_rnn/**/*.py"), *ROOT.glob("tutorials/**/*.py")]:
        assert not re.search(r"pip install .?tvm_rnn\[", path.read_text()), path
