"""What a report takes from files: times of an ablation, and the journal of a tuning run.

In: lines of JSON that `tvm-rnn bench --suite ablation --records FILE` and `tvm-rnn tune` write. Out: rows for charts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from tvm_rnn.decisions import Figures
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.tune.journal import Outcome

from .charts import AblationRow


def ablation_rows(path: str | os.PathLike[str]) -> list[AblationRow]:
    """without (the passes that were left out, in words) and us (per step) of our own rows. Raises ConfigError."""
    rows = [row for row in _lines(path) if row.get("framework") == "tvm_rnn" and row.get("us_per_step")]
    several = len({row.get("point") for row in rows}) > 1 and len({_network(row) for row in rows}) > 1
    found = []
    for row in rows:
        without = ", ".join(row.get("without") or ()) or "nothing"
        words = f"{_network(row)}: {without}" if several else without
        found.append(AblationRow(without=words, us=row["us_per_step"]))
    if not found:
        do = "write it with: tvm-rnn bench --suite ablation --records FILE"
        raise ConfigError(message("--ablation: no times of tvm_rnn in this file", got=os.fspath(path), do=do))
    return found


def _network(row: Figures) -> str:
    return f"{row.get('cell')} H={row.get('hidden')} B={row.get('batch')}"


def gains(path: str | os.PathLike[str]) -> list[float | None]:
    """The speed over the defaults of each trial of a journal, None where it failed. Raises ConfigError."""
    found: list[float | None] = []
    for row in _lines(path):
        if "state" in row and "choices" in row:
            outcome = Outcome.from_dict(row)
            found.append(1 / outcome.ratio if outcome.valid else None)
    if not found:
        do = "give a file of the folder .tuning beside tuned records"
        raise ConfigError(message("--journal: no trials in this file", got=os.fspath(path), do=do))
    return found


def _lines(path: str | os.PathLike[str]) -> Iterator[Figures]:
    try:
        with open(path) as file:
            for line in file:
                if line.strip():
                    yield dict(json.loads(line))
    except (OSError, ValueError, TypeError) as reason:
        raise ConfigError(message("this file cannot be read", where=os.fspath(path), got=str(reason))) from None
