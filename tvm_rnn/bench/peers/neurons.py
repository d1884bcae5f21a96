"""spikingjelly's neuron, which has kernels of its own in CUDA and Triton for all steps, forward and backward.

In: an RNN of `lif_neuron` of one layer. Out: `layers`, torch modules of (x [T, B, H]) -> (y, states): all steps by its
kernels, and its loop of single steps. Which of its kernels runs is the library's choice.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

from tvm_rnn.bench.suites.neurons import TAU, THRESHOLD

from .models import imported

if TYPE_CHECKING:
    import torch

    from tvm_rnn.network.rnn import RNN

CELL, PEER = "lif_neuron", "spikingjelly"
WAYS = {"all steps": "m", "step by step": "s"}


def knows(net: RNN) -> bool:
    """Whether there is a layer for it."""
    return bool(net.cell.name == CELL and net.num_layers == net.num_directions == 1 and not net.reverse)


def version() -> str:
    """Of the library."""
    try:
        return importlib.metadata.version(PEER)
    except importlib.metadata.PackageNotFoundError:  # a folder on the path
        return "unknown"


def layers(dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """Each way to run it, by name. Raises Unsupported where it is not installed."""
    return {f"{PEER}'s LIFNode, {name}": layer(mode, dtype) for name, mode in WAYS.items()}


def layer(mode: str, dtype: torch.dtype) -> torch.nn.Module:
    """mode: "m", all steps at once; "s", one after the other."""
    with imported(PEER):
        from spikingjelly.activation_based import neuron, surrogate
    import torch

    node = neuron.LIFNode(
        tau=TAU, v_threshold=THRESHOLD, surrogate_function=surrogate.ATan(alpha=2.0), step_mode=mode
    ).to(dtype)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        node.reset()
        y = node(x) if mode == "m" else torch.stack([node(own) for own in x])
        return y, {"v": node.v[None]}

    whole = torch.nn.Module()
    whole.node = node
    whole.forward = forward
    return whole
