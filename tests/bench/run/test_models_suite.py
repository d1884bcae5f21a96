"""models_suite: files and torch models in one run, what of them is chosen, and their records in one file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import models_suite, onnx_files, whole_models
from tvm_rnn.bench.suites.onnx_files import OnnxFile
from tvm_rnn.bench.suites.packages import READERS, PackagedModel

FILE = OnnxFile("a file", "package/one.onnx", {"x": (3, 4)})
NOTHING: Any = None
MODEL = PackagedModel("a model", "numpy", lambda: NOTHING, (1,), 1)


def test_both_kinds_are_in_one_file_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def measured(models: Any, *rest: Any) -> Iterator[dict[str, Any]]:
        yield from ({"kind": "measured", "name": own.name} for own in models)

    monkeypatch.setattr(onnx_files, "measured", measured)
    monkeypatch.setattr(whole_models, "measured", measured)
    both = models_suite.Chosen({FILE: tmp_path}, [MODEL])
    found = models_suite.run(both, onnx_files.Options(threads=1), tmp_path / "records.jsonl")
    assert [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()] == found
    assert [own.get("name") for own in found] == [None, "a file", "a model"]
    assert found[0]["clock"].startswith("CPU time of the thread") and "torch" in found[0]["versions"]


def test_what_is_there_is_chosen_by_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    gone = PackagedModel("a lost model", "absent==1", lambda: NOTHING, (1,), 1)
    monkeypatch.setattr(models_suite, "MODELS", {own.name: own for own in (MODEL, gone)})
    monkeypatch.setattr(models_suite, "found_in", lambda folder: {FILE: tmp_path})
    assert models_suite.chosen([], None) == models_suite.Chosen({FILE: tmp_path}, [MODEL])
    assert models_suite.chosen(["file"], None) == models_suite.Chosen({FILE: tmp_path}, [])
    assert models_suite.chosen([], None, "cuda") == models_suite.Chosen({}, [*READERS, MODEL], "cuda")
    with pytest.raises(rnn.ConfigError, match="no model has all of these words"):
        models_suite.chosen(["file", "other"], None)


def test_no_package_at_all() -> None:
    with pytest.raises(rnn.TvmRnnError, match="pip install"):
        models_suite.run(models_suite.Chosen({}, []), onnx_files.Options(1))
