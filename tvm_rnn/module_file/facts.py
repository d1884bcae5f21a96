"""What the file of a module says of every network, for all targets, and the arrays that it carries.

In: an RNN, its graphs after the passes, a target. Out: entries of the manifest; arrays by name.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import tvm
import tvm_ffi
from msgspec import convert, structs

from tvm_rnn.decisions import heard
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.graph.flops import graph_flops
from tvm_rnn.graph.graph import Layers
from tvm_rnn.network.rnn import RNN, equations_digest, named_constants
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.runtime.runtime import MANIFEST_FORMAT
from tvm_rnn.target import Target
from tvm_rnn.version import __version__

from . import schema
from .schema import Array, Machine, Memory, Network, Origin, Shared, State


def blob(net: RNN, layers: Layers) -> dict[str, Any]:
    """The arrays that a module's file carries: weights, the equations' constants, and those of the model around it."""
    arrays, held = dict(net.weights), held_dtype(net.dtype)
    for number, graph in enumerate(layers.graphs):
        arrays |= {name: value.astype(held) for name, value in named_constants(graph, number).items()}
    return arrays | ({} if net.program is None else net.program.arrays())


def common_facts(net: RNN, target: Target, batches: tuple[int, ...], without: tuple[str, ...]) -> Network:
    """What a manifest says of every module."""
    last = net.layers[-1]
    shapes = [[list(layer.graph.states[i].shape) for layer in net.layers] for i in range(len(net.cell.states))]
    initial = [float(net.cell.initial.get(s.name, 0.0)) for s in net.cell.states]
    step, run = [] if net.reverse else ["step"], [] if net.program is None else ["run"]
    return Network(
        **structs.asdict(shared_facts(target, batches, without)),
        origin=None if net.origin is None else convert(net.origin.facts(), Origin),
        model=None if net.program is None else convert(net.program.facts(), schema.Model),
        cell=net.cell.name,
        equations=equations_digest(net),
        dtype=net.dtype,
        num_layers=net.num_layers,
        num_directions=net.num_directions,
        inputs=[Array(name, list(shape)) for name, shape in net.input_shapes.items()],
        output=Array(net.cell.output, list(last.output_shape)),
        states=[
            State(s.name, own, at, s.name in net.cell.constants)
            for s, own, at in zip(net.cell.states, shapes, initial, strict=True)
        ],
        weights=[Array(name, list(shape)) for name, shape in net.weight_shapes.items()],
        reverse=net.reverse,
        batch_first=net.batch_first,
        regularisers=net.regularisers.facts() or None,
        draws=net.draws or None,
        entry_points=["sequence", *step, "init_state", *run],
        decisions=heard(),
    )


def shared_facts(target: Target, batches: tuple[int, ...], without: tuple[str, ...]) -> Shared:
    """What a file says once, however many networks are in it."""
    return Shared(
        format=MANIFEST_FORMAT,
        versions={"tvm_rnn": __version__, "tvm": tvm.__version__, "tvm_ffi": tvm_ffi.__version__},
        target=Machine(target.name, target.kind, target.mcpu, target.machine, list(target.features)),
        batch=list(batches),
        passes=[name for name in PASS_NAMES if name not in without],
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def memory_facts(net: RNN, layers: Layers, training: bool | str) -> Memory:
    """What a plan of memory must know of a module, on any target: what its tape keeps, and FLOPs per row and step.
    again: those of backward's that are before its steps, for the most part products of forward once more."""
    graphs = [layers.graphs[i] for i in layers.of_layer]
    backs = [graph.backward for graph in graphs if graph.backward is not None]
    forward, backward = sum(map(graph_flops, graphs)), sum(map(graph_flops, backs))
    again = sum(graph_flops(graph, "before") for graph in backs)
    flops = [each * net.num_directions for each in (forward, backward, again)]
    return Memory("values" if training is True else str(training), *flops)
