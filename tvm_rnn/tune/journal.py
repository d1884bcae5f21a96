"""The journal of tuning: what became of every candidate, line by line as it happens, so that nothing measured is lost.

In: outcomes from `tune.py`. Out: one file per target and workload in the hidden folder `.tuning` of a folder of
records; the outcomes of an earlier run, that was stopped or killed, for the next one. A file is only ever appended to:
headers say which compiler and machine the lines below them are about, and a line that is not whole is passed over.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_rnn import this_machine
from tvm_rnn.bench.run.build_suite import sources_digest
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.names import file_name
from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import folders

from .workload import Candidate, Workload

FORMAT = 1
HIDDEN = ".tuning"
MEASURED = "measured"
# What else a candidate can come to: none of these wins.
WRONG, CRASHED, HUNG, UNBUILT = "wrong", "crashed", "hung", "not built"
STATES = (MEASURED, WRONG, CRASHED, HUNG, UNBUILT)


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate.

    ratio: its time over the defaults', measured in turns with them; below 1 it is faster; inf unless measured.
    median_us: of the whole workload; default_us: of the defaults in the same turns. spread: of the ratios, (largest -
    smallest) / median; faster: the part of them below 1. error: relative to the oracle. reason: why there is no time.
    """

    candidate: Candidate
    state: str = MEASURED
    ratio: float = math.inf
    median_us: float = 0.0
    default_us: float = 0.0
    spread: float = 0.0
    error: float | None = None
    faster: float = 0.0
    reason: str = ""

    @property
    def valid(self) -> bool:
        return self.state == MEASURED and math.isfinite(self.ratio) and self.ratio > 0

    def as_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"state": self.state, "choices": [c.as_dict() for c in self.candidate.choices]}
        if self.valid:
            own = {"ratio": self.ratio, "median_us": self.median_us, "default_us": self.default_us}
            facts |= {**own, "spread": self.spread, "faster": self.faster, "error": self.error}
        return facts | ({"reason": self.reason} if self.reason else {})

    @staticmethod
    def from_dict(facts: Mapping[str, Any]) -> Outcome:
        """Raises KeyError, TypeError or ValueError where it is none."""
        candidate = Candidate(tuple(map(Choice.from_dict, facts["choices"])))
        if facts["state"] not in STATES:
            raise ValueError(f"state {facts['state']!r}")
        reason = str(facts.get("reason", ""))
        if facts["state"] != MEASURED:
            return Outcome(candidate, facts["state"], reason=reason)
        ratio, median, default, spread = (float(facts[n]) for n in ("ratio", "median_us", "default_us", "spread"))
        faster = float(facts.get("faster", 0.0))
        return Outcome(candidate, MEASURED, ratio, median, default, spread, facts.get("error"), faster, reason)


class Journal:
    """One workload's journal. `outcomes`: those of earlier runs of this compiler on this machine."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        target: str,
        workload: Workload,
        fresh: bool = False,
        where: str | None = None,
    ) -> None:
        """fresh: begin anew; what was measured before stays in the file, and is not read again. where: the devices that
        measure, if not this machine.

        Raises ConfigError where the file cannot be written.
        """
        self.path = Path(folder, HIDDEN, file_name(target), f"{file_name(_key(workload))}.jsonl")
        self.about = {"target": target, "workload": workload.facts, "compiler": compiler_digest()}
        self.about["machine"] = machine() if where is None else _digest(where)
        self.outcomes = [] if fresh else list(self._read())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as reason:
            do = "give --records a folder that you may write to"
            what = message("the journal cannot be written", where=str(self.path), got=str(reason), do=do)
            raise ConfigError(what) from None
        with self._alone():
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":  # a line that a killed run did not finish
                os.write(self._file, b"\n")
        self._append({"journal": FORMAT, **self.about, **({"fresh": True} if fresh else {})})

    def add(self, outcome: Outcome) -> None:
        """One line, written at once: what was said to be measured survives a kill."""
        self._append(outcome.as_dict())

    def close(self) -> None:
        os.close(self._file)

    def _append(self, facts: Mapping[str, object]) -> None:
        with self._alone():
            os.write(self._file, (json.dumps(facts) + "\n").encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other writer is within a line. A file system without locks has none to wait for."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read(self) -> Iterator[Outcome]:
        try:
            text = self.path.read_text(errors="replace")
        except OSError:
            return
        found: dict[str, Outcome] = {}
        ours = False
        for line in text.splitlines():
            try:
                facts = json.loads(line)
                if "journal" in facts:
                    ours = {name: facts.get(name) for name in self.about} == json.loads(json.dumps(self.about))
                    if ours and facts.get("fresh"):
                        found = {}
                elif ours:
                    outcome = Outcome.from_dict(facts)
                    found[outcome.candidate.key] = outcome
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
        yield from found.values()


@functools.cache
def compiler_digest() -> str:
    """Changes with whatever may change generated code: this package, its templates, those of the user."""
    digest = hashlib.sha256(sources_digest().encode())
    for folder in folders()[1:]:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> str:
    """Differs between machines, and between numbers of CPUs that one may use; says neither."""
    return _digest(f"{platform.node()} {platform.machine()} {this_machine.cpus()}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _key(workload: Workload) -> str:
    facts = workload.facts
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]
    hidden = facts["hidden"] if isinstance(facts["hidden"], int) else "-".join(map(str, facts["hidden"]))
    words = [facts["cell"], f"h{hidden}", f"b{facts['batch']}", f"t{facts['steps']}", facts["precision"], digest]
    return "-".join(words)
