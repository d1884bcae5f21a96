"""What the command line does with networks: those of cells and sizes, and those that come whole in a file.

In: words and options from `commands.py`. Out: an `RNN` or a `Model`; a whole model's results in files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace

import typer

from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.explain.tables import size_text
from tvm_rnn.frontends.spec import (
    build_net,
    find_cell,
    is_model,
    parse_shapes,
    parse_sizes,
    parse_values,
    read_model,
)
from tvm_rnn.module_file.schema import CpuNetwork, Facts, GpuNetwork, SeveralNetworks, SeveralOnGpus, read
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import sha256_of
from tvm_rnn.network.rnn import RNN
from tvm_rnn.npy_files import npy_writer, npz_writer, read_npy, write_whole
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.target import Target, table_row

from .console import print_json, print_written
from .options import Code, Fixed, Outputs, Sizes, Values

Given = Mapping[str, float | Mapping[str, float]]  # regularisers, as RNN takes them


def net_of(
    spec: str,
    sizes: Sizes,
    fixed: Fixed,
    regularisers: Given,
    values: Values | None = None,
    fill: int | None = None,
) -> RNN | Model:
    """The network that a SPEC names: a cell with sizes, or a file of a whole network, which says them itself.

    fixed: inputs of such a file. Other parameters and errors: see `rnn_of`.
    """
    given, shapes = parse_values(fixed.given or []), parse_shapes(fixed.shape or [])
    if not is_model(spec):
        if given or shapes:
            do = "leave --given and --shape out: they are for .onnx files"
            raise ConfigError(message("this is a cell", got=repr(spec), do=do))
        return rnn_of(spec, sizes, regularisers, values, fill)
    said: dict[str, object] = {**asdict(sizes), **regularisers, **asdict(values or Values())}
    said |= {"layers": None if sizes.layers == 1 else sizes.layers, "size": sizes.size or None}
    said |= {"bidirectional": sizes.bidirectional or None, "batch_first": sizes.batch_first or None}
    options = [f"--{name.replace('_', '-')}" for name, value in said.items() if value is not None]
    return read_model(spec, options, given, shapes)


def rnn_of(spec: str, sizes: Sizes, regularisers: Given, values: Values | None = None, fill: int | None = None) -> RNN:
    """The network of a cell.

    spec: a cell of the zoo, or FILE:FUNCTION. sizes: as options say. regularisers: those that were given. values: where
    its weights come from; None: it has none. fill: the size of axes that got none; None: that is an error.

    Raises ConfigError, CellError or WeightError, as what reads them does.
    """
    net = build_net(
        find_cell(spec),
        sizes.input_size or 0,
        sizes.hidden_size,
        layers=sizes.layers,
        bidirectional=sizes.bidirectional,
        dtype=sizes.dtype or "float32",
        sizes=parse_sizes(sizes.size or []),
        fill=fill,
        regularisers=regularisers,
    )
    net.batch_first = sizes.batch_first
    if values is not None and values.weights is not None:
        net.load(values.weights)
    elif values is not None and values.seed is not None:
        net.init(values.seed)
    return net


def looked_at(spec: str, sizes: Sizes, fixed: Fixed, regularisers: Given) -> RNN | Model:
    """As `net_of`, for what is only looked at: axes that got no size get a small one."""
    if not is_model(spec):
        given = any(word.startswith("H=") for word in sizes.size or [])
        hidden = None if given else sizes.hidden_size or 16
        sizes = replace(sizes, input_size=sizes.input_size or 8, hidden_size=hidden)
    return net_of(spec, sizes, fixed, regularisers, fill=4)


def check_compiled(spec: str, sizes: Sizes, code: Code, values: Values, outputs: Outputs) -> None:
    """Whether options of `compile` go together, and what it writes has a place. Raises as `check_outputs` does."""
    if values.weights is not None and values.seed is not None:
        raise typer.BadParameter("give --weights or --seed, not both")
    if not is_model(spec):
        check_sizes(spec, sizes)
    filled = values.weights is not None or values.seed is not None
    check_outputs(outputs, code.target, filled or is_model(spec))


def check_sizes(spec: str, sizes: Sizes) -> None:
    """Whether a cell has its sizes; all that it lacks is said at once. Raises BadParameter."""
    given = {"I": sizes.input_size, "H": sizes.hidden_size, **parse_sizes(sizes.size or [])}
    needed = dict.fromkeys(("I", *find_cell(spec).required))  # x has features, whatever the cell calls them
    lacks = [axis for axis in needed if given.get(axis) is None]
    if lacks:
        options = {"I": "--input-size 64", "H": "--hidden-size 256"}
        do = " ".join(options.get(axis, f"--size {axis}=8") for axis in lacks)
        raise typer.BadParameter(f"{spec} needs sizes of {', '.join(lacks)}, for example {do}")


def check_outputs(outputs: Outputs, target: str, weights: bool) -> None:
    """Whether what `compile` writes has a place, and a folder weights: said before the compilation. Raises ConfigError,
    and BadParameter where there are none."""
    folders = {"--bundle": outputs.bundle, "--web": outputs.web}
    for option, path in folders.items():
        if path is not None and not weights:
            raise typer.BadParameter(f"{option} needs weights: give --weights or --seed")
    paths = {"--output": outputs.output} | folders
    if all(path is None for path in paths.values()):
        do = "-o FILE, --bundle DIR, --web DIR, or several"
        raise ConfigError(message("compile: nothing to write", got="none of --output, --bundle and --web", do=do))
    is_web = (row := table_row(target)) is not None and not row.loads_code
    if outputs.web is not None and not is_web:
        raise ConfigError(message("--web is for WebAssembly", got=f"--target {target}", do="--target wasm32"))
    if outputs.bundle is not None and is_web:
        raise ConfigError(message("--bundle is for systems that load code", got=f"--target {target}", do="--web DIR"))
    for option, path in paths.items():
        folder = os.path.dirname(os.path.abspath(path or ""))
        if not os.path.isdir(folder):
            raise ConfigError(message(f"{option}: no such folder", got=repr(folder), do="make it first"))
    if outputs.bundle is not None or outputs.web is not None:
        from tvm_rnn.bundle import check_place, check_web

        if outputs.bundle is not None:
            check_place(outputs.bundle)
        if outputs.web is not None:
            check_web(outputs.web)


def report_compiled(outputs: Outputs, manifest: Mapping[str, object], seconds: float, filled: bool) -> None:
    """What `compile` says when it is done.

    outputs: what was written. seconds: that it took. filled: whether the module has weights.
    """
    output, folders = outputs.output, {"bundle": outputs.bundle, "web": outputs.web}
    sizes = {} if output is None else {output: os.path.getsize(output)}
    sizes |= {path: sum(entry.stat().st_size for entry in os.scandir(path)) for path in folders.values() if path}
    digest = {} if output is None else {"sha256": sha256_of(output)}  # for `load(path, sha256=...)`
    if outputs.as_json:
        facts: dict[str, object] = {"output": output, "bytes": 0 if output is None else sizes[output], **digest}
        for word, path in folders.items():
            facts |= {} if path is None else {word: path, f"{word}_bytes": sizes[path]}
        print_json({**facts, "seconds": round(seconds, 3), "manifest": manifest})
        return
    said = read(manifest)
    machine = f"{said.target.machine} {said.target.mcpu}".strip()
    if isinstance(said, GpuNetwork):
        machine = f"{', '.join(v.arch for v in said.variants)} in {said.precision}"
    if isinstance(said, SeveralOnGpus):
        machine = ", ".join(said.archs)
    cells = [own.cell for own in (said.networks if isinstance(said, SeveralNetworks | SeveralOnGpus) else [said])]
    own = " and ".join(cells) or "a model without recurrent networks"
    for path, count in sizes.items():
        print(f"wrote {path}: {own} for {machine}, {size_text(count)}, {seconds:.1f} s")
    for name in digest.values():
        print(f"SHA-256 {name}")
    print(f"next: {_next(outputs, said, filled)}")


def _next(outputs: Outputs, said: Facts, filled: bool) -> str:
    """What can be done now with what was written."""
    output, bundle = outputs.output, outputs.bundle
    row = table_row(said.target.name) or Target("")
    if outputs.web is not None:
        return f"python3 -m http.server --directory {outputs.web}; the page is http://localhost:8000"
    if not row.loads_code:
        return f"""python -c 'import tvm_rnn as rnn; rnn.load("{output}", anywhere=True).export(web="DIR")'"""
    if bundle is not None and (output is None or row.elsewhere):
        return f"read {os.path.join(bundle, 'README.md')}"
    if row.elsewhere and row.triple != "aarch64-linux-gnu":  # no Python of TVM's there
        return f"""python -c 'import tvm_rnn as rnn; rnn.load("{output}", anywhere=True).export(bundle="DIR")'"""
    if said.model is not None:
        given = " ".join(f"--input {item.name}=FILE.npy" for item in said.model.inputs)
        run = f"tvm-rnn run {output} {given} --output results.npz"
    else:
        generates = isinstance(said, CpuNetwork | GpuNetwork) and said.generation is not None
        run = (
            f"generate {output} --steps 100 --output y.npy"
            if generates
            else f"run {output} --input x.npy --output y.npy"
        )
        run = f"tvm-rnn {run}" + ("" if filled else " --weights w.safetensors")
    return f"{f'on {row.name}: ' if row.elsewhere else ''}{run}"


def run_model(loaded: Module, words: list[str], output: str, options: list[str]) -> None:
    """`tvm-rnn run` for a module of a whole model: by the model's own names. options: those that it has no use for."""
    names = [item["name"] for item in loaded.manifest["model"]["inputs"]]
    if options:
        do = f"give the model's own inputs: {', '.join(names)}"
        raise ConfigError(message("this module is a whole model", got=", ".join(options), do=do))
    results = loaded.run({name: read_npy(path) for name, path in name_inputs(words, names).items()})
    first = loaded.manifest["model"]["outputs"][0]["name"]
    named = output.endswith(".npz")
    write_whole({output: npz_writer(results) if named else npy_writer(results[first])})
    print_written(output, results if named else {first: results[first]})


def name_inputs(words: list[str], names: list[str]) -> dict[str, str]:
    """{input: path} from "path" (the first input) and "name=path"."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if equals and name not in names and not os.path.exists(word):
            raise ConfigError(message("--input: no such input", **unknown("input", name, names)))
        if not equals or name not in names:
            name, path = names[0], word
        if name in given:
            raise ConfigError(message(f"--input: {name} is given twice", got=f"{given[name]}, {path}", expected="once"))
        given[name] = path
    return given
