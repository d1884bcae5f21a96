"""compiled_files: what is compiled once is read from disk by the next process, and by nobody who wants another."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.compiler import compile as compiler
from tvm_rnn.compiler import compiled_files
from tvm_rnn.compiler.compiled_files import compiled_once, own_folder

X = np.ones((2, 1, 3))


def net(hidden: int = 2, dropout: float = 0.0, dtype: str = "float64") -> rnn.RNN:
    return rnn.RNN(rnn.cells.elman, 3, hidden, 2 if dropout else 1, dtype=dtype, dropout=dropout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TVM_RNN_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    gc.collect()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[rnn.RNN]:
    """The networks that were compiled."""
    found, real = list[rnn.RNN](), rnn.compile

    def counted(given: rnn.RNN, *more: object, **options: object) -> rnn.Module:
        found.append(given)
        return real(given, *more, **options)

    monkeypatch.setattr(compiler, "compile", counted)
    return found


def test_the_next_one_reads_a_file(folder: Path, compiled: list[rnn.RNN]) -> None:
    own = net().init(0)
    first, second = compiled_once(own, "llvm", False), compiled_once(net(), "llvm", False)
    assert first is not second
    assert not first.weights
    first.load_weights(own.weights)
    assert not second.weights  # each has its own
    expected = first(X)[0]
    del first, second
    gc.collect()
    assert len([*folder.glob("*.so")]) == 1
    again = compiled_once(net(), "llvm", False)
    assert again.path.startswith(str(folder))
    again.load_weights(own.weights)
    np.testing.assert_array_equal(again(X)[0], expected)
    assert len(compiled) == 1
    assert not compiled[0].weights


def test_a_damaged_file_is_written_once_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        def export(self, path: Path) -> None:
            path.write_text("whole")

    made = Made()
    monkeypatch.setattr(compiler, "compile", lambda *given, **options: made)
    folder.mkdir(mode=0o700)
    file = folder / f"{compiled_files.name_of(net(), 'llvm', False)}.so"
    file.write_bytes(b"half")
    assert compiled_once(net(), "llvm", False) is made
    assert file.read_text() == "whole"


def test_the_name_says_all_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(own: rnn.RNN, training: bool = False) -> str:
        return compiled_files.name_of(own, "llvm", training)

    others = [net(3), net(dtype="float32"), net(dropout=0.5), net(dropout=0.25), rnn.RNN(rnn.cells.gru, 3, 2)]
    others += [rnn.RNN(rnn.cells.elman, 3, 2, reverse=True, dtype="float64")]
    names = [name(net()), name(net(), True), *map(name, others)]
    assert len({*names}) == len(names)
    assert name(net().init(0)) == names[0]
    for place in ("_machine", "_package"):
        with monkeypatch.context() as patch:
            patch.setattr(compiled_files, place, lambda *given: "another")
            assert name(net()) not in names


def test_where_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_CACHE", "none")
    assert own_folder() is None
    monkeypatch.delenv("TVM_RNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert own_folder() == tmp_path / "tvm_rnn"
    assert (tmp_path / "tvm_rnn").stat().st_mode & 0o777 == 0o700
    (tmp_path / "tvm_rnn").chmod(0o777)  # files there are code: anybody might have put them there
    assert own_folder() is None
    monkeypatch.setenv("TVM_RNN_CACHE", "/proc/no/such")
    assert own_folder() is None


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(compiled_files, "MOST", 2)
    for age, name in enumerate(("c.so", "b.so", "a.so")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    compiled_files._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.so", "b.so"]
