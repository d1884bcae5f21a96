"""Both passes of a cell's equations by torch, of any cell: its operations one after the other, and torch.compile.

In: a network with weights, and what every call gets, on a device. Out: functions of no arguments that compute y and
the gradients of all inputs and weights, by name of the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.torch_graph import Rows, Steps, Wrap, constants_of, programs

if TYPE_CHECKING:
    import torch

Run = Callable[[], object]
NAMES = ("torch-loop", "torch-compile")


def both_passes(net: RNN, name: str, inputs: Sequence[torch.Tensor], above: torch.Tensor, rows: Rows) -> Run:
    """name: of NAMES. inputs: [T, B, *shape] each; above: the gradient of y; rows: lengths and resets."""
    import torch

    wrap: Wrap | None = None
    if name == "torch-compile":
        torch._dynamo.reset()
        wrap = partial(torch.compile, dynamic=False, fullgraph=True)
    made, like = programs(net, wrap), inputs[0]
    weights = {key: torch.as_tensor(value).to(like).requires_grad_() for key, value in net.weights.items()}
    constants = constants_of(made, like)
    leaves = [x.clone().requires_grad_() for x in inputs]

    def run() -> object:
        y, _ = Steps(net, made, weights, like, constants)(leaves, rows=rows)
        return y, torch.autograd.grad(y, [*leaves, *weights.values()], above, allow_unused=True)

    return run
