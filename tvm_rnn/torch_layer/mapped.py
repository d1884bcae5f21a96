"""Compiled steps under torch.func: `vmap`, `grad` and what is made of them, over inputs and over parameters.

In: a network, its code, and tensors that torch.func has wrapped. Out: results that it goes on with. What differs from
member to member of a `vmap` decides what runs: parameters do, or each member's gradients of them are asked for: the
network of so many members (`rnn.RNN(..., members=N)`); inputs and states alone do: more rows. What has neither form is
one call after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd.function import FunctionCtx

from tvm_rnn.compiler.compiled_files import compiled_once, name_here
from tvm_rnn.errors import ConfigError, TvmRnnError, message
from tvm_rnn.language.ensemble import AXIS
from tvm_rnn.network.rnn import RNN
from tvm_rnn.runtime.runtime import Module

from .graph_ops import IN_GRAPHS, Code, States, gradients, put_in_graphs, steps, steps_recorded
from .warn import warn

Dims: TypeAlias = "Sequence[int | None]"
Results: TypeAlias = "tuple[Tensor | None, ...]"
MEMBERS, ROWS = 2, 1  # how many times a tape of one vmap seems to lie there: it says how the vmap was made
GRAD, VMAP = "Grad", "Vmap"
TARGETS = {"cpu": "llvm", "cuda": "cuda"}

_codes = weakref.WeakKeyDictionary[RNN, Code]()
_members = weakref.WeakKeyDictionary[RNN, "dict[int, tuple[RNN, Code] | None]"]()


class Info(Protocol):
    """What torch.func says of a vmap."""

    batch_size: int


@dataclass(frozen=True)
class Mapped:
    """What a call is made of besides tensors. stated: states are given; numbers: as of `graph_ops`; records: gradients
    are wanted; apart: those of weights, of each member; third: what differentiates gradients, in torch's operations."""

    net: RNN
    code: Code
    stated: bool
    numbers: tuple[int, ...]
    records: bool
    apart: bool
    third: Callable[..., list[Tensor | None]]

    @property
    def results(self) -> int:
        """y and the states."""
        return 1 + sum(count or 1 for count in self.code.lists.values())

    def kinds(self) -> list[str]:
        """Of each tensor in their order."""
        states = ["state"] * (self.results - 1) * self.stated
        rows = ["lengths"] * self.numbers[0] + ["reset"] * self.numbers[1]
        return ["input"] * len(self.code.inputs) + states + ["weight"] * len(self.code.weights) + rows


def served(given: Sequence[Tensor], weights: Iterable[Tensor]) -> bool | None:
    """Whether gradients of weights are asked for of each member; None: compiled code cannot do what torch.func does
    here, as forward mode and gradients of gradients."""
    kinds = [torch._C._functorch.TransformType.Vmap, torch._C._functorch.TransformType.Grad]
    stack = functorch.get_interpreter_stack() or []
    if any(one.key() not in kinds for one in stack):
        return None
    inputs, own = [_levels(value) for value in given], [_levels(value) for value in weights]
    recorded = {level for levels in (*inputs, *own) for kind, level in levels if kind == GRAD}
    if len(recorded) > 1:
        return None
    mapped = [level for levels in (*inputs, *own) for kind, level in levels if kind == VMAP]
    asked = [level for levels in own for kind, level in levels if kind == GRAD]
    return bool(mapped and asked) and max(asked) > min(mapped)


def _levels(value: Tensor) -> list[tuple[str, int]]:
    """The transforms that a tensor is in, with the level of each: 0 is that of torch's own autograd."""
    found = []
    while functorch.is_functorch_wrapped_tensor(value):
        kind = GRAD if functorch.is_gradtrackingtensor(value) else VMAP
        if kind == VMAP or (value.requires_grad and torch.is_grad_enabled()):
            found.append((kind, functorch.maybe_get_level(value)))
        value = functorch.get_unwrapped(value)
    return [*found, (GRAD, 0)] if value.requires_grad and torch.is_grad_enabled() else found


def mapped_steps(
    of: tuple[RNN, Code],
    tensors: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    rows: Mapping[str, object],
    apart: bool,
    third: Callable[..., list[Tensor | None]],
) -> tuple[Tensor, States]:
    """What a layer returns. of: its network, and that one's code. tensors: inputs, states or none, weights. rows:
    lengths and reset. apart: as of `served`; third: as of `Mapped`."""
    net, code = of
    inputs, state, weights = tensors
    ends = [rows["lengths"], rows["reset"]]
    there = [torch.as_tensor(value) for value in ends if value is not None]
    records = any(kind == GRAD for value in (*inputs, *state, *weights) for kind, _ in _levels(value))
    if code.device == "cuda":
        weights = [value.to(code.exact) for value in weights]
    numbers = (*(int(value is not None) for value in ends), 0, 0)
    call = Mapped(net, code, bool(state), numbers, records, apart, third)
    y, *last = Recorded.apply(call, *inputs, *state, *weights, *there)
    return y, code.named(last)


def code_of(net: RNN, module: Module) -> Code:
    """The code of a network that lives, for calls under torch.func."""
    if net not in _codes:
        _codes[net] = Code(module)
    return _codes[net]


def members_of(net: RNN, code: Code, count: int) -> tuple[RNN, Code] | None:
    """The network of so many members, and its code; None, told once: it has none."""
    known = _members.setdefault(net, {})
    if count not in known:
        try:
            many = _with_members(net, count)
            target = TARGETS[code.device]
            module, name = compiled_once(many, target, True), name_here(many, target, True)
            put_in_graphs(name, module)
            known[count] = many, getattr(IN_GRAPHS, name)
        except TvmRnnError as reason:
            known[count] = None
            warn(message("vmap is one call after the other here", where=repr(net), got=str(reason).splitlines()[0]))
    return known[count]


def _with_members(net: RNN, count: int) -> RNN:
    make: Callable[..., RNN] = RNN
    sizes: dict[str, object] = {n: [layer[n] for layer in net.sizes] for n in net.sizes[0] if n != AXIS}
    own = (net.input_size, None, net.num_layers, net.bidirectional, net.dtype)
    return make(net.cell, *own, reverse=net.reverse, members=count * (net.members or 1), **sizes)


# --- how tensors of a vmap become those of one call -------------------------------------------------------------------


def _among(value: Tensor, dim: int | None, axis: int, count: int) -> Tensor:
    """The tensor with the members' axis at that place."""
    if dim is not None:
        return value.movedim(dim, axis)
    value = value.unsqueeze(axis)
    return value.expand(*value.shape[:axis], count, *value.shape[axis + 1 :])


def _one_axis(value: Tensor, axis: int, kept: bool) -> Tensor:
    """Two axes as one. kept: only where there would be another number of them otherwise."""
    return value if kept else value.flatten(axis, axis + 1)


@dataclass(frozen=True)
class OfMembers:
    """Tensors of members as those of the network of many. nested: the network of one has members already."""

    mark = MEMBERS
    many: tuple[RNN, Code]
    one: Code
    count: int
    nested: bool

    def taken(self, kind: str, value: Tensor, dim: int | None) -> Tensor:
        """A tensor of the call."""
        if kind in ("lengths", "reset"):
            return value
        axis = 0 if kind == "weight" else 2
        return _one_axis(_among(value, dim, axis, self.count), axis, not self.nested).contiguous()

    def above(self, number: int, value: Tensor, dim: int | None) -> Tensor:
        """The gradient of a result."""
        value = _among(value, dim, 0, self.count)
        if number:
            return _one_axis(value.movedim(0, 2), 2, not self.nested).contiguous()
        parts = self.many[0].num_directions
        apart = value.reshape(*value.shape[:3], parts, -1).movedim(0, 3)
        return apart.reshape(*value.shape[1:3], *self.many[1].facts._output)

    def y(self, value: Tensor) -> Tensor:
        """[T, B, D * members, H] by member."""
        parts = self.many[0].num_directions
        apart = value.reshape(*value.shape[:2], parts, self.count, -1).movedim(3, 0)
        return apart.reshape(self.count, *value.shape[:2], *self.one.facts._output)

    def of_each(self, kind: str, value: Tensor) -> tuple[Tensor, int | None]:
        """A state, or a gradient, by member, and where their axis is."""
        axis = 0 if kind == "weight" else 2
        return (value.unflatten(axis, (self.count, -1)) if self.nested else value), axis

    def call(self, one: Mapped) -> Mapped:
        """The call of many."""
        return replace(one, net=self.many[0], code=self.many[1])


@dataclass(frozen=True)
class OfRows:
    """Tensors of members as more rows."""

    mark = ROWS
    one: Code
    count: int

    def taken(self, kind: str, value: Tensor, dim: int | None) -> Tensor:
        """A tensor of the call."""
        if kind == "weight":
            return value
        axis = 0 if kind == "lengths" else 1
        return _among(value, dim, axis, self.count).flatten(axis, axis + 1).contiguous()

    def above(self, number: int, value: Tensor, dim: int | None) -> Tensor:
        """The gradient of a result."""
        return self.taken("state", value, dim)

    def y(self, value: Tensor) -> Tensor:
        """By member."""
        return value.unflatten(1, (self.count, -1)).movedim(1, 0)

    def of_each(self, kind: str, value: Tensor) -> tuple[Tensor, int | None]:
        """A state, or a gradient, by member, and where their axis is."""
        return (value, None) if kind == "weight" else (value.unflatten(1, (self.count, -1)), 1)

    def call(self, one: Mapped) -> Mapped:
        """The same call."""
        return one


def _one_by_one(
    function: Callable[..., Results], facts: Sequence[object], tensors: Sequence[Tensor], dims: Dims, count: int
) -> tuple[Results, tuple[int | None, ...]]:
    """A call for each member."""
    each = []
    for member in range(count):
        own = [t if dim is None else t.select(dim, member) for t, dim in zip(tensors, dims, strict=True)]
        each.append(function(*facts, *own))
    made = tuple(None if part[0] is None else torch.stack(part) for part in zip(*each, strict=True))
    return made, tuple(None if part is None else 0 for part in made)


# --- the functions ----------------------------------------------------------------------------------------------------


class Recorded(torch.autograd.Function):
    """All steps. Arguments: a `Mapped`, then inputs, states or none, weights, lengths and reset where they are there;
    results: y, the last states, and what is kept for backward."""

    generate_vmap_rule = False

    @staticmethod
    def forward(call: Mapped, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the compiled code."""
        run = steps_recorded if call.records else steps
        return tuple(run(call.code.name, [value.detach() for value in tensors], [*call.numbers]))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[Tensor], output: tuple[Tensor, ...]) -> None:
        """What is kept goes with the call's tensors."""
        call, *tensors = inputs
        kept = output[call.results :]
        ctx.call, ctx.kept, ctx.lead = call, len(kept), tuple(tensors[0].shape[:2])
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept, *tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *above: Tensor | None) -> Results:
        """Runs backward on what was kept."""
        call, present = ctx.call, [d is not None for d in above[: ctx.call.results]]
        given = [d for d in above[: ctx.call.results] if d is not None]
        lead = (*ctx.lead, ctx.kept)
        found = Gradients.apply(call, lead, present, *ctx.saved_tensors, *given)
        return None, *found, *[None] * sum(call.numbers[:2])

    @staticmethod
    def vmap(info: Info, in_dims: Dims, call: Mapped, *tensors: Tensor) -> tuple[Results, Dims]:
        """As members, as rows, or one after the other."""
        dims, count, kinds = in_dims[1:], info.batch_size, call.kinds()
        mapped = {kind for kind, dim in zip(kinds, dims, strict=True) if dim is not None}
        way: OfMembers | OfRows = OfRows(call.code, count)
        if "weight" in mapped or call.apart:
            many = None if {"lengths", "reset"} & mapped else members_of(call.net, call.code, count)
            if many is None:
                return _one_by_one(Recorded.apply, [call], tensors, dims, count)
            way = OfMembers(many, call.code, count, bool(call.net.members))
        own = [way.taken(*one) for one in zip(kinds, tensors, dims, strict=True)]
        y, *rest = Recorded.apply(way.call(call), *own)
        last, kept = rest[: call.results - 1], rest[call.results - 1 :]
        pairs = [way.of_each("state", value) for value in last]
        marked = [value.unsqueeze(0).expand(way.mark, *value.shape) for value in kept[:1]] + kept[1:]
        outer = [dim for _, dim in pairs]
        return (way.y(y), *(value for value, _ in pairs), *marked), (0, *outer, *[None] * len(kept))


class Gradients(torch.autograd.Function):
    """The gradients of a call's inputs, states and weights. Arguments: the call, (T, B, how many tensors were kept),
    which gradients of results there are; then what was kept, the call's tensors, and those gradients."""

    generate_vmap_rule = False

    @staticmethod
    def forward(call: Mapped, lead: tuple[int, int, int], present: list[bool], *tensors: Tensor) -> Results:
        """Runs backward."""
        kept, own, above = _parts(call, lead[2], tensors)
        rest, code = iter(above), call.code
        every = [next(rest) if there else None for there in present]
        inputs, states = len(code.inputs), (call.results - 1) * call.stated
        again = [*own[: code.read], *own[inputs + states :]]
        found = gradients(code.name, [*kept], every, again, [*call.numbers, *lead[:2]])
        return (*found[: inputs + states], *found[inputs + call.results - 1 :])

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[Tensor], output: Results) -> None:
        """For gradients of these."""
        ctx.call, lead, ctx.present, *tensors = inputs
        ctx.kept = lead[2]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *along: Tensor | None) -> Results:
        """In torch's operations. Raises ConfigError where torch.func looks into it."""
        call = ctx.call
        if torch._C._are_functorch_transforms_active():
            what, do = "compiled gradients have no gradients under torch.func", "differentiate twice within torch.func"
            raise ConfigError(message(what, got=repr(call.net), do=f"{do}, as torch.func.grad(torch.func.grad(f))"))
        kept, own, above = _parts(call, ctx.kept, ctx.saved_tensors)
        rest = iter(above)
        every = [next(rest) if there else None for there in ctx.present]
        ends = sum(call.numbers[:2])
        count = len(own) - ends
        found = call.third(call, own[:count], own[count:], every, along)
        return None, None, None, *[None] * len(kept), *found[:count], *[None] * ends, *found[count:]

    @staticmethod
    def vmap(
        info: Info,
        in_dims: Dims,
        call: Mapped,
        lead: tuple[int, int, int],
        present: list[bool],
        *given: Tensor,
    ) -> tuple[Results, Dims]:
        """As the call was made; or, where only these gradients differ, one after the other."""
        dims, count = in_dims[3:], info.batch_size
        kinds, first = call.kinds(), lead[2]
        (tape, *kept), own, above = _parts(call, first, given)
        of_call, of_above = dims[first : first + len(own)], dims[first + len(own) :]
        outside = tape.dim() == 1 or all(dim is None for dim in of_call)  # this vmap is none that the call was made in
        if dims[0] is not None or outside:
            return _one_by_one(Gradients.apply, [call, lead, present], given, dims, count)
        way: OfMembers | OfRows = OfRows(call.code, count)
        if len(tape) == MEMBERS:
            many = members_of(call.net, call.code, count)
            assert many is not None
            way = OfMembers(many, call.code, count, bool(call.net.members))
        numbers = [number for number, there in enumerate(present) if there]
        taken = [way.taken(*one) for one in zip(kinds, own, of_call, strict=True)]
        from_above = [way.above(*one) for one in zip(numbers, above, of_above, strict=True)]
        T, B, size = lead
        within = (T, B * count if way.mark == ROWS else B, size)
        found = Gradients.apply(way.call(call), within, present, tape[0], *kept, *taken, *from_above)
        pairs = [way.of_each(kind, value) for kind, value in zip(kinds, found, strict=False)]
        return tuple(value for value, _ in pairs), tuple(dim for _, dim in pairs)


def _parts(call: Mapped, kept: int, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
    """What was kept, the call's tensors, and gradients of results."""
    end = kept + len(call.kinds())
    return tensors[:kept], tensors[kept:end], tensors[end:]
