"""What holds for every test of torch layers: one thread, and code that is compiled once for all test processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """torch's threads take a hundred times as long as one for layers this small, where others use the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def kept_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of compiled modules that the test processes of one run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept_code"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_RNN_CACHE", str(folder))
        yield folder
