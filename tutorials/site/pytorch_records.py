"""What was measured in PyTorch, for the site: tables of stored records.

In: `pages/records/pytorch/*.jsonl`: of `tests/torch_own_tests.py`, `tvm-rnn bench --suite models`, and
`python -m tvm_rnn.bench.run.first_call` and `training_step`, each with `--records`. Out: a page with each marker
`<!-- records: NAME -->` replaced by the tables of the files whose names begin so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tvm_rnn.bench.run import first_call, training_step, whole_models

RECORDS = Path(__file__).resolve().parent / "pages" / "records" / "pytorch"
MARKER = re.compile(r"^<!-- records: (\S+) -->$", re.M)
Record = dict[str, Any]


def page(text: str, folder: Path = RECORDS) -> str:
    """The page with its tables. Raises ValueError for a marker that no file stands for."""

    def tables(found: re.Match[str]) -> str:
        kind = found[1]
        files = sorted(folder.glob(f"{kind}*.jsonl"))
        if kind not in TABLES or not files:
            raise ValueError(f"no records are stored for {found[0]}")
        return "\n\n".join(_table(path, TABLES[kind]) for path in files)

    return MARKER.sub(tables, text)


def _table(path: Path, made: Callable[[Sequence[Record]], str]) -> str:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    facts = records[0]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    note = f" {facts['note']}" if "note" in facts else ""
    about = f"{facts['device']}; {versions}; {facts['date'][:10]}; `{facts['command']}`.{note}"
    return f"{about}\n\n{made(records)}"


def tests(records: Sequence[Record]) -> str:
    """How many, then each test by name: those that failed or do not apply with their reasons."""
    found = [record for record in records if record["kind"] == "test"]
    kinds = Counter(record["outcome"] for record in found)
    passed = [record["name"] for record in found if record["outcome"] == "passed"]
    lines = [", ".join(f"**{count} {kind}**" for kind, count in sorted(kinds.items(), reverse=True)) + ".", ""]
    for kind in ("failed", "not applicable"):
        reasons: dict[str, list[str]] = {}
        for record in found:
            if record["outcome"] == kind:
                reasons.setdefault(record["reason"], []).append(record["name"])
        lines += [f"| {kind}: why | tests |", "|---|---|"] if reasons else []
        lines += [f"| {_cell(why)} | {', '.join(f'`{name}`' for name in names)} |" for why, names in reasons.items()]
        lines += [""] if reasons else []
    return "\n".join([*lines, '??? note "Passed, by name"', "", *(f"    - `{name}`" for name in passed)])


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;")


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "models": whole_models.table,
    "training-step": training_step.table,
    "first-call": first_call.table,
    "torch-tests": tests,
}
