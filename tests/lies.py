"""Files of modules that say something wrong with a right checksum, made at random from a sound one, and their fate.

In: a sound file, a seed. Out: files with lies, and of each what came of it: refused with a LoadError that says what was
got and expected; the same results as the sound one's; other results; another error; or none, where the process that
loaded and called it died or hung. As a program: the worker that loads and calls, for tvm_rnn.worker_process.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import ALIGNMENT, FOOTER, MAGIC, LoadError, Module, load
from tvm_rnn.runtime.runtime_memory import smallest
from tvm_rnn.worker_process import Late, Lost, WorkerProcess, channel

SECONDS, MOST_BYTES = 60.0, 8 << 30
T, B = 5, 3
NUMBERS = (
    -(1 << 63),
    -(1 << 31),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    64,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    1 << 64,
    10**30,
)
STRANGE: tuple[Any, ...] = (None, True, False, "", "x", "\ud800", 0.5, -1.5, 1e300, [], {}, [[]], {"name": 1}, [1, "a"])


class Parts(NamedTuple):
    """A module's file, taken apart. footer: the numbers behind magic, version and checksum."""

    code: bytes
    header: Any
    data: bytes
    manifest: Any
    footer: tuple[int, ...] = ()

    @classmethod
    def of(cls, file: bytes) -> Parts:
        """Those of a sound file, with weights."""
        _, _, _, elf_size, start, size, text = FOOTER.unpack(file[-FOOTER.size :])
        blob, end = file[start : start + size], len(file) - FOOTER.size
        first = 8 + int.from_bytes(blob[:8], "little")
        return cls(file[:elf_size], json.loads(blob[8:first]), blob[first:], json.loads(file[end - text : end]))

    def whole(self) -> bytes:
        """The file, with a right checksum."""
        header = json.dumps(self.header).encode()
        blob, text = len(header).to_bytes(8, "little") + header + self.data, json.dumps(self.manifest).encode()
        padded = self.code + bytes(-len(self.code) % ALIGNMENT)
        body = padded + blob + text
        numbers = self.footer or (len(self.code), len(padded), len(blob), len(text))
        return body + FOOTER.pack(MAGIC, 1, zlib.crc32(body), *numbers)


def places(value: Any, people: bool) -> Iterator[tuple[Any, Any]]:
    """Every (dict or list, key) in a value. people: also in what a manifest has for people, which is most of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        if people or key not in runtime.FOR_PEOPLE:
            yield value, key
            yield from places(value[key], people)


def lie(value: Any, rng: np.random.Generator, people: bool) -> None:
    """Change one thing in a value: numbers by little, by much or to others of it, names to others, items and fields
    left out, doubled, exchanged or of another type."""
    every = list(places(value, people))
    if not every:
        return
    holder, key = every[int(rng.integers(len(every)))]
    own, other = holder[key], every[int(rng.integers(len(every)))]
    number = type(own) in (int, float)
    near: list[Any] = [own + 1, own - 1, own * 2, own // 2, -own, float(own), str(own)] if number else []
    if isinstance(own, list) and own:
        near = [own[1:], own[:-1], [*own, own[-1]], own[::-1], own * 2]
    kind = int(rng.integers(8))
    if kind < 3 and near:
        holder[key] = near[int(rng.integers(len(near)))]
    elif kind < 4 and number:
        holder[key] = NUMBERS[int(rng.integers(len(NUMBERS)))]
    elif kind < 6:
        holder[key] = json.loads(json.dumps(other[0][other[1]]))
    elif kind < 7:
        holder[key] = STRANGE[int(rng.integers(len(STRANGE)))]
    else:
        del holder[key]


def lied(sound: Parts, seed: int) -> bytes:
    """A file with one to three lies: of the manifest, for the most part, of the weights' header or the footer."""
    rng = np.random.default_rng(seed)
    parts = sound._replace(manifest=json.loads(json.dumps(sound.manifest)), header=json.loads(json.dumps(sound.header)))
    kind = int(rng.integers(10))
    for _ in range(int(rng.integers(1, 4))):
        if kind < 9:
            lie(parts.manifest if kind < 8 else parts.header, rng, people=kind > 6)
    if kind == 9:
        numbers = [*FOOTER.unpack(parts.whole()[-FOOTER.size :])[3:]]
        for _ in range(int(rng.integers(1, 5))):
            numbers[int(rng.integers(4))] += int(rng.choice([-64, -63, -8, -1, 1, 8, 64, 1 << 20, 1 << 40]))
        parts = parts._replace(footer=tuple(max(0, number) for number in numbers))
    return parts.whole()


# --- what comes of them ----------------------------------------------------------------------------------------------


class Fate(NamedTuple):
    """What came of a file. kind: refused, same, other, raised by load, raised by a call, died, hung; text: why."""

    seed: int
    kind: str
    text: str


def fates(sound: Parts, seeds: Sequence[int], folder: Path) -> Iterator[Fate]:
    """Of the files with these seeds."""
    path = folder / "sound.so"
    path.write_bytes(sound.whole())
    first, gpu = {"sound": str(path)}, {"FAKE_GPUS": "90"}
    worker = WorkerProcess((str(Path(__file__).resolve()),), folder, environment=gpu, first=first)
    try:
        expected = worker.ask({"path": str(path)}, SECONDS)
        assert "digest" in expected, expected
        for seed in seeds:
            file = folder / f"{seed}.so"  # not one name for all: code that is loaded may not change
            file.write_bytes(lied(sound, seed))
            try:
                yield _fate(seed, worker.ask({"path": str(file)}, SECONDS), expected)
            except Lost as reason:
                yield Fate(seed, "hung" if isinstance(reason, Late) else "died", str(reason))
            file.unlink()
    finally:
        worker.end()


def _fate(seed: int, answer: dict[str, Any], expected: dict[str, Any]) -> Fate:
    kind = answer["kind"]
    if kind == "called":
        kind = "same" if answer["digest"] == expected["digest"] else "other"
    return Fate(seed, kind, answer.get("text", ""))


def results(module: Module, manifest: Any) -> list[Any]:
    """All that a module computes of inputs that are always the same. manifest: of the sound one."""
    rng = np.random.default_rng(0)
    if "networks" in manifest:
        given = {}
        for item in manifest["model"]["inputs"]:
            shape = [size if isinstance(size, int) else T for size in item["shape"]]
            given[item["name"]] = rng.integers(1, T, shape).astype(item["dtype"])
        return [module.run(given)]
    x = {i["name"]: rng.normal(size=(T, B, *i["shape"])).astype(manifest["dtype"]) for i in manifest["inputs"]}
    flags = {"lengths": [5, 2, 0], "reset": rng.random((T, B)) < 0.3}
    found = [module(x), module(x, **flags), module.init_state(2)]
    if "step" in manifest["entry_points"] and manifest["num_directions"] == 1:
        found.append(module.step({name: value[0] for name, value in x.items()}))
    if "training" in manifest or "tape" in manifest:
        training: Any = module
        seed: dict[str, Any] = {"seed": 7} if "masks" in manifest else {}
        for more in ({}, flags, {"max_bytes": smallest(training.memory_sizes(T, B)).bytes}):
            y, state, tape = training.forward_train(x, **more, **seed)
            found += [y, state, training.backward(tape, np.ones_like(y))]
    return found


def _digest(value: Any, into: Any) -> Any:
    if isinstance(value, dict):
        for name, own in value.items():
            into.update(name.encode(errors="replace"))
            _digest(own, into)
    elif isinstance(value, list | tuple):
        for own in value:
            _digest(own, into)
    else:
        into.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    return into


def _answer(path: str, manifest: Any) -> dict[str, Any]:
    try:
        module = load(path)
    except LoadError as error:
        text = str(error)
        return {"kind": "refused" if "got:" in text else "raised by load", "text": text}
    except Exception as error:
        return {"kind": "raised by load", "text": f"{type(error).__name__}: {error!r:.300}"}
    try:
        return {"kind": "called", "digest": _digest(results(module, manifest), hashlib.sha256()).hexdigest()}
    except Exception as error:
        return {"kind": "raised by a call", "text": f"{type(error).__name__}: {error!r:.300}"}


def _work() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with channel() as answer:
        manifest: Any = None
        for line in sys.stdin:
            request = json.loads(line)
            if "sound" in request:
                manifest = runtime.read_container(request["sound"])[0]
                answer({})
            else:
                answer(_answer(request["path"], manifest))


if __name__ == "__main__":
    _work()
