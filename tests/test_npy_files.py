"""Arrays in and out of files."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import InputError
from tvm_rnn.npy_files import npy_writer, npz_writer, read_npy, read_npz, state_from_npz, write_whole


def test_an_array_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "y.npy")
    write_whole({path: npy_writer(np.arange(6.0).reshape(2, 3))})
    assert np.array_equal(read_npy(path), np.arange(6.0).reshape(2, 3))
    assert os.listdir(tmp_path) == ["y.npy"]


def test_a_file_keeps_the_permissions_that_the_user_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole({str(tmp_path / "y.npy"): npy_writer(np.zeros(1))})
    finally:
        os.umask(before)
    assert (tmp_path / "y.npy").stat().st_mode & 0o777 == 0o644


def test_states_come_back_with_one_array_or_one_per_layer(tmp_path: Path) -> None:
    path = str(tmp_path / "s.npz")
    state: dict[str, Any] = {"h": np.ones((2, 3, 4)), "c": [np.zeros((1, 3, 4)), np.ones((1, 3, 5))]}
    write_whole({path: npz_writer(state)})
    assert sorted(read_npz(path)) == ["c_l0", "c_l1", "h"]
    manifest = [{"name": "h", "shapes": [[4], [4]]}, {"name": "c", "shapes": [[4], [5]]}]
    again = state_from_npz(path, manifest)
    assert sorted(again) == ["c", "h"] and again["h"].shape == (2, 3, 4)
    assert [part.shape for part in again["c"]] == [(1, 3, 4), (1, 3, 5)]


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(b"old")

    def breaks(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left"):
        write_whole({str(tmp_path / "y.npy"): npy_writer(np.zeros(1)), str(tmp_path / "s.npz"): breaks})
    assert os.listdir(tmp_path) == ["y.npy"] and (tmp_path / "y.npy").read_bytes() == b"old"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none" / "y.npy"), str(tmp_path)):
        with pytest.raises(InputError, match="cannot be written") as caught:
            write_whole({path: npy_writer(np.zeros(1))})
        assert path in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00", b"PK\x03\x04 cut short"])
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    for read in (read_npy, read_npz):
        with pytest.raises(InputError, match=r"x\.npy"):
            read(str(path))


def test_missing_files_other_kinds_and_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_npy(str(tmp_path / "none.npy"))
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"\.npz file"):
        read_npy(str(tmp_path / "a.npz"))
    with pytest.raises(InputError, match=r"\.npy file"):
        read_npz(str(tmp_path / "a.npy"))
    with pytest.raises(InputError, match="cannot be read"):
        read_npy(str(tmp_path / "objects.npy"))


def test_archives_have_a_budget(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 20), b=np.zeros(1 << 20))
    assert (tmp_path / "x.npz").stat().st_size < 1 << 15
    with rnn.Budget(bytes=1 << 20), pytest.raises(InputError, match="bytes of at most 1048576"):
        read_npz(str(tmp_path / "x.npz"))
    assert sorted(read_npz(str(tmp_path / "x.npz"))) == ["a", "b"]
    with rnn.Budget(nodes=1), pytest.raises(InputError, match="nodes of at most 1"):
        read_npz(str(tmp_path / "x.npz"))


def test_members_that_are_no_arrays_and_what_is_no_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", b"text")
    with pytest.raises(InputError, match="member 'a' is no array"):
        read_npz(str(tmp_path / "x.npz"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="this is no file"):
        read_npy(str(tmp_path / "pipe"))


def test_a_shape_that_the_file_does_not_fill(tmp_path: Path) -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    text += b" " * (117 - len(text)) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    (tmp_path / "x.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(InputError, match="cannot be read"):
        read_npy(str(tmp_path / "x.npy"))
    with pytest.raises(InputError, match="cannot be read"):
        read_npz(str(tmp_path / "x.npz"))
