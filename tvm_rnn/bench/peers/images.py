"""torch's convolutions for cells of images: cuDNN's, with the rest of the cell pointwise, as people write ConvLSTM.

In: an RNN of `conv_lstm` of one layer. Out: `layer`, a torch module of (x [T, B, I, Y, X]) -> (y, states): the
convolution of the inputs is one call over all steps, that of the state one per step. It can lay its frames out with
their channels last, and have torch.compile fuse what is pointwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from tvm_rnn.network.rnn import RNN

CELL = "conv_lstm"


def knows(net: RNN) -> bool:
    """Whether there is a layer for it."""
    return bool(net.cell.name == CELL and net.num_layers == net.num_directions == 1 and not net.reverse)


def layers(net: RNN, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    """Each way to run it, by name: which one is the quickest depends on sizes and precision."""
    return {
        f"channels {'last' if last else 'first'}{', compiled' if compiled else ''}": layer(
            net, dtype, last=last, compiled=compiled
        )
        for last in (False, True)
        for compiled in (False, True)
    }


def layer(net: RNN, dtype: torch.dtype, *, last: bool = False, compiled: bool = False) -> torch.nn.Module:
    """last: frames have their channels last. compiled: torch.compile makes what is pointwise one kernel."""
    import torch
    from torch.nn.functional import conv2d

    hidden, height, width = net.layers[0].graph.states[0].shape
    form = torch.channels_last if last else torch.contiguous_format

    def update(z: torch.Tensor, r: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (z + r).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        steps, batch = x.shape[:2]
        frames, kernel = x.flatten(0, 1).contiguous(memory_format=form), whole.R.shape[-1]
        z = conv2d(frames, whole.W, whole.b, padding=kernel // 2).unflatten(0, (steps, batch))
        h = torch.zeros(batch, hidden, height, width, device=x.device, dtype=x.dtype).to(memory_format=form)
        c, found = h, []
        for t in range(steps):
            h, c = advance(z[t], conv2d(h, whole.R, padding=kernel // 2), c)
            found.append(h)
        return torch.stack(found), {"h": h[None], "c": c[None]}

    advance = torch.compile(update, dynamic=False, fullgraph=True) if compiled else update
    whole = torch.nn.Module()
    for name in ("W", "R", "b"):
        value = torch.as_tensor(np.asarray(net.weights[f"{name}_l0"])).flatten(0, 1).to(dtype)
        own = value.to(memory_format=form) if value.ndim == 4 else value.clone()
        whole.register_parameter(name, torch.nn.Parameter(own))
    whole.forward = forward
    return whole
