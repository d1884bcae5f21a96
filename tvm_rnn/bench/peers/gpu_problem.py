"""What every framework of a GPU benchmark computes.

In: a point of a suite, its network, its inputs. Out: `GpuProblem`, which hands weights to torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GpuProblem:
    """What everyone computes. inputs: torch tensors [T, B, *shape] of the point's dtype. module: our .so, or None."""

    point: Point
    net: RNN
    inputs: tuple[torch.Tensor, ...]
    module: str | None = None
    compile_seconds: float = 60.0

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs[0].dtype

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    def weight(self, name: str, layer: int, direction: int) -> torch.Tensor:
        """A weight as torch tensor, in the dtype and on the device of the inputs."""
        return self.put(self.net.weights[weight_name(name, layer, direction)])

    def put(self, array: np.ndarray) -> torch.Tensor:
        import torch

        return torch.tensor(array).to(self.device, self.dtype)
