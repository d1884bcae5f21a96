"""`tvm-rnn tune`: find knob values for a network on this machine or on others, live, and record what won.

In: words from the user's shell. Out: a line in a folder of records, a table or JSON on stdout, progress on stderr, a
picture. Exit code 130 after Ctrl-C, which ends the search: what was found is compared and recorded all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_rnn.errors import ConfigError, message

from . import tune_gpu
from .console import print_json, print_rich
from .options import (
    Bidirectional,
    CollectFolder,
    DeviceKey,
    Dtype,
    HiddenSize,
    InputSize,
    Json,
    Layers,
    MeasureFolder,
    Only,
    Patience,
    PlanFolder,
    Plot,
    Precision,
    RecordsFolder,
    Rows,
    RpcTracker,
    Seconds,
    Size,
    Steps,
    Suite,
    Target,
    Trials,
    TunedSpec,
    Weights,
)

if TYPE_CHECKING:
    from tvm_rnn.tune.session import Result, Status

TRIALS = 200


def tune(
    spec: TunedSpec = None,
    input_size: InputSize = None,
    hidden_size: HiddenSize = None,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    dtype: Dtype = "float32",
    size: Size = None,
    steps: Steps = 128,
    batch: Rows = 16,
    target: Target = "llvm",
    precision: Precision = None,
    trials: Trials = None,
    seconds: Seconds = None,
    patience: Patience = None,
    records: RecordsFolder = None,
    weights: Weights = None,
    seed: Annotated[int, typer.Option("--seed", help="Of random weights, inputs and the search.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Compilations at a time. [one per CPU]")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one candidate may take.")] = 30.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run measured.")] = False,
    rpc_tracker: RpcTracker = None,
    device_key: DeviceKey = None,
    plot: Plot = None,
    suite: Suite = None,
    only: Only = "",
    plan: PlanFolder = None,
    measure: MeasureFolder = None,
    collect: CollectFolder = None,
    as_json: Json = False,
) -> None:
    """Find knob values that make a cell faster than the defaults do, for one T and B, and record them.

    Candidates are compiled, compared with float64, and timed in turns with the defaults. What wins is written to a
    folder of records that `compile` reads. On this CPU, run again to go on where a stopped run was. For a GPU that is
    elsewhere: --plan here, --measure there, --collect here. For CPUs that are elsewhere: --rpc-tracker and --device-key
    of TVM's own servers there, and their kind as --target.

    [bold]Examples[/]

    $ tvm-rnn tune lstm --input-size 256 --hidden-size 256 --steps 50 --batch 16 --seconds 120

    $ tvm-rnn tune mycell.py:mycell --input-size 8 --hidden-size 32 --batch 1 --records records --plot search.svg

    $ tvm-rnn tune lstm --input-size 64 --hidden-size 256 --rpc-tracker 10.0.0.5:9190 --device-key nuc

    $ tvm-rnn tune --suite gpu-grid --only lstm,h512,bf16 --plan candidates
    """
    given = dict(locals())
    if plot is not None:
        _check_plot(plot)
    if tune_gpu.wanted(given):
        tune_gpu.tune(given)
    else:
        _here(given)


def _here(given: dict[str, Any]) -> None:
    """On this machine's CPU, or on those of a tracker's devices."""
    from tvm_rnn.frontends.spec import build_net, find_cell, parse_sizes
    from tvm_rnn.tune.session import run

    if given["spec"] is None or given["input_size"] is None:
        got = "no SPEC" if given["spec"] is None else "no --input-size"
        raise ConfigError(
            message("tune: which network?", got=got, do="tvm-rnn tune lstm --input-size 64 --hidden-size 64")
        )
    shape = {name: given[name] for name in ("layers", "bidirectional", "dtype")}
    sizes = parse_sizes(given["size"] or [])
    net = build_net(find_cell(given["spec"]), given["input_size"], given["hidden_size"], sizes=sizes, **shape)
    if given["weights"] is not None:
        net.load(given["weights"])
    names = ["seconds", "patience", "precision", "records", "seed", "jobs", "timeout", "fresh"]
    names += ["rpc_tracker", "device_key"]
    how, trials = {name: given[name] for name in names}, given["trials"] or TRIALS
    steps, batch = given["steps"], given["batch"]
    with live(given["as_json"]) as show:
        command = _command(given, trials)
        result = run(net, given["target"], steps, batch, trials, **how, command=command, progress=show)
    if given["plot"] is not None:
        _draw(result, given["plot"])
    if given["as_json"]:
        print_json(facts(result))
    else:
        report(result)
    if result.stopped == "Ctrl-C":
        raise typer.Exit(130)


def _command(given: dict[str, Any], trials: int) -> str:
    """What a record says it was made by: the words of this command that decide what is measured."""
    names = ("input_size", "hidden_size", "layers", "dtype", "steps", "batch", "seconds", "rpc_tracker", "device_key")
    usual = {"layers": 1, "dtype": "float32"}
    words = [name for name in names if given[name] is not None and given[name] != usual.get(name)]
    text = [f"--{name.replace('_', '-')} {_plain(given[name])}" for name in words]
    text += ["--bidirectional"] if given["bidirectional"] else []
    text += [f"--size {size}" for size in given["size"] or []]
    text += [f"--target {given['target']}"] if given["target"] != "llvm" else []
    return " ".join(["tvm-rnn tune", str(given["spec"]), *text, f"--trials {trials}"])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_plot(path: str) -> None:
    """Now, not after the search."""
    if not path.endswith(".svg"):
        raise ConfigError(message("--plot draws one kind of file", got=path, expected="a name ending in .svg"))
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigError(message("--plot: no such folder", got=repr(folder), do="make it first"))


def _draw(result: Result, path: str) -> None:
    from tvm_rnn.npy_files import text_writer, write_whole
    from tvm_rnn.tune.plot import plot

    about = {"target": result.record.target, "date": result.record.date, "ended by": result.stopped}
    text = plot(result.outcomes, f"{result.record.name}: {result.record.gain:.2f}x the defaults", about)
    write_whole({path: text_writer(text)})


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[Status], None]]:
    """Shows the state of the search on stderr: a bar for people, a line now and then for a log, nothing if quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if quiet:
        yield lambda status: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = ("{task.fields[gain]:.2f}x the defaults", "{task.fields[left]}", "[dim]{task.description}")
    with Progress(
        TextColumn("best"),
        TextColumn(columns[0]),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn("trials"),
        TimeElapsedColumn(),
        *(TextColumn(text) for text in columns[1:]),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=None, gain=1.0, left="")

        def show(status: Status) -> None:
            left = "" if status.left is None else f"about {duration(status.left)} left"
            done, total = status.trials, status.budget or None
            bar.update(task, total=total, completed=done, description=status.stage, gain=status.gain, left=left)

        yield show


def _lines(console: Any) -> Callable[[Status], None]:
    """A line for every stage and every improvement."""
    last = [("", 0.0)]

    def show(status: Status) -> None:
        now = (status.stage, round(status.gain, 2))
        if now != last[0]:
            last[0] = now
            console.print(str(status), highlight=False, soft_wrap=True)

    return show


def duration(seconds: float) -> str:
    """Such as "1:05" or "12 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"


def facts(result: Result) -> dict[str, Any]:
    """What --json prints."""
    counts: dict[str, int] = {}
    for outcome in result.outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    return {
        "record": result.record.as_dict(),
        "gain": round(result.record.gain, 4),
        "stopped": result.stopped,
        "seconds": round(result.seconds, 1),
        "trials": len(result.outcomes),
        "resumed": result.resumed,
        "outcomes": counts,
        "failures": [o.as_dict() for o in result.outcomes if not o.valid],
        "files": result.files,
        "journal": result.journal,
    }


def report(result: Result) -> None:
    """The result for people."""
    from rich.text import Text

    from tvm_rnn.explain.tables import plain_table

    record = result.record
    table = plain_table("unit", "template", "knobs", "by default")
    defaults = {str(p.choices[0].unit): p.choices[0] for p in result.parts if p.choices}
    for choice in record.choices:
        before = defaults.get(str(dict(choice.unit)))
        same = before is not None and before.knobs == choice.knobs and before.template == choice.template
        shown = "the same" if same else _knobs(before.knobs) if before is not None else ""
        table.add_row(Text(_unit(choice.unit)), choice.template, Text(_knobs(choice.knobs)), Text(shown))
    failed = sum(not o.valid for o in result.outcomes)
    print_rich(
        Text(f"{record.name}: {record.gain:.2f}x the defaults ({record.median_us:.4g} us, {record.default_us:.4g})"),
        "",
        table,
        "",
        Text(
            f"{len(result.outcomes)} trials ({failed} failed, {result.resumed} of an earlier run) in "
            f"{duration(result.seconds)}; ended by: {result.stopped}"
        ),
        *(Text(f"recorded in {file}") for file in result.files),
    )


def _unit(key: Any) -> str:
    kind, region, *_ = key["shape"]
    sizes = key["sizes"]
    return f"{region} {kind} " + " ".join(f"{name}={','.join(map(str, value))}" for name, value in sizes.items())


def _knobs(knobs: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items())
