"""`tvm-rnn explain` and `tvm-rnn doctor`: why a compilation is what it is, and what works on this machine.

In: words from the user's shell. Out: text by rich, or JSON; doctor's exit code is 0 where the CPU path works, else 1.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from . import completion
from .console import progress, show
from .options import Code, Fixed, Json, Regularisers, Sizes, Tape, grouped

if TYPE_CHECKING:
    from tvm_rnn.explain.beside import Beside
    from tvm_rnn.explain.explanation import Explanation
    from tvm_rnn.network.model import Model
    from tvm_rnn.network.rnn import RNN


@dataclass(frozen=True)
class Question:
    """What is asked of each SPEC, beside how it is compiled."""

    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps (T) of the work that is counted.")] = 100
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Compile it too: a GPU's registers, and times of a step's phases; on CPUs, time it here."
        ),
    ] = False
    cell: Annotated[
        str | None, typer.Option(metavar="SPEC", help="For pictures of a module: its cell, if not the zoo's.")
    ] = None


@dataclass(frozen=True)
class Page:
    """The page that is written, and what stands on it too."""

    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as one page, with pictures.")] = None
    ablation: Annotated[
        str | None, typer.Option(metavar="FILE", help="For the page: records of `bench --suite ablation`.")
    ] = None
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="For the page: a journal of `tune`.")] = None

    def write(self, found: Explanation | Beside) -> None:
        """Write what was found. Only the page of one network has an ablation and a journal."""
        from tvm_rnn.explain.beside import Beside
        from tvm_rnn.explain.html.charts import ablation_rows, gains

        assert self.html is not None
        command = shlex.join(["tvm-rnn", *sys.argv[1:]])
        if isinstance(found, Beside):
            found.write_html(self.html, command=command)
            return
        times = ablation_rows(self.ablation) if self.ablation else ()
        trials = gains(self.journal) if self.journal else ()
        found.write_html(self.html, command=command, ablation=times, history=trials)


@grouped
def explain(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC|MODULE", help="A cell, a network, or a .so file.", autocompletion=completion.cells
        ),
    ],
    sizes: Sizes,
    fixed: Fixed,
    code: Code,
    tape: Tape,
    regularisers: Regularisers,
    question: Question,
    page: Page,
    as_json: Json = False,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC|MODULE",
            help="Another one, explained with the same options, beside it.",
            autocompletion=completion.cells,
        ),
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
    from tvm_rnn.explain.html.drawing import check_installed

    from .networks import looked_at

    if question.cell is not None and not spec.endswith(".so"):
        raise typer.BadParameter("--cell is for modules: SPEC is the cell")
    if beside is not None and (page.ablation or page.journal):
        raise typer.BadParameter("--ablation and --journal are for the page of one network, not with --beside")
    if page.html is not None:
        check_installed()
    explained = _explainer(code, tape, question, lambda spec: looked_at(spec, sizes, fixed, regularisers.parsed()))
    with progress(as_json) as stage:
        stage("looking at what is decided")
        found = explained(spec)
        both = None if beside is None else Beside(found, explained(beside), (spec, beside))
        if page.html is not None:
            stage(f"writing {page.html}")
            page.write(both or found)
    _show(as_json, both or found)


def _explainer(
    code: Code, tape: Tape, question: Question, network: Callable[[str], RNN | Model]
) -> Callable[[str], Explanation]:
    """How a SPEC or a MODULE becomes its explanation. network: what a SPEC names."""
    from tvm_rnn.explain.explanation import explain as explained
    from tvm_rnn.frontends.spec import find_cell, parse_batch, parse_bytes

    own = None if question.cell is None else find_cell(question.cell)

    def explanation(spec: str) -> Explanation:
        module = spec.endswith(".so")
        return explained(
            spec if module else network(spec),
            "llvm" if module else code.target,
            batch=parse_batch(code.batch),
            steps=question.steps,
            precision=code.precision,
            weights=code.weight_dtype,
            training=code.training,
            keep=tape.keep,
            max_bytes=parse_bytes(tape.max_bytes),
            without=code.without or (),
            measure=question.measure,
            cell=own,
        )

    return explanation


def _show(as_json: bool, found: Explanation | Beside) -> None:
    from tvm_rnn.explain.beside import Beside
    from tvm_rnn.explain.text import beside_page, page

    if isinstance(found, Beside):
        show(as_json, found.facts, beside_page(found.facts))
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
