"""Any network's steps in torch's own operations: for gradients of gradients, and where torch looks into what runs.

In: a network, and what a call has besides tensors. Out: what its compiled module returns, in torch's operations, one
after another in each step: torch differentiates them in every way that it knows.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from tvm_rnn.errors import InputError, message
from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import Draws
from tvm_rnn.oracle.torch_graph import Program, Rows, Steps, programs
from tvm_rnn.runtime.runtime import Module

State = Mapping[str, Tensor | list[Tensor]]
ENDS = ("lengths", "reset")

# Of each network: that of inference, and that of training, where regularisers act.
_programs = weakref.WeakKeyDictionary[RNN, dict[bool, list[Program]]]()


class InTorch:
    """One call. rows: lengths, reset, seed and first_step, as `autograd.run` has them; arrays may change later."""

    def __init__(self, net: RNN, rows: Mapping[str, object]) -> None:
        self.net, self.rows = net, rows
        self.ends = [None if rows[name] is None else _copied(rows[name]) for name in ENDS]

    def __call__(
        self, inputs: Sequence[Tensor], state: State | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """y and the last states, of float32 where the tensors have fewer bits. weights: in the net's order."""
        kind = torch.promote_types(inputs[0].dtype, torch.float32)
        device, dropping = inputs[0].device, "seed" in self.rows
        named = dict(zip(self.net.weight_shapes, [value.to(kind) for value in weights], strict=True))
        draws = Draws(*(_number(self.rows[name]) for name in ("seed", "first_step"))) if dropping else None
        for name, factor in draws.factors(self.net).items() if draws else ():
            named[name] = named[name] * torch.tensor(factor, dtype=kind, device=device)
        steps = Steps(self.net, self._made(dropping), named, torch.empty((), dtype=kind, device=device))
        first = state and {n: _each(v, kind) for n, v in state.items()}
        lengths, reset = (None if value is None else value.to(device) for value in self.ends)
        rows = Rows(lengths, None if reset is None else reset.bool(), draws)
        return steps([value.to(kind) for value in inputs], first, rows)

    def check(self, module: Module, inputs: Sequence[Tensor], state: State | None) -> None:
        """Raises InputError for what the module would refuse."""
        name = module._inputs[0][0]
        kind = getattr(torch, str(module.manifest.dtype))

        def take(what: str, value: Tensor, shape: tuple[int, ...], axes: str) -> Tensor:
            if tuple(value.shape) != shape:
                got, expected = tuple(value.shape), f"{shape} = {axes}"
                raise InputError(message(f"{what} has the wrong shape", got=got, expected=expected, do="reshape it"))
            if value.dtype != kind:
                do = f"cast it: .to({kind})"
                raise InputError(message(f"{what} has the wrong dtype", got=value.dtype, expected=kind, do=do))
            return value

        module._check_lead(*module._inputs[0], tuple(inputs[0].shape), ("T", "B"))
        T, B = inputs[0].shape[:2]
        for (own, shape), value in zip(module._inputs, inputs, strict=True):
            take(own, value, (T, B, *shape), f"[T, B, ...], as in {name}")
        if state is not None:
            module._each_state(state, B, take, torch.cat)
        wrapped, (lengths, reset) = torch._C._functorch.is_functorch_wrapped_tensor, (self.rows[name] for name in ENDS)
        if not any(isinstance(value, Tensor) and (wrapped(value) or not value.is_cpu) for value in (lengths, reset)):
            module._read_rows(lengths, reset, (T, B))

    def _made(self, training: bool) -> list[Program]:
        own = _programs.setdefault(self.net, {})
        if training not in own:
            own[training] = programs(self.net, training=training)
        return own[training]


def _number(value: object) -> int:
    assert isinstance(value, SupportsIndex)
    return operator.index(value)


def _copied(value: object) -> Tensor:
    return value.detach().clone() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))


def _each(value: Tensor | list[Tensor], kind: torch.dtype) -> Tensor | list[Tensor]:
    return [part.to(kind) for part in value] if isinstance(value, list | tuple) else value.to(kind)
