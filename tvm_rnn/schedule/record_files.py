"""Records on disk: folders of `<target>/<cell>.jsonl`, read by every compilation, merged into by every tuning run.

In: folders. Out: `Records`; files, replaced whole, under a lock, so that several may write to one folder and one that
is killed loses nothing. The first line of a file says what command made it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvm_rnn.errors import ConfigError, message, one_or_several
from tvm_rnn.names import file_name
from tvm_rnn.records import FORMAT, Record, Records
from tvm_rnn.target import Target, for_archs
from tvm_rnn.target import resolve as target_of
from tvm_rnn.whole_files import alone_with, path_of, write_whole

NONE = "none"  # in place of a folder: no records
VARIABLE = "TVM_RNN_RECORDS"
Name = str | os.PathLike[str]


def own_folder() -> Path:
    """Where `tune` writes: $XDG_DATA_HOME/tvm_rnn/records."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(base, "tvm_rnn", "records")


def folders() -> list[Path]:
    """Where records are looked for: those of TVM_RNN_RECORDS alone if it is set ("none": nowhere), else the user's own
    and then those that ship with tvm_rnn."""
    from .schedule_template import folders as schedules

    named = os.environ.get(VARIABLE)
    if named is not None:
        return [Path(p) for p in named.split(os.pathsep) if p and p != NONE]
    return [own_folder(), *(folder / "records" for folder in schedules())]


def resolve(records: Records | Name | None) -> Records | list[Path]:
    """What `compile(records=)` means: Records as they are, or folders to read. Raises ConfigError for a folder that is
    missing."""
    if isinstance(records, Records):
        return records
    if records is None:
        return [folder for folder in folders() if folder.is_dir()]
    folder = folder_of("records", records)
    if folder == NONE:
        return Records()
    if not os.path.isdir(folder):
        do = "tune first, or leave records out"
        raise ConfigError(message("records: no such folder", got=repr(folder), do=do))
    return [Path(folder)]


def folder_of(what: str, given: object) -> str:
    """A user's folder as text. what: the argument. Raises ConfigError where none can have that name."""
    try:
        return path_of(given)
    except OSError as reason:
        raise ConfigError(message(f"{what}: no folder", got=reason.strerror, do="give the path of one")) from None


def read(places: Iterable[Name], target: str) -> Records:
    """The records for one target of several folders; of two for one workload the first folder's. A line that is no
    record, and a file that cannot be read, is passed over with a line in `ignored`."""
    found: dict[str, Record] = {}
    ignored: list[str] = []
    for place in places:
        here: dict[str, Record] = {}
        for path in sorted(Path(place, file_name(target)).glob("*.jsonl")):
            try:
                lines = _lines(path)
            except OSError as reason:
                ignored.append(f"{path}: {reason}")
                continue
            here |= {record.key: record for record in lines.records}
            ignored += lines.wrong
        found = {**here, **found}
    return Records(found.values(), ignored)


@dataclass(frozen=True)
class Lines:
    """One file's. others: as they are, those that should be a record and are none; wrong: why, a line for each."""

    records: list[Record] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def _lines(path: Path) -> Lines:
    """Raises OSError where the file cannot be read."""
    found = Lines()
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            facts = json.loads(line or b"{}")
            if "target" in facts:
                found.records.append(Record.from_dict(facts, str(path.parent.parent)))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as reason:
            found.others.append(line)
            found.wrong.append(f"{path}:{number}: not a record: {type(reason).__name__} {reason}")
    return found


def merge(folder: Name, records: Iterable[Record], keep: Callable[[Record, Record], bool] | None = None) -> list[Path]:
    """Put records into a folder's files, each in place of the one for its workload. Returns the files.

    keep(old, new): whether the old one stays (default: never). Other records in these files, those of other processes
    included, are kept, and lines that are none. Raises ConfigError where a file cannot be read or written.
    """
    files: dict[Path, list[Record]] = {}
    for record in records:
        name = f"{file_name(str(record.workload['cell']))}.jsonl"
        files.setdefault(Path(folder, file_name(record.target), name), []).append(record)
    for path, new in files.items():
        with _locked(path):
            lines = _kept(path)
            old = {r.key: r for r in lines.records}
            for record in new:
                if not (keep is not None and record.key in old and keep(old[record.key], record)):
                    old[record.key] = record
            _replace(path, old.values(), lines.others)
    return list(files)


def remove(folder: Name, unwanted: Callable[[Record], bool]) -> list[Record]:
    """Take records out of a folder's files. Returns them."""
    gone = []
    for path in sorted(Path(folder).glob("*/*.jsonl")):
        with _locked(path):
            every = _kept(path).records
            going = [record for record in every if unwanted(record)]
            if going:
                _replace(path, [record for record in every if record not in going])
                gone += going
    return gone


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with one file of records, whose folder is made where it is not there. Raises ConfigError."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone_with(path))
        except OSError as reason:
            do = "give a folder that you may write to"
            raise ConfigError(message("records cannot be written", where=str(path), got=str(reason), do=do)) from None
        yield


def _kept(path: Path) -> Lines:
    """Of a file that is about to be replaced: what cannot be read may not be lost. Raises ConfigError."""
    try:
        return _lines(path)
    except FileNotFoundError:
        return Lines()
    except OSError as reason:
        do = "let it be read, or move it away"
        raise ConfigError(message("records cannot be read", where=str(path), got=str(reason), do=do)) from None


def _replace(path: Path, records: Iterable[Record], others: Iterable[bytes] = ()) -> None:
    """The whole file at once: whoever reads it sees the old one or the new one."""
    rows = sorted(records, key=lambda r: r.key)
    commands = sorted({r.command for r in rows if r.command})
    lines = [json.dumps({"format": FORMAT, "made by": commands}), *(json.dumps(r.as_dict()) for r in rows)]
    try:
        write_whole({path: lambda file: file.write(b"\n".join([*map(str.encode, lines), *others, b""]))})
    except OSError as reason:
        raise ConfigError(message("records cannot be written", where=str(path), got=str(reason))) from None


def for_target(
    records: Records | Name | None, target: Target, tell: Callable[[str], None] = lambda line: None
) -> Records:
    """What a compilation for a target may use. tell: called with a line for each record that it may not."""
    import tvm

    found = resolve(records)
    if not isinstance(found, Records):
        found = read(found, target.records_name).for_target(target.records_name, {"tvm": tvm.__version__})
    for line in found.ignored:
        tell(f"a record is ignored: {line}")
    return found


def machines(
    target: str | Target, arch: str | Sequence[str], records: Records | Name | None, tell: Callable[[str], None]
) -> tuple[Target, tuple[Target, ...]]:
    """What `compile(target, arch=)` means: the target and one per arch, each with its records.

    Raises ConfigError for a target or an arch that is none, and for a folder that is missing.
    """
    machine = target_of(target)
    found = for_archs(machine, one_or_several("arch", arch or ()))
    targets = tuple(replace(one, records=for_target(records, one, tell)) for one in found)
    same = next((one for one in targets if one == machine), None)
    return same or replace(machine, records=for_target(records, machine)), targets
