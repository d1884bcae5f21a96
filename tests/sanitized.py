"""Both passes of a small network on a GPU, for compute-sanitizer: `python tests/sanitized.py NAME MODULE` (see
test_sanitizers.py).

In: a name of NETWORKS, and its module, for training. A plain call, forward_train and backward, without lengths and
resets and with them. Out: "ran NAME"; an error where a result is not finite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import headed_cells
import matrix_cells
from derivatives import draw
from networks import flags, network

import tvm_rnn as rnn

ROWS = 3


def of_heads(name: str) -> Callable[[], rnn.RNN]:
    return lambda: headed_cells.SMALL[name].net(20)


def of(cell: str | rnn.Cell, inputs: int, dtype: str, hidden: int = 0, **sizes: int) -> Callable[[], rnn.RNN]:
    return lambda: network(cell, inputs, hidden, dtype=dtype, **sizes)


# Steps, and the network. Heads apart and coupled, on tensor cores and not. Linear recurrences of vectors, and of
# matrices in chunks of time and step by step. Persistent kernels of a cluster, of layers in a wave, of a polling grid.
NETWORKS: dict[str, tuple[int, Callable[[], rnn.RNN]]] = {
    **{f"heads {name}": (5, of_heads(name)) for name in headed_cells.SMALL if name != "slstm-tf32"},
    "matrices m2rnn": (5, of("m2rnn", 16, "bfloat16", 24, N=2, K=20)),
    "matrices fast_tanh": (5, of(matrix_cells.fast_tanh, 16, "float32", N=2, K=12, V=9)),
    "matrices both_ways": (3, of(headed_cells.both_ways, 16, "float16", 20, K=12, V=9)),
    "linear min_gru": (70, of("min_gru", 12, "float32", 24)),
    "linear rg_lru": (70, of("rg_lru", 12, "bfloat16", 24)),
    "linear gated_delta_net": (70, of("gated_delta_net", 16, "bfloat16", 64)),
    "linear mlstm": (70, of("mlstm", 16, "bfloat16", 64)),
    "linear rwkv7": (9, of("rwkv7", 16, "float16", 64)),
    "persistent lstm": (4, of("lstm", 16, "bfloat16", 128)),
    "persistent gru": (4, of("gru", 16, "float32", 64, num_layers=2)),
    "persistent wave": (4, of("lstm", 32, "float16", 128, num_layers=3)),
    "persistent grid": (3, of("lstm", 16, "bfloat16", 1024)),
}


def run(name: str, module: Any) -> None:
    import torch
    from on_gpu import given, there

    steps, make = NETWORKS[name]
    net = make()
    kind = getattr(torch, net.dtype)
    for rows in ({}, flags(steps, ROWS)):
        case = draw(net, steps, ROWS, **rows)
        x, state = given(net, case)
        y, _ = module(x, state, **case.rows)
        again, _, tape = module.forward_train(x, state, **case.rows)
        gx, _, gweights = module.backward(tape, there(case.gy, kind), there(case.gstate, kind))
        found = [y, again, *(gx.values() if isinstance(gx, dict) else [gx]), *gweights.values()]
        if not all(bool(torch.isfinite(value).all()) for value in found):
            raise SystemExit(f"{name}: a result is not finite")
    print("ran", name)


if __name__ == "__main__":
    run(sys.argv[1], rnn.load(sys.argv[2]))
