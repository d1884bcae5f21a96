"""What the file of a module says of every network, for all targets, and the arrays that it carries.

In: an RNN, its graphs after the passes, a target. Out: entries of the manifest; arrays by name.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import tvm
import tvm_ffi

from tvm_rnn import __version__
from tvm_rnn.decisions import heard
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.graph.flops import graph_flops
from tvm_rnn.graph.graph import Layers
from tvm_rnn.network.equations_digest import equations_digest
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.target import Target


def blob(net: RNN, layers: Layers) -> dict[str, Any]:
    """The arrays that a module's file carries: weights, the equations' constants, and those of the model around it."""
    arrays, held = dict(net.weights), held_dtype(net.dtype)
    for number, graph in enumerate(layers.graphs):
        arrays |= {name: value.astype(held) for name, value in named_constants(graph, number).items()}
    return arrays | ({} if net.program is None else net.program.arrays())


def common_facts(net: RNN, target: Target, batches: tuple[int, ...], without: tuple[str, ...]) -> dict[str, Any]:
    """What the manifest of format 1 says of every module."""
    first, last = net.layers[0].graph, net.layers[-1]
    return {
        "format": 1,
        "versions": {"tvm_rnn": __version__, "tvm": tvm.__version__, "tvm_ffi": tvm_ffi.__version__},
        **({} if net.origin is None else {"origin": net.origin.facts()}),
        **({} if net.program is None else {"model": net.program.facts()}),
        "cell": net.cell.name,
        "equations": equations_digest(net),
        "dtype": net.dtype,
        "num_layers": net.num_layers,
        "num_directions": net.num_directions,
        "inputs": [{"name": n.name, "shape": list(n.shape)} for n in first.inputs],
        "output": {"name": net.cell.output, "shape": [last.width]},
        "states": [
            {
                "name": s.name,
                "shapes": [list(layer.graph.states[i].shape) for layer in net.layers],
                "initial": float(net.cell.initial.get(s.name, 0.0)),
            }
            for i, s in enumerate(net.cell.states)
        ],
        "weights": [{"name": name, "shape": list(shape)} for name, shape in net.weight_shapes.items()],
        "target": {
            "name": target.name,
            "kind": target.kind,
            "mcpu": target.mcpu,
            "machine": target.machine,
            "features": list(target.features),
        },
        **({"reverse": True} if net.reverse else {}),
        **({"regularisers": net.regularisers.facts()} if net.regularisers else {}),
        "entry_points": [
            "sequence",
            *([] if net.reverse else ["step"]),
            "init_state",
            *([] if net.program is None else ["run"]),
        ],
        "batch": list(batches),
        "passes": [name for name in PASS_NAMES if name not in without],
        "decisions": heard(),
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def memory_facts(net: RNN, layers: Layers, training: bool | str) -> dict[str, Any]:
    """What a plan of memory must know of a module, on any target: what its tape keeps, and FLOPs per row and step.
    again: those of backward's that are before its steps, for the most part products of forward once more."""
    graphs = [layers.graphs[i] for i in layers.of_layer]
    backs = [graph.backward for graph in graphs if graph.backward is not None]
    forward, backward = sum(map(graph_flops, graphs)), sum(map(graph_flops, backs))
    again = sum(graph_flops(graph, "before") for graph in backs)
    return {
        "keep": "values" if training is True else training,
        "forward_flops_per_row": forward * net.num_directions,
        "backward_flops_per_row": backward * net.num_directions,
        "again_flops_per_row": again * net.num_directions,
    }
