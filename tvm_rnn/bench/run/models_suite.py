"""The suite of whole models: ONNX files of packages beside ONNX Runtime, and torch models of packages beside themselves
before `rnn.accelerate(model)`.

In: words of their names, a folder of packages, options. Out: records, written to a file as they come; the first says
what they were measured on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_rnn.bench.suites.onnx_files import INSTALL, OnnxFile, found_in
from tvm_rnn.bench.suites.packages import MODELS, READERS, PackagedModel
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.target import host

from . import onnx_files, whole_models
from .compare import cpu_facts
from .gpu_suite import Progress, Record, writing


@dataclass(frozen=True)
class Chosen:
    """files: with their paths. models: of torch, measured on `device`."""

    files: Mapping[OnnxFile, Path]
    models: Sequence[PackagedModel]
    device: str = "cpu"


def chosen(words: Sequence[str], packages: str | None, device: str = "cpu") -> Chosen:
    """What is there of the suite, with all these words in its name. On a GPU: torch models alone. Raises ConfigError
    where there are models, and none has the words."""
    files = found_in(packages) if device == "cpu" else {}
    more = READERS if device == "cuda" else ()
    models = (*more, *MODELS.values()) if importlib.util.find_spec("torch") is not None else ()
    there = [own for own in models if own.is_installed]
    found = Chosen(
        {own: path for own, path in files.items() if all(word in own.name for word in words)},
        [own for own in there if all(word in own.name for word in words)],
        device,
    )
    if (files or there) and not (found.files or found.models):
        names = ", ".join(sorted([*(own.name for own in files), *(own.name for own in there)]))
        raise ConfigError(message("--only: no model has all of these words", got=" ".join(words), expected=names))
    return found


def run(
    chosen: Chosen,
    options: onnx_files.Options,
    records: str | os.PathLike[str] | None = None,
    *,
    one: onnx_files.One | None = None,
    progress: Progress | None = None,
) -> list[Record]:
    """Measure what was chosen and return the records. records: a file of lines of JSON to write. one: measures an ONNX
    file, such as `onnx_streams.measured`. Raises ConfigError where nothing is chosen, or the device is not there."""
    if not chosen.files and not chosen.models:
        do = f"{INSTALL}; then --packages DIR; or pip install {' '.join(own.package for own in MODELS.values())}"
        raise ConfigError(message("no package of this suite is there", got="no file, no model", do=do))
    if chosen.models:
        whole_models.check_device(chosen.device)
    found = list[Record]()
    with writing(found, records) as write:
        write(_facts(chosen, options.counted) | ({} if one is None else {"clock": "wall time, medians of rounds"}))
        for record in onnx_files.measured(chosen.files, options, progress, one):
            write(record)
        for record in whole_models.measured(chosen.models, chosen.device, options.rounds) if chosen.models else ():
            write(record)
    return found


def _facts(chosen: Chosen, threads: int) -> Record:
    clock = "CPU time of the thread" if threads == 1 else "wall time"
    clock = "the device's" if chosen.device == "cuda" else f"{clock}, fastest round; torch models: CPU time, median"
    facts: Record = {"kind": "facts", **cpu_facts(threads), "target": host().mcpu, "clock": clock}
    if chosen.models:
        more = whole_models.facts(chosen.device)
        facts |= {**more, "versions": {**facts["versions"], **more["versions"]}}
    return facts
