"""Members of a network as torch has them: a layer for each, which are cuDNN's, one after the other or at the same time.

In: an RNN with members, of a cell that torch.nn has. Out: torch modules of (x [T, B, members, I]) -> (y [T, B, members,
H], the last states). What each member reads and writes lies together: the copies before and behind are part of a call.
torch.func.vmap has no rule for cuDNN's layers; what it makes of the equations is the peer torch-compile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tvm_rnn.language.ensemble import AXIS, Ensemble
from tvm_rnn.network.rnn import RNN

from .models import TORCH_CELLS, Unsupported, in_one_piece, torch_layer


def each(net: RNN) -> list[RNN]:
    """The networks of one member, with their weights. net: with members."""
    assert isinstance(net.cell, Ensemble)
    base, sizes = net.cell.base, {name: [layer[name] for layer in net.sizes] for name in net.sizes[0] if name != AXIS}
    make: Callable[..., RNN] = RNN
    own = (base, net.input_size, None, net.num_layers, net.bidirectional, net.dtype)
    count = range(int(net.members or 0))
    return [make(*own, reverse=net.reverse, **sizes).load({n: w[at] for n, w in net.weights.items()}) for at in count]


class Members(torch.nn.Module):
    """names: of the states. layers: of each member; streams: each one's own, or none: one after the other."""

    def __init__(self, names: list[str], layers: list[torch.nn.RNNBase], streams: list[torch.cuda.Stream]) -> None:
        super().__init__()
        self.names, self.each, self.streams = names, torch.nn.ModuleList(layers), streams

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """x: [T, B, members, I]."""
        own = x.movedim(2, 0).contiguous()
        found = self._at_once(own) if self.streams else [layer(x) for layer, x in zip(self.each, own, strict=True)]
        last = [[*state] if isinstance(state, tuple) else [state] for _, state in found]
        ends = {name: torch.stack([part[n] for part in last], 2) for n, name in enumerate(self.names)}
        return torch.stack([y for y, _ in found], 2), ends

    def _at_once(self, own: torch.Tensor) -> list[tuple[torch.Tensor, object]]:
        here, found = torch.cuda.current_stream(), []
        for layer, stream, x in zip(self.each, self.streams, own, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                found.append(layer(x))
        for stream in self.streams:
            here.wait_stream(stream)
        return found


def layers(net: RNN, device: str | torch.device) -> dict[str, torch.nn.Module]:
    """Each way to run them, by name. Raises Unsupported where torch has no layer of the cell."""
    if net.cell.name not in TORCH_CELLS:
        raise Unsupported(f"it has no cell {net.cell.name}")
    there, networks = torch.device(device).type == "cuda", each(net)

    def made() -> list[torch.nn.RNNBase]:
        found = [torch_layer(one).to(device) for one in networks]
        return [in_one_piece(layer) for layer in found] if there else found

    names = [state.name for state in net.cell.states]
    ways: dict[str, torch.nn.Module] = {"one after the other": Members(names, made(), [])}
    if there:
        ways["each on a stream"] = Members(names, made(), [torch.cuda.Stream() for _ in networks])
    return ways
