"""The command line: `tvm-rnn compile`, `run`, `show`, `inspect`, `cells`, `bench`, `tune` and `records`.

In: words and files from the user's shell. Out: files and text; exit code 0, 1 with one message on stderr (the text of
a TvmRnnError), 2 for wrong usage, 130 for Ctrl-C. Commands import what they need: help and lists stay quick.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import __version__
from .cli_bench import bench
from .cli_options import (
    Batch,
    Bidirectional,
    Dtype,
    HiddenSize,
    Json,
    Layers,
    ModuleFile,
    Precision,
    Size,
    Spec,
    Target,
    Weights,
    Without,
)
from .cli_records import app as records
from .cli_tune import tune
from .console import print_json, print_rich, progress
from .errors import ConfigError, InputError, TvmRnnError, message, unknown


class Commands(TyperGroup):
    """All commands; what goes wrong in one becomes a message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TvmRnnError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    name="tvm-rnn",
    help="Compile recurrent cells to shared objects, look at every step of that, run and time the results.",
    epilog="Begin with: tvm-rnn cells",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        print(f"tvm-rnn {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command("compile")
def compile_cell(
    spec: Spec,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The .so file to write.")],
    input_size: Annotated[int, typer.Option("--input-size", min=1, help="Features of the input (axis I).")],
    hidden_size: HiddenSize = None,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    dtype: Dtype = "float32",
    size: Size = None,
    target: Target = "llvm",
    arch: Annotated[str, typer.Option("--arch", help="GPUs for one file, e.g. sm_80,sm_90a. [the target's]")] = "",
    precision: Precision = None,
    batch: Batch = "",
    weights: Weights = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Random weights, the same for the same number.")] = None,
    without: Without = None,
    training: Annotated[bool, typer.Option("--training", help="Also what training needs: not supported yet.")] = False,
    dump: Annotated[str | None, typer.Option("--dump", metavar="DIR", help="Write every stage to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a cell over time to a shared object.

    Without --weights and --seed the file holds no weights: give them to it when it is run.

    [bold]Examples[/]

    $ tvm-rnn compile lstm -o lstm.so --input-size 64 --hidden-size 256 --layers 2 --batch 1,16 --weights w.safetensors

    $ tvm-rnn compile mycell.py:mycell -o my.so --input-size 8 --hidden-size 32 --size P=16 --seed 0 --dump stages
    """
    if weights is not None and seed is not None:
        raise typer.BadParameter("give --weights or --seed, not both")
    from .spec import build_net, find_cell, parse_batch, parse_sizes

    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):  # said now, not after the compilation
        raise ConfigError(message("--output: no such folder", got=repr(folder), do="make it first"))
    started = time.perf_counter()
    with progress(as_json) as stage:
        stage("tracing")
        shape: dict[str, Any] = {"layers": layers, "bidirectional": bidirectional, "dtype": dtype}
        net = build_net(find_cell(spec), input_size, hidden_size, sizes=parse_sizes(size or []), **shape)
        if weights is not None:
            net.load(weights)
        elif seed is not None:
            net.init(seed)
        stage("loading the compiler")
        from .build import compile

        archs = [word.strip() for word in arch.split(",") if word.strip()]
        how: dict[str, Any] = {"precision": precision, "arch": archs, "without": without or (), "dump": dump}
        module = compile(net, target, parse_batch(batch), training, **how, progress=stage)
        stage(f"writing {output}")
        module.export(output)
    seconds = time.perf_counter() - started
    _report_compiled(output, module.manifest, seconds, as_json, bool(net.weights))


def _report_compiled(output: str, manifest: Mapping[str, Any], seconds: float, as_json: bool, filled: bool) -> None:
    file_bytes = os.path.getsize(output)
    if as_json:
        print_json({"output": output, "bytes": file_bytes, "seconds": round(seconds, 3), "manifest": manifest})
        return
    from .tables import size_text

    target = manifest["target"]
    machine = f"{target['machine']} {target['mcpu']}".strip()
    if "variants" in manifest:
        machine = f"{', '.join(v['arch'] for v in manifest['variants'])} in {manifest['precision']}"
    print(f"wrote {output}: {manifest['cell']} for {machine}, {size_text(file_bytes)}, {seconds:.1f} s")
    print(f"next: tvm-rnn run {output} --input x.npy --output y.npy" + ("" if filled else " --weights w.safetensors"))


@app.command("run")
def run_module(
    module: ModuleFile,
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="FILE", help="x [T, B, I] as .npy; further inputs as NAME=FILE. Repeatable."),
    ],
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="y [T, B, D*H], written as .npy.")],
    state_in: Annotated[str | None, typer.Option(metavar="FILE", help="The state to begin with, .npz by name.")] = None,
    state_out: Annotated[str | None, typer.Option(metavar="FILE", help="The last state, written as .npz.")] = None,
    lengths: Annotated[str | None, typer.Option(metavar="FILE", help="Steps of each row, [B] integers, .npy.")] = None,
    reset: Annotated[str | None, typer.Option(metavar="FILE", help="Where rows restart, [T, B] bool, .npy.")] = None,
    weights: Weights = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Most threads to use.")] = None,
) -> None:
    """Run a compiled module on arrays in files. Nothing is written unless all of it succeeds.

    [bold]Examples[/]

    $ tvm-rnn run lstm.so --input x.npy --output y.npy

    $ tvm-rnn run augru.so --input x.npy --input a=attention.npy --output y.npy --state-in s.npz --state-out s.npz
    """
    from .arrays import npy_writer, npz_writer, read_npy, state_from_npz, write_whole
    from .runtime import load

    loaded = load(module)
    if weights is not None:
        loaded.load_weights(weights)
    if threads is not None:
        loaded.threads = threads
    manifest = loaded.manifest
    given = _name_inputs(inputs, [item["name"] for item in manifest["inputs"]])
    state = None if state_in is None else state_from_npz(state_in, manifest["states"])
    extra = {name: read_npy(path) for name, path in (("lengths", lengths), ("reset", reset)) if path is not None}
    y, after = loaded({name: read_npy(path) for name, path in given.items()}, state, **extra)
    writers = {output: npy_writer(y)}
    if state_out is not None:
        if os.path.realpath(state_out) == os.path.realpath(output):
            raise ConfigError(message("--output and --state-out are one file", got=repr(output), do="give two names"))
        writers[state_out] = npz_writer(after)
    write_whole(writers)


def _name_inputs(words: list[str], names: list[str]) -> dict[str, str]:
    """{input: path} from "path" (the first input) and "name=path"."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if equals and name not in names and not os.path.exists(word):
            raise InputError(message("--input: no such input", **unknown("input", name, names)))
        if not equals or name not in names:
            name, path = names[0], word
        if name in given:
            raise InputError(message(f"--input: {name} is given twice", got=f"{given[name]}, {path}", expected="once"))
        given[name] = path
    return given


@app.command("show")
def show_stages(
    spec: Spec,
    stage: Annotated[
        str, typer.Option("--stage", help="trace, a pass, te, tir, llvm, asm (GPUs: cuda, host); or all.")
    ] = "trace",
    input_size: Annotated[int, typer.Option("--input-size", min=1, help="Features of the input (axis I).")] = 8,
    hidden_size: HiddenSize = 16,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    dtype: Dtype = "float32",
    size: Size = None,
    target: Target = "llvm",
    precision: Precision = None,
    batch: Batch = "",
    without: Without = None,
    as_json: Json = False,
) -> None:
    """Print what a cell becomes on its way to machine code. Axes that got no size get a small one.

    [bold]Examples[/]

    $ tvm-rnn show gru --stage combine_gemms

    $ tvm-rnn show mycell.py:mycell --stage asm --hidden-size 256 --input-size 64 --without hoist_gemms
    """
    from .pipeline import PASS_NAMES, run, stages
    from .show import CODE_STAGES, GPU_STAGES, layers_text
    from .spec import build_net, find_cell, parse_batch, parse_sizes
    from .target import resolve

    skipped = without or []
    code = GPU_STAGES if (machine := resolve(target)).kind == "cuda" else CODE_STAGES
    known = ["trace", "normalise", *PASS_NAMES, *code, "all"]
    if stage not in known:
        raise ConfigError(message("no such stage", **unknown("stage", stage, known)))
    sizes = parse_sizes(size or [])
    hidden = None if "H" in sizes else hidden_size
    shape: dict[str, Any] = {"layers": layers, "bidirectional": bidirectional, "dtype": dtype}
    net = build_net(find_cell(spec), input_size, hidden, sizes=sizes, fill=4, **shape)
    if stage in (*code, "all"):
        with progress(as_json) as update:
            update(f"compiling {net.cell.name} to look at it")
            found = stages(net, machine, parse_batch(batch), skipped, precision)
    else:  # a graph: nothing to compile
        found = [(name, layers_text(net, layers)) for name, layers in run(net, machine, skipped)]
    wanted = [(name, text) for name, text in found if stage in (name, "all")]
    if not wanted:
        there = ", ".join(name for name, _ in found)
        raise ConfigError(message(f"stage {stage} was left out", got=f"--without {' '.join(skipped)}", expected=there))
    if as_json:
        print_json([{"stage": name, "text": text} for name, text in wanted])
        return
    for name, text in wanted:
        print(f"== {name}\n{text.rstrip()}\n" if stage == "all" else text.rstrip())


@app.command("inspect")
def inspect_module(module: ModuleFile, as_json: Json = False) -> None:
    """Say what a compiled module is: its manifest, read without running any of its code.

    [bold]Example[/]

    $ tvm-rnn inspect lstm.so --json | jq .manifest.target
    """
    from .runtime import read_container
    from .tables import has_weights, manifest_page

    manifest, weights = read_container(module)
    file_bytes = os.path.getsize(module)
    if as_json:
        print_json(
            {"file": module, "bytes": file_bytes, "has_weights": has_weights(manifest, weights), "manifest": manifest}
        )
        return
    print_rich(manifest_page(module, manifest, weights, file_bytes))


@app.command("cells")
def list_cells(
    name: Annotated[str | None, typer.Argument(metavar="[SPEC]", help="One cell, to be told all about it.")] = None,
    as_json: Json = False,
) -> None:
    """List the cells of the zoo, or tell all about one.

    [bold]Examples[/]

    $ tvm-rnn cells

    $ tvm-rnn cells gru
    """
    from . import cells
    from .spec import find_cell
    from .tables import cell_facts, cell_page, cells_table

    found = [cells.get(n) for n in cells.names()] if name is None else [find_cell(name)]
    if as_json:
        facts = [cell_facts(cell) for cell in found]
        print_json(facts if name is None else facts[0])
    else:
        print_rich(cells_table(found) if name is None else cell_page(found[0]))


app.command("bench")(bench)
app.command("tune")(tune)
app.add_typer(records, name="records")


def main() -> None:
    """The console script `tvm-rnn`."""
    app()
