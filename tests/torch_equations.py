"""A cell's Python function run by torch in float64, row by row and step by step; gradients by torch's autograd.

In: the source text of a function, with a network that has its weights, and a `Case`. Out: y and the last state, and
gradients by the names of `derivatives.named`. Nothing here is the compiler's: neither its functions, nor its graph, nor
its rules for layers, directions, lengths and resets, which stand here a second time, in the plainest form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from derivatives import Arrays, Case, each, named

import tvm_rnn as rnn
from tvm_rnn.network.layer import weight_name

Tensor = torch.Tensor
F = torch.nn.functional
FLOAT = torch.float64


def tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=FLOAT)


# --- the functions that equations are made of, by torch ---------------------------------------------------------------


def _of_one(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Tensor]:
    return lambda x: function(tensor(x))


def _larger(both: Callable[..., Tensor], limit: str) -> Callable[[Any, Any], Tensor]:
    """Of two values torch's maximum or minimum, which shares the gradient at a tie. Of a value and what is known before
    the cell runs: clamp, whose gradient at a tie is the value's."""

    def larger(a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor) or not a.requires_grad:
            a, b = b, a
        return both(a, b) if isinstance(b, Tensor) and b.requires_grad else torch.clamp(a + 0 * b, **{limit: b})

    return larger


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return torch.where(condition, tensor(a), tensor(b))


def _every(x: Tensor, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def reduced(name: str) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        return getattr(torch, name)(x, dim=_every(x, axis), keepdim=keepdims) if x.ndim else x * 1.0

    return reduce


def var(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.var(x, dim=_every(x, axis), correction=0, keepdim=keepdims) if x.ndim else x * 0.0


def layer_norm(x: Tensor, gain: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], eps=eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(axes or range(x.ndim)[::-1]))


def surrogate(forward: Tensor, backward: Tensor) -> Tensor:
    return forward.detach() + (backward - backward.detach())


def spike(slope: Callable[[Tensor], Tensor]) -> Callable[[Any], Tensor]:
    return lambda v: surrogate((tensor(v) > 0) * 1.0, v * slope(v).detach())


# What has no gradient gets one of 0: torch's autograd takes it for a value of the step, not for a constant.


def ordered(x: Tensor, axis: int, descending: bool) -> Any:
    return torch.sort(x, dim=axis, descending=descending, stable=True)


def topk(x: Tensor, k: int, axis: int = -1) -> list[Tensor]:
    values, places = ordered(x, axis, True)
    return [found.narrow(axis, 0, k) for found in (values, places + 0.0 * x)]


def conv(x: Tensor, kernel: Tensor, padding: str | int, dilation: int) -> Tensor:
    """ "same" puts the odd one of the zeros behind."""
    rank = x.ndim - 1
    for axis in range(1, rank + 1):
        most = dilation * (kernel.shape[axis - rank - 1] - 1)
        before, after = (most // 2, most - most // 2) if padding == "same" else (padding, padding)
        zeros = [x.new_zeros([n if i == axis else size for i, size in enumerate(x.shape)]) for n in (before, after)]
        x = torch.cat([zeros[0], x, zeros[1]], axis)
    one_axis = kernel.reshape(-1, *kernel.shape[-rank - 1 :])
    found = (F.conv1d, F.conv2d)[rank - 1](x, one_axis, dilation=dilation)
    return found.reshape(*kernel.shape[: -rank - 1], *found.shape[1:])


ONE = ("exp", "log", "log1p", "sqrt", "tanh", "sigmoid", "relu", "erf", "sin", "cos", "sign", "abs", "floor", "round")
NAMES: dict[str, Any] = {
    **{n: _of_one(getattr(torch, n)) for n in ONE},
    "absolute": torch.abs,
    "softplus": _of_one(lambda x: F.softplus(x, threshold=1e4)),
    "silu": _of_one(F.silu),
    "gelu": _of_one(F.gelu),
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "hard_sigmoid": lambda x: (0.2 * x + 0.5).clamp(0.0, 1.0),
    "hard_tanh": F.hardtanh,
    "log_sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "square": torch.square,
    "clip": torch.clamp,
    "negative": torch.neg,
    "power": torch.pow,
    "maximum": _larger(torch.maximum, "min"),
    "minimum": _larger(torch.minimum, "max"),
    "where": where,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "max": reduced("amax"),
    "min": reduced("amin"),
    "var": var,
    "softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "layer_norm": layer_norm,
    "stop_gradient": lambda x: x.detach() + 0.0 * x,
    "surrogate": surrogate,
    "to_int8": lambda x: tensor(x).detach().round().clamp(-128, 127) + 0.0 * x,
    "to_uint8": lambda x: tensor(x).detach().round().clamp(0, 255) + 0.0 * x,
    "fast_sigmoid_spike": spike(lambda v: 1 / (1 + 25 * v.abs()) ** 2),
    "atan_spike": spike(lambda v: 1 / (1 + (torch.pi * v) ** 2)),
    "triangle_spike": spike(lambda v: 0.3 * torch.clamp(1 - v.abs(), min=0)),
    "mod": torch.remainder,
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logsumexp": torch.logsumexp,
    "flip": lambda x, axis: torch.flip(x, (axis,)),
    "sort": lambda x, axis, descending: ordered(x, axis, descending).values,
    "topk": topk,
    "argmax": lambda x, axis: torch.argmax(x, axis) + 0.0 * x.sum(axis),
    "one_hot": lambda x, size: F.one_hot(x.long(), size) + 0.0 * x[..., None],
    "take": lambda table, places: table[places.long()],
    "transpose": transpose,
    "reshape": torch.reshape,
    "expand": torch.unsqueeze,
    "squeeze": torch.squeeze,
    "expm1": _of_one(torch.expm1),
    "rms_norm": lambda x, gain, eps: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gain,
    "concat": lambda arrays, axis=-1: torch.cat(arrays, axis),
    "stack": lambda arrays, axis=0: torch.stack([tensor(a) for a in arrays], axis),
    "split": lambda x, parts, axis=-1: torch.split(
        x, x.shape[axis] // parts if isinstance(parts, int) else parts, axis
    ),
    "outer": lambda a, b: a[..., :, None] * b[..., None, :],
    "vecdot": lambda a, b: (a * b).sum(-1),
    "matvec": lambda a, b: (a * b[..., None, :]).sum(-1),
    "vecmat": lambda a, b: (a[..., :, None] * b).sum(-2),
    "conv": conv,
    "dot": torch.dot,
    "rename": lambda x, dims: x,
    "matmul": torch.matmul,
    "einsum": torch.einsum,
    "reduce": functools.reduce,
    "np": SimpleNamespace(arange=lambda n: torch.arange(n, dtype=FLOAT)),
}


def step_of(source: str) -> Callable[..., Any]:
    """The function in the text, on torch's tensors."""
    namespace = dict(NAMES)
    exec(compile(source, "<drawn for torch>", "exec"), namespace)
    found: Callable[..., Any] = namespace["drawn"]
    return found


# --- layers, directions, rows and steps -------------------------------------------------------------------------------


def run(source: str, net: rnn.RNN, case: Case) -> tuple[tuple[np.ndarray, dict[str, Any]], Arrays]:
    """(y, last state) and the gradients of sum(gy y) + sum(gstate state) by name."""

    def leaf(value: Any) -> Tensor:
        return torch.tensor(np.asarray(value, np.float64), requires_grad=True)

    x = {name: leaf(value) for name, value in case.x.items()}
    state = {name: each(value, leaf) for name, value in case.state.items()}
    weights = {name: leaf(value) for name, value in net.weights.items()}
    y, last = _layers(step_of(source), net, x, state, weights, case)
    total = (torch.tensor(case.gy, dtype=FLOAT) * y).sum()
    for name, value in last.items():
        above = case.gstate[name]
        pairs = zip(value, above, strict=True) if isinstance(value, list) else [(value, above)]
        total = total + sum((torch.tensor(g, dtype=FLOAT) * v).sum() for v, g in pairs)
    leaves = named(x, state, weights)
    total = total + sum(0.0 * v.sum() for v in leaves.values())  # also where nothing has a gradient
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {
        name: np.zeros(tuple(v.shape)) if g is None else g.numpy()
        for (name, v), g in zip(leaves.items(), found, strict=True)
    }
    numbers = {name: each(value, lambda v: v.detach().numpy()) for name, value in last.items()}
    return (y.detach().numpy(), numbers), gradients


def _layers(
    step: Callable[..., Any],
    net: rnn.RNN,
    x: dict[str, Tensor],
    state: dict[str, Any],
    weights: dict[str, Tensor],
    case: Case,
) -> tuple[Tensor, dict[str, Any]]:
    assert not any(isinstance(value, list) for value in state.values())  # all layers have one width
    directions = 2 if net.bidirectional else 1
    first = net.cell.inputs[0].name
    ends: dict[str, list[Tensor]] = {name: [] for name in state}
    for layer in range(net.num_layers):
        outputs = []
        for direction in range(directions):
            own = {p.name: weights[weight_name(p.name, layer, direction)] for p in net.cell.params}
            begin = {name: value[layer * directions + direction] for name, value in state.items()}
            rows = [
                _row(
                    functools.partial(_step, step, net.cell, own),
                    net.cell,
                    {n: v[:, b] for n, v in x.items()},
                    {n: v[b] for n, v in begin.items()},
                    int(case.rows["lengths"][b]) if "lengths" in case.rows else len(case.gy),
                    case.rows["reset"][:, b] if "reset" in case.rows else np.zeros(len(case.gy), bool),
                    bool(direction) != net.reverse,
                    net.layers[layer].graph.output.shape[0],
                )
                for b in range(case.gy.shape[1])
            ]
            outputs.append(torch.stack([y for y, _ in rows], 1))
            for name in ends:
                ends[name].append(torch.stack([end[name] for _, end in rows]))
        x = {**x, first: torch.cat(outputs, -1)}
    return x[first], {name: torch.stack(value) for name, value in ends.items()}


def _step(step: Callable[..., Any], cell: rnn.Cell, own: dict[str, Tensor], values: dict[str, Tensor]) -> list[Any]:
    """What the cell returns, and behind its states what says which of them are still to begin."""
    values, after = dict(values), list[Tensor]()
    for state, first in cell.begins.items():
        flag = values.pop(f"{state}_begins")
        values[state] = torch.where(flag > 0.5, own[first] if isinstance(first, str) else first, values[state])
        after.append(torch.clamp(flag, max=0.0).detach() + 0.0 * flag)
    found = step(**values, **own)
    results = [tensor(v) for v in (found if isinstance(found, tuple) else (found,))]
    states = len(cell.states) - len(cell.begins) - len(cell.constants)
    return [*results[:states], *after, *results[states:]]


def _row(
    step: Callable[[dict[str, Tensor]], list[Tensor]],
    cell: rnn.Cell,
    x: dict[str, Tensor],
    state: dict[str, Tensor],
    length: int,
    reset: np.ndarray,
    backwards: bool,
    width: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One row: its steps up to its length, forwards or backwards. At a reset a new sequence begins at that step; seen
    from the back it ends there, so that the step before it begins anew."""
    steps = len(reset)
    names = [s.name for s in cell.states if s.name not in cell.constants]
    held = {name: state[name] for name in cell.constants}
    y = [torch.zeros(width, dtype=FLOAT)] * steps
    for t in range(length)[:: -1 if backwards else 1]:
        edge = t + 1 if backwards else t
        if edge < length and reset[edge]:
            state = {n: torch.full_like(v, cell.initial.get(n, 0.0), requires_grad=True) for n, v in state.items()}
        found = step({**{n: v[t] for n, v in x.items()}, **state})
        y[t] = found[names.index(cell.output)] if cell.output in names else found[-1]
        state = dict(zip(names, found, strict=False)) | held
    return torch.stack(y) if y else torch.zeros(0, width, dtype=FLOAT), state
