"""compile: an RNN to a Module backed by a shared object.

In: an RNN and a target. Out: `runtime.Module`, loaded from a `.so` in a temporary folder exactly as a user's own
process would load it; `Module.export` writes that file where the user wants it. The order of work is the order of this
file: options, passes, then for CPUs lowering, code generation, linking, container, load.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.cpu.lower_direct import direct_of
from tvm_rnn.cpu.lower_generation import GenerationLowering
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.training.add_entry_points import add_training, check_training
from tvm_rnn.decisions import about, recording
from tvm_rnn.dtypes import check_fit
from tvm_rnn.errors import BuildError, ConfigError, message
from tvm_rnn.module_file import manifest
from tvm_rnn.module_file.facts import blob
from tvm_rnn.network.closed_loop import check_generation
from tvm_rnn.network.model import Model, widened
from tvm_rnn.network.rnn import RNN, no_network
from tvm_rnn.options import Options, Products, Tape, asked
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import relative_error
from tvm_rnn.passes import keep_choice
from tvm_rnn.passes.passed import Passed
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.records import Records
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.schedule import record_files
from tvm_rnn.target import Target
from tvm_rnn.whole_files import advice

from .compile_model import write_model
from .link import generate as generate_code
from .link import link, objects_of, with_more
from .stage_texts import texts
from .surroundings import Around, with_functions
from .watched import Progress, watched

if TYPE_CHECKING:
    from tvm_rnn.runtime.runtime import Module


ROOM = 32 << 20  # bytes: object code, before it is linked and after


def compile(
    net: RNN | Model,
    target: str | Target = "llvm",
    batch: int | Sequence[int] = (),
    training: bool = False,
    *,
    keep: str | None = None,
    max_bytes: int | None = None,
    generate: bool = False,
    precision: str | None = None,
    weights: str | None = None,
    arch: str | Sequence[str] = (),
    without: Iterable[str] = (),
    records: Records | str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Module:
    """Compile an RNN for one target, to run it, and with training=True to train it.

    Args:
        net: the network, with weights (they are in the module) or without (`Module.load_weights`); or a Model of
            several. What a frontend found around a network is in the module too: `Module.run`.
        target: "llvm", this machine's CPU; "cuda", its GPU; or one of `tvm_rnn.target.names()`, which need not be here.
        batch: one or more batch sizes to optimise for. Every batch size stays correct, as does every number of steps.
        training: add `forward_train` and `backward`, which takes three times the work.
        keep: training: what forward_train leaves for backward besides inputs and states. "values": what saves every
            product; "states": nothing, they run again. On GPUs, of float32, ":bfloat16" behind either halves the bytes
            of what no product reads. None: "values" on CPUs; on GPUs what is predicted to be faster. See `plan_memory`.
        max_bytes: training: the module's `max_bytes` at first, in bytes; whether a call fits is forward_train's to say.
        generate: add `Module.generate`, which feeds outputs back. Networks that draw numbers need this or training.
        precision: what products are computed in. None: the network's dtype. "tf32": float32 networks on GPUs, with 10
            bits of mantissa. "float32": a network of 16 bits computes in float32, with the same weights, so that it
            runs on CPUs. float16 and bfloat16 (GPUs only) sum and keep states in float32.
        weights: the dtype in which matrices of products are stored. None: that of the precision. CPUs, float32:
            "bfloat16", "float16" or "int8", widened as they are read; "int8_dynamic": products of 8-bit integers, with
            one scale per row and step (AVX2, AVX-512 VNNI, Arm's dotprod, relaxed SIMD). GPUs, 16 bits: "float8_e4m3":
            each row is divided by a power of two that makes its largest value 448 at most, and rounded; so twice as
            large a layer stays on the chip. A NaN or an infinity in a row makes results NaN.
        arch: the GPU architectures that the file is for, such as ["sm_80", "sm_90a"]. "compute_80": sm_80, and PTX,
            which the driver of any later GPU compiles once, when the file is loaded. Empty: the target's alone.
        without: names of passes to switch off.
        records: tuned knob values: a folder that `tune` wrote, or "none". None: those of TVM_RNN_RECORDS, else the
            user's own and those that ship. The manifest says which was used for what.
        dump: a folder for the text of every stage.
        progress: called with each stage's name as it starts, and with a line for each record that cannot be used. None:
            a terminal or notebook shows the stages in one line of stderr, unless TVM_RNN_PROGRESS=0; False: nothing.

    Returns:
        A Module. If the target is this machine it can be called; else `Module.export` it.

    Raises:
        ConfigError: an argument is wrong.
        WeightError: a finite weight would be infinite in the dtype in which it is stored.
        CellError: the equations cannot be compiled.
        BuildError: a compiler or linker fails or is missing.
    """
    with watched(progress) as tell, _no_collection():
        machine, targets = record_files.machines(target, arch, records, tell)
        products: Products = {"precision": precision, "weights": weights, "without": without}
        tape: Tape = {"training": training, "keep": keep, "max_bytes": max_bytes}
        return built(net, asked(machine, targets, batch=batch, generate=generate, **products, **tape), dump, tell)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Leaves Python's search for cycles to a later time: a graph and its loops are many objects, which all live until
    the end, and it would go through them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def built(net: RNN | Model, options: Options, dump: str | os.PathLike[str] | None, tell: Progress) -> Module:
    """All that `compile` does once its arguments are options: checks, texts of stages, passes, code.

    net, dump, tell: as for `compile`; options: with targets. Raises what `compile` raises."""
    keep_choice.check_name(options.training)
    net, around = with_functions(widened(net, options.precision or None, options.target.kind == "cuda"), options.target)
    networks, place = networks_of(net, options), None if dump is None else record_files.folder_of("dump", dump)
    for own in networks:
        _check_drawing(own, options, isinstance(net, Model))
    tell("passes")
    each = [options.of(own.dtype) for own in networks]
    for own, how in zip(networks, each, strict=True):
        check_fit(own.weights, how.stored)
    for number, (own, how) in enumerate(zip(networks, each, strict=True) if place is not None else ()):
        _dump(os.path.join(place or "", str(number) if len(networks) > 1 else ""), texts(own, how))
    with recording(not options.target.records.lean):
        every = [passed(own, how) for own, how in zip(networks, each, strict=True)]
        return _compiled(net, every, around, options, tell)


def _compiled(net: RNN | Model, networks: Sequence[Passed], around: Around, options: Options, tell: Progress) -> Module:
    for number, own in enumerate(networks):
        with about("", **({"network": number} if len(networks) > 1 else {})):
            own.run()
    folder = _work_folder()
    try:
        if isinstance(net, Model):
            module = _for_a_model(net, networks, around, options, Path(folder), tell)
        elif networks[0].options.target.kind == "cuda":
            module = _for_gpus(networks[0], around, Path(folder), tell)
        else:
            module = _for_a_cpu(networks[0], around, Path(folder), tell)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(module, shutil.rmtree, folder, True)
    if isinstance(net, RNN):
        module.drawing = net.drawing()
    return module


def _work_folder() -> str:
    """A folder for what is being built. Raises BuildError where there is no room: LLVM would end the process."""
    do = "make room, or name another folder: export TMPDIR=/path"
    try:
        folder = tempfile.mkdtemp(prefix="tvm_rnn_")
        free = shutil.disk_usage(folder).free
    except OSError as reason:
        raise BuildError(message("there is no folder for temporary files", got=str(reason), do=do)) from None
    if free < ROOM:
        os.rmdir(folder)
        got, expected = f"{free} bytes free in {os.path.dirname(folder)}", f"{ROOM} or more"
        raise BuildError(message("no room for temporary files", got=got, expected=expected, do=do))
    return folder


def networks_of(net: RNN | Model, options: Options) -> list[RNN]:
    """The networks to compile, with weights that were checked. Raises ConfigError."""
    if options.training:
        check_training(net)
    networks = net.networks if isinstance(net, Model) else [net]
    for own in networks:
        if not isinstance(own, RNN):
            raise no_network("compile", own)
        if own.weights:
            own.check_weights()
    return networks


def _check_drawing(net: RNN, options: Options, inside: bool) -> None:
    """Raises ConfigError where no function could be called. inside: of a model."""
    gpu = options.target.kind == "cuda"
    if options.generate and inside:
        got, do = "a model of several networks", "compile one network"
        raise ConfigError(message("generation is for networks", got=got, do=do))
    if options.generate:
        check_generation(net)
    able = (options.generate and not (gpu and options.training)) or (options.training and not gpu)
    if net.draws and (inside or not able):
        got, do = ", ".join(net.draws), "rnn.compile(net, generate=True); or training=True for a CPU"
        raise ConfigError(message("these equations draw random numbers, which need a seed", got=got, do=do))


def _for_a_cpu(own: Passed, around: Around, folder: Path, tell: Progress) -> Module:
    net, options = own.net, own.options
    tell("lowering")
    lowered = Lowering(net, own.layers, options).run()
    facts, arrays = lowered.describe(), blob(net, own.layers)
    if options.training:
        tell("lowering of training")
        arrays |= add_training(own, lowered, facts)
        if facts.memory is not None:
            facts.memory.max_bytes = options.max_bytes
    if options.generate:
        tell("lowering of generation")
        generation = GenerationLowering(net, own.layers, options, sharing=lowered.sharing)
        lowered.found |= generation.functions()
        facts.generation = generation.facts()
        facts.entry_points.append("generate")
    direct = direct_of(own)
    if direct is not None:
        tell("lowering of a row's step")
        lowered.found |= direct.functions()
        facts.direct = direct.facts()
        arrays |= direct.constants()
    tell("code generation")
    executable = generate_code(with_more(lowered.module, around.functions), options.target)
    tell("linking")
    elf = link(executable, folder, options.target)
    path = os.path.join(folder, "module.so")
    manifest.write_container(elf, facts, arrays, path)
    tell("loading")
    module = runtime.load(path, anywhere=True)
    if options.stored and net.weights and not module.is_elsewhere:
        tell("measuring the error of stored weights")
        module.manifest["weight_error"] = weight_error(net, module)
    return module


def _for_a_model(
    model: Model, networks: Sequence[Passed], around: Around, options: Options, folder: Path, tell: Progress
) -> Module:
    if options.target.kind == "cuda" and not networks:
        do = "compile it for a CPU"
        raise ConfigError(message("a model without networks is for CPUs", got=options.target.name, do=do))
    if options.target.kind == "cuda":
        from tvm_rnn.cuda.write_module import write_model as write_for_gpus

        objects = objects_of(around.functions, folder, options.target.host)
        path = write_for_gpus(model, networks, folder, tell, objects, around.on_gpu)
    else:
        path = write_model(model, networks, around.functions, options, folder, tell)
    tell("loading")
    return runtime.load(path, anywhere=True)


def _for_gpus(own: Passed, around: Around, folder: Path, tell: Progress) -> Module:
    from tvm_rnn.cuda.write_module import write_module
    from tvm_rnn.runtime.runtime_cuda import CudaModule
    from tvm_rnn.runtime.runtime_cuda_training import CudaTrainingModule

    objects = objects_of(around.functions, folder, own.options.target.host)
    path = write_module(own, folder, tell, objects, around.on_gpu)
    tell("loading")
    kind = CudaTrainingModule if own.options.training else CudaModule
    return kind(path, anywhere=True)


def _dump(folder: str | os.PathLike[str], stages: list[tuple[str, str]]) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        for number, (name, text) in enumerate(stages):
            Path(folder, f"{number:02d}_{name}.txt").write_text(text + "\n", encoding="utf-8")
    except OSError as reason:
        do, where = advice(reason, "give a folder that you may write to"), os.fspath(folder)
        raise BuildError(message("cannot write the stages", where=where, got=str(reason), do=do)) from None


STEPS, BATCH = 32, 4


def weight_error(net: RNN, module: Module) -> float | None:
    """The largest error of y relative to float64, over STEPS steps of BATCH rows of random inputs in -1..1.

    None where that is no number: a cell that overflows on such inputs, or weights with a NaN.
    """
    rng, inputs = np.random.default_rng(0), module.manifest.inputs
    lead = (BATCH, STEPS) if net.batch_first else (STEPS, BATCH)
    x = {i.name: rng.uniform(-1, 1, (*lead, *i.shape)).astype(net.dtype) for i in inputs}
    x |= {n: rng.uniform(-1, 1, (BATCH, *shape)).astype(net.dtype) for n, shape in net.constant_shapes.items()}
    with np.errstate(all="ignore"):
        expected, _ = reference(net)(x)
    error = relative_error(module(x)[0], expected)
    return error if math.isfinite(error) and np.isfinite(expected).all() else None
