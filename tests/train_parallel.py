"""Data-parallel training of a compiled layer: one process of several, or all of their work in this one.

In: WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT in the environment, as torchrun sets them, and a folder. Out: the
parameters after a few steps, as parameters_RANK.pt in the folder. Run it by hand on a machine with several GPUs:

    torchrun --nproc-per-node 2 tests/train_parallel.py nccl FOLDER 1

Each process takes its rows of one batch, torch's DistributedDataParallel averages the gradients. Seeds of masks differ
from process to process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch

import tvm_rnn as rnn

T, B, INPUTS, HIDDEN, STEPS, RATE = 6, 4, 3, 5, 3, 0.5
OPTIONS: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}


def batch(step: int, rank: int, world: int, dtype: Any, device: str) -> Any:
    """The rows of one process: x [T, B / world, I], and what y is compared with."""
    rng = np.random.default_rng(step)
    x, wanted = rng.normal(size=(T, B, INPUTS)), rng.normal(size=(T, B, 1))
    own = slice(rank * B // world, (rank + 1) * B // world)
    return tuple(torch.tensor(a[:, own], dtype=dtype, device=device) for a in (x, wanted))


def loss_of(layer: Any, net: rnn.RNN, regularised: bool, step: int, rank: int, world: int, device: str) -> Any:
    """The mean square error of one process's rows at one step."""
    x, wanted = batch(step, rank, world, getattr(torch, net.dtype), device)
    y, _ = layer(x, **({"seed": 100 * step + rank} if regularised else {}))
    return (y - wanted).square().mean()


def alone(net: rnn.RNN, regularised: bool, device: str, world: int) -> dict[str, Any]:
    """The parameters after training in one process, by the mean of the processes' losses."""
    layer = rnn.to_torch(net, "llvm" if device == "cpu" else "cuda")
    optimiser = torch.optim.SGD(layer.parameters(), RATE)
    for step in range(STEPS):
        optimiser.zero_grad()
        for rank in range(world):
            (loss_of(layer, net, regularised, step, rank, world, device) / world).backward()
        optimiser.step()
    return {name: value.detach().cpu() for name, value in layer.named_parameters()}


def main(backend: str, folder: str, regularised: bool) -> None:
    """One process."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend)
    net = network_of(backend, regularised)
    layer = rnn.to_torch(net, "llvm" if backend == "gloo" else "cuda").to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    optimiser = torch.optim.SGD(parallel.parameters(), RATE)
    for step in range(STEPS):
        optimiser.zero_grad()
        loss_of(parallel, net, regularised, step, rank, world, device).backward()
        optimiser.step()
    torch.save({n: v.detach().cpu() for n, v in layer.named_parameters()}, f"{folder}/parameters_{rank}.pt")
    torch.distributed.destroy_process_group()


def network_of(backend: str, regularised: bool) -> rnn.RNN:
    """The network that is trained."""
    from networks import network

    dtype = "float64" if backend == "gloo" else "float32"
    return network("lstm", INPUTS, HIDDEN, num_layers=2, dtype=dtype, **(OPTIONS if regularised else {}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
