"""`tvm-rnn tune`: find knob values for a network on this machine or on others, live, and record what won.

In: words from the user's shell. Out: a line in a folder of records, a table or JSON on stdout, progress on stderr, a
picture. Exit code 130 after Ctrl-C, which ends the search: what was found is compared and recorded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.stages import duration

from . import completion, tune_gpu
from .console import show
from .options import Devices, Json, Measured, OnGpu, Search, Sizes, Tuning, Values, grouped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tvm_rnn.tune.session import Result, Status

TRIALS = 200


@grouped
def tune(
    sizes: Sizes,
    measured: Measured,
    search: Search,
    devices: Devices,
    gpu: OnGpu,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="As for compile. Not with --suite.", autocompletion=completion.cells),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the search: an .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Find knob values that make a cell faster than the defaults do, for one T and B, and record them.

    Candidates are compiled, compared with float64, and timed in turns with the defaults. What wins is written to a
    folder of records that `compile` reads. On this CPU, run again to go on where a stopped run was. For a GPU that is
    elsewhere: --plan here, --measure there, --collect here. For CPUs that are elsewhere: --rpc-tracker and --device-key
    of TVM's own servers there, and their kind as --target.

    **Examples**

    $ tvm-rnn tune lstm --input-size 256 --hidden-size 256 --steps 50 --batch 16 --seconds 120

    $ tvm-rnn tune mycell.py:mycell --input-size 8 --hidden-size 32 --batch 1 --records records --plot search.svg

    $ tvm-rnn tune lstm --input-size 64 --hidden-size 256 --rpc-tracker 10.0.0.5:9190 --device-key nuc

    $ tvm-rnn tune --suite gpu-grid --only lstm,h512,bf16 --plan candidates
    """
    asked = Tuning(spec, sizes, measured, search, devices, gpu)
    if plot is not None:
        from tvm_rnn.vega_lite import check_plot

        check_plot(plot)
    if tune_gpu.wanted(asked):
        tune_gpu.tune(asked, as_json)
    else:
        _here(asked, plot, as_json)


def _here(asked: Tuning, plot: str | None, as_json: bool) -> None:
    """On this machine's CPU, or on those of a tracker's devices."""
    from tvm_rnn.tune.session import SearchOptions, run

    from .networks import rnn_of

    if asked.spec is not None and asked.spec.endswith(".so"):
        do = "tune the network that it was made from, then compile that again: records are found by themselves"
        raise ConfigError(message("tune: a module is compiled already", got=asked.spec, do=do))
    if asked.spec is None or asked.sizes.input_size is None:
        got = "no SPEC" if asked.spec is None else "no --input-size"
        raise ConfigError(
            message("tune: which network?", got=got, do="tvm-rnn tune lstm --input-size 64 --hidden-size 64")
        )
    measured, search = asked.measured, asked.search
    net = rnn_of(asked.spec, asked.sizes, {}, Values(weights=measured.weights))
    trials = search.trials or TRIALS
    with live(as_json) as status:
        options = SearchOptions(
            seconds=search.seconds,
            patience=search.patience,
            precision=measured.precision,
            records=search.records,
            seed=search.seed,
            jobs=search.jobs,
            timeout=search.timeout,
            fresh=search.fresh,
            rpc_tracker=asked.devices.rpc_tracker,
            device_key=asked.devices.device_key,
            progress=status,
            command=_command(asked, trials),
        )
        result = run(net, measured.target, measured.steps, measured.batch, trials, options)
    if plot is not None:
        from tvm_rnn.npy_files import text_writer, write_whole
        from tvm_rnn.tune.plot import plot as drawn

        record = result.record
        about = {"target": record.target, "date": record.date, "ended by": result.stopped}
        title = f"{record.name}: {record.gain:.2f}x the defaults"
        write_whole({plot: text_writer(drawn(result.outcomes, title, about))})
    show(as_json, facts(result), *report(result))
    if result.stopped == "Ctrl-C":
        raise typer.Exit(130)


def _command(asked: Tuning, trials: int) -> str:
    """What a record says it was made by: the words of this command that decide what is measured."""
    sizes, measured = asked.sizes, asked.measured
    said: dict[str, object] = {
        "input-size": sizes.input_size,
        "hidden-size": sizes.hidden_size,
        "layers": sizes.layers if sizes.layers != 1 else None,
        "dtype": sizes.dtype if asked.dtype != "float32" else None,
        "steps": measured.steps,
        "batch": measured.batch,
        "seconds": None if asked.search.seconds is None else f"{asked.search.seconds:g}",
        "rpc-tracker": asked.devices.rpc_tracker,
        "device-key": asked.devices.device_key,
    }
    text = [f"--{name} {value}" for name, value in said.items() if value is not None]
    text += ["--bidirectional"] if sizes.bidirectional else []
    text += [f"--size {size}" for size in sizes.size or []]
    text += [f"--target {measured.target}"] if measured.target != "llvm" else []
    return " ".join(["tvm-rnn tune", str(asked.spec), *text, f"--trials {trials}"])


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[Status], None]]:
    """Shows the state of the search on stderr: a bar for people, a line now and then for a log, nothing if quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    if quiet:
        yield lambda status: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    stage = TextColumn("[dim]{task.description}", table_column=Column(no_wrap=False))  # gives way where it is narrow
    columns = (
        *(BarColumn(12), MofNCompleteColumn(), "trials", "best {task.fields[gain]:.2f}x"),
        *("{task.fields[left]}", stage),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, gain=1.0, left="")

        def show(status: Status) -> None:
            left = "" if status.left is None else f"about {duration(status.left)} left"
            done, total = status.trials, status.budget or None
            bar.update(task, total=total, completed=done, description=status.stage, gain=status.gain, left=left)

        yield show


def _lines(console: Console) -> Callable[[Status], None]:
    """A line for every stage and every improvement."""
    last = [("", 0.0)]

    def show(status: Status) -> None:
        now = (status.stage, round(status.gain, 2))
        if now != last[0]:
            last[0] = now
            console.print(str(status), highlight=False, soft_wrap=True)

    return show


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


def report(result: Result) -> list[RenderableType]:
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
    gain = f"{record.name}: {record.gain:.2f}x the defaults ({record.median_us:.4g} us, {record.default_us:.4g})"
    trials = f"{len(result.outcomes)} trials ({failed} failed, {result.resumed} of an earlier run) in "
    trials += f"{duration(result.seconds)}; ended by: {result.stopped}"
    return [Text(gain), "", table, "", Text(trials), *(Text(f"recorded in {file}") for file in result.files)]


def _unit(key: Mapping[str, Any]) -> str:
    kind, region, *_ = key["shape"]
    sizes = key["sizes"]
    return f"{region} {kind} " + " ".join(f"{name}={','.join(map(str, value))}" for name, value in sizes.items())


def _knobs(knobs: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items())
