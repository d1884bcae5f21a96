"""ONNX's own tests through from_onnx and compile: passed, refused by name, wrong; none may be wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import onnx_cases
import pytest
from onnx_cases import GROUPS, SMALL, Case, Found, _all_worked, cases, fixed, main, outcome


def test_small_inputs_are_constants() -> None:
    found = cases("moves", ("squeeze",))  # and those of other files that something has read before
    case, *_ = (case for case in found if case.name.startswith("test_squeeze") and len(case.inputs) == 2)
    made, given = fixed(case.model, case.inputs)
    assert [*given] == [case.model.graph.input[0].name]
    assert made.graph.initializer[0].name == case.model.graph.input[1].name


def test_stored_tests_are_read() -> None:
    found = {case.name: case for case in cases(SMALL)}
    assert found["test_sign_model"].inputs and found["test_sign_model"].outputs
    counted = Found(SMALL, {"a": "passed", "b": "refused: why", "c": "passed"})
    assert str(counted).split()[2:] == ["2", "passed", "1", "refused", "0", "wrong"] and counted.of("refused") == {
        "b": "refused: why"
    }


def test_records_have_every_test_as_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_cases, "cases", lambda group: iter([Case(f"{group} 1", object(), [], [])]))
    ended = [(SMALL, "a", "passed"), (SMALL, "b", "wrong: values, by 1: 2")]
    monkeypatch.setattr(onnx_cases, "_all_worked", lambda work, jobs, limit: iter(ended))
    assert main(["--records", str(tmp_path / "r.jsonl"), SMALL]) == 1
    facts, *lines = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert facts["versions"]["onnx"] == onnx.__version__
    assert [(own["name"], own["outcome"], own["reason"]) for own in lines] == [
        ("a", "passed", ""),
        ("b", "wrong", "values, by 1: 2"),
    ]


def test_only_what_did_not_pass_before_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_cases, "cases", lambda group: (Case(name, object(), [], []) for name in "ab"))
    (tmp_path / "before.jsonl").write_text(f"{json.dumps({'group': SMALL, 'name': 'a', 'outcome': 'passed'})}\n")
    ran = list[str]()

    def worked(work: list[tuple[str, Case]], jobs: int, limit: float) -> list[tuple[str, str, str]]:
        ran.extend(case.name for _, case in work)
        return []

    monkeypatch.setattr(onnx_cases, "_all_worked", worked)
    assert main(["--after", str(tmp_path / "before.jsonl"), SMALL]) == 0
    assert ran == ["b"]


class _Ender:
    """What ends the process that reads it."""

    def __reduce__(self) -> object:
        return os._exit, (3,)


@pytest.mark.broad
def test_what_ends_its_process_is_wrong_and_others_are_still_run() -> None:
    strange = Case("strange", object(), [object()], [])
    found = [*_all_worked([("a", Case("ends", _Ender(), [], [])), ("b", strange)], 1, 60)]
    assert found == [
        ("a", "ends", "wrong: it ends the process (3)"),
        ("b", "strange", "refused: values that are no arrays"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_node_tests(group: str) -> None:
    found = Found(group, {case.name: outcome(case) for case in cases(group)})
    print(found, *found.of("refused").items(), sep="\n")
    assert found.of("wrong") == {} and found.of("passed")
