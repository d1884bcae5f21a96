"""packages: models are made where their package is there; where it is not, the error says what to install."""

from __future__ import annotations

import sys

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.packages import MODELS, READERS, PackagedModel

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", MODELS)
def test_a_package_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = MODELS[name].package
    for module in ("resemblyzer", "BeatNet", "openunmix", "encodec"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(rnn.ConfigError, match=f"pip install {package}"):
        MODELS[name].model()
    assert "==" in package and MODELS[name].steps <= max(MODELS[name].shape)


@pytest.mark.parametrize("reader", READERS)
def test_readers_need_no_package(reader: PackagedModel) -> None:
    with torch.no_grad():
        assert reader.model()(torch.zeros(reader.shape)).shape == (16, reader.shape[0], 11)
    assert reader.is_installed
