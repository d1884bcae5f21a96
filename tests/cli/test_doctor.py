"""doctor: what is installed and what works; what is broken becomes a reason, and the other checks go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tvm_rnn as rnn
from tests.cli.test_commands import call
from tvm_rnn import target
from tvm_rnn.cli import doctor
from tvm_rnn.compiler import compile as build
from tvm_rnn.cpu import c_compiler
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.errors import BuildError, message
from tvm_rnn.target import names


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    return doctor.examine()


def text(found: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(doctor.page(found))
    return capture.get()


def broken(*_: Any) -> Any:
    raise BuildError(message("no C++ compiler to link with", got="none of them", do="install g++"))


def test_this_machine_works(healthy: dict[str, Any]) -> None:
    assert healthy["works"] and healthy["tried"]["error"] < 1e-5
    assert json.loads(json.dumps(healthy)) == healthy
    assert list(healthy["targets"]) == names()
    assert healthy["targets"]["llvm"] == {"compiles": True, "runs": True}
    assert healthy["cpu"]["mcpu"] == target.host().mcpu
    assert healthy["threads"]["allowed"] >= 1


def test_pins_are_those_of_the_project(healthy: dict[str, Any]) -> None:
    toml = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    for name, pin in doctor.pins().items():
        if name in ("apache-tvm", "apache-tvm-ffi"):
            assert f'"{name}{pin}"' in toml and healthy["versions"][name]["ok"]


@pytest.mark.parametrize(
    ("got", "expected", "fits"),
    [
        ("0.27.0.post1", "==0.27.0.post1", True),
        ("0.27.0", "==0.27.0.post1", False),
        ("2.10.1", ">=2.9", True),
        ("2.4+cpu", ">=2.4", True),
        ("1.26", ">=2.0,<3", False),
        ("1", "", True),
    ],
)
def test_versions_are_compared(got: str, expected: str, fits: bool) -> None:
    assert doctor.satisfies(got, expected) == fits


def test_a_wrong_pin_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "typer" else "0.1")
    found, problems = doctor._versions()
    assert not found["numpy"]["ok"] or not doctor.pins()
    assert any(line.startswith("typer: got none") for line in problems)


def test_a_missing_compiler_is_said_for_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "find_compiler", broken)
    monkeypatch.setattr(nvcc, "find", broken)
    found = doctor.examine()
    assert not found["works"] and "no C++ compiler to link with: none of them" in found["problems"][-1]
    for row in found["targets"].values():
        assert row["compiles"] is not True
    page = text(found)
    assert "the CPU path does not work" in page and "no C++ compiler" in page


def test_what_the_page_says(healthy: dict[str, Any]) -> None:
    page = text(healthy)
    assert f"tvm_rnn {rnn.__version__} on " in page and "a cell was compiled and run on this CPU" in page
    for name in (*names(), *doctor.PACKAGES, *healthy["environment"]):
        assert name in page


def test_a_result_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(net: Any, **options: Any) -> Any:
        return lambda x: (rnn.reference(net)(x)[0] + 1, None)

    monkeypatch.setattr(build, "compile", wrong)
    assert "something else than the oracle" in doctor._attempt(doctor._small_cell)["missing"]


def test_the_command_and_its_exit_code(healthy: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda tell: healthy)
    assert json.loads(call("doctor", "--json"))["works"] and "compiles here" in call("doctor")
    monkeypatch.setattr(doctor, "examine", lambda tell: {**healthy, "works": False})
    call("doctor", code=1)
