import importlib
import sys

import pytest

from tvm_rnn.earlier_names import MOVED


@pytest.mark.parametrize("name", MOVED)
def test_a_module_that_has_moved_is_found_under_its_earlier_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"has moved: import {MOVED[name]}$") as said:
        found = importlib.import_module(name)
    assert len(said) == 1
    assert found is importlib.import_module(MOVED[name])
    folder, _, own = name.rpartition(".")
    assert getattr(importlib.import_module(folder), own) is found


def test_a_name_that_never_was_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tvm_rnn.nowhere")
