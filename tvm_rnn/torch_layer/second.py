"""Derivatives of gradients by compiled code: for gradient penalties, Hessian-vector products, MAML.

In: a call of a network, the gradients of its results, and those of its gradients. Out: how these gradients change with
everything they were made of. The network with tangents (`language/tangents.py`) is compiled for training when that is
first asked for: one forward and one backward of it are a second derivative. CPUs; what it cannot do is torch's
operations, as are third derivatives.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tvm_rnn.compiler.compiled_files import compiled_once
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.language.tangents import END, NoTangents, tangents
from tvm_rnn.network.rnn import RNN
from tvm_rnn.runtime.runtime_training import TrainingModule

Part: TypeAlias = "Tensor | list[Tensor]"  # a list where layers differ in shape
State = Mapping[str, Part]
_known = weakref.WeakKeyDictionary[RNN, "Second | None"]()
_compiling = threading.RLock()


def second_of(net: RNN, rows: Mapping[str, object]) -> Second | None:
    """What differentiates the gradients of a network's calls; None: torch's operations do. rows: of the call."""
    if "seed" in rows or net.regularisers or net.draws or net.dtype not in ("float32", "float64"):
        return None
    with _compiling:
        if net not in _known:
            try:
                _known[net] = Second(with_tangents(net))
            except (TvmRnnError, NoTangents):
                _known[net] = None
        return _known[net]


def with_tangents(net: RNN) -> RNN:
    """The network whose cell has tangents. Raises NoTangents."""
    make: Callable[..., RNN] = RNN
    sizes: dict[str, object] = {name: [layer[name] for layer in net.sizes] for name in net.sizes[0]}
    sizes |= {} if net.members is None else {"members": net.members}
    own = (net.input_size, None, net.num_layers, net.bidirectional, net.dtype)
    return make(tangents(net.cell), *own, reverse=net.reverse, **sizes)


class Point(NamedTuple):
    """Where a network is: what a call was made of. Or a direction from there, or gradients of all that. state: None
    where none was given."""

    inputs: Sequence[Tensor]
    state: State | None
    weights: Sequence[Tensor]


class Second:
    """A network with tangents, compiled. Calls of several threads take turns: each has weights of its own."""

    def __init__(self, net: RNN) -> None:
        module = compiled_once(net, "llvm", True)
        assert isinstance(module, TrainingModule)
        self.net, self.module, self.lock = net, module, threading.Lock()
        self.names = [name for name, _ in module._inputs][1:]
        self.own = [name for name in module._weight_shapes if END not in name]
        self.others = [name for name in module._weight_shapes if END in name]

    def __call__(
        self, at: Point, along: Point, above: tuple[Tensor | None, State | None], rows: Mapping[str, object]
    ) -> tuple[Tensor, dict[str, Part], Point]:
        """How <above, results> changes along a direction, differentiated by `above` (so the tangents of y and of the
        last states) and by the point.

        above: of y [T, B, D*H] and of all last states, or None. rows: lengths and reset of the call."""
        d_y, d_last = above
        x = torch.stack([at.inputs[0], along.inputs[0]], 2)
        more = dict(zip(self.names, [*at.inputs[1:], *along.inputs[1:]], strict=True))
        state = None if at.state is None or along.state is None else {**at.state, **_renamed(along.state)}
        with self.lock:
            pairs = (*zip(self.own, at.weights, strict=True), *zip(self.others, along.weights, strict=True))
            self.module.load_weights(dict(pairs))
            lengths, reset = rows["lengths"], rows["reset"]
            y, last, tape = self.module.forward_train(x, state, lengths=lengths, reset=reset, **more)
            apart = y.reshape(*y.shape[:2], self.net.num_directions, 2, -1)
            gradient = carried = None
            if d_y is not None:
                gradient = torch.zeros_like(apart)
                gradient[:, :, :, 1] = d_y.reshape(gradient[:, :, :, 1].shape)
                gradient = gradient.reshape(y.shape)
            if d_last is not None:
                carried = {name: _zeros(value) for name, value in last.items() if END not in name} | _renamed(d_last)
            d_inputs, d_state, d_weights = self.module.backward(tape, gradient, carried)
        each = [*d_inputs.values()] if isinstance(d_inputs, Mapping) else [d_inputs]
        inputs = [each[0][:, :, 0], *each[1 : len(at.inputs)]]
        first = None if at.state is None else {name: d_state[name] for name in at.state}
        tangents_of = {name.removesuffix(END): value for name, value in last.items() if name.endswith(END)}
        shape = (*y.shape[:2], -1)
        return apart[:, :, :, 1].reshape(shape), tangents_of, Point(inputs, first, [d_weights[n] for n in self.own])


def _renamed(state: State) -> dict[str, Part]:
    return {name + END: value for name, value in state.items()}


def _zeros(value: Part) -> Part:
    return [torch.zeros_like(part) for part in value] if isinstance(value, list) else torch.zeros_like(value)
