"""Arguments and options that several commands of the command line share: one name and one line of help for each.

In: nothing. Out: annotated types for the signatures of commands; dataclasses of those that go together, which `grouped`
makes options of, so that a command takes them as one argument and hands them on as one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, get_type_hints

import typer

from . import completion

SPEC_HELP = "A cell, lstm or file.py:function; or a network, m.onnx."
TARGET_HELP = "llvm: this CPU; cuda: this GPU; or e.g. x86-64-v3, nvidia-h200."
Spec = Annotated[str, typer.Argument(metavar="SPEC", help=SPEC_HELP, autocompletion=completion.cells)]
ModuleFile = Annotated[str, typer.Argument(metavar="MODULE", help="A .so file that `compile` or export() wrote.")]
STAGE_HELP = "trace, a pass, te, tir, llvm, asm (GPUs: cuda, host); or all."
Stage = Annotated[str, typer.Option("--stage", metavar="STAGE", help=STAGE_HELP, autocompletion=completion.stages)]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on stdout.")]
Target = Annotated[str, typer.Option(metavar="TARGET", help=TARGET_HELP, autocompletion=completion.targets)]
Precision = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="What to compute in: the dtype [default], tf32, float32.")
]
Weights = Annotated[str | None, typer.Option(metavar="FILE", help="Weights, as a .safetensors file.")]
Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Steps of the sequence (T).")]
Rows = Annotated[int, typer.Option(metavar="N", min=1, help="Rows (B).")]
Jobs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Compilations at a time. [one per CPU]")]


@dataclass(frozen=True)
class Sizes:
    """A network's sizes, as several commands take them; those that are None have no size yet."""

    input_size: Annotated[int | None, typer.Option(metavar="N", min=1, help="Features of the input (axis I).")] = None
    hidden_size: Annotated[int | None, typer.Option(metavar="N", min=1, help="Hidden units (axis H).")] = None
    layers: Annotated[int, typer.Option(metavar="N", min=1, help="Layers, each on top of the one before.")] = 1
    bidirectional: Annotated[bool, typer.Option("--bidirectional", help="Run each layer in both directions.")] = False
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="float32 [default], float64; for GPUs also float16, bfloat16.",
            autocompletion=completion.dtypes,
        ),
    ] = None
    size: Annotated[list[str] | None, typer.Option(metavar="NAME=INT", help="Size of another axis. Repeatable.")] = None
    batch_first: Annotated[
        bool, typer.Option("--batch-first", help="x and y [B, T, ...] in Python; C takes time first.")
    ] = False


@dataclass(frozen=True)
class Fixed:
    """Inputs of an ONNX model that are fixed."""

    given: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="ONNX: an input that is a constant. Repeatable.")
    ] = None
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZES", help="ONNX: an input's sizes, B,576. Repeatable.")
    ] = None


@dataclass(frozen=True)
class Regularisers:
    """A network's regularisers, each as the user writes it."""

    dropout: Annotated[str, typer.Option(metavar="P", help="Training: dropout between layers, e.g. 0.2.")] = ""
    recurrent_dropout: Annotated[
        str, typer.Option(metavar="P|NAME=P", help="Training: dropout of states before products.")
    ] = ""
    zoneout: Annotated[
        str, typer.Option(metavar="P|NAME=P", help="Training: states that keep their value, e.g. h=0.1,c=0.05.")
    ] = ""
    weight_drop: Annotated[
        str, typer.Option(metavar="P|NAME=P", help="Training: dropout of the weights that multiply states.")
    ] = ""

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
    weight_dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="CPUs: also bfloat16, float16, int8, int8_dynamic. GPUs: float8_e4m3."),
    ] = None
    batch: Annotated[
        str, typer.Option(metavar="SIZES", help="Batch sizes to optimise for, e.g. 1,16. All sizes work.")
    ] = ""
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PASS", help="Leave a pass out. Repeatable.", autocompletion=completion.passes),
    ] = None
    training: Annotated[bool, typer.Option("--training", help="Compile the backward pass too.")] = False


@dataclass(frozen=True)
class Tape:
    """What training keeps."""

    keep: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Training: what tapes keep: values, states[:bfloat16].")
    ] = None
    max_bytes: Annotated[str, typer.Option(metavar="BYTES", help="Training: memory to plan for, e.g. 2G.")] = ""


@dataclass(frozen=True)
class Values:
    """Where a network's weights come from."""

    weights: Weights = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random weights, the same for the same seed.")] = None


@dataclass(frozen=True)
class Outputs:
    """What `compile` writes, and says."""

    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="The .so file to write.")] = None
    bundle: Annotated[
        str | None, typer.Option(metavar="DIR", help="A folder to write for programs without Python (CPUs).")
    ] = None
    web: Annotated[
        str | None, typer.Option(metavar="DIR", help="A folder to write for browsers and node (--target wasm32).")
    ] = None
    dump: Annotated[str | None, typer.Option(metavar="DIR", help="Write every stage to this folder.")] = None
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

    trials: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most candidates to try. [200; GPUs: 24]")] = (
        None
    )
    seconds: Annotated[float | None, typer.Option(metavar="SECONDS", min=1, help="Time for all of it. [no limit]")] = (
        None
    )
    patience: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N trials without anything better.")
    ] = None
    records: Annotated[str | None, typer.Option(metavar="DIR", help="Folder to write records to. [the user's own]")] = (
        None
    )
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random weights, inputs and the search.")] = 0
    jobs: Jobs = None
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Seconds that one candidate may take.")] = (
        30.0
    )
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run measured.")] = False


@dataclass(frozen=True)
class Devices:
    """Which devices measure, if not this machine."""

    rpc_tracker: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Measure on its devices.")] = None
    device_key: Annotated[str | None, typer.Option(metavar="KEY", help="What these are called there.")] = None


@dataclass(frozen=True)
class OnGpu:
    """Tuning for GPUs: which points, and which part of the work."""

    suite: Annotated[str | None, typer.Option(metavar="NAME", help="GPUs: points of a suite of bench.")] = None
    only: Annotated[str, typer.Option(metavar="WORDS", help="Points of the suite, as for bench.")] = ""
    plan: Annotated[str | None, typer.Option(metavar="DIR", help="GPUs: build candidates, measure none.")] = None
    measure: Annotated[str | None, typer.Option(metavar="DIR", help="GPUs: measure a plan.")] = None
    collect: Annotated[str | None, typer.Option(metavar="DIR", help="GPUs: records of a plan.")] = None


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
    by_name, flat = inspect.Parameter.KEYWORD_ONLY, list[inspect.Parameter]()
    for name, parameter in own.parameters.items():
        if name in groups:
            hints = get_type_hints(groups[name], include_extras=True)
            options = inspect.signature(groups[name]).parameters.values()
            flat += [option.replace(kind=by_name, annotation=hints[option.name]) for option in options]
        else:
            flat.append(parameter.replace(kind=by_name))

    @functools.wraps(command)
    def run(**given: object) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    run.__dict__["__signature__"] = own.replace(parameters=flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run
