"""`tvm-rnn explain` and `tvm-rnn doctor`: words in, text or JSON out."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from networks import compiled

from tests.cli.test_commands import call


def test_a_cell_is_explained() -> None:
    page = call("explain", "gru", "--target", "x86-64-v4", "--batch", "4")
    assert page.startswith("gru: 1 layer, float32, for x86-64-v4, made for B = 4")
    assert "R @ h: reads h" in page


def test_facts_for_machines() -> None:
    words = ("--target", "x86-64-v4", "--dtype", "float64", "--hidden-size", "64", "--steps", "7", "--json")
    (found,) = json.loads(call("explain", "lstm", *words))["networks"]
    assert found["precision"] == "float64" and found["work"][0]["steps"] == 7 and found["phases"]


def test_a_module_is_explained_by_its_file(tmp_path: Path) -> None:
    compiled("gru", 4, 8)[1].export(tmp_path / "gru.so")
    assert "W @ x: reads no state" in call("explain", str(tmp_path / "gru.so"))
    assert "a module says itself" in call("explain", str(tmp_path / "gru.so"), "--without", "hoist_gemms", code=2)


@pytest.mark.broad
def test_memory_of_training_is_planned() -> None:
    words = ("--target", "x86-64-v4", "--training", "--steps", "50", "--batch", "4")
    page = call("explain", "elman", *words, "--max-bytes", "1G")
    assert "plans of training's memory for T = 50, B = 4" in page and "> max_bytes = 1000000000: chosen" in page
    assert "no plan for 50 steps" in call("explain", "elman", *words, "--max-bytes", "1k", code=1)
    assert "no such choice" in call("explain", "elman", *words, "--keep", "all", code=2)
    assert "only training keeps anything" in call("explain", "elman", "--keep", "states", code=2)


@pytest.mark.parametrize("missing", ["grandalf", "vl_convert"])
def test_what_draws_is_asked_for_before_anything_is_measured(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def explained(*args: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(import_module("tvm_rnn.explain.explanation"), "explain", explained)
    said = call("explain", "gru", "--measure", "--html", str(tmp_path / "gru.html"), code=2)
    assert f"{missing.replace('vl_convert', 'vl-convert-python')} is not installed" in said and "pip install" in said


def test_a_pass_that_there_is_not() -> None:
    assert "no such pass" in call("explain", "gru", "--without", "nonsense", code=2)


def test_a_modules_cell_can_be_named(tmp_path: Path) -> None:
    compiled("gru", 4, 8)[1].export(tmp_path / "gru.so")
    module = str(tmp_path / "gru.so")
    assert "not_drawn" not in json.loads(call("explain", module, "--cell", "gru", "--json"))["networks"][0]
    assert (
        "not this module's"
        in json.loads(call("explain", module, "--cell", "lstm", "--json"))["networks"][0]["not_drawn"]
    )
    assert "--cell is for modules" in call("explain", "gru", "--cell", "gru", code=2)


@pytest.mark.broad
def test_regularisers_are_explained() -> None:
    text = call("explain", "lstm", "--training", "--zoneout", "0.1", "--weight-drop", "R=0.5")
    assert "in training zoneout h 0.1, c 0.1; weight drop R 0.5" in text
    assert "no such state" in call("explain", "lstm", "--recurrent-dropout", "d=0.1", code=2)
