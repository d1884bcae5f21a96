"""Files and folders that are written whole or not at all, at the paths that users give.

In: paths, and what writes to them. Out: the new contents in place of the old ones, in one moment. A link stays, and
what it leads to is replaced; modes are kept, and owners where that is allowed. Raises OSError alone: callers say
what it was about.

What is not complete has a name of ours and is locked until its process ends: whoever writes beside it later removes
what nobody has locked. The number of a process would say nothing in another container.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, TypeVar

Writer = Callable[[BinaryIO], object]
Path = TypeVar("Path", bound=str | bytes | os.PathLike[str])
UNFINISHED = re.compile(r"\.tvm_rnn-[0-9a-f]{16}\.tmp")
FROM_HERE, EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE


def path_of(path: object) -> str:
    """A user's path as text. Raises OSError where no file can have it."""
    try:
        if not isinstance(path, str | bytes | os.PathLike):
            raise TypeError(f"{path!r} is no path")
        text = os.fsdecode(path)
        if not text or "\0" in text:
            raise ValueError("the path is empty" if not text else "the path has a null character")
        os.fsencode(text)
        return text
    except (TypeError, ValueError) as error:
        raise OSError(errno.EINVAL, str(error)) from None


def advice(error: OSError, otherwise: str) -> str:
    """What to do where something cannot be written. otherwise: where the disk has room."""
    return "make room on that disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


def write_whole(writers: Mapping[Path, Writer], mode: int = 0o666) -> None:
    """Write every file, or none where one of them cannot be written.

    writers: what writes each file, by its path. mode: of files that are new, less the user's umask.

    Raises OSError with the path as its filename. What a writer raises goes through."""
    with contextlib.ExitStack() as until:
        ready = [(path, *until.enter_context(_written(path, write, mode))) for path, write in writers.items()]
        for path, work, place in ready:
            with _about(path):
                os.replace(work, place)


@contextlib.contextmanager
def alone_with(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the body runs, others that ask for this file wait. The lock is another file, because this one is replaced.

    Raises OSError where the lock cannot be made."""
    folder, name = os.path.split(path)
    with open(os.path.join(folder, f".{os.path.splitext(name)[0]}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def whole_folder(path: str) -> Iterator[str]:
    """A folder to fill. It takes the place of the one at the path when the block ends; where that raises, it goes."""
    place = os.path.realpath(path_of(path))
    work, descriptor = _begun(os.path.dirname(place), _new_folder)
    try:
        yield work
        if os.path.isdir(place):
            _become(descriptor, os.stat(place))
        _put(work, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(descriptor)


@contextlib.contextmanager
def _about(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None


@contextlib.contextmanager
def _written(path: object, write: Writer, mode: int) -> Iterator[tuple[str, str]]:
    """The complete file beside its place, and that place. It is removed at the end, unless it was renamed."""
    with _about(path):
        place, before = _place(path_of(path))
        first = mode if before is None else 0o600  # nobody else reads it before it is as it was

        def new_file(name: str) -> int:
            return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, first)

        work, descriptor = _begun(os.path.dirname(place), new_file)
    try:
        with os.fdopen(descriptor, "wb") as file, _about(path):
            write(file)
            file.flush()
            if before is not None:
                _become(descriptor, before)
            os.fsync(descriptor)
            yield work, place  # locked until then
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(work)


def _place(path: str) -> tuple[str, os.stat_result | None]:
    """Where a file is to be, behind links, and what is known of one that is there and may be replaced."""
    if not os.path.basename(path):
        raise OSError(errno.EISDIR, "it is a directory")
    place, before = os.path.realpath(path), None
    with contextlib.suppress(FileNotFoundError):
        before = os.stat(path)
        if stat.S_ISDIR(before.st_mode):
            raise OSError(errno.EISDIR, "it is a directory")
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
        if not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, "it may not be written to")
    return place, before


def _become(descriptor: int, before: os.stat_result) -> None:
    """Give what is new the owner, where that is allowed, and the mode of what it replaces."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _new_folder(name: str) -> int:
    os.mkdir(name)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _begun(folder: str, make: Callable[[str], int]) -> tuple[str, int]:
    """What `make` makes under a name of ours, and its locked descriptor. What dead processes left there goes."""
    _remove_dead(folder)
    while True:
        name = os.path.join(folder, f".tvm_rnn-{secrets.token_hex(8)}.tmp")
        descriptor = make(name)
        with contextlib.suppress(OSError):  # of file systems without locks, where nothing is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.lexists(name):
            return name, descriptor
        os.close(descriptor)  # it was taken for a dead one's before it was locked


def _remove_dead(folder: str) -> None:
    """Remove what processes that have ended left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not UNFINISHED.fullmatch(entry.name):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            access = (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with contextlib.suppress(OSError):
                descriptor = os.open(entry.path, access)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path) if is_folder else os.unlink(entry.path)
                finally:
                    os.close(descriptor)


def _put(work: str, place: str) -> None:
    """A complete folder in its place. One that was there has the other name after that, or none."""
    if not os.path.lexists(place):
        return os.rename(work, place)
    if _exchanged(work, place):
        return None
    old = f"{work}.old"  # no name that is removed: for a moment it is all that there is
    os.rename(place, old)
    try:
        os.rename(work, place)
    except OSError:
        os.rename(old, place)
        raise
    return shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: str, other: str) -> bool:
    """Whether two names were exchanged in one moment: not every system and file system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return rename(FROM_HERE, os.fsencode(one), FROM_HERE, os.fsencode(other), EXCHANGE) == 0
