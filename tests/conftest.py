"""What holds for every test: schedules are the templates' own, whatever this machine's user has tuned; the tiers: which
cases of a sweep are quick, and which files have a quick test; and where LLVM does not optimise.

A test is quick (`make test`) unless it is marked `broad` or `slow`. `@pytest.mark.broad_after(2)` leaves the first two
cases of a parametrised test quick and marks the others `broad`; `slow_after(n)` marks all but the first n `slow`. Of a
sweep over the zoo (parameter `name`), `@pytest.mark.few_cells` leaves one cell for each kind of lowering in its tier;
the others go to the next one.
"""

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import unoptimised

os.environ["TVM_RNN_RECORDS"] = "none"
os.environ["TVM_RNN_CACHE"] = "none"
LEFT_OUT = ("broad", "slow")  # of `make test`
FEW_CELLS = {
    *("lstm", "gru_reset_before", "lstm_layer_norm", "lstm_projection", "lstm_attention", "rhn", "sru", "conv_lstm"),
    *("lif", "mlstm", "delta_net", "mamba2", "rwkv7"),
}
FILES = pytest.StashKey[dict[Path, bool]]()
CASES = pytest.StashKey[Counter[str]]()
# Folders and files whose broad tests ask what is compiled and how it is called, not how good the code is.
ABOUT_OTHERS = {
    *("bench", "bundle", "cli", "explain", "frontends", "language", "runtime", "torch_layer", "tune"),
    *("test_runtime_files.py", "test_training_regularised.py", "test_training_segments.py", "test_whole_files.py"),
}
# Files whose quick tests are of optimised code: every cell, every kind of call, NaN and infinities.
OPTIMISED = {"test_zoo_compiled.py", "test_compile.py", "test_numerics.py", "test_readme.py", "test_random_cells.py"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILES] = {}
    config.stash[CASES] = Counter()
    if not hasattr(config, "workerinput"):
        _own_temporary_folder(config)


def _own_temporary_folder(config: pytest.Config) -> None:
    """What tests and the processes that they start leave in the folder for temporary files goes when the run ends, also
    what a killed process left. `tmp_path` stays where pytest has it."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="tvm_rnn-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["TMPDIR"] = folder.name
    tempfile.tempdir = None


def _begin_elsewhere(config: pytest.Config) -> None:
    """In a new checkout most of what collecting takes is to rewrite the assertions of each file, which is kept on disk:
    each worker of pytest-xdist begins at another file, and finds the others rewritten."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    folders = [config.invocation_params.dir / given for given in config.args]
    if worker and all(folder.is_dir() for folder in folders):
        files = sorted({str(file) for folder in folders for file in folder.rglob("test_*.py")})
        first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
        config.args = files[first:] + files[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All workers have the same order."""
    items.sort(key=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """What stays until the end is no garbage: Python's collector would look at half a million such objects again and
    again, in each of a test's `gc.collect` too."""
    _begin_elsewhere(session.config)
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    cases, test = item.config.stash[CASES], item.nodeid.partition("[")[0]
    cases[test] += 1
    for tier in LEFT_OUT:
        sweep = item.get_closest_marker(f"{tier}_after")
        if sweep is not None and cases[test] > sweep.args[0]:
            item.add_marker(tier)
    if item.get_closest_marker("few_cells") and item.callspec.params["name"] not in FEW_CELLS:
        item.add_marker("slow" if item.get_closest_marker("broad") else "broad")
    quick = not any(map(item.get_closest_marker, LEFT_OUT))
    files = item.config.stash[FILES]
    files[item.path] = files.get(item.path, False) or quick


def _optimised(item: pytest.Item) -> bool:
    """Optimising takes most of the time of compiling: slow tests have it, broad ones where code is what they are about,
    and few quick ones."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if item.get_closest_marker("slow"):
        return True
    return folder not in ABOUT_OTHERS if item.get_closest_marker("broad") else folder in OPTIMISED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if _optimised(item):
        return (yield)
    with unoptimised.code():
        return (yield)


@pytest.fixture(autouse=True)
def _draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whatever ran before it in its process."""
    if hasattr(request.module, "RNG"):
        request.module.RNG = np.random.default_rng(crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def _no_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text("raise ImportError('left out of what tests start')")
    return folder


@pytest.fixture
def children_without_torch(monkeypatch: pytest.MonkeyPatch, _no_torch: Path) -> None:
    """tvm_ffi imports torch wherever it is installed: a second or two of CPU in every process that a test starts."""
    monkeypatch.setenv("PYTHONPATH", str(_no_torch), prepend=os.pathsep)


@pytest.fixture(scope="session")
def quick_files(request: pytest.FixtureRequest) -> dict[Path, bool]:
    """Of every collected file: whether one of its tests is quick."""
    return request.config.stash[FILES]
