"""whole_files.py: what stands at a user's path is replaced in one moment, as it was, or is left alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from tvm_rnn import whole_files
from tvm_rnn.whole_files import path_of, whole_folder, write_whole


def new(file: BinaryIO) -> None:
    file.write(b"new")


def full(file: BinaryIO) -> None:
    file.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "m").write_bytes(b"old")
    for name, target in (("link", "there/m"), ("dangling", "there/n"), ("chain", "link")):
        (tmp_path / name).symlink_to(target)
        write_whole({tmp_path / name: new})
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path / "there")) == ["m", "n"]
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole({tmp_path / "circle": new})


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    (tmp_path / "m").write_bytes(b"old")
    (tmp_path / "m").chmod(mode)
    write_whole({tmp_path / "m": new}, 0o777)
    assert (tmp_path / "m").stat().st_mode & 0o7777 == mode and (tmp_path / "m").read_bytes() == b"new"


def test_what_is_no_file_is_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    for path in ("pipe", "folder", "link", "new/", "x" * 300, "none/m"):
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(OSError) as caught:
            write_whole({f"{tmp_path}/{path}": new})
        assert caught.value.filename == f"{tmp_path}/{path}" and sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(OSError, match="device"):
        write_whole({"/dev/null": new})
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("path", ["", "a\0b", b"a\0b", None, 3, "\ud800"])
def test_what_is_no_path(path: object) -> None:
    with pytest.raises(OSError):
        path_of(path)


def test_a_file_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").write_bytes(b"old")
    monkeypatch.setattr(whole_files.os, "access", lambda path, mode: False)  # root may write to every file
    with pytest.raises(OSError, match="may not be written"):
        write_whole({tmp_path / "m": new})
    assert (tmp_path / "m").read_bytes() == b"old"


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"old")
    with pytest.raises(OSError, match="No space") as caught:
        write_whole({tmp_path / "m": new, tmp_path / "n": full})
    assert "make room" in whole_files.advice(caught.value, "other")
    assert whole_files.advice(OSError(), "other") == "other"
    assert os.listdir(tmp_path) == ["m"] and (tmp_path / "m").read_bytes() == b"old"


KILLED = """
import os, signal, sys
from tvm_rnn.whole_files import whole_folder, write_whole
def die(file):
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "waits":
        print("begun", flush=True)
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "folder":
    with whole_folder(sys.argv[1] + "/bundle") as work:
        open(work + "/m", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
write_whole({sys.argv[1] + "/m": die})
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, kind: str) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, kind], check=False)
    (left,) = os.listdir(tmp_path)
    assert whole_files.UNFINISHED.fullmatch(left)
    (tmp_path / ".tvm_rnn-mine.tmp").write_bytes(b"")  # no name of ours
    write_whole({tmp_path / "n": new})
    assert sorted(os.listdir(tmp_path)) == [".tvm_rnn-mine.tmp", "n"]


def test_what_a_process_that_lives_is_writing_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), "waits"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        (begun,) = os.listdir(tmp_path)
        write_whole({tmp_path / "n": new})
        assert sorted(os.listdir(tmp_path)) == [begun, "n"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    monkeypatch.setattr(whole_files, "_exchanged", whole_files._exchanged if can_exchange else lambda *_: False)
    gone = []
    for name in ("first", "second"):
        with whole_folder(str(tmp_path / "b")) as work:
            Path(work, name).write_bytes(b"")
        assert os.listdir(tmp_path) == ["b"] and os.listdir(tmp_path / "b") == [name]
        (tmp_path / "b").chmod(0o750)
    rename = os.rename
    monkeypatch.setattr(whole_files.os, "rename", lambda *names: (rename(*names), gone.append(names)))
    (tmp_path / "link").symlink_to("b")
    with whole_folder(str(tmp_path / "link")) as work:
        Path(work, "third").write_bytes(b"")
    assert (tmp_path / "link").is_symlink() and os.listdir(tmp_path / "b") == ["third"]
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o750
    assert not gone or not can_exchange  # no moment without a folder
    with pytest.raises(RuntimeError), whole_folder(str(tmp_path / "b")) as work:
        raise RuntimeError
    assert os.listdir(tmp_path / "b") == ["third"] and sorted(os.listdir(tmp_path)) == ["b", "link"]
