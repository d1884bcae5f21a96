"""The entry points of training in a module for GPUs: two host programs for each arch, and their facts in the manifest.

In: an RNN and a target, from cuda/write_module.py. Out: `Trained`: the programs of forward_train and backward, facts,
and the constants that their equations read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import convert

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.layer.made_again import made_again, without_kept
from tvm_rnn.decisions import about, forget, recording, tell, told
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.graph.graph import Layers, has_steps
from tvm_rnn.module_file.facts import memory_facts
from tvm_rnn.module_file.schema import GpuNetwork, GpuProgram, Kernel, Masks, TimeParts
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.passes import keep_choice
from tvm_rnn.passes.passed import Passed
from tvm_rnn.target import Target

from .plan_backward import BackwardPlan, gradient_width
from .plan_forward import ForwardTrain

WAYS = ("forward_train", "backward")
PERSISTENT = "sm_90a"  # which has persistent kernels


@dataclass
class Trained:
    """Both plans of one network for one arch, and their programs, in the order of WAYS."""

    net: RNN
    forward: ForwardTrain
    backward: BackwardPlan
    programs: tuple[Program, ...]
    layers: Layers  # with backward graphs
    training: bool | str  # what is kept

    def constants(self) -> dict[str, np.ndarray]:
        """The array constants that packing reads, by name."""
        found: dict[str, np.ndarray] = {}
        for code in (*self.forward.code, *self.backward.code):
            found |= named_constants(code.graph, code.number)
        for back in self.backward.backs:
            found |= named_constants(back.finish.graph, back.finish.number)
        used = {name for program in self.programs for name, _ in program.parameters}
        return {name: value.astype(held_dtype(self.net.dtype)) for name, value in found.items() if name in used}


def plan(passed: Passed, target: Target) -> Trained:
    """Both programs of training for one target. What is kept is as the options say, by name; True: "auto", which is
    "values" in any case where steps that read values have a persistent kernel, and those with "states" none, and where
    recurrences over all time leave no steps: to read a value takes less than to read what it is made of."""
    training, before = _kept(passed, target), told()
    with about("", training=True):
        found = _plan(passed, target, training)
        if not found.training == "states" != training or target.arch != PERSISTENT or _persistent(found):
            return found
        with recording(False):
            better = _persistent(_plan(passed, target, "values"))
        if better:
            forget(before)
            found = _plan(passed, target, "values")
        return found


def _kept(passed: Passed, target: Target) -> bool | str:
    """What is kept, as the options say; "values" where they say nothing and nothing is left of backward's steps."""
    training, options = passed.options.training, passed.options
    if not keep_choice.chosen(training, passed.net, target, options.batches, options.precision) == "states" != training:
        return training
    with recording(False):
        graphs = passed.training("values")[-1][1].graphs
    return training if any(has_steps(g.backward) for g in graphs if g.backward is not None) else "values"


def _persistent(trained: Trained) -> bool:
    """Whether all steps of backward, where there are some, may run in one kernel."""
    return all(code.regimes or not code.layout.has_steps for code in trained.backward.code)


def _plan(passed: Passed, target: Target, training: bool | str) -> Trained:
    net, options = passed.net, passed.options
    keep_choice.check(training, net.dtype, target.kind)
    layers = passed.training(training)[-1][1]
    found = {number: made_again(graph, net) for number, graph in enumerate(layers.graphs)}
    again = {number: own for number, own in found.items() if own is not None}
    for number, own in again.items():
        why = f"made again from inputs and the states before each {own.every}th step, which moves fewer bytes"
        with about("differentiate", graph=number):
            tell(False, "keep values for backward", why)
    training = keep_choice.chosen(training, net, target, options.batches, options.precision)
    count, narrow = len(layers.graphs), keep_choice.split(training)[1]
    backs = Layers(tuple(g.backward for g in layers.graphs if g.backward is not None), layers.of_layer)
    kept = tuple(without_kept(g) if number in again else g for number, g in enumerate(layers.graphs))
    given = passed, replace(layers, graphs=kept), target
    forward = ForwardTrain(*given, number=count, narrow=narrow, keep=training, again=again)
    backward = BackwardPlan(passed, backs, target, forward=forward, number=2 * count)
    programs = forward.run(), backward.run()
    programs[0].suffix, programs[1].suffix = (f"_{way}" for way in WAYS)
    return Trained(net, forward, backward, programs, layers, training)


def working(trained: Trained, target: Target) -> dict[str, Callable[[int, int], int]]:
    """By program: bytes of its working memory for T steps of B rows, on that GPU."""
    return {way: working_memory(own, target.sms) for way, own in zip(WAYS, trained.programs, strict=True)}


def of_parts(trained: Trained) -> TimeParts | None:
    """What calls for a segment of time must know, in the manifest: how many arrays of the tape, the first ones, have
    room for all of it, and bytes of a row of a layer's gradient."""
    net, tape = trained.net, trained.forward.tape
    if net.num_directions == 1:
        return TimeParts("borders") if net.reverse else None
    row = gradient_width(net) * ITEM_BYTES[net.dtype] * (2 if net.num_layers > 1 else 1)
    return TimeParts("visits", sum(array.whole for array in tape.arrays), row)


def describe(facts: GpuNetwork, trained: Sequence[Trained], taken: dict[str, list[dict[str, Any]]]) -> None:
    """Add to the manifest's facts: of each variant its two programs, the tape, and the order of gradients."""
    for variant, own in zip(facts.variants, trained, strict=True):
        variant.forward_train, variant.backward = (
            GpuProgram(
                packed_bytes=program.packed_bytes,
                parameters=program.parameters,
                kernels=[Kernel(**row) for row in taken.get(f"{variant.arch}_{way}", [])],
                templates=program.facts.get("templates", []),
            )
            for way, program in zip(WAYS, own.programs, strict=True)
        )
    first, net = trained[0], trained[0].net
    if net.regularisers:
        facts.masks = convert(net.regularisers.masks(net.layers, net.num_directions), Masks)
    facts.tape = first.forward.tape.sizes()
    facts.reads_inputs = True  # backward takes the caller's inputs too
    facts.reads_output = first.forward.tape.output is not None  # and y, which has room for one step more
    facts.parts = of_parts(first)
    facts.gradients = first.backward.gradient_names
    facts.memory = memory_facts(net, first.layers, first.training)
    facts.entry_points += [*WAYS]
