"""An RNN to the file of a module for GPUs: plan, kernels, host program, object, manifest.

In: an RNN, its layers after the passes, and one target per arch, from compiler/compile.py. Out: a container file that
runtime_cuda.py loads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import convert, structs

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.decisions import about
from tvm_rnn.errors import BuildError, message
from tvm_rnn.module_file import manifest
from tvm_rnn.module_file.facts import blob, common_facts, shared_facts
from tvm_rnn.module_file.schema import Generation, GpuNetwork, GpuProgram, Kernel, Origin, SeveralOnGpus, Variant
from tvm_rnn.module_file.schema import Model as ModelFacts
from tvm_rnn.network.model import Model
from tvm_rnn.passes.passed import Passed

from .codegen import cuda_text, nvcc
from .codegen.launched_kernels import launched_kernels
from .plan import generation
from .plan import network as plan
from .plan.generation import GenerationPlan
from .surroundings.device_function import DeviceFunction
from .training import add_entry_points

EXACT = ("float32", "float64")  # precisions whose kernels must keep subnormals


def write_module(
    passed: Passed,
    folder: Path,
    tell: Callable[[str], None],
    objects: Sequence[str] = (),
    around: Sequence[DeviceFunction] = (),
) -> str:
    """Compile for every target of the options, each of another arch; returns the path of the module's file. objects:
    object files of the functions for the CPU that the file has, too. around: what is around the network. Raises
    BuildError."""
    net, options = passed.net, passed.options
    tell("planning")
    loops = generation.plans(passed, options.targets) if options.generate else []
    alone = bool(net.draws)  # then the loops are all that there is
    programs = [own.program for own in loops] if alone else [plan.plan(passed, t) for t in options.targets]
    trained = [add_entry_points.plan(passed, target) for target in options.targets if options.training]
    for program, target in zip(programs, options.targets, strict=True) if options.calls else ():
        program.left_out = frozenset(program.kernels) - launched_kernels(program, options.calls, target.sms)
    for program, own in ((program, own) for program in programs for own in around):
        own.add_to(program)
    tell("code generation")
    pairs = [*zip(programs, options.targets, strict=True)]
    pairs += [(own, t) for found, t in zip(trained, options.targets, strict=False) for own in found.programs]
    pairs += [] if alone else [(own.program, t) for own, t in zip(loops, options.targets, strict=False)]
    sources = [cuda_text.generate(program, target) for program, target in pairs]
    tell("compiling kernels")
    elf, taken, compiler = nvcc.build(sources, folder, options.precision not in EXACT, objects)
    tell("writing")
    facts = describe(passed, programs, taken)
    facts.versions["cuda"] = compiler
    if objects:
        facts.target.features = [*options.targets[0].host.features]
    arrays = blob(net, passed.layers)
    if trained:
        add_entry_points.describe(facts, trained, taken)
        if facts.memory is not None:
            facts.memory.max_bytes = options.max_bytes
        arrays |= trained[0].constants()
    if loops:
        describe_generation(facts, loops, taken)
        arrays |= loops[0].constants()
    path = os.path.join(folder, "module.so")
    manifest.write_container(elf, facts, arrays, path)
    return path


def write_model(
    model: Model,
    networks: Sequence[Passed],
    folder: Path,
    tell: Callable[[str], None],
    objects: Sequence[str] = (),
    around: Sequence[DeviceFunction] = (),
) -> str:
    """The same of a model of several networks: the functions of the first have no number in their names, and what is
    around all of them is with it. Raises BuildError."""
    options = networks[0].options
    tell("planning")
    each = list[list[Program]]()
    for number, own in enumerate(networks):
        with about("", network=number):
            each.append([plan.plan(own, target) for target in own.options.targets])
        for program in each[number] if number else ():
            program.suffix = f"_n{number}"
    for program, function in ((program, function) for program in each[0] for function in around):
        function.add_to(program)
    tell("code generation")
    pairs = [pair for programs in each for pair in zip(programs, options.targets, strict=True)]
    sources = [cuda_text.generate(program, target) for program, target in pairs]
    tell("compiling kernels")
    fast = all(own.options.precision not in EXACT for own in networks)
    elf, taken, compiler = nvcc.build(sources, folder, fast, objects)
    tell("writing")
    facts = [describe(own, programs, taken) for own, programs in zip(networks, each, strict=True)]
    for number, network in enumerate(facts):
        network.part = f"n{number}" if number else None
        network.decisions = [d for d in network.decisions or () if d["subject"].get("network", number) == number]
    whole = SeveralOnGpus(
        **structs.asdict(shared_facts(options.targets[0], options.batches, options.without)),
        entry_points=["run"],
        origin=convert(model.origin.facts(), Origin),
        model=convert(model.program.facts(), ModelFacts),
        archs=[target.arch for target in options.targets],
        networks=facts,
    )
    whole.versions["cuda"] = compiler
    if objects:
        whole.target.features = [*options.targets[0].host.features]
    arrays = [(i, blob(own.net, own.layers)) for i, own in enumerate(networks)]
    named = {f"{i}.{name}": value for i, found in arrays for name, value in found.items()}
    path = os.path.join(folder, "model.so")
    manifest.write_container(elf, whole, named | model.program.arrays(), path)
    return path


def describe(passed: Passed, programs: Sequence[Program], taken: Mapping[str, list[dict[str, object]]]) -> GpuNetwork:
    """The manifest: what all modules say, and one variant per arch, in the order of the options' targets. taken: by
    arch what the compiler says of each kernel."""
    options, targets = passed.options, passed.options.targets
    variants = [
        Variant(
            arch=target.arch,
            target=target.name,
            packed_bytes=program.packed_bytes,
            parameters=program.parameters,
            kernels=[_with_threads(row, program) for row in taken.get(target.arch + program.suffix, [])],
            templates=program.facts.get("templates", []),
            tells_starts=program.tells_starts,
        )
        for program, target in zip(programs, targets, strict=True)
    ]
    if len({v.arch for v in variants}) != len(variants):
        raise BuildError(message("two targets have one arch", got=", ".join(t.arch for t in targets)))
    return GpuNetwork(
        **structs.asdict(common_facts(passed.net, targets[0], options.batches, options.without)),
        precision=options.precision,
        weight_dtype=options.stored or storage(options.precision),
        flops_per_row=float(programs[0].facts.get("flops_per_row", 0.0)),
        templates=variants[0].templates,
        variants=variants,
    )


def describe_generation(
    facts: GpuNetwork, loops: Sequence[GenerationPlan], taken: Mapping[str, list[dict[str, object]]]
) -> None:
    """Add to the manifest's facts: of each variant the program of the loop, where that is not its first."""
    net = loops[0].loop.of
    facts.generation = Generation(tokens=net.tokens)
    facts.entry_points = [*facts.entry_points, generation.WAY]
    for variant, own in zip(facts.variants, loops if not net.draws else (), strict=False):
        variant.generate = GpuProgram(
            packed_bytes=own.program.packed_bytes,
            parameters=own.program.parameters,
            kernels=[_with_threads(row, own.program) for row in taken.get(f"{variant.arch}_{generation.WAY}", [])],
            templates=own.program.facts.get("templates", []),
        )


def _with_threads(row: dict[str, Any], program: Program) -> Kernel:
    """What the compiler says that a kernel takes, and with what it is launched."""
    kernel = program.kernels.get(row["kernel"])
    if kernel is None:
        return Kernel(**row)
    return Kernel(**row, threads=kernel.threads, cluster=kernel.cluster, dynamic_shared_bytes=kernel.shared_bytes)
