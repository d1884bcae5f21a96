"""`tvm-rnn tune` on this machine's CPU: its table, its JSON, its picture, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tvm_rnn.cli.commands import app
from tvm_rnn.cli.options import Devices, Measured, OnGpu, Search, Sizes, Tuning

pytestmark = pytest.mark.usefixtures("children_without_torch")

SMALL = ("--input-size", "5", "--hidden-size", "16", "--steps", "4", "--batch", "2", "--trials", "2")


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.slow
def test_a_search_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    picture, records = tmp_path / "search.svg", tmp_path / "records"
    printed = call("elman", *SMALL, "--records", str(records), "--plot", str(picture))
    assert "elman H=16 B=2 float32: " in printed and "x the defaults" in printed and "recorded in" in printed
    assert picture.read_text().startswith("<svg ") and list(records.glob("*/elman.jsonl"))


@pytest.mark.slow
def test_a_search_that_is_asked_for_again_has_nothing_left_to_measure(tmp_path: Path) -> None:
    records = tmp_path / "records"
    call("elman", *SMALL, "--records", str(records))
    found = json.loads(call("elman", *SMALL, "--records", str(records), "--json"))
    assert (
        found["resumed"] == found["trials"] > 0 and found["gain"] >= 1.0 and found["record"]["workload"]["batch"] == 2
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "which network?"),
        (["lstm"], "no --input-size"),
        (["m.so"], "a module is compiled already"),
        (["no_such", *SMALL], "no such cell"),
        (["lstm", *SMALL, "--plot", "picture.png"], "a name ending in .svg"),
        (["lstm", *SMALL, "--target", "x86-64-v3"], "tune measures on this machine"),
        (["lstm", *SMALL, "--rpc-tracker", "127.0.0.1:9190"], "a tracker's address alone"),
        (["lstm", *SMALL, "--device-key", "nuc"], "a device key alone"),
        (["lstm", *SMALL, "--rpc-tracker", "here", "--device-key", "nuc"], "expected: HOST:PORT"),
        (["lstm", *SMALL, "--rpc-tracker", "127.0.0.1:9", "--device-key", "nuc"], "the RPC tracker does not answer"),
    ],
)
def test_wrong_words_are_one_clear_error(words: list[str], expected: str) -> None:
    assert expected in call(*words, code=2)


def test_weights_that_are_not_there() -> None:
    assert "no/such.safetensors" in call("lstm", *SMALL, "--weights", "/no/such.safetensors", code=1)


def test_a_record_says_the_whole_command() -> None:
    from tvm_rnn.cli.tune import _command

    sizes = Sizes(8, 16, 2, True, "float64", ["P=4"])
    measured = Measured(steps=5, batch=3, target="x86-64-v3")
    asked = Tuning("lstm_projection", sizes, measured, Search(seconds=2.5), Devices(), OnGpu())
    assert _command(asked, 7) == (
        "tvm-rnn tune lstm_projection --input-size 8 --hidden-size 16 --layers 2 --dtype float64 --steps 5 --batch 3 "
        "--seconds 2.5 --bidirectional --size P=4 --target x86-64-v3 --trials 7"
    )
    plain = replace(asked, sizes=Sizes(8, 16), measured=Measured(steps=5, batch=3), search=Search(seconds=90.0))
    assert _command(plain, 7).endswith("--hidden-size 16 --steps 5 --batch 3 --seconds 90 --trials 7")
