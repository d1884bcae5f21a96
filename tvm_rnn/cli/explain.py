"""`tvm-rnn explain` and `tvm-rnn doctor`: why a compilation is what it is, and what works on this machine.

In: words from the user's shell. Out: text by rich, or JSON; doctor's exit code is 0 where the CPU path works, else 1.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .console import progress, show
from .options import Code, Fixed, Json, Regularisers, Sizes, Tape, grouped

if TYPE_CHECKING:
    from tvm_rnn.explain.explanation import Explanation


@grouped
def explain(
    spec: Annotated[str, typer.Argument(metavar="SPEC|MODULE", help="A cell, a network, or a .so file.")],
    sizes: Sizes,
    fixed: Fixed,
    code: Code,
    tape: Tape,
    regularisers: Regularisers,
    steps: Annotated[int, typer.Option(min=1, help="Steps (T) of the work that is counted.")] = 100,
    measure: Annotated[
        bool, typer.Option("--measure", help="Compile it too: a GPU's registers; on CPUs, time it here.")
    ] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as one page, with pictures.")] = None,
    ablation: Annotated[
        str | None, typer.Option(metavar="FILE", help="For the page: records of `bench --suite ablation`.")
    ] = None,
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="For the page: a journal of `tune`.")] = None,
    as_json: Json = False,
    cell: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Of a module: its cell, for pictures, if not the zoo's.")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="SPEC|MODULE", help="Another one, explained with the same options, beside it.")
    ] = None,
) -> None:
    """Say what each pass did and why not more, who runs the steps and why nothing faster, and how far from the floor.

    Axes that got no size get a small one. A module (.so) says it of itself; its page has pictures too, drawn from the
    zoo's cell of its name or from --cell, if that has the equations that were compiled.

    **Examples**

    $ tvm-rnn explain lstm --input-size 256 --hidden-size 256 --batch 1,16

    $ tvm-rnn explain gru --target nvidia-h200 --dtype bfloat16 --input-size 2048 --hidden-size 2048 --batch 16

    $ tvm-rnn explain lstm --layers 3 --batch 16 --html lstm.html

    $ tvm-rnn explain before.so --beside after.so --measure --html both.html
    """
    from tvm_rnn.explain.beside import Beside
    from tvm_rnn.explain.explanation import explain as explained
    from tvm_rnn.explain.html.charts import ablation_rows, gains
    from tvm_rnn.explain.text import beside_page, page
    from tvm_rnn.frontends.spec import find_cell, parse_batch, parse_bytes

    from .networks import looked_at

    if cell is not None and not spec.endswith(".so"):
        raise typer.BadParameter("--cell is for modules: SPEC is the cell")
    if beside is not None and (ablation or journal):
        raise typer.BadParameter("--ablation and --journal are for the page of one network, not with --beside")
    own = None if cell is None else find_cell(cell)

    def explanation(spec: str) -> Explanation:
        module = spec.endswith(".so")
        return explained(
            spec if module else looked_at(spec, sizes, fixed, regularisers.parsed()),
            "llvm" if module else code.target,
            batch=parse_batch(code.batch),
            steps=steps,
            precision=code.precision,
            weights=code.weight_dtype,
            training=code.training,
            keep=tape.keep,
            max_bytes=parse_bytes(tape.max_bytes),
            without=code.without or (),
            measure=measure,
            cell=own,
        )

    command = shlex.join(["tvm-rnn", *sys.argv[1:]])
    with progress(as_json) as stage:
        stage("looking at what is decided")
        found = explanation(spec)
        both = None if beside is None else Beside(found, explanation(beside), (spec, beside))
        if html is not None:
            stage(f"writing {html}")
            if both is not None:
                both.write_html(html, command=command)
            else:
                times, trials = ablation_rows(ablation) if ablation else (), gains(journal) if journal else ()
                found.write_html(html, command=command, ablation=times, history=trials)
    if both is not None:
        show(as_json, both.facts, beside_page(both.facts))
    else:
        show(as_json, found.facts, page(found.facts))


def doctor(as_json: Json = False) -> None:
    """Say what is installed, which targets work here and why others do not. For bug reports.

    Exits with 0 where a cell can be compiled for this CPU and run, else with 1.

    **Example**

    $ tvm-rnn doctor --json | jq .problems
    """
    from .doctor import examine
    from .doctor import page as doctor_page

    with progress(as_json) as stage:
        found = examine(stage)
    show(as_json, found, doctor_page(found))
    if not found["works"]:
        raise typer.Exit(1)
