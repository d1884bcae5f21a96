"""torch_own_tests: which tests of a file run on our layers, and the table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch_own_tests as own
import unoptimised
from torch_own_tests import FAILED, OTHER, PASSED, Result

import tvm_rnn as rnn

FILE = """
import unittest
import torch

class TestNN(unittest.TestCase):
    def test_rnn_is_ours(self):
        assert "tvm_rnn" in str(torch.nn.GRU(2, 3))

    def test_LSTM_fails(self):
        raise ValueError("told")

    def test_LSTM_cell(self):
        pass

    @unittest.skip("no such device")
    def test_gru_elsewhere(self):
        pass

    def test_linear(self):
        raise ValueError
"""


class FunctionInput:
    """A call, as torch's samples have it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


def test_the_table_has_every_reason() -> None:
    results = [
        Result("a", PASSED),
        Result("b", FAILED, "x | y"),
        Result("c", FAILED, "torch.jit.script"),
        Result("d", OTHER, "z"),
    ]
    found = own.table(results)
    assert found.startswith("1 passed, 2 failed, 1 not applicable") and "| b | failed | x / y |" in found
    assert "torch's own words" in found and not own.reason_of(results[1])


def test_a_failure_is_told_in_the_words_of_its_error() -> None:
    trace = 'Traceback:\n  File "a"\n    raise ValueError\nValueError: told\nmore\n\nTo execute this test: ...\n'
    assert own.last_words(trace) == "ValueError: told" and own.last_words("nothing\nelse") == "else"


def test_one_result_of_each_name(tmp_path: Path) -> None:
    results = [Result("a", PASSED), Result("b", OTHER, "z"), Result("a", FAILED, "sample 1: told"), Result("a", PASSED)]
    found = own.merged(results)
    assert found == [Result("a", FAILED, "sample 1: told"), results[1]]
    pytest.importorskip("torch")
    own.write(tmp_path / "r.jsonl", [*found, Result("c", FAILED, "repr")], "2.0")
    facts, *lines = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert facts["versions"]["torch's test files"] == "2.0" and lines[0]["reason"] == "sample 1: told"
    assert [line["name"] for line in lines] == ["a", "b", "c"] and "whose it is" in lines[2]["reason"]


def test_a_test_without_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "LIMIT", 1)
    found = own.attempt("endless", lambda: time.sleep(60))
    assert found == Result("endless", FAILED, "TimeoutError: no end within 1 s")


@pytest.mark.broad
def test_a_gradient_of_which_float32_has_no_more_digits() -> None:
    """A sample as module_db draws them, but larger: gates are near 0 and 1, and torch's own layer is as far from
    float64 as ours."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(39)
    peer = torch.nn.GRU(2, 3, 2, bias=False, bidirectional=True)
    given = [torch.empty(*shape).uniform_(-300, 300).requires_grad_() for shape in ((3, 2), (4, 3))]
    with unoptimised.code():
        ours = rnn.nn.GRU(2, 3, 2, bias=False, bidirectional=True)
        ours.load_state_dict(peer.state_dict())
        call = FunctionInput(*given)
        found = own.attempt("gradients", lambda: own.gradients(ours, peer, call, None))
    assert found.outcome == FAILED and "torch's own layer is off by" in found.reason
    assert own.reason_of(found).startswith("float32 has no more digits here: torch's own layer is off by ")


@pytest.mark.broad
def test_a_file_of_tests(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "test_nn.py").write_text(FILE)
    parts = [result for part in ("0/2", "1/2") for result in own.collected(str(tmp_path), "test_nn", part)]
    found = {result.name.rpartition(".")[2]: result for result in parts}
    assert {name: result.outcome for name, result in found.items()} == {
        "test_rnn_is_ours": PASSED,
        "test_LSTM_fails": FAILED,
        "test_LSTM_cell": OTHER,
        "test_gru_elsewhere": OTHER,
    }
    assert found["test_LSTM_fails"].reason == "ValueError: told" and found["test_LSTM_cell"].reason == own.CELLS
    with pytest.raises(RuntimeError, match="test_none"):
        own.collected(str(tmp_path), "test_none")
