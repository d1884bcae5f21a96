"""What the documentation promises under Compatibility: names, arguments, commands, options, keys of JSON and functions
of bundles that were there stay.

In: `golden/public_names.txt`, a line for each, as of the last release, or of what is to be the first. What is new is
added to it by `TVM_RNN_UPDATE_GOLDEN=1`. What it names and is gone, or now has to be given, fails: it goes away by hand
alone, with a line in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from tiny_module import Tiny
from typer.core import TyperGroup
from typer.main import get_command

import tvm_rnn as rnn
from tvm_rnn.bench.run.compare import Row
from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.bundle.header import header_text
from tvm_rnn.cli import app
from tvm_rnn.explain.facts import BesideFacts, ExplanationFacts
from tvm_rnn.explain.tables import cell_facts
from tvm_rnn.language import functions
from tvm_rnn.module_file.schema import Network
from tvm_rnn.plain_c.folder import Written
from tvm_rnn.runtime.runtime import read_container
from tvm_rnn.runtime.runtime_training import TrainingModule

GOLDEN = Path(__file__).parent / "golden" / "public_names.txt"
CLASSES = {"Module": rnn.Module, "RNN": rnn.RNN, "Cell": rnn.Cell, "TrainingModule": TrainingModule}


def arguments(name: str, value: Any) -> Iterator[str]:
    """A line for each argument: whether it must be given, and its place, or its name alone where it has none."""
    for place, (own, found) in enumerate(inspect.signature(value).parameters.items()):
        if own == "self" or own.startswith("_"):
            continue
        needed = found.default is found.empty and found.kind not in (found.VAR_POSITIONAL, found.VAR_KEYWORD)
        at = "by name" if found.kind in (found.KEYWORD_ONLY, found.VAR_KEYWORD) else f"place {place}"
        yield f"{name}: {own}, {at}{', needed' * needed}"


def in_python() -> Iterator[str]:
    """Of names that `import tvm_rnn` has, of what they take, and of methods."""
    for name in sorted(rnn.__all__):
        yield f"rnn.{name}"
        value = getattr(rnn, name)
        if inspect.isfunction(value) and name not in vars(functions):  # those of equations speak for themselves
            yield from arguments(f"rnn.{name}", value)
    for owner, kind in CLASSES.items():
        yield from arguments(owner, kind.__init__) if kind is rnn.RNN else ()
        for name, value in inspect.getmembers(kind):
            if not name.startswith("_") and (kind is rnn.Module or getattr(rnn.Module, name, None) is not value):
                yield f"{owner}.{name}"
                yield from arguments(f"{owner}.{name}", value) if inspect.isfunction(value) else ()


def in_a_terminal() -> Iterator[str]:
    """Of commands and options."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in sorted(group.commands.items()):
        yield f"tvm-rnn {name}"
        inner = sorted(command.commands.items()) if isinstance(command, TyperGroup) else [("", command)]
        for below, own in inner:
            for option in own.params:
                words = " ".join(filter(None, ["tvm-rnn", name, below]))
                for word in option.opts:
                    yield f"{words}: {word}{', needed' * option.required}"


# What commands print with --json, as far as types say it.
PRINTED = {"explain": ExplanationFacts, "explain --beside": BesideFacts, "write-c": Written}


def keys(kind: Any, place: str = "") -> Iterator[str]:
    """The paths of a type's keys. What a mapping's are is no promise: they are names of layers, knobs, machines."""
    if is_typeddict(kind) or is_dataclass(kind):
        for name, own in get_type_hints(kind).items():
            path = f"{place}.{name}".lstrip(".")
            yield path
            yield from keys(own, path)
    elif get_origin(kind) in (list, Sequence):
        yield from keys(get_args(kind)[0], f"{place}[]")


def in_json() -> Iterator[str]:
    for command, kind in PRINTED.items():
        yield from (f"tvm-rnn {command} --json: {key}" for key in keys(kind))
    yield from (f"tvm-rnn bench --json: {key}" for key in keys(list[Row], "rows"))
    yield from (f"tvm-rnn cells --json: {key}" for key in cell_facts(rnn.cells.lstm))
    yield from (f"tvm-rnn inspect --json: manifest.{key}" for key in get_type_hints(Network))


def in_c(folder: Path) -> Iterator[str]:
    """Of the header of a bundle: functions as they are declared, codes of errors, and sizes."""
    path = Tiny(2).write(folder / "m.so")
    text = header_text(read_facts(path.read_bytes(), read_container(path)[0], "net"))
    for found in re.findall(r"^NET_API ([^;]*);|^ +(NET_\w+ += \d+)|^#define (NET_\w+) \d", text, re.M):
        yield f"net.h {' '.join(''.join(found).split())}"


def lost(before: list[str], now: list[str]) -> list[str]:
    """What was there and is not, and what has to be given since."""
    known = {line.removesuffix(", needed").partition(": ")[::2] for line in before}
    names = {line for line in before if ": " not in line}
    gone = [line for line in before if line not in now and line.removesuffix(", needed") not in now]
    new = [line for line in now if line.endswith(", needed") and line.partition(": ")[0] in names]
    return gone + [line for line in new if line.removesuffix(", needed").partition(": ")[::2] not in known]


@pytest.mark.broad
def test_what_was_there_is_there(tmp_path: Path) -> None:
    now = [*in_python(), *in_a_terminal(), *in_json(), *in_c(tmp_path)]
    before = GOLDEN.read_text().splitlines()
    assert lost(before, now) == []
    if os.environ.get("TVM_RNN_UPDATE_GOLDEN"):
        GOLDEN.write_text("\n".join(now) + "\n")
    elif {*now} != {*before}:
        raise AssertionError(f"add with TVM_RNN_UPDATE_GOLDEN=1: {sorted({*now} - {*before})}")


def test_what_is_lost_is_found() -> None:
    before = ["f", "f: a, place 0, needed", "f: b, place 1", "tvm-rnn x", "tvm-rnn x: --y"]
    assert (
        lost(before, ["f", "f: a, place 0", "f: b, place 1", "f: c, by name", "g", "tvm-rnn x", "tvm-rnn x: --y"]) == []
    )
    assert lost(before, ["f", "f: a, place 0, needed", "f: b, place 1, needed", "tvm-rnn x", "tvm-rnn x: --y"])
    assert lost(before, ["f", "f: b, place 0", "f: a, place 1", "tvm-rnn x", "tvm-rnn x: --y"])
    assert lost(before, [*before, "f: c, place 2, needed"]) == ["f: c, place 2, needed"]
    assert lost(before, before[:-1]) == ["tvm-rnn x: --y"] and lost(before, before[1:]) == ["f"]
