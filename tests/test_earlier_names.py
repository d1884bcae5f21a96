import importlib

import pytest

import tvm_rnn
from tvm_rnn.earlier_names import MOVED


@pytest.mark.parametrize("name", MOVED)
def test_a_module_that_has_moved_is_found_under_its_earlier_name(name: str) -> None:
    found = importlib.import_module(name)
    assert found is importlib.import_module(MOVED[name])
    assert getattr(tvm_rnn, name.rpartition(".")[2]) is found


def test_a_name_that_never_was_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tvm_rnn.nowhere")
