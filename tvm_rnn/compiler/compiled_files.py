"""Compiled modules kept on disk, so that the next process that wants the same one loads it and imports no compiler.

In: a network and options of `compile`. Out: its module without weights, from a file that is named by everything that
its code depends on: equations, sizes, options, the machine, records, and the versions of this package and of TVM.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.metadata
import os
import platform
import stat
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from tvm_rnn.errors import BuildError, LoadError
from tvm_rnn.network.rnn import RNN, equations_digest
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.schedule.record_files import folders
from tvm_rnn.target import gpu
from tvm_rnn.version import __version__

VARIABLE = "TVM_RNN_CACHE"
NONE = "none"  # in place of a folder: nothing is kept
MOST = 512  # files: the ones that were not used for longest go first
CACHES = [name for name in os.sysconf_names if "CACHE_SIZE" in name]
CPU = ("vendor", "cpu family", "model", "stepping", "CPU ")  # lines of /proc/cpuinfo that say which one it is
_held = weakref.WeakValueDictionary[str, Module]()  # of this process, by name: a copy of one shares its code


def compiled_once(net: RNN, target: str, training: bool) -> Module:
    """A module of its own for the caller, without weights: read from disk if it was compiled before, else compiled and
    kept there. A file that cannot be read or written is no error.

    net: its weights are not looked at. target: "llvm" or "cuda". training: as for `compile`.

    Raises what `compile` does."""
    name = name_of(net, target, training)
    if (held := _held.get(name)) is not None:
        return copy.copy(held)
    found = _held[name] = _read_or_made(name, net, target, training)
    return found


def _read_or_made(name: str, net: RNN, target: str, training: bool) -> Module:
    if (found := kept(name)) is not None:
        return found
    from .compile import compile

    path = _path(name)
    made = compile(_bare(net), target, training=training, progress=False)
    if path is not None:
        with contextlib.suppress(BuildError, OSError):
            made.export(path)
            _remove_oldest(path.parent)
    return made


def kept(name: str) -> Module | None:
    """The module of a name of `name_of`, as it is on disk; None: it is not there."""
    path = _path(name)
    if path is not None and path.exists():
        with contextlib.suppress(LoadError, OSError):
            os.utime(path)
            return runtime.load(path)
    return None


def _path(name: str) -> Path | None:
    folder = own_folder()
    return None if folder is None else folder / f"{name}.so"


def own_folder() -> Path | None:
    """Where files are kept: $TVM_RNN_CACHE ("none": nowhere), else $XDG_CACHE_HOME/tvm_rnn. None also where others may
    write to that folder: its files are code."""
    named = os.environ.get(VARIABLE)
    if named == NONE:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(named or os.path.join(base, "tvm_rnn"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    safe = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if safe else None


def _bare(net: RNN) -> RNN:
    """The network without weights."""
    if not net.weights:
        return net
    bare = object.__new__(RNN)
    vars(bare).update({**vars(net), "weights": {}})
    return bare


def name_of(net: RNN, target: str, training: bool) -> str:
    """The digest of all that the code depends on."""
    shape = (net.cell.name, net.num_layers, net.num_directions, net.reverse, net.dtype, net.regularisers.facts())
    facts = (equations_digest(net), shape, [layer.sizes for layer in net.layers], training)
    text = repr((facts, _machine(target), _records(), _package()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def _machine(target: str) -> str:
    """Everything that a target is made of, without asking TVM."""
    if target == "cuda":
        return repr(gpu())
    sizes = []
    for name in CACHES:
        with contextlib.suppress(ValueError, OSError):
            sizes.append((name, os.sysconf(name)))
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        facts = sorted(
            {line for line in file if line.startswith(("model", "cpu family", "stepping", "vendor", "CPU "))}
        )
        return repr((platform.machine(), facts, sorted(runtime.cpu_features() or ()), sizes))
    return repr((platform.machine(), platform.processor(), sizes))


def _records() -> list[tuple[str, int, int]]:
    """The files of tuned knob values that compilations read, as they are now."""
    return [*_stamps(path for folder in folders() for path in sorted(folder.glob("*/*.jsonl")))]


@functools.cache
def _package() -> str:
    """The versions, and in a checkout that is worked on its sources as they are now."""
    from tvm_rnn.schedule.schedule_template import folders as schedules

    places = [Path(__file__).parent.parent, *schedules()]
    sources = [*_stamps(path for place in places for path in sorted(place.rglob("*.py")))]
    tvm = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        tvm = importlib.metadata.version("apache-tvm")
    return f"{__version__} {tvm} {hashlib.sha256(repr(sources).encode()).hexdigest()}"


def _stamps(paths: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.stat()
            yield str(path), found.st_mtime_ns, found.st_size


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)
    for path in files[:-MOST]:
        path.unlink(missing_ok=True)
