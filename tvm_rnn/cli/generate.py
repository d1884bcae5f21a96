"""`tvm-rnn generate`: a module that was compiled with --generate makes a sequence of its own outputs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tvm_rnn.errors import ConfigError, message

from .console import print_written, progress
from .options import ModuleFile, Weights, grouped


@dataclass(frozen=True)
class Begin:
    """What the first step reads."""

    prompt: Annotated[
        str | None, typer.Option(metavar="FILE", help="The first inputs [P, B, ...] as .npy. [one step of zeros]")
    ] = None
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE", help="Another input or constant. Repeatable.")
    ] = None
    state_in: Annotated[str | None, typer.Option(metavar="FILE", help="The state to begin with, .npz by name.")] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the random numbers, where the cell draws any.")
    ] = None


@dataclass(frozen=True)
class End:
    """When it ends, and what is written then."""

    steps: Annotated[int, typer.Option(metavar="N", min=0, help="How many outputs to make after the prompt.")]
    output: Annotated[str, typer.Option(metavar="FILE", help="The outputs [steps, B, ...], written as .npy.")]
    state_out: Annotated[str | None, typer.Option(metavar="FILE", help="The last state, written as .npz.")] = None
    stop: Annotated[float | None, typer.Option(metavar="NUMBER", help="The output that ends a row.")] = None


@grouped
def generate(
    module: ModuleFile,
    end: End,
    begin: Begin,
    weights: Weights = None,
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most threads to use.")] = None,
) -> None:
    """Let a module make a sequence: each output is the next input. Nothing is written unless all of it succeeds.

    The module is one that `compile --generate` wrote. A prompt of tokens has integers [P, B], and so have the outputs.

    **Examples**

    $ tvm-rnn compile writer.py:writer -o writer.so --input-size 96 --hidden-size 256 --weights w.safetensors --generate

    $ tvm-rnn generate writer.so --prompt prompt.npy --steps 500 --seed 7 --output written.npy
    """
    from tvm_rnn.npy_files import npy_writer, npz_writer, read_npy, state_from_npz, write_whole
    from tvm_rnn.runtime.runtime import load

    from .networks import name_inputs

    loaded = load(module)
    if "states" not in loaded.manifest:
        raise ConfigError(message("only a network generates", got=f"{module!r}, a whole model", do="tvm-rnn run it"))
    if weights is not None:
        loaded.load_weights(weights)
    if threads is not None:
        loaded.threads = threads
    states = loaded.manifest["states"]
    constants = [state["name"] for state in states if state.get("constant")]
    others = [*(item["name"] for item in loaded.manifest["inputs"][1:]), *constants]
    if begin.inputs and not others:
        got = ", ".join(begin.inputs)
        raise ConfigError(message("--input: the module has one input", got=got, do="give what comes first as --prompt"))
    given: dict[str, Any] = {name: read_npy(path) for name, path in name_inputs(begin.inputs or [], others).items()}
    state = None if begin.state_in is None else state_from_npz(begin.state_in, states)
    prompt = None if begin.prompt is None else read_npy(begin.prompt)
    with progress(False) as stage:
        stage(f"generating {end.steps} steps")  # one call of compiled code: it does not say how far it is
        y, after, ends = loaded.generate(end.steps, state, prompt=prompt, seed=begin.seed, stop=end.stop, **given)
    writers = {end.output: npy_writer(y)}
    if end.state_out is not None:
        if os.path.realpath(end.state_out) == os.path.realpath(end.output):
            raise ConfigError(message("--output and --state-out are one file", got=end.output, do="give two names"))
        writers[end.state_out] = npz_writer(after)
    write_whole(writers)
    print_written(end.output, {"y": y})
    if end.state_out is not None:
        print_written(end.state_out, after)
    if end.stop is not None:
        print(f"outputs of each row: {', '.join(map(str, ends))}")
