"""Damaged and hostile model files, made at random from sound ones, and what reads them watched: the fuzzer.

In: a number of seconds and a seed. Out: findings: files at which a frontend raised what is no TvmRnnError, took more
than 10 s or 1 GB, or died. As a program: python tests/frontends/fuzzing.py SECONDS [SEED [FOLDER]]
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import resource
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_files
import numpy as np
import onnx
import onnx_models
import onnx_scans
import test_onnx
import test_onnx_loop
from safetensors.numpy import save

import tvm_rnn as rnn
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.network.tensor_files import open_safetensors

MOST_SECONDS, MOST_BYTES = 10, 1 << 30
INTEGERS = [-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 17, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-40, 1e38, math.inf, -math.inf, math.nan]
WORDS = ["", "x", "X", "Y", "W", "R", "B", "LSTM", "GRU", "RNN", "Scan", "Loop", "If", "../x", "/etc/passwd", "\0", "é"]
KINDS = ("onnx", "keras", "safetensors")


# --- sound files -----------------------------------------------------------------------------------------------------


def sound_onnx(seed: int) -> bytes:
    """A model with one recurrent node of any kind; or with a Scan, a Loop, or a classifier around it."""
    others: list[Callable[[], Any]] = [onnx_scans.simple, test_onnx_loop.loop, test_onnx.classifier]
    if seed % 2:
        return bytes(others[seed // 2 % 3]().SerializeToString())
    return bytes(onnx_models.random_case(seed).model.SerializeToString())


@functools.cache
def sound_keras() -> tuple[Any, bytes]:
    """A config, and a weights file for it; the same for every seed, so that a finding can be made again."""
    layers = keras_files.tagger()
    return keras_files.sequential(*layers), keras_files.weights_file(*layers)


def sound_safetensors(seed: int) -> bytes:
    """torch's names of a layer."""
    kind = ("GRU", "LSTM", "RNN")[seed % 3]
    rows = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind] * 4
    shapes = {"weight_ih_l0": (rows, 3), "weight_hh_l0": (rows, 4), "bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}
    dtype = ("f4", "f8", "f2")[seed // 3 % 3]
    rng = np.random.default_rng(seed)
    return bytes(save({f"rnn.{n}": rng.normal(size=s).astype(dtype) for n, s in shapes.items()}))


# --- changes ---------------------------------------------------------------------------------------------------------


def changed_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Bits turned, numbers overwritten, pieces left out, doubled, moved or cut off: 1 to 4 of these."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(out) + 1))
        length = int(min(rng.integers(1, 64), max(0, len(out) - at)))
        kind = int(rng.integers(7))
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            size = int(rng.choice([1, 2, 4, 8]))
            number = INTEGERS[int(rng.integers(len(INTEGERS)))] % (1 << 8 * size)
            out[at : at + size] = number.to_bytes(size, "little")
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length]
        elif kind == 4:
            place = int(rng.integers(len(out) + 1))
            out[at : at + length] = out[place : place + length]
        elif kind == 5:
            out[at : at + length] = rng.bytes(length)
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def _messages(message: Any) -> list[Any]:
    found = [message]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for own in [value] if hasattr(value, "ListFields") else value:
                found += _messages(own)
    return found


def _changed_scalar(kind: Any, old: Any, names: list[str], rng: np.random.Generator) -> Any:
    if isinstance(old, bytes) or kind.type == kind.TYPE_BYTES:
        return changed_bytes(old or b"\0", rng)
    if isinstance(old, str):
        return str(rng.choice([*names, *WORDS]))
    if isinstance(old, float):
        return FLOATS[int(rng.integers(len(FLOATS)))]
    return INTEGERS[int(rng.integers(len(INTEGERS)))]


def changed_model(data: bytes, rng: np.random.Generator) -> bytes:
    """An ONNX file that parses, with fields of any of its messages changed, left out, doubled or exchanged."""
    model = onnx.ModelProto.FromString(data)
    names = [n for node in model.graph.node for n in (*node.input, *node.output, node.op_type)]
    for _ in range(int(rng.integers(1, 5))):
        every = _messages(model)
        message = every[int(rng.integers(len(every)))]
        fields = message.ListFields()
        if not fields:
            continue
        field, value = fields[int(rng.integers(len(fields)))]
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # what does not fit a field is not written
            if isinstance(value, str | bytes | int | float):
                setattr(message, field.name, _changed_scalar(field, value, names, rng))
            elif hasattr(value, "ListFields"):
                getattr(message, field.name).CopyFrom(_another(value, every, rng))
            else:
                _change_list(value, field, every, names, rng)
    return bytes(model.SerializeToString())


def _another(message: Any, every: list[Any], rng: np.random.Generator) -> Any:
    """A copy of a message of the same type: protobuf dies where a message becomes a part of itself."""
    others = [m for m in every if type(m) is type(message)]
    copy = type(message)()
    copy.CopyFrom(others[int(rng.integers(len(others)))])
    return copy


def _change_list(values: Any, field: Any, every: list[Any], names: list[str], rng: np.random.Generator) -> None:
    at, kind = int(rng.integers(len(values))), int(rng.integers(4))
    own = values[at]
    if kind == 0:
        del values[at]
    elif kind == 1:
        values.append(own)
    elif hasattr(own, "ListFields"):
        own.CopyFrom(_another(own, every, rng))
    else:
        values[at] = _changed_scalar(field, own, names, rng)


def changed_json(value: Any, rng: np.random.Generator) -> Any:
    """A copy with something else in a few places."""
    copy = json.loads(json.dumps(value))
    for _ in range(int(rng.integers(1, 5))):
        place = copy
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = keys[int(rng.integers(len(keys)))]
            own = place[key]
            if isinstance(own, dict | list) and own and rng.random() < 0.8:
                place = own
                continue
            kind = int(rng.integers(8))
            if kind == 0:
                del place[key]
            else:
                strange = [INTEGERS[int(rng.integers(len(INTEGERS)))], FLOATS[int(rng.integers(len(FLOATS)))]]
                strange += [str(rng.choice(WORDS)), None, True, [], {}, [own], {"class_name": own}, [[1 << 40]]]
                place[key] = strange[int(rng.integers(len(strange)))]
            break
    return copy


def changed_file(kind: str, seed: int) -> bytes:
    """A file of that kind, the same for the same seed."""
    rng = np.random.default_rng(seed)
    if kind == "onnx":
        data = sound_onnx(seed % 64)
        return changed_bytes(data, rng) if rng.random() < 0.3 else changed_model(data, rng)
    if kind == "safetensors":
        data = sound_safetensors(seed % 9)
        if rng.random() < 0.5:
            return changed_bytes(data, rng)
        size = int.from_bytes(data[:8], "little")
        text = json.dumps(changed_json(json.loads(data[8 : 8 + size]), rng)).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]
    config, weights = sound_keras()
    which = rng.random()
    text = json.dumps(changed_json(config, rng) if which < 0.6 else config).encode()
    weights = changed_bytes(weights, rng) if 0.5 < which < 0.9 else weights
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED) as archive:
        for name, part in (("metadata.json", b"{}"), ("config.json", text), ("model.weights.h5", weights)):
            archive.writestr(name, part)
    return changed_bytes(buffer.getvalue(), rng) if which > 0.9 else buffer.getvalue()


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_safetensors(path: str) -> None:
    with contextlib.suppress(TvmRnnError):
        rnn.from_torch(path)
    for tensor in open_safetensors(path).values():
        tensor.read()
    rnn.RNN(rnn.cells.elman, 3, 4).load(path)


READERS: dict[str, Callable[[str], Any]] = {
    "onnx": rnn.from_onnx,
    "keras": rnn.from_keras,
    "safetensors": _read_safetensors,
}


def read(kind: str, path: str) -> str:
    """What is wrong with how a frontend takes a file: "" where it gives a network or says what it does not like."""
    _status("VmHWM", reset=True)
    before, start, wrong = _status("VmRSS"), time.monotonic(), ""
    try:
        READERS[kind](path)
    except TvmRnnError as error:
        wrong = "" if str(error) else "an error without a message"
    except Exception:
        wrong = traceback.format_exc()
    seconds, grown = time.monotonic() - start, _status("VmHWM") - before
    if seconds > MOST_SECONDS:
        wrong += f"it took {seconds:.1f} s"
    if grown > MOST_BYTES:
        wrong += f"it took {grown >> 20} MB"
    return wrong


def _status(name: str, reset: bool = False) -> int:
    """This process's memory in bytes, as the kernel has it; with reset, the highest one is forgotten."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(rows[name].split()[0]) << 10


def work(seconds: float, seed: int, folder: Path) -> None:
    """Change and read files until the time is over. What is being read lies in `folder`, and findings beside it."""
    limit = _status("VmSize") + 4 * MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        kind = KINDS[(0, 0, 1, 0, 1, 0, 2)[seed % 7]]
        path = folder / f"current.{kind}"
        (folder / "now").write_text(f"{kind} {seed}")
        path.write_bytes(changed_file(kind, seed))
        wrong = read(kind, str(path))
        if wrong:
            keep(folder, kind, seed, wrong)
        seed, count = seed + 1, count + 1
        (folder / "count").write_text(str(count))


def keep(folder: Path, kind: str, seed: int, wrong: str) -> None:
    """Write a finding down: the file, and what was wrong."""
    (folder / f"found-{seed}.{kind}").write_bytes((folder / f"current.{kind}").read_bytes())
    (folder / f"found-{seed}.txt").write_text(wrong)


def fuzz(seconds: float, seed: int, folder: Path) -> tuple[int, list[str]]:
    """How many files were read, and the findings. The reader is a process of its own, since it may die or hang."""
    folder.mkdir(parents=True, exist_ok=True)
    end, total = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        (folder / "count").write_text("0")
        (folder / "now").unlink(missing_ok=True)
        words = [sys.executable, __file__, "--work", str(left), str(seed), str(folder)]
        with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as worker:
            hung = _watch(worker, folder)
        count = int((folder / "count").read_text() or 0)
        total += count
        if worker.returncode:
            if not (folder / "now").exists():
                return total, ["the reader did not start"]
            kind, _, number = (folder / "now").read_text().partition(" ")
            keep(folder, kind, int(number), "it hangs" if hung else f"the process ended with {worker.returncode}")
            seed = int(number) + 1
    return total, [f"{p.name}: {p.read_text()}" for p in sorted(folder.glob("found-*.txt"))]


def _watch(worker: Any, folder: Path) -> bool:
    """Wait until the worker ends; one that reads a file for three times as long as is allowed is killed."""
    while worker.poll() is None:
        time.sleep(0.5)
        now = folder / "now"
        if now.exists() and time.time() - now.stat().st_mtime > 3 * MOST_SECONDS:
            worker.kill()
            worker.wait()
            return True
    return False


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--work":
        work(float(words[1]), int(words[2]), Path(words[3]))
    else:
        read_files, findings = fuzz(float(words[0]), int((words[1:] or ["0"])[0]), Path((words[2:] or ["fuzzed"])[0]))
        print(f"{read_files} files, {len(findings)} findings", *findings, sep="\n")
