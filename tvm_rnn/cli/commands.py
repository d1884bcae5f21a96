"""The command line: `tvm-rnn compile`, `run`, `show`, `explain`, `inspect`, `cells`, `bench`, `tune` and more.

In: words and files from the user's shell. Out: files and text; `usage.py` has help and exit codes. Commands import
what they need: help and lists stay quick.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.version import __version__

from . import completion
from .bench import bench
from .console import print_json, print_written, progress, show
from .explain import doctor, explain
from .fill_cache import fill_cache
from .generate import generate
from .options import (
    Code,
    Fixed,
    Json,
    ModuleFile,
    Outputs,
    Regularisers,
    Sizes,
    Spec,
    Stage,
    Tape,
    Values,
    Weights,
    grouped,
)
from .records import app as records
from .tune import tune
from .usage import MARKUP, SETTINGS, Command, Commands
from .write_c import write_c

app = typer.Typer(
    cls=Commands,
    name="tvm-rnn",
    help="Compile recurrent cells to shared objects, look at every step of that, run and time the results.",
    epilog="Begin with: tvm-rnn cells",
    no_args_is_help=True,
    context_settings=SETTINGS,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False
) -> None:
    if version:
        print(f"tvm-rnn {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command("compile", cls=Command)
@grouped
def compile_cell(
    spec: Spec,
    sizes: Sizes,
    fixed: Fixed,
    code: Code,
    tape: Tape,
    regularisers: Regularisers,
    values: Values,
    outputs: Outputs,
    arch: Annotated[
        str, typer.Option(metavar="ARCHS", help="GPUs for one file: compute_80 (and later),sm_90a. [the target's]")
    ] = "",
    generate: Annotated[bool, typer.Option("--generate", help="For `tvm-rnn generate`: outputs fed back.")] = False,
) -> None:
    """Compile a cell over time, or a network of another framework, to a shared object.

    Without --weights and --seed the file of a cell holds no weights: give them to it when it is run. A .onnx file says
    its own sizes and weights, and is compiled whole. Give one of --output, --bundle and --web.

    **Examples**

    $ tvm-rnn compile lstm -o lstm.so --input-size 64 --hidden-size 256 --layers 2 --batch 1,16 --weights w.safetensors

    $ tvm-rnn compile mycell.py:mycell -o my.so --input-size 8 --hidden-size 32 --size P=16 --seed 0 --dump stages

    $ tvm-rnn compile model.onnx -o model.so --bundle model_for_c

    $ tvm-rnn compile lstm --web amp --target wasm32 --batch 1 --input-size 1 --hidden-size 16 --weights w.safetensors

    $ tvm-rnn compile silero_vad.onnx -o vad.so --given sr=16000 --shape input=B,576
    """
    from tvm_rnn.frontends.spec import parse_batch, parse_bytes, parse_names

    from .networks import check_compiled, net_of, report_compiled

    check_compiled(spec, sizes, code, values, outputs)
    started = time.perf_counter()
    with progress(outputs.as_json) as stage:
        stage("tracing")
        net = net_of(spec, sizes, fixed, regularisers.parsed(), values)
        stage("loading the compiler")
        from tvm_rnn.compiler.compile import compile

        module = compile(
            net,
            code.target,
            parse_batch(code.batch),
            code.training,
            generate=generate,
            arch=parse_names(arch),
            weights=code.weight_dtype,
            without=code.without or (),
            keep=tape.keep,
            max_bytes=parse_bytes(tape.max_bytes),
            precision=code.precision,
            dump=outputs.dump,
            progress=stage,
        )
        stage(f"writing {outputs.output or outputs.bundle or outputs.web}")
        module.export(outputs.output, bundle=outputs.bundle, web=outputs.web)
    report_compiled(outputs, module.manifest, time.perf_counter() - started, bool(net.weights))


@dataclass(frozen=True)
class RunFiles:
    """Files of a run beside x and y."""

    state_in: Annotated[str | None, typer.Option(metavar="FILE", help="The state to begin with, .npz by name.")] = None
    state_out: Annotated[str | None, typer.Option(metavar="FILE", help="The last state, written as .npz.")] = None
    lengths: Annotated[str | None, typer.Option(metavar="FILE", help="Steps of each row, [B] integers, .npy.")] = None
    reset: Annotated[str | None, typer.Option(metavar="FILE", help="Where rows restart, [T, B] bool, .npy.")] = None


@app.command("run", cls=Command)
@grouped
def run_module(
    module: ModuleFile,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="FILE",
            help="x [T, B, I] as .npy, batch first if it was compiled so; others: NAME=FILE. Repeatable.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="y [T, B, D*H], written as .npy.")],
    files: RunFiles,
    weights: Weights = None,
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most threads to use.")] = None,
) -> None:
    """Run a compiled module on arrays in files. Nothing is written unless all of it succeeds.

    A module of a whole model (an ONNX file's) takes that model's inputs as NAME=FILE and writes its first output to an
    .npy file, all of them by name to an .npz file.

    **Examples**

    $ tvm-rnn run lstm.so --input x.npy --output y.npy

    $ tvm-rnn run augru.so --input x.npy --input a=attention.npy --output y.npy --state-in s.npz --state-out s.npz

    $ tvm-rnn run model.so --input X=x.npy --output results.npz
    """
    from tvm_rnn.npy_files import npy_writer, npz_writer, read_npy, state_from_npz, write_whole
    from tvm_rnn.runtime.runtime import load

    from .networks import name_inputs, run_model

    loaded = load(module)
    if weights is not None:
        loaded.load_weights(weights)
    if threads is not None:
        loaded.threads = threads
    manifest = loaded.manifest
    if "model" in manifest:
        useless = [f"--{name.replace('_', '-')}" for name, path in asdict(files).items() if path is not None]
        run_model(loaded, inputs, output, useless)
        return
    constants = [state["name"] for state in manifest["states"] if state.get("constant")]
    given = name_inputs(inputs, [*(item["name"] for item in manifest["inputs"]), *constants])
    state = None if files.state_in is None else state_from_npz(files.state_in, manifest["states"])
    rows = {"lengths": files.lengths, "reset": files.reset}
    extra = {name: read_npy(path) for name, path in rows.items() if path is not None}
    y, after = loaded({name: read_npy(path) for name, path in given.items()}, state, **extra)
    writers = {output: npy_writer(y)}
    if files.state_out is not None:
        if os.path.realpath(files.state_out) == os.path.realpath(output):
            raise ConfigError(message("--output and --state-out are one file", got=repr(output), do="give two names"))
        writers[files.state_out] = npz_writer(after)
    write_whole(writers)
    print_written(output, {"y": y})
    if files.state_out is not None:
        print_written(files.state_out, after)


@app.command("show", cls=Command)
@grouped
def show_stages(
    spec: Spec,
    sizes: Sizes,
    fixed: Fixed,
    code: Code,
    regularisers: Regularisers,
    stage: Stage = "trace",
    as_json: Json = False,
) -> None:
    """Print what a cell becomes on its way to machine code. Axes that got no size get a small one.

    **Examples**

    $ tvm-rnn show gru --stage combine_gemms

    $ tvm-rnn show mycell.py:mycell --stage asm --hidden-size 256 --input-size 64 --without hoist_gemms
    """
    from tvm_rnn.compiler.stage_texts import CODE_STAGES, GPU_STAGES, stages
    from tvm_rnn.frontends.spec import parse_batch
    from tvm_rnn.graph.graph_text import layers_text
    from tvm_rnn.options import PASS_NAMES
    from tvm_rnn.passes.pipeline import run
    from tvm_rnn.schedule.record_files import machines

    from .networks import looked_at

    skipped = code.without or []
    machine, _ = machines(code.target, (), None, lambda line: None)  # with the records that `compile` would use
    compiled = GPU_STAGES if machine.kind == "cuda" else CODE_STAGES
    known = ["trace", "differentiate" if code.training else "normalise", *PASS_NAMES, *compiled, "all"]
    if stage not in known:
        raise ConfigError(message("no such stage", **unknown("stage", stage, known)))
    net = looked_at(spec, sizes, fixed, regularisers.parsed())
    found, batch = [], parse_batch(code.batch)
    for number, own in enumerate(nets := getattr(net, "networks", [net])):
        first = f"{number} " if len(nets) > 1 else ""
        if stage in (*compiled, "all"):
            with progress(as_json) as update:
                update(f"compiling {own.cell.name} to look at it")
                kind, weights = code.precision, code.weight_dtype
                texts = stages(own, machine, batch, skipped, precision=kind, weights=weights, training=code.training)
        else:  # a graph: nothing to compile
            passed = run(own, machine, skipped, batch, training=code.training)
            texts = [(name, layers_text(traced)) for name, traced in passed]
        found += [(first + name, text) for name, text in texts]
    wanted = [(name, text) for name, text in found if stage in (name.split()[-1], "all")]
    if not wanted:
        there = ", ".join(name for name, _ in found)
        raise ConfigError(message(f"stage {stage} was left out", got=f"--without {' '.join(skipped)}", expected=there))
    if as_json:
        print_json([{"stage": name, "text": text} for name, text in wanted])
        return
    for name, text in wanted:
        print(f"== {name}\n{text.rstrip()}\n" if len(wanted) > 1 or stage == "all" else text.rstrip())


@app.command("inspect", cls=Command)
def inspect_module(module: ModuleFile, as_json: Json = False) -> None:
    """Say what a compiled module is: its manifest, read without running any of its code.

    **Example**

    $ tvm-rnn inspect lstm.so --json | jq .manifest.target
    """
    from rich.console import Group

    from tvm_rnn.explain.tables import has_weights, manifest_page
    from tvm_rnn.network.origin import sha256_of
    from tvm_rnn.runtime.runtime import read_container

    manifest, weights = read_container(module)
    file_bytes = os.path.getsize(module)
    facts = {"file": module, "bytes": file_bytes, "sha256": sha256_of(module)}
    facts |= {"has_weights": has_weights(manifest, weights), "manifest": manifest}
    page = manifest_page(module, manifest, weights, file_bytes)
    show(as_json, facts, Group(page, f"SHA-256 {facts['sha256']}"))


@app.command("cells", cls=Command)
def list_cells(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="One cell, to be told all about it.", autocompletion=completion.cells),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the cells of the zoo, or tell all about one.

    **Examples**

    $ tvm-rnn cells

    $ tvm-rnn cells gru
    """
    from tvm_rnn import cells
    from tvm_rnn.explain.tables import cell_facts, cell_page, cells_table
    from tvm_rnn.frontends.spec import find_cell

    found = [cells.get(n) for n in cells.names()] if name is None else [find_cell(name)]
    facts = [cell_facts(cell) for cell in found]
    show(as_json, facts if name is None else facts[0], cells_table(found) if name is None else cell_page(found[0]))


app.command("explain", cls=Command)(explain)
app.command("doctor", cls=Command)(doctor)
app.command("bench", cls=Command)(bench)
app.command("tune", cls=Command)(tune)
app.command("generate", cls=Command)(generate)
app.command("fill-cache", cls=Command)(fill_cache)
app.command("write-c", cls=Command)(write_c)
app.add_typer(records, name="records")


def main() -> None:
    """The console script `tvm-rnn`."""
    app()
