"""Generation on GPUs: a program of its own, whose call is the whole loop.

In: a network after its passes. Out: a `Program` whose `sequence` is that of the network's loop
(`network/closed_loop.py`): its states and inputs, and behind these, where random numbers are drawn, three numbers
(`cuda/rowwise/dropout_masks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.rowwise.dropout_masks import NetworkMaskKeys
from tvm_rnn.decisions import about
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.graph.graph import Graph
from tvm_rnn.network.closed_loop import Loop, closed
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.passes.passed import Passed
from tvm_rnn.target import Target

from .layer import Layer
from .network import Plan

WAY = "generate"


@dataclass
class GenerationPlan(Plan):
    """Call `run()`. loop: the network and what it is the loop of. number: of its graph, among those whose constants the
    file has."""

    loop: Loop
    number: int

    def _layer(self, graph: Graph, number: int) -> Layer:
        initial = dict[str, float]()  # nothing resets a loop
        own = graph, self.number, self.net.dtype, self.options, self.target, initial
        return Layer(*own, streams=self.loop.streams, looped=True)

    def run(self) -> Program:
        net, number = self.loop.of, len(self.net.layers[0].graph.inputs)
        if net.draws:
            self.mask_keys = NetworkMaskKeys(self.program, number, net.draws, net.num_layers, 1)
            self.mask_keys.prepare(self.program.sequence)
        program = super().run()
        program.parameters = [(self.loop.weight(name), dtype) for name, dtype in program.parameters]
        return program

    def constants(self) -> dict[str, np.ndarray]:
        """The array constants that packing reads, by name."""
        found = named_constants(self.code[0].graph, self.number)
        return {name: value.astype(held_dtype(self.net.dtype)) for name, value in found.items()}


def plans(passed: Passed, targets: Sequence[Target]) -> list[GenerationPlan]:
    """The plan of a network's loop for each target, with its program. What draws numbers can do nothing but generate:
    its loop is the first program of its module."""
    loop, alone = closed(passed.net), bool(passed.net.draws)
    own = Passed(loop.net, passed.options, passed.pipeline)
    number = 0 if alone else 3 * len(passed.layers.graphs)  # those before it are of training
    found = []
    with about("", generation=True):
        for target in targets:
            found.append(GenerationPlan(own, own.layers, target, loop=loop, number=number))
            found[-1].run()
            found[-1].program.suffix = "" if alone else f"_{WAY}"
    return found
