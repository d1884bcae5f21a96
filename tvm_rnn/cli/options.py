"""Arguments and options that several commands of the command line share: one name and one line of help for each.

In: nothing. Out: annotated types for the signatures in `commands.py` and `tune.py`; `regularised`, which gives a
command the four options of regularisers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="A cell, lstm or file.py:function; or a network, m.onnx.")]
ModuleFile = Annotated[str, typer.Argument(metavar="MODULE", help="A .so file that `compile` or export() wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable results, and nothing else, on stdout.")]
Target = Annotated[
    str, typer.Option("--target", help="llvm: this CPU; cuda: this GPU; or e.g. x86-64-v3, nvidia-h200.")
]
HiddenSize = Annotated[int | None, typer.Option("--hidden-size", min=1, help="Hidden units (axis H).")]
Layers = Annotated[int, typer.Option("--layers", min=1, help="Layers, each on top of the one before.")]
Bidirectional = Annotated[bool, typer.Option("--bidirectional", help="Run each layer in both directions.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32 [default], float64; for GPUs also float16, bfloat16.")
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="What to compute in: the dtype [default], tf32, float32.")
]
WeightDtype = Annotated[
    str | None,
    typer.Option("--weight-dtype", help="CPUs: also bfloat16, float16, int8, int8_dynamic. GPUs: float8_e4m3."),
]
Batch = Annotated[str, typer.Option("--batch", help="Batch sizes to be quickest at, e.g. 1,16. All sizes work.")]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="WHAT", help="Of training: what tapes keep, values, states[:bfloat16].")
]
MaxBytes = Annotated[str, typer.Option("--max-bytes", metavar="BYTES", help="Of training: plan for so many, e.g. 2G.")]
Dropout = Annotated[str, typer.Option("--dropout", metavar="P", help="Of training: drop what layers hand on: 0.2.")]
RecurrentDropout = Annotated[
    str, typer.Option("--recurrent-dropout", metavar="P|NAME=P", help="Of training: drop states that are multiplied.")
]
Zoneout = Annotated[
    str, typer.Option("--zoneout", metavar="P|NAME=P", help="Of training: states that stay, e.g. h=0.1,c=0.05.")
]
WeightDrop = Annotated[
    str, typer.Option("--weight-drop", metavar="P|NAME=P", help="Of training: drop weights of states.")
]
Bundle = Annotated[
    str | None, typer.Option("--bundle", metavar="DIR", help="A folder to write for programs without Python (CPUs).")
]
Size = Annotated[list[str] | None, typer.Option("--size", metavar="NAME=INT", help="Another axis. Repeatable.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="PASS", help="Leave a pass out. Repeatable.")]
Weights = Annotated[str | None, typer.Option("--weights", metavar="FILE", help="Weights, as a .safetensors file.")]

# Of `tune` alone.
RpcTracker = Annotated[str | None, typer.Option("--rpc-tracker", metavar="HOST:PORT", help="Measure on its devices.")]
DeviceKey = Annotated[str | None, typer.Option("--device-key", metavar="KEY", help="What these are called there.")]
TunedSpec = Annotated[str | None, typer.Argument(metavar="[SPEC]", help="As for compile. Not with --suite.")]
InputSize = Annotated[int | None, typer.Option("--input-size", min=1, help="Features of the input (axis I).")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps of the sequence (T).")]
Rows = Annotated[int, typer.Option("--batch", min=1, help="Rows (B).")]
Trials = Annotated[int | None, typer.Option("--trials", min=1, help="Candidates at most. [200; GPUs: 24]")]
Seconds = Annotated[float | None, typer.Option("--seconds", min=1, help="Time for all of it. [no limit]")]
Patience = Annotated[
    int | None, typer.Option("--patience", min=1, help="End after so many trials without anything better.")
]
RecordsFolder = Annotated[str | None, typer.Option("--records", metavar="DIR", help="Folder. [the user's own]")]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw the search: an .svg file.")]
Suite = Annotated[str | None, typer.Option("--suite", metavar="NAME", help="GPUs: points of a suite of bench.")]
Only = Annotated[str, typer.Option("--only", metavar="WORDS", help="Points of the suite, as for bench.")]
PlanFolder = Annotated[str | None, typer.Option("--plan", metavar="DIR", help="GPUs: build candidates, measure none.")]
MeasureFolder = Annotated[str | None, typer.Option("--measure", metavar="DIR", help="GPUs: measure a plan.")]
CollectFolder = Annotated[str | None, typer.Option("--collect", metavar="DIR", help="GPUs: records of a plan.")]


REGULARISERS = {
    "dropout": Dropout,
    "recurrent_dropout": RecurrentDropout,
    "zoneout": Zoneout,
    "weight_drop": WeightDrop,
}


def regularised(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option for each regulariser in place of its argument `regularisers`: that becomes the dict
    of those that were given, as RNN takes them. Raises ConfigError for what is no probability."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        from tvm_rnn.frontends.spec import parse_probabilities

        texts = {name: given.pop(name) for name in REGULARISERS}
        own = {name: parse_probabilities(f"--{name.replace('_', '-')}", text) for name, text in texts.items() if text}
        command(**given, regularisers=own)

    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(n, keyword, default="", annotation=a) for n, a in REGULARISERS.items()]
    kept = []
    for parameter in own.parameters.values():
        kept += added if parameter.name == "regularisers" else [parameter.replace(kind=keyword)]
    run.__dict__["__signature__"] = own.replace(parameters=kept)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    return run
