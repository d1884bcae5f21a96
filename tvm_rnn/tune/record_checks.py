"""Whether records still hold: those that nothing can replay any more, and what one is worth on this machine today.

In: records as `schedule/record_files.py` reads them. Out: the reason why one is stale; an `Outcome` of its knobs beside
the defaults, measured now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tvm

from tvm_rnn import cells
from tvm_rnn.errors import ConfigError, TvmRnnError, message
from tvm_rnn.network.rnn import RNN
from tvm_rnn.records import Choice, Record
from tvm_rnn.schedule import record_files
from tvm_rnn.schedule.schedule_template import Knobs, Unit, replayed, stale, templates
from tvm_rnn.target import Target, host

from .cpu_builders import CpuBackend
from .journal import Outcome
from .session import workload
from .workload import Candidate

PLAIN = ("gemm", "reduce", "pointwise", "walk")  # kinds of units that a record's key says all of
SECONDS = 4.0  # of turns for each record that is measured again


def every(places: Iterable[str | os.PathLike[str]]) -> tuple[list[Record], list[str]]:
    """All records of several folders, for all targets, and a line for everything in them that is none."""
    found, ignored = list[Record](), list[str]()
    for place in places:
        for folder in sorted(path for path in Path(place).glob("*") if path.is_dir() and not path.name.startswith(".")):
            there = record_files.read([place], folder.name)
            found += there.records
            ignored += there.ignored
    return found, ignored


def reason(record: Record, here: Target | None = None) -> str:
    """Why a record is stale; empty if it is not. here: this machine, whose records are tried out as well."""
    made = record.versions.get("tvm", tvm.__version__)
    if made != tvm.__version__:
        return f"made with tvm {made}, this is {tvm.__version__}"
    for choice in record.choices:
        known = templates().get(choice.template)
        if known is None and choice.unit.get("shape", [""])[0] in PLAIN:
            return f"no template {choice.template}"
        if known is not None and (why := stale(choice, {known.name: known})):
            return why
        if known is not None and here is not None and here.records_name == record.target:
            unit = unit_of(choice)
            try:
                if unit is not None:
                    replayed(known, unit, here, Knobs(choice.knobs))
            except ConfigError as error:
                return str(error).splitlines()[0]
    return ""


def unit_of(choice: Choice) -> Unit | None:
    """The unit that a choice is for, where its key says all of it."""
    try:
        kind, region, dtype, gates, _ = choice.unit["shape"]
        sizes = choice.unit["sizes"]
        (width,), depths, batches = sizes["width"], tuple(sizes["depths"]), tuple(sizes["batch"])
    except (KeyError, TypeError, ValueError):
        return None
    return Unit(kind, region, dtype, gates, width, depths, batches=batches) if kind in PLAIN else None


def network(facts: Mapping[str, Any]) -> RNN:
    """The network of a record's workload. Raises ConfigError where its cell is none of the zoo."""
    if facts["cell"] not in cells.names():
        do = "tune it again: tvm-rnn tune file.py:function"
        raise ConfigError(message("only cells of the zoo can be measured again", got=facts["cell"], do=do))
    sizes = {name: size for name, size in facts.get("sizes", {}).items() if name != "H"}
    cell = cells.get(str(facts["cell"]))
    hidden = facts["hidden"] if "H" in cell.size_names else None
    both = facts.get("directions", 1) == 2
    return RNN(cell, facts["input"], hidden, facts.get("layers", 1), both, facts.get("dtype", "float32"), **sizes)


def measured_again(
    record: Record, *, seconds: float = SECONDS, timeout: float = 30.0, tell: Callable[[str], None] | None = None
) -> Outcome:
    """A record's knobs beside the defaults, on this machine, now. Raises TvmRnnError where that cannot be done."""
    here = host()
    if record.target != here.records_name:
        do = "measure it on such a machine"
        raise TvmRnnError(message("a record for another machine", got=record.target, expected=here.records_name, do=do))
    if why := reason(record, here):
        raise TvmRnnError(message("a record that is stale", got=why, do="tune again"))
    facts = record.workload
    work = workload(network(facts), here, facts["steps"], facts["batch"], facts["precision"])
    with CpuBackend(work, here, timeout=timeout) as backend:
        backend.start(tell or (lambda stage: None))
        (found,) = backend.compare([Candidate(record.choices)], seconds)
    return found
