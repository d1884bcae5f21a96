"""`tvm-rnn explain` and `tvm-rnn doctor`: why a compilation is what it is, and what works on this machine.

In: words from the user's shell. Out: text by rich, or JSON; doctor's exit code is 0 where the CPU path works, else 1.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import print_json, print_rich, progress
from .options import (
    Batch,
    Bidirectional,
    Dtype,
    HiddenSize,
    InputSize,
    Json,
    Keep,
    Layers,
    MaxBytes,
    Precision,
    Size,
    Target,
    WeightDtype,
    Without,
    regularised,
)

if TYPE_CHECKING:
    from tvm_rnn.explain.explanation import Explanation

Explained = Annotated[str, typer.Argument(metavar="SPEC|MODULE", help="A cell, a network, or a .so file.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps (T) of the work that is counted.")]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write it as one page, with pictures.")]
Ablation = Annotated[
    str | None, typer.Option("--ablation", metavar="FILE", help="For the page: records of `bench --suite ablation`.")
]
History = Annotated[str | None, typer.Option("--journal", metavar="FILE", help="For the page: a journal of `tune`.")]
OwnCell = Annotated[
    str | None, typer.Option("--cell", metavar="SPEC", help="Of a module: its cell, for pictures, if not the zoo's.")
]
Measure = Annotated[bool, typer.Option("--measure", help="Compile it too: a GPU's registers; on CPUs, time it here.")]


@regularised
def explain(
    spec: Explained,
    input_size: InputSize = None,
    hidden_size: HiddenSize = None,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    dtype: Dtype = None,
    size: Size = None,
    target: Target = "llvm",
    precision: Precision = None,
    weight_dtype: WeightDtype = None,
    batch: Batch = "",
    steps: Steps = 100,
    training: Annotated[bool, typer.Option("--training", help="With gradients.")] = False,
    keep: Keep = None,
    max_bytes: MaxBytes = "",
    regularisers: Any = None,
    without: Without = None,
    measure: Measure = False,
    cell: OwnCell = None,
    html: Html = None,
    ablation: Ablation = None,
    journal: History = None,
    as_json: Json = False,
) -> None:
    """Say what each pass did and why not more, who runs the steps and why nothing faster, and how far from the floor.

    Axes that got no size get a small one. A module (.so) says it of itself; its page has pictures too, drawn from the
    zoo's cell of its name or from --cell, if that has the equations that were compiled.

    [bold]Examples[/]

    $ tvm-rnn explain lstm --input-size 256 --hidden-size 256 --batch 1,16

    $ tvm-rnn explain gru --target nvidia-h200 --dtype bfloat16 --input-size 2048 --hidden-size 2048 --batch 16

    $ tvm-rnn explain lstm --layers 3 --batch 16 --html lstm.html
    """
    from tvm_rnn.explain.explanation import explain as explained
    from tvm_rnn.explain.text import page
    from tvm_rnn.frontends.spec import parse_batch, parse_bytes

    from .networks import looked_at

    own: dict[str, Any] = {"steps": steps, "measure": measure, "precision": precision, "cell": _own_cell(cell, spec)}
    own |= {"training": training, "without": without or (), "keep": keep, "max_bytes": parse_bytes(max_bytes)}
    with progress(as_json) as stage:
        stage("looking at what is decided")
        if spec.endswith(".so"):
            found = explained(spec, batch=parse_batch(batch), weights=weight_dtype, **own)
        else:
            shape = {"layers": layers, "bidirectional": bidirectional, "dtype": dtype, "regularisers": regularisers}
            net = looked_at(spec, input_size, hidden_size, size, shape)
            found = explained(net, target, batch=parse_batch(batch), weights=weight_dtype, **own)
        if html is not None:
            stage(f"writing {html}")
            _write_page(found, html, ablation, journal)
    if as_json:
        print_json(found.facts)
    else:
        print_rich(page(found.facts))


def _own_cell(cell: str | None, spec: str) -> Any:
    """The cell that a module is said to be made from."""
    from tvm_rnn.frontends.spec import find_cell

    if cell is not None and not spec.endswith(".so"):
        raise typer.BadParameter("--cell is for modules: SPEC is the cell")
    return None if cell is None else find_cell(cell)


def _write_page(found: Explanation, path: str, ablation: str | None, journal: str | None) -> None:
    from tvm_rnn.explain.html.sources import ablation_rows, gains

    command = shlex.join(["tvm-rnn", *sys.argv[1:]])
    times, trials = ablation_rows(ablation) if ablation else (), gains(journal) if journal else ()
    found.write_html(path, command=command, ablation=times, history=trials)


def doctor(as_json: Json = False) -> None:
    """Say what is installed, which targets work here and why others do not. For bug reports.

    Exits with 0 where a cell can be compiled for this CPU and run, else with 1.

    [bold]Example[/]

    $ tvm-rnn doctor --json | jq .problems
    """
    from .doctor import examine
    from .doctor import page as doctor_page

    with progress(as_json) as stage:
        found = examine(stage)
    if as_json:
        print_json(found)
    else:
        print_rich(doctor_page(found))
    if not found["works"]:
        raise typer.Exit(1)
