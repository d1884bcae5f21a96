"""`tvm-rnn records`: list what was tuned, measure it again, merge folders, remove what nothing can use any more.

In: words from the user's shell. Out: tables or JSON; changed folders of records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_rnn.errors import ConfigError, TvmRnnError, message

from .console import progress, show
from .options import Json
from .usage import MARKUP, Command, Commands

if TYPE_CHECKING:
    from tvm_rnn.records import Record

Folder = Annotated[
    str | None, typer.Option("--records", metavar="DIR", help="A folder of records. [all that compile reads]")
]
Only = Annotated[str, typer.Option(metavar="WORDS", help="Records whose target or name has all these words.")]

app = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=MARKUP)


@app.callback(invoke_without_command=True)
def listed(ctx: typer.Context, records: Folder = None, only: Only = "", as_json: Json = False) -> None:
    """List tuned records, measure them again, merge folders of them, remove stale ones.

    **Examples**

    $ tvm-rnn records

    $ tvm-rnn records compare --only lstm

    $ tvm-rnn records merge colleague/records --records schedules/records
    """
    if ctx.invoked_subcommand is not None:
        return
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.tune.record_checks import reason

    found, ignored = _read(records, only)
    rows = [{**r.as_dict(), "gain": round(r.gain, 4), "folder": r.source, "stale": reason(r)} for r in found]
    table = plain_table("target", "workload", "T", "gain", "us", "trials", "date", "folder", "stale")
    for r in found:
        figures = [str(r.workload.get("steps", "")), f"{r.gain:.2f}", f"{r.median_us:.4g}", str(r.trials)]
        table.add_row(r.target, r.name, *figures, r.date[:10], r.source, reason(r))
    said = [f"{len(found)} records", *(f"ignored: {line}" for line in ignored)]
    show(as_json, {"records": rows, "ignored": ignored}, table, *said)


def _read(folder: str | None, only: str) -> tuple[list[Record], list[str]]:
    """Records in order, those whose target and name have all words."""
    from tvm_rnn.schedule import record_files
    from tvm_rnn.tune.record_checks import every

    places: Sequence[Any] = record_files.folders() if folder is None else [_existing(folder)]
    found, ignored = every(p for p in places if Path(p).is_dir())
    words = only.replace(",", " ").split()
    kept = [r for r in found if all(word in f"{r.target} {r.name}" for word in words)]
    return sorted(kept, key=lambda r: (r.target, r.name, r.source)), ignored


def _existing(folder: str) -> str:
    if not os.path.isdir(folder):
        raise ConfigError(message("--records: no such folder", got=repr(folder), do="tune first, or check the path"))
    return folder


@app.command("compare", cls=Command)
def compare(
    records: Folder = None,
    only: Only = "",
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds of turns for each record.")] = 4.0,
    as_json: Json = False,
) -> None:
    """Measure records for this machine again, in turns with the defaults."""
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.target import host
    from tvm_rnn.tune.record_checks import measured_again

    name = host().records_name
    found = [r for r in _read(records, only)[0] if r.target == name]
    rows: list[dict[str, Any]] = []
    with progress(as_json) as stage:
        for number, record in enumerate(found, 1):
            stage(f"{number} of {len(found)}: {record.name}")
            row: dict[str, Any] = {"name": record.name, "steps": record.workload.get("steps"), "then": record.gain}
            try:
                outcome = measured_again(record, seconds=seconds)
                row |= {"now": 1 / outcome.ratio, **outcome.as_dict()} if outcome.valid else outcome.as_dict()
            except TvmRnnError as error:
                row["reason"] = " ".join(str(error).split())
            rows.append(row)
    table = plain_table("workload", "T", "gain then", "gain now", "us", "by default", "")
    for row in rows:
        figures = [f"{row['now']:.2f}", f"{row['median_us']:.4g}", f"{row['default_us']:.4g}"] if "now" in row else []
        more = "" if figures else f"{row.get('state', '')} {row.get('reason', '')}".strip()
        table.add_row(row["name"], str(row["steps"]), f"{row['then']:.2f}", *(figures or ["", "", ""]), more)
    show(as_json, rows, table, f"{len(rows)} records for {name}")


@app.command("merge", cls=Command)
def merge(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A folder of records.")],
    records: Folder = None,
    as_json: Json = False,
) -> None:
    """Put all records of another folder into this one (the user's own). Of two for one workload the newer one stays."""
    from tvm_rnn.schedule import record_files
    from tvm_rnn.tune.record_checks import every

    into = records or str(record_files.own_folder())
    found, ignored = every([_existing(source)])
    files = record_files.merge(into, found, keep=lambda old, new: old.date > new.date)
    facts = {"records": len(found), "files": [str(f) for f in files], "ignored": ignored}
    show(as_json, facts, f"{len(found)} records merged into {into}", *(f"ignored: {line}" for line in ignored))


@app.command("prune", cls=Command)
def prune(
    records: Folder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and leave it.")] = False,
    as_json: Json = False,
) -> None:
    """Remove from a folder (the user's own) what nothing can replay: of another TVM, of other versions of templates."""
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.schedule import record_files
    from tvm_rnn.target import host
    from tvm_rnn.tune.record_checks import every, reason

    folder, here = records or str(record_files.own_folder()), host()
    found = every([_existing(folder)])[0]
    gone = [r for r in found if reason(r, here)]
    if not dry_run:
        gone = record_files.remove(folder, lambda r: bool(reason(r, here)))
    rows = [{"target": r.target, "name": r.name, "reason": reason(r, here)} for r in gone]
    table = plain_table("target", "workload", "reason")
    for row in rows:
        table.add_row(row["target"], row["name"], row["reason"])
    facts = {"folder": folder, "removed": [] if dry_run else rows, "stale": rows}
    show(as_json, facts, table, f"{len(rows)} of {len(found)} records {'are stale' if dry_run else 'removed'}")
