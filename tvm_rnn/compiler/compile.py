"""compile: an RNN to a Module backed by a shared object.

In: an RNN and a target. Out: `runtime.Module`, loaded from a `.so` in a temporary folder exactly as a user's own
process would load it; `Module.export` writes that file where the user wants it. The order of work is the order of this
file: passes, lowering, code generation, linking, container, load.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from msgspec import convert, structs

from tvm_rnn import __version__
from tvm_rnn.cpu import c_compiler, tir_pipeline
from tvm_rnn.cpu.lower_network import Lowered, Lowering
from tvm_rnn.decisions import about, heard, recording
from tvm_rnn.dtypes import held_dtype, precision_name, stored_name
from tvm_rnn.errors import BuildError, ConfigError, message
from tvm_rnn.module_file import manifest, schema
from tvm_rnn.module_file.schema import Array, CpuNetwork, Machine, Network, Origin, State
from tvm_rnn.network.model import Model
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.network.widen import widened
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.differentiate import choice
from tvm_rnn.passes.pipeline import Layers
from tvm_rnn.records import Records
from tvm_rnn.runtime import runtime
from tvm_rnn.schedule import record_files
from tvm_rnn.target import Target

from .stage_texts import equations_digest
from .weight_errors import weight_error

if TYPE_CHECKING:
    from tvm_rnn.runtime.runtime import Module

Progress = Callable[[str], None]
LINKED = ("cpu/c/pool", "cpu/c/ffi")  # the C files that every module for a CPU has in it


def compile(
    net: RNN | Model,
    target: str | Target = "llvm",
    batch: int | Sequence[int] = (),
    training: bool = False,
    *,
    keep: str | None = None,
    max_bytes: int | None = None,
    precision: str | None = None,
    weights: str | None = None,
    arch: str | Sequence[str] = (),
    without: Iterable[str] = (),
    records: Records | str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Module:
    """Compile an RNN for one target, to run it, and with training=True to train it.

    net: with weights (then they are in the module) or without (then call `Module.load_weights`); or a Model of several,
    for CPUs. What a frontend found around a network is in the module too: `Module.run`. target: "llvm" is this
    machine's CPU, "cuda" its GPU; see `tvm_rnn.target.names()` for others: a GPU that is named, such as "nvidia-h200",
    need not be there. batch: batch sizes to be quickest at; every batch size stays correct, as does every T. precision:
    what products are computed in; None: the network's dtype. On GPUs float32 has a choice: "float32" means that, "tf32"
    tensor cores with 10 bits of mantissa. float16 and bfloat16 (GPUs only) sum and keep states in float32; "float32"
    makes a network of 16 bits one of float32, with the same weights: so it runs on CPUs; x, y and states are float32.
    weights: the dtype in which matrices of products are stored; None: that of the precision. CPUs, with float32:
    "bfloat16", "float16", "int8" (`cpu/weight_storage.py`), widened as they are read; "int8_dynamic": operands of
    products become 8-bit integers too, a scale per row and step (`cpu/int8_products.py`; needs AVX-512 VNNI). GPUs, in
    16 bits: "float8_e4m3": twice as large a layer stays on the chip. When weights are loaded, each row is divided by a
    power of two that makes its largest value 448 at most, and rounded; a row with a NaN or an infinity makes results
    NaN. arch: the GPUs that the file is for, as nvcc has them, such as ["sm_80", "sm_90a"]; the runtime takes the
    kernels that fit; empty: the target's alone. training: `forward_train` and `backward` too: three times the work.
    keep: what forward_train leaves for backward besides inputs and states, of float32 on GPUs with ":bfloat16" behind
    in half of the bytes (`passes/keep_choice.py`: all that no product reads); "values": as much as saves every product,
    "states": nothing, the products run again, in less memory; None: "values" (`Module.plan_memory` and how-to "train"
    say more). max_bytes: of a module for training, its `max_bytes` at first; whether a call fits it is forward_train's
    to say. without: names of passes to switch off. records: tuned knob values: a folder that `tune` wrote, or "none";
    None: those of TVM_RNN_RECORDS, else the user's own and those that ship; the manifest says what came from which.
    dump: a folder for the text of every stage. progress: called with each stage's name as it starts, and with a line
    for each record that cannot be used.

    Returns a Module, which can be called if the target is this machine, and else exported. Raises ConfigError for a bad
    argument, CellError for equations that cannot be compiled, BuildError if a compiler or linker fails or is missing.
    """
    batches, without, tell = batch_sizes(batch), tuple(without), progress or (lambda stage: None)
    machine, targets = record_files.machines(target, arch, records, tell)
    net = widened(net, precision)
    networks = networks_of(net, machine, training)
    tell("passes")
    precisions = [precision_of(own, machine, precision) for own in networks]
    stored = stored_as(precisions, machine, weights, training)
    kept = kept_as(training, keep, max_bytes)
    for number, own in enumerate(networks if dump is not None else ()):
        texts = pipeline.stages(own, machine, batches, without, precisions[number], stored[number], kept)
        _dump(os.path.join(dump or "", str(number) if len(networks) > 1 else ""), texts)
    with recording(not machine.records.lean):
        return _compiled(net, networks, machine, targets, batches, without, precisions, stored, kept, max_bytes, tell)


def _compiled(
    net: RNN | Model,
    networks: Sequence[RNN],
    machine: Target,
    targets: tuple[Target, ...],
    batches: tuple[int, ...],
    without: tuple[str, ...],
    precisions: Sequence[str],
    stored: Sequence[str],
    training: bool | str,
    max_bytes: int | None,
    tell: Progress,
) -> Module:
    layers = []
    for number, own in enumerate(networks):
        with about("", **({"network": number} if len(networks) > 1 else {})):
            layers.append(pipeline.run(own, machine, without, batches)[-1][1])
    folder = tempfile.mkdtemp(prefix="tvm_rnn_")
    try:
        if isinstance(net, Model):
            module = _for_a_model(net, layers, machine, batches, without, stored, folder, tell)
        elif machine.kind == "cuda":
            how = (batches, without, precisions[0], stored[0], training, max_bytes)
            module = _for_gpus(net, layers[0], targets, *how, folder, tell)
        else:
            what = (batches, without, stored[0], training, max_bytes)
            module = _for_a_cpu(net, layers[0], machine, *what, folder, tell)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(module, shutil.rmtree, folder, True)
    return module


def kept_as(training: bool, keep: str | None, max_bytes: int | None = None) -> bool | str:
    """Whether to train, and where that is said what is kept, for a budget that is a number. Raises ConfigError."""
    given = {name: value for name, value in (("keep", keep), ("max_bytes", max_bytes)) if value is not None}
    if given and not training:
        got = ", ".join(f"{name}={value!r}" for name, value in given.items())
        do = f"give training=True, or leave {' and '.join(given)} out"
        raise ConfigError(message("only training keeps anything", got=got, do=do))
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        expected = "a number of bytes, or None"
        raise ConfigError(message("compile: max_bytes is wrong", got=repr(max_bytes), expected=expected))
    if keep is None:
        return training
    choice(keep)
    return keep


def networks_of(net: RNN | Model, machine: Target, training: bool | str) -> list[RNN]:
    """The networks to compile, with weights that were checked."""
    if training:
        from tvm_rnn.cpu.training.add_entry_points import check_training

        check_training(net, machine)
    networks = net.networks if isinstance(net, Model) else [net]
    for own in networks:
        if not isinstance(own, RNN):
            do = "rnn.compile(rnn.RNN(cell, I, H))"
            raise ConfigError(message("compile needs an RNN", got=f"{own!r:.80}", do=do))
        if own.weights:
            own.check_weights()
    return networks


def _for_a_cpu(
    net: RNN,
    layers: Layers,
    machine: Target,
    batches: tuple[int, ...],
    without: tuple[str, ...],
    stored: str,
    training: bool | str,
    max_bytes: int | None,
    folder: str,
    tell: Progress,
) -> Module:
    tell("lowering")
    lowered = Lowering(net, layers, machine, batches, stored).run()
    facts, arrays = describe(net, lowered, machine, batches, without), blob(net, layers)
    if training:
        from tvm_rnn.cpu.training.add_entry_points import add_training

        tell("lowering of training")
        arrays |= add_training(net, lowered, facts, machine, batches, without, training)
        if facts.memory is not None:
            facts.memory.max_bytes = max_bytes
    tell("code generation")
    executable = generate(lowered.module, machine)
    tell("linking")
    elf = link(executable, Path(folder), machine)
    path = os.path.join(folder, f"{net.cell.name}.so")
    manifest.write_container(elf, facts, arrays, path)
    tell("loading")
    module = runtime.load(path)
    if stored and net.weights:
        tell("measuring the error of stored weights")
        module.manifest["weight_error"] = weight_error(net, module)
    return module


def _for_a_model(
    model: Model,
    layers: Sequence[Layers],
    machine: Target,
    batches: tuple[int, ...],
    without: tuple[str, ...],
    stored: Sequence[str],
    folder: str,
    tell: Progress,
) -> Module:
    from .compile_model import write_model

    if machine.kind != "llvm":
        do = "compile model.networks one by one for it, or the whole model for a CPU"
        raise ConfigError(message("a model of several networks is for CPUs", got=machine.name, do=do))
    path = write_model(model, layers, machine, batches, without, stored, Path(folder), tell)
    tell("loading")
    return runtime.load(path)


def _for_gpus(
    net: RNN,
    layers: Layers,
    targets: tuple[Target, ...],
    batches: tuple[int, ...],
    without: tuple[str, ...],
    precision: str,
    stored: str,
    training: bool | str,
    max_bytes: int | None,
    folder: str,
    tell: Progress,
) -> Module:
    from tvm_rnn.cuda.write_module import write_module
    from tvm_rnn.runtime.runtime_cuda import CudaModule
    from tvm_rnn.runtime.runtime_cuda_training import CudaTrainingModule

    how = (batches, without, precision, Path(folder), tell, stored, training, max_bytes)
    path = write_module(net, layers, targets, *how)
    tell("loading")
    return CudaTrainingModule(path, anywhere=True) if training else CudaModule(path, anywhere=True)


def precision_of(net: RNN, machine: Target, precision: str | None) -> str:
    """What a network is computed in on a target. Raises ConfigError."""
    name = precision_name(net.dtype, precision)
    if machine.kind != "cuda" and name not in ("float32", "float64"):
        got, do = f"{name} for target {machine.name}", "compile for a GPU, or with precision='float32'"
        raise ConfigError(message("CPUs compute in float32 and float64 only", got=got, do=do))
    return name


def stored_as(precisions: Sequence[str], machine: Target, weights: str | None, training: bool | str) -> list[str]:
    """How the weights of each network are stored, "" where as its precision says."""
    stored = [stored_name(own, machine.kind == "cuda", weights) for own in precisions]
    if "float16" in stored and machine.machine == "x86_64" and machine.isa not in ("avx2", "avx512"):
        got, do = f"{machine.name}, without F16C", 'weights="bfloat16", which needs no instruction of its own'
        raise ConfigError(message("float16 weights need a CPU that converts them", got=got, do=do))
    if "int8_dynamic" in stored and not {"avx512f", "avx512vnni"} <= {*machine.features}:
        got, do = f"{machine.name}, without AVX-512 VNNI", 'weights="int8", which needs no instruction of its own'
        raise ConfigError(message("products of 8-bit integers need a CPU that has them", got=got, do=do))
    if training and any(stored):
        do = "leave weights out, and compile once more for inference"
        raise ConfigError(message("training keeps weights in the network's dtype", got=f"weights={weights!r}", do=do))
    return stored


def batch_sizes(batch: int | Sequence[int]) -> tuple[int, ...]:
    """The batch sizes that were named, in order. Raises ConfigError."""
    sizes = tuple(batch) if isinstance(batch, Iterable) else (batch,)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(message("compile: batch", got=repr(batch), expected="batch sizes of at least 1"))
    return tuple(sorted(set(sizes)))


def _dump(folder: str | os.PathLike[str], stages: list[tuple[str, str]]) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        for number, (name, text) in enumerate(stages):
            Path(folder, f"{number:02d}_{name}.txt").write_text(text + "\n")
    except OSError as reason:
        raise BuildError(message("cannot write the stages", where=os.fspath(folder), got=str(reason))) from None


# --- code generation -------------------------------------------------------------------------------------------------


def generate(module: Any, target: Target) -> Any:
    """The IRModule as TVM executable (LLVM machine code)."""
    try:
        return tvm.compile(module, target.tvm_target, tir_pipeline=tir_pipeline.NAME)
    except Exception as reason:  # TVM raises many classes, none of them meant for users
        text = str(reason).strip().splitlines()
        what = text[-1] if text else type(reason).__name__
        full = message("code generation failed", where=target.name, got=what, do="report this cell")
        raise BuildError(full) from reason


def link(executable: Any, folder: Path, target: Target) -> bytes:
    """The code, the thread pool and what stands in for tvm_ffi as one shared object. Raises BuildError."""
    compiler = c_compiler.find_compiler()
    if target.machine != platform.machine():
        here, there = platform.machine(), target.machine
        do = "compile on that machine; `tvm-rnn show --stage asm` works for every target"
        raise BuildError(message("cannot link for another machine", got=f"{there} on {here}", expected=here, do=do))
    linked, addons = folder / "code.so", []
    for name in LINKED:
        addons.append(str(folder / f"{Path(name).name}.o"))
        Path(addons[-1]).write_bytes(c_compiler.object_of(name, compiler))
    try:
        executable.export_library(str(linked), fcompile=functools.partial(_shared_object, compiler), addons=addons)
    except (RuntimeError, OSError) as reason:
        raise BuildError(
            message("linking failed", got=str(reason).strip()[-400:], do=f"check {compiler[0]}")
        ) from reason
    return linked.read_bytes()


def _shared_object(compiler: Sequence[str], output: str, objects: Sequence[str], **options: Any) -> None:
    """What TVM calls to link. options: TVM's own, of which a compiler named by us wants none."""
    c_compiler.run([*compiler, "-shared", "-fPIC", "-o", output, *objects])


# --- manifest --------------------------------------------------------------------------------------------------------


def blob(net: RNN, layers: Layers) -> dict[str, Any]:
    """The arrays that a module's file carries: weights, the equations' constants, and those of the model around it."""
    arrays, held = dict(net.weights), held_dtype(net.dtype)
    for number, graph in enumerate(layers.graphs):
        arrays |= {name: value.astype(held) for name, value in named_constants(graph, number).items()}
    return arrays | ({} if net.program is None else net.program.arrays())


def describe(
    net: RNN, lowered: Lowered, target: Target, batches: tuple[int, ...], without: tuple[str, ...]
) -> CpuNetwork:
    """The manifest of a module for a CPU."""
    return CpuNetwork(
        **structs.asdict(common_facts(net, target, batches, without)),
        packs=lowered.packs,
        packed_elements=lowered.packed_elements,
        workspace=lowered.workspace,
        rows_per_tile=lowered.rows_per_tile,
        flops_per_row=lowered.flops_per_row,
        templates=[used.facts() for used in (*lowered.used, *lowered.walks)],
        weight_dtype=lowered.stored or None,
    )


def common_facts(net: RNN, target: Target, batches: tuple[int, ...], without: tuple[str, ...]) -> Network:
    """What the manifest of format 1 says of every module."""
    first, last = net.layers[0].graph, net.layers[-1]
    return Network(
        format=runtime.MANIFEST_FORMAT,
        versions={"tvm_rnn": __version__, "tvm": tvm.__version__, "tvm_ffi": tvm_ffi.__version__},
        origin=None if net.origin is None else convert(net.origin.facts(), Origin),
        model=None if net.program is None else convert(net.program.facts(), schema.Model),
        cell=net.cell.name,
        equations=equations_digest(net),
        dtype=net.dtype,
        num_layers=net.num_layers,
        num_directions=net.num_directions,
        inputs=[Array(n.name, list(n.shape)) for n in first.inputs],
        output=Array(net.cell.output, [last.width]),
        states=[
            State(
                s.name,
                [list(layer.graph.states[i].shape) for layer in net.layers],
                float(net.cell.initial.get(s.name, 0.0)),
            )
            for i, s in enumerate(net.cell.states)
        ],
        weights=[Array(name, list(shape)) for name, shape in net.weight_shapes.items()],
        target=Machine(target.name, target.kind, target.mcpu, target.machine, list(target.features)),
        reverse=net.reverse,
        regularisers=net.regularisers.facts() or None,
        entry_points=[
            "sequence",
            *([] if net.reverse else ["step"]),
            "init_state",
            *([] if net.program is None else ["run"]),
        ],
        batch=list(batches),
        passes=[name for name in pipeline.PASS_NAMES if name not in without],
        decisions=heard(),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
