"""Arrays in and out of .npy and .npz files for the command line: clear errors in, whole files or none out.

In: paths from `cli/commands.py`. Out: NumPy arrays; a module's state as a dict, as `Module` takes and gives it.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from . import whole_files
from .budget import Spending
from .errors import InputError, message
from .whole_files import Path, Writer

# What zipfile and NumPy make of a damaged file; MemoryError: of a shape that its bytes do not fill.
DAMAGE_OF_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError)
DAMAGE = (*DAMAGE_OF_ZIP, ValueError, EOFError, OSError, MemoryError, RecursionError)


def read_npy(path: str) -> np.ndarray:
    """The array of an .npy file. Raises InputError where the file is missing, damaged, or of Python objects."""
    value = _read(path, ".npy", "numpy.save")
    if not isinstance(value, np.ndarray):
        raise InputError(message("one array is expected", got=f"{path!r}, an .npz file", do="save the array as .npy"))
    return value


def read_npz(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises InputError where the file is missing, damaged, or holds objects."""
    value = _read(path, ".npz", "numpy.savez")
    if isinstance(value, np.ndarray):
        raise InputError(message("arrays by name are expected", got=f"{path!r}, an .npy file", do="save them as .npz"))
    return value


def _read(path: str, kind: str, writer: str) -> np.ndarray | dict[str, np.ndarray]:
    if not os.path.isfile(path):
        what = "this is no file" if os.path.exists(path) else "no such file"
        raise InputError(message(what, got=repr(path), do="check the path"))
    try:
        with open(path, "rb") as file:  # ours to close: numpy.load leaves its own open where an archive is damaged
            value = np.load(file, allow_pickle=False)
            return value if isinstance(value, np.ndarray) else _members(value, path)
    except DAMAGE as reason:
        got, expected = str(reason).split("\n")[0][:200] or type(reason).__name__, f"an {kind} file of numbers"
        text = message(f"{path!r} cannot be read", got=got, expected=expected, do=f"write it with {writer}")
        raise InputError(text) from None


def _members(archive: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """The arrays of an archive. What it says they unpack to, which zipfile never exceeds, is counted first."""
    with zipfile.ZipFile(path) as packed:
        sizes = [member.file_size for member in packed.infolist()]
    Spending(path, os.path.getsize(path), InputError).take("its arrays", bytes=sum(sizes), nodes=len(sizes))
    found = {name: archive[name] for name in archive}
    for name, value in found.items():
        if not isinstance(value, np.ndarray):
            raise ValueError(f"member {name!r} is no array")
    return found


def state_from_npz(path: str, states: list[Mapping[str, Any]]) -> dict[str, np.ndarray | list[np.ndarray]]:
    """A module's state from an .npz file. states: the manifest's.

    A state whose layers differ in shape is a list of one array per layer, in the file `<name>_l0`, `<name>_l1`, ...
    Other names are kept, for the module to refuse.
    """
    arrays = read_npz(path)
    found: dict[str, np.ndarray | list[np.ndarray]] = {}
    for state in states:
        parts = [f"{state['name']}_l{layer}" for layer in range(len(state["shapes"]))]
        if _per_layer(state) and all(part in arrays for part in parts):
            found[state["name"]] = [arrays.pop(part) for part in parts]
    return {**arrays, **found}


def _per_layer(state: Mapping[str, Any]) -> bool:
    return any(list(shape) != list(state["shapes"][0]) for shape in state["shapes"])


def npy_writer(array: object) -> Writer:
    """What writes an array as .npy."""
    return lambda file: np.save(file, np.asarray(array), allow_pickle=False)


def npz_writer(state: Mapping[str, object]) -> Writer:
    """What writes a state as .npz, in the form that `state_from_npz` reads."""
    arrays: dict[str, Any] = {}
    for name, value in state.items():
        parts = {f"{name}_l{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
        arrays.update({key: np.asarray(part) for key, part in parts.items()})
    return lambda file: np.savez(file, **arrays)


def text_writer(text: str) -> Writer:
    """What writes a text as UTF-8."""

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write


def write_whole(writers: Mapping[Path, Writer]) -> None:
    """Write every file, {path: what writes it}, or none. Raises InputError where a file cannot be written."""
    try:
        whole_files.write_whole(writers)
    except OSError as reason:
        text = reason.strerror or str(reason)
        do = whole_files.advice(reason, "check that the folder exists and can be written to")
        where = str(reason.filename) if reason.filename is not None else None
        raise InputError(message("the result cannot be written", where=where, got=text, do=do)) from None
