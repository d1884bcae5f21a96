"""What was measured in PyTorch, and what comes of ONNX's own tests, for the site: tables of stored records.

In: `pages/records/pytorch/*.jsonl`: of `tests/torch_own_tests.py`, `tvm-rnn bench --suite models`, and
`python -m tvm_rnn.bench.run.first_call` and `training_step`; `pages/records/onnx/*.jsonl`: of
`tests/frontends/onnx_cases.py`; each with `--records`. Out: a page with each marker `<!-- records: NAME -->` replaced
by the tables of the files whose names begin so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tvm_rnn.bench.run import first_call, training_step, whole_models

RECORDS = Path(__file__).resolve().parent / "pages" / "records"
ONNX_OUTCOMES = ("passed", "refused", "wrong")
LONGEST = 160  # characters of a reason that a table shows
MARKER = re.compile(r"^<!-- records: (\S+) -->$", re.M)
Record = dict[str, Any]


def page(text: str, folder: Path = RECORDS) -> str:
    """The page with its tables. Raises ValueError for a marker that no file stands for."""

    def tables(found: re.Match[str]) -> str:
        kind = found[1]
        files = sorted(folder.glob(f"*/{kind}*.jsonl"))
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


def onnx_tests(records: Sequence[Record]) -> str:
    """How many of each group of operators, then why tests are refused, the most frequent reasons first."""
    found = [record for record in records if record["kind"] == "test"]
    groups = dict.fromkeys(record["group"] for record in found)
    counts = Counter((record["group"], record["outcome"]) for record in found)
    lines = ["| group | passed | refused by name | wrong |", "|---|---|---|---|"]
    for group in groups:
        lines.append(f"| {group} | " + " | ".join(str(counts[group, kind]) for kind in ONNX_OUTCOMES) + " |")
    whole = Counter(record["outcome"] for record in found)
    lines.append("| **all** | " + " | ".join(f"**{whole[kind]}**" for kind in ONNX_OUTCOMES) + " |")
    reasons = dict[str, list[str]]()
    for record in found:
        if record["outcome"] != "passed":
            reasons.setdefault(reason_of(record["reason"]), []).append(record["name"])
    most = sorted(reasons.items(), key=lambda pair: -len(pair[1]))
    rows = [f"    | {_cell(why)} | {', '.join(f'`{name}`' for name in names)} |" for why, names in most]
    return "\n".join(
        [*lines, "", '??? note "What is not passed: why"', "", "    | why | tests |", "    |---|---|", *rows]
    )


def reason_of(text: str) -> str:
    """A refusal without the name of its node, so that tests refused for one reason are together."""
    got = text.partition(" got: ")[2].partition(" do: ")[0] or text
    own = re.sub(r"\b[A-Z]\w* '[^']*'(?: in its body)?: ", "", got)
    return own if len(own) <= LONGEST else own[: LONGEST - 3] + "..."


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;")


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "models": whole_models.table,
    "training-step": training_step.table,
    "first-call": first_call.table,
    "torch-tests": tests,
    "onnx-tests": onnx_tests,
}
