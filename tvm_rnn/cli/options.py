"""Arguments and options that several commands of the command line share: one name and one line of help for each.

In: nothing. Out: annotated types for the signatures of commands; dataclasses of those that go together, which `grouped`
makes options of, so that a command takes them as one argument and hands them on as one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, get_type_hints

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
InputSize = Annotated[int | None, typer.Option("--input-size", min=1, help="Features of the input (axis I).")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps of the sequence (T).")]
Rows = Annotated[int, typer.Option("--batch", min=1, help="Rows (B).")]
Training = Annotated[bool, typer.Option("--training", help="With gradients.")]
Seconds = Annotated[float | None, typer.Option("--seconds", min=1, help="Time for all of it. [no limit]")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Compilations at a time. [one per CPU]")]
RecordsFolder = Annotated[str | None, typer.Option("--records", metavar="DIR", help="Folder. [the user's own]")]
Only = Annotated[str, typer.Option("--only", metavar="WORDS", help="Points of the suite, as for bench.")]


@dataclass(frozen=True)
class Sizes:
    """A network's sizes, as several commands take them; those that are None have no size yet."""

    input_size: InputSize = None
    hidden_size: HiddenSize = None
    layers: Layers = 1
    bidirectional: Bidirectional = False
    dtype: Dtype = None
    size: Size = None


@dataclass(frozen=True)
class Regularisers:
    """A network's regularisers, each as the user writes it."""

    dropout: Dropout = ""
    recurrent_dropout: RecurrentDropout = ""
    zoneout: Zoneout = ""
    weight_drop: WeightDrop = ""

    def parsed(self) -> dict[str, float | dict[str, float]]:
        """Those that were given, as RNN takes them. Raises ConfigError for what is no probability."""
        from tvm_rnn.frontends.spec import parse_probabilities

        given = {name: text for name, text in asdict(self).items() if text}
        return {name: parse_probabilities(f"--{name.replace('_', '-')}", text) for name, text in given.items()}


@dataclass(frozen=True)
class Code:
    """What a network is compiled for, and how."""

    target: Target = "llvm"
    precision: Precision = None
    weight_dtype: WeightDtype = None
    batch: Batch = ""
    without: Without = None
    training: Training = False


@dataclass(frozen=True)
class Tape:
    """What training keeps."""

    keep: Keep = None
    max_bytes: MaxBytes = ""


@dataclass(frozen=True)
class Values:
    """Where a network's weights come from."""

    weights: Weights = None
    seed: Annotated[int | None, typer.Option("--seed", help="Random weights, the same for the same number.")] = None


@dataclass(frozen=True)
class Outputs:
    """What `compile` writes, and says."""

    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="The .so file to write.")] = None
    bundle: Bundle = None
    dump: Annotated[str | None, typer.Option("--dump", metavar="DIR", help="Write every stage to this folder.")] = None
    as_json: Json = False


@dataclass(frozen=True)
class Measured:
    """What `tune` measures."""

    steps: Steps = 128
    batch: Rows = 16
    target: Target = "llvm"
    precision: Precision = None
    weights: Weights = None


@dataclass(frozen=True)
class Search:
    """How `tune` searches, and for how long."""

    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Candidates at most. [200; GPUs: 24]")] = None
    seconds: Seconds = None
    patience: Annotated[
        int | None, typer.Option("--patience", min=1, help="End after so many trials without anything better.")
    ] = None
    records: RecordsFolder = None
    seed: Annotated[int, typer.Option("--seed", help="Of random weights, inputs and the search.")] = 0
    jobs: Jobs = None
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one candidate may take.")] = 30.0
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run measured.")] = False


@dataclass(frozen=True)
class Devices:
    """Which devices measure, if not this machine."""

    rpc_tracker: Annotated[
        str | None, typer.Option("--rpc-tracker", metavar="HOST:PORT", help="Measure on its devices.")
    ] = None
    device_key: Annotated[
        str | None, typer.Option("--device-key", metavar="KEY", help="What these are called there.")
    ] = None


@dataclass(frozen=True)
class OnGpu:
    """Tuning for GPUs: which points, and which part of the work."""

    suite: Annotated[str | None, typer.Option("--suite", metavar="NAME", help="GPUs: points of a suite of bench.")] = (
        None
    )
    only: Only = ""
    plan: Annotated[str | None, typer.Option("--plan", metavar="DIR", help="GPUs: build candidates, measure none.")] = (
        None
    )
    measure: Annotated[str | None, typer.Option("--measure", metavar="DIR", help="GPUs: measure a plan.")] = None
    collect: Annotated[str | None, typer.Option("--collect", metavar="DIR", help="GPUs: records of a plan.")] = None


@dataclass(frozen=True)
class Tuning:
    """All that `tune` was asked for, but for how it is shown."""

    spec: str | None
    sizes: Sizes
    measured: Measured
    search: Search
    devices: Devices
    gpu: OnGpu

    @property
    def dtype(self) -> str:
        return self.sizes.dtype or "float32"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: the fields of each dataclass among its parameters are options of their own."""
    own = inspect.signature(command, eval_str=True)
    kinds = {name: p.annotation for name, p in own.parameters.items()}
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        flat += _options(groups[name]) if name in groups else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @functools.wraps(command)
    def run(**given: object) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    run.__dict__["__signature__"] = own.replace(parameters=flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


def _options(group: type) -> Iterator[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    for one in fields(group):
        yield inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=kinds[one.name]
        )
