"""The example programs of whole models, as far as they can be looked at; test_program.py builds and runs them."""

from __future__ import annotations

from pathlib import Path

from tiny_module import Tiny

from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.bundle.model_examples import arguments, model_example
from tvm_rnn.runtime import runtime

ITEM = {"name": 'a"b', "dtype": "int32", "shape": None}
MODEL = {"inputs": [ITEM, {**ITEM, "name": "x"}], "outputs": [ITEM], "constants": [], "steps": []}


def test_names_are_written_as_c_has_them(tmp_path: Path) -> None:
    path = Tiny().write(tmp_path / "m.so", model=MODEL)
    facts = read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")
    assert arguments(facts) == " input_0.raw SHAPE input_1.raw SHAPE"
    for cpp in (False, True):
        text = model_example(facts, cpp)
        assert '"a\\042b"' in text and "{1, 1, 0}" in text and "tiny_run(" in text
