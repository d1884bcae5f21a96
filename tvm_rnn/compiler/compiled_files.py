"""Compiled modules kept on disk, so that the next process that wants the same one loads it and imports no compiler.

In: a network and options of `compile`. Out: its module without weights, from a file that is named by everything that
its code depends on: equations, sizes, options, the machine, records, and the versions of this package and of TVM. A
file that `fill` wrote for another machine is named by what both machines know: the network and this package's sources.
A machine that has no file of its own takes one of these whose code fits it.
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

from tvm_rnn.errors import BuildError, LoadError, message
from tvm_rnn.network.rnn import RNN, equations_digest
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.schedule.record_files import folders
from tvm_rnn.target import GPUS, TABLE, gpu, resolve
from tvm_rnn.version import __version__
from tvm_rnn.whole_files import advice, path_of

VARIABLE = "TVM_RNN_CACHE"
NONE = "none"  # in place of a folder: nothing is kept
MARK = "-for-"  # in names of files for other machines
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
    if (found := kept(name)) is not None or (found := _filled(net, target, training)[1]) is not None:
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


def fill(net: RNN, target: str, folder: str | os.PathLike[str], training: bool = True) -> Path:
    """Compile a network for another machine, into a folder that is TVM_RNN_CACHE there.

    net: its weights are not looked at. target: a name of `tvm_rnn.target.names()`. folder: made if it is not there.
    training: as for `compile`. Returns the file.

    Raises what `compile` does, and BuildError where the file cannot be written."""
    from .compile import compile

    try:
        place = Path(path_of(folder))
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as reason:
        do = advice(reason, "give a folder, or a name for one, that you may write to")
        raise BuildError(message("no folder for compiled files", got=str(reason), do=do)) from None
    path = place / f"{_shared_name(net, training)}{MARK}{resolve(target).name}.so"
    compile(_bare(net), target, training=training, progress=False).export(path)
    return path


def name_here(net: RNN, target: str, training: bool) -> str:
    """The name under which `kept` finds what `compiled_once` returned, in this process and the next ones."""
    own = name_of(net, target, training)
    path = _path(own)
    return own if path is not None and path.exists() else _filled(net, target, training)[0] or own


def _filled(net: RNN, target: str, training: bool) -> tuple[str, Module | None]:
    """A file that was compiled elsewhere and whose code fits this machine, and its name; "", None: there is none.
    Code for training also infers."""
    folder = own_folder()
    files = [] if folder is None else [path.stem for path in folder.glob(f"*{MARK}*.so")]
    kind = TABLE if target == "llvm" else GPUS
    for trains in (training, True) if files else ():
        begin = f"{_shared_name(net, trains)}{MARK}"
        fitting = sorted(name for name in files if name.startswith(begin) and name.removeprefix(begin) in kind)
        for name in reversed(fitting):  # of several CPUs or archs the one that asks for most
            if (found := kept(name)) is not None:
                return name, found
    return "", None


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
    return _digest(_facts(net, training), _machine(target), _records(), _package())


def _shared_name(net: RNN, training: bool) -> str:
    """The digest of what other machines know too."""
    return _digest(_facts(net, training), _contents())


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _facts(net: RNN, training: bool) -> tuple[object, ...]:
    shape = (net.cell.name, net.num_layers, net.num_directions, net.reverse, net.dtype, net.regularisers.facts())
    return equations_digest(net), shape, [layer.sizes for layer in net.layers], training


@functools.cache
def _contents() -> str:
    """The version and the sources of this package."""
    home, found = Path(__file__).parent.parent, hashlib.sha256(__version__.encode())
    for path in sorted(home.rglob("*.py")):
        found.update(path.relative_to(home).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


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
