"""Data-parallel training of a compiled layer: one process of several, or all of their work in this one.

In: a backend of torch.distributed, and a folder; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, as
torchrun sets them. Out: the parameters after a few steps, as parameters_RANK.pt in the folder. `spawn` starts the
processes; by hand, on a machine with two GPUs, with the networks compiled there or in TVM_RNN_MODULES:

    torchrun --nproc-per-node 2 tests/train_parallel.py nccl FOLDER 1

Each process takes its rows of one batch, and DistributedDataParallel averages the gradients; or FSDP2 does, which gives
each process a part of every parameter. Seeds of masks differ from process to process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_modules
import numpy as np
import torch
from networks import network

import tvm_rnn as rnn

STEPS, RATE = 3, 0.5
OPTIONS: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}


@dataclass(frozen=True)
class Work:
    """What is trained, and where: T steps of `rows` rows in all."""

    backend: str
    dtype: str
    steps: int
    rows: int
    inputs: int
    hidden: int

    def net(self, regularised: bool) -> rnn.RNN:
        """The network."""
        own = OPTIONS if regularised else {}
        return network("lstm", self.inputs, self.hidden, num_layers=2, dtype=self.dtype, **own)

    def device(self, rank: int) -> str:
        """Where a process works."""
        return "cpu" if self.backend == "gloo" else f"cuda:{rank}"

    def layer(self, regularised: bool, rank: int) -> Any:
        """The layer of one process. On GPUs its module may come from a folder, for machines without a compiler."""
        net = self.net(regularised)
        if self.backend == "gloo":
            return rnn.to_torch(net)
        from tvm_rnn.torch_layer.autograd import TorchLayer

        module = gpu_modules.gpu_module(f"parallel_{int(regularised)}", net, training=True)
        module.device = rank
        return TorchLayer(net, module, "net")

    def loss(self, layer: Any, regularised: bool, step: int, rank: int, world: int, device: str) -> Any:
        """The mean square error of one process's rows at one step."""
        rng, own = np.random.default_rng(step), slice(rank * self.rows // world, (rank + 1) * self.rows // world)
        arrays = rng.normal(size=(self.steps, self.rows, self.inputs)), rng.normal(size=(self.steps, self.rows, 1))
        x, wanted = (torch.tensor(a[:, own], dtype=getattr(torch, self.dtype), device=device) for a in arrays)
        y, _ = layer(x, **({"seed": 100 * step + rank} if regularised else {}))
        return (y - wanted).square().mean()


WORK = {
    "gloo": Work("gloo", "float64", 6, 4, 3, 5),
    "nccl": Work("nccl", "float32", 20, 32, 64, 128),
}


def alone(backend: str, regularised: bool, world: int) -> dict[str, Any]:
    """The parameters after training in one process, by the mean of the processes' losses."""
    work = WORK[backend]
    layer, device = work.layer(regularised, 0), work.device(0)
    optimiser = torch.optim.SGD(layer.parameters(), RATE)
    for step in range(STEPS):
        optimiser.zero_grad()
        for rank in range(world):
            (work.loss(layer, regularised, step, rank, world, device) / world).backward()
        optimiser.step()
    return {name: value.detach().cpu() for name, value in layer.named_parameters()}


def spawn(
    backend: str, folder: Path, regularised: bool, world: int = 2, way: str = "replicated"
) -> list[dict[str, Any]]:
    """The parameters of each process after training in several. way: of WAYS. Raises AssertionError where one of them
    fails."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = int(own.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    paths = [str(Path(rnn.__file__).parent.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    address["PYTHONPATH"] = os.pathsep.join(paths)
    if backend == "nccl":  # what this process has compiled
        address["TVM_RNN_MODULES"] = str(gpu_modules.folder())
    command = [sys.executable, __file__, backend, str(folder), str(int(regularised)), way]
    workers = [
        subprocess.Popen(command, env={**os.environ, **address, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(world)
    ]
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=900)
            assert worker.returncode == 0, errors.decode()[-3000:]
    finally:
        for worker in workers:
            worker.kill()
    return [torch.load(folder / f"parameters_{rank}.pt") for rank in range(world)]


def replicated(layer: Any) -> Any:
    """Every process has all parameters."""
    return torch.nn.parallel.DistributedDataParallel(layer)


def sharded(layer: Any) -> Any:
    """Every process has a part of each parameter; a call gathers them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(layer.parameters()).device.type, (torch.distributed.get_world_size(),))
    return fully_shard(layer, mesh=mesh)


WAYS = {"replicated": replicated, "sharded": sharded}


def main(backend: str, folder: str, regularised: bool, way: str = "replicated") -> None:
    """One process."""
    rank, world, work = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), WORK[backend]
    device = work.device(rank)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend)
    layer = work.layer(regularised, rank)
    parallel = WAYS[way](layer)
    optimiser = torch.optim.SGD(parallel.parameters(), RATE)
    for step in range(STEPS):
        optimiser.zero_grad()
        work.loss(parallel, regularised, step, rank, world, device).backward()
        optimiser.step()
    whole = {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in layer.named_parameters()}
    torch.save({n: v.detach().cpu() for n, v in whole.items()}, f"{folder}/parameters_{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "1", *sys.argv[4:])
