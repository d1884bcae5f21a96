"""A compiled network as torch sees it: a Module with parameters, and one autograd function for all of its steps.

In: an RNN, its module compiled for training, and tensors. Out: tensors with gradients; their memory is that of the
module's own arrays. Imported only by `to_torch.py`, because it imports torch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tvm_rnn.errors import ConfigError, InputError, WeightError, message
from tvm_rnn.frontends.torch import form_of, state_arrays
from tvm_rnn.frontends.torch_names import Form
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.runtime import runtime

from .graph_ops import Code, Shape, array_of, for_others, seen, steps_in_graph, unserved
from .in_torch import ENDS, InTorch
from .kept import holds, keep, known
from .mapped import Mapped, mapped_steps, served
from .second import Point, Second, second_of
from .warn import warn

PLACES = ("cpu", "cuda")  # where compiled code runs
FUNC, FORWARD = "torch.func", "forward-mode gradients"  # what looks into what runs
State = Mapping[str, Tensor | list[Tensor]]


class Again(Protocol):
    """A network's steps in torch's operations."""

    @property
    def net(self) -> RNN: ...

    def __call__(
        self, inputs: Sequence[Tensor], state: State | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, State]: ...


Compiled = Any  # a TrainingModule or a CudaTrainingModule: what only one of them has is asked for first


@dataclass
class Call:
    """What one call is made of besides tensors. state: the user's, whose tensors are given apart; None: there is
    none. again: makes the same results of inputs, state and weights in torch's operations, for what torch looks into.
    second: gives what differentiates gradients, or None."""

    module: Compiled
    inputs: int
    state: State | None
    rows: dict[str, object]
    again: Again
    second: Callable[[], Second | None]
    names: tuple[str, ...] = ()  # of weights that are on the GPU; else the module has them already
    shapes: Sequence[torch.Size] = ()  # of the last states, flat

    def use_weights(self, tensors: Sequence[Tensor], ways: tuple[str, ...], known: bool) -> None:
        """Give the module the weights of this call, where they are on the GPU. known: unless it has them still."""
        if self.names:
            weights = {name: tensor.detach() for name, tensor in zip(self.names, tensors, strict=True)}
            self.module.use_there(weights, ways, known)

    def split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], State | None, Sequence[Tensor]]:
        """Inputs, a state of the same form as the user's, and weights, of all tensors in this order."""
        rest = iter(tensors[self.inputs :])
        state = each(self.state, lambda _: next(rest))
        return list(tensors[: self.inputs]), state, list(rest)

    @property
    def dtype(self) -> torch.dtype:
        """torch's, of the module's arrays."""
        return getattr(torch, str(self.module.manifest.dtype))

    def named(self, tensors: list[Tensor]) -> dict[str, Tensor | list[Tensor]]:
        """The module's states of these tensors, in its order: a list where layers differ in shape."""
        rest, found = iter(tensors), {}
        for name, (_, _, shapes) in self.module._states.items():
            found[name] = [next(rest) for _ in shapes] if len({*shapes}) > 1 else next(rest)
        return found


def each(state: State | None, function: Callable[[Tensor], Tensor]) -> State | None:
    """A state of the same form, of what the function makes of each tensor."""
    if not isinstance(state, Mapping):
        return state
    return {n: [*map(function, v)] if isinstance(v, list | tuple) else function(v) for n, v in state.items()}


def flat(state: object) -> list[Tensor]:
    """The arrays of a state, or of anything like one."""
    if not isinstance(state, Mapping):
        return []
    return [part for value in state.values() for part in (value if isinstance(value, list | tuple) else [value])]


class Steps(torch.autograd.Function):
    """All steps of a network. Arguments: a Call, then inputs, states and weights; results: y, then the last states."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs forward_train. Its tape is one of the saved tensors: torch frees it when backward has run."""
        x, state, weights = call.split(tensors)
        call.use_weights(weights, ("forward_train", "backward"), False)
        y, last, tape = call.module.forward_train(x if len(x) > 1 else x[0], state, **call.rows)
        ctx.call, ctx.tape, ctx.shapes = call, tape, [value.shape for value in flat(last)]
        call.shapes = ctx.shapes
        ctx.numpy = isinstance(tape.array, np.ndarray)
        array = torch.from_numpy(tape.array) if ctx.numpy else tape.array
        ctx.set_materialize_grads(False)
        ctx.held = isinstance(array, torch.Tensor)  # else memory of the module's own, for tensors of the CPU
        tape.array = None if ctx.held else tape.array
        kept: list[Tensor] = [array] if ctx.held else []
        ctx.output = hasattr(getattr(tape, "output", None), "detach")
        if ctx.output:
            kept, tape.output = [*kept, y], None
        kept += tensors[: len(tensors) - len(weights)]
        ctx.weights = len(kept)
        ctx.save_for_backward(*kept, *weights)  # torch notices if they change
        return (y, *flat(last))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Runs backward on the tape; where torch looks into it (gradients of its results, many gradients at once), what
        `Gradients` or `again` gives."""
        saved = ctx.saved_tensors  # asked once: torch's checkpoints allow no more
        if not torch.is_grad_enabled() and not _several(gradients):
            return None, *_gradients(ctx, saved, *gradients)
        call, given = ctx.call, saved[ctx.held + ctx.output :]
        if _several(gradients) or call.second() is None:
            return None, *_differentiable(call, given, gradients)
        present, first = [d is not None for d in gradients], partial(_gradients, ctx, saved)
        return None, *Gradients.apply(call, first, present, *given, *(d for d in gradients if d is not None))


def _several(gradients: Sequence[Tensor | None]) -> bool:
    """Whether there are many gradients at once."""
    return any(d is not None and torch._C._functorch.is_legacy_batchedtensor(d) for d in gradients)


class Gradients(torch.autograd.Function):
    """The gradients of a call, which torch differentiates again. Arguments: the call, what computes them of the
    gradients of its results, which of these there are, then the call's tensors and these."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        call: Call,
        first: Callable[..., list[Tensor | None]],
        present: list[bool],
        *tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Runs backward on the tape."""
        ctx.call, ctx.present, ctx.count = call, present, len(tensors) - sum(present)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        above = iter(tensors[ctx.count :])
        return tuple(first(*(next(above).detach() if there else None for there in present)))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *along: Tensor | None) -> tuple[Tensor | None, ...]:
        """Runs the network with tangents; where torch looks into that, torch's operations."""
        saved, call = ctx.saved_tensors, ctx.call
        tensors, rest = saved[: ctx.count], iter(saved[ctx.count :])
        above = [next(rest) if there else None for there in ctx.present]
        second = None if torch.is_grad_enabled() or _several(along) else call.second()
        found = _third(call, tensors, above, along) if second is None else _second(call, second, tensors, above, along)
        return None, None, None, *found


def _second(
    call: Call,
    second: Second,
    tensors: Sequence[Tensor],
    above: Sequence[Tensor | None],
    along: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Of compiled code."""
    with torch.no_grad():
        at = Point(*call.split(tensors))
        pairs = zip(tensors, along, strict=True)
        way = Point(*call.split([torch.zeros_like(t) if u is None else u for t, u in pairs]))
        d_y, *d_last = above
        state = None
        if (one := next((d for d in d_last if d is not None), None)) is not None:
            pairs_of_last = zip(d_last, call.shapes, strict=True)
            state = call.named([one.new_zeros(s) if d is None else d for d, s in pairs_of_last])
        ends = call.again.ends if isinstance(call.again, InTorch) else [None, None]  # copies: the caller's may change
        rows = dict(zip(ENDS, ends, strict=True))
        y, last, found = second(at, way, (d_y, state), rows)
        pairs_of = zip([y, *flat(last)], above, strict=True)
        changes = [value.reshape(d.shape) for value, d in pairs_of if d is not None]
        return [*found.inputs, *flat(found.state), *found.weights, *changes]


def _third(
    call: Call, tensors: Sequence[Tensor], above: Sequence[Tensor | None], along: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """In torch's operations."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors, held = _apart(tensors), _apart([d for d in above if d is not None])
        rest = iter(held)
        found = _differentiable(call, tensors, [None if d is None else next(rest) for d in above])
        pairs = [(own, u) for own, u in zip(found, along, strict=True) if own is not None and u is not None]
        wanted = [t for t in (*tensors, *held) if t.requires_grad]
        outputs = [own for own, _ in pairs if own.requires_grad]
        inner = [u for own, u in pairs if own.requires_grad]
        if not outputs:
            return [None] * (len(tensors) + len(held))
        made = iter(torch.autograd.grad(outputs, wanted, inner, create_graph=further, allow_unused=True))
    return [next(made) if t.requires_grad else None for t in (*tensors, *held)]


def differentiated(
    of: Mapped,
    tensors: Sequence[Tensor],
    ends: Sequence[Tensor],
    above: Sequence[Tensor | None],
    along: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """How gradients that `mapped.py` made change along a direction. tensors: inputs, states or none, weights; ends:
    lengths and reset, where they are there; above: gradients of results."""
    rest, inputs = iter(ends), len(of.code.inputs)
    there = dict(zip(ENDS, of.numbers, strict=False))
    rows = {name: next(rest) if there[name] else None for name in ENDS}
    state = of.code.named(tensors[inputs:]) if of.stated else None
    return _third(Call(None, inputs, state, rows, InTorch(of.net, rows), lambda: None), tensors, above, along)


def _gradients(
    ctx: torch.autograd.function.FunctionCtx, saved: Sequence[Tensor], d_y: Tensor | None, *d_last: Tensor | None
) -> list[Tensor | None]:
    """What `Steps.backward` returns, of the compiled code."""
    call, tape = ctx.call, copy.copy(ctx.tape)
    if ctx.held:
        tape.array = saved[0].numpy() if ctx.numpy else saved[0]
    if ctx.output:
        tape.output = saved[ctx.held].detach()
    # Forward runs again where the plan has several parts.
    ways = ("forward_train", "backward") if hasattr(tape, "plan") else ("backward",)
    call.use_weights(saved[ctx.weights :], ways, True)
    above = None
    if (one := next((d for d in d_last if d is not None), None)) is not None:
        pairs = zip(d_last, ctx.shapes, strict=True)
        above = call.named([one.new_zeros(s, dtype=call.dtype) if d is None else d for d, s in pairs])
    d_x, d_first, d_weights = call.module._gradients(tape, d_y, above)
    inputs = list(d_x.values()) if isinstance(d_x, dict) else [d_x]
    first = flat({n: d_first[n] for n in call.state}) if isinstance(call.state, Mapping) else []
    return [*inputs, *first, *d_weights.values()]


def _apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors, none made of another one: a state that was made of x is differentiated for itself."""
    return [tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in tensors]


def _differentiable(call: Call, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients that torch can look into, of inputs, states and weights."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors = _apart(tensors)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        y, last = call.again(*call.split(tensors))
        pairs = zip([y, *flat(last)], gradients, strict=True)
        given = {value: d.to(value.dtype) for value, d in pairs if d is not None and value.requires_grad}
    if not given:
        return [None] * len(tensors)
    found = iter(torch.autograd.grad([*given], wanted, [*given.values()], create_graph=further, allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in tensors]


class Inference(torch.autograd.Function):
    """All steps of a network with regularisers in eval mode: the compiled code has gradients of training alone."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the module."""
        x, state, weights = call.split(tensors)
        call.use_weights(weights, ("sequence",), False)
        y, last = call.module(x if len(x) > 1 else x[0], state, **call.rows)
        return (y, *flat(last))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> NoReturn:
        """Raises ConfigError."""
        what, do = "a network with regularisers has gradients in training mode", "call layer.train()"
        raise ConfigError(message(what, got="results of eval mode", do=do))


def looked_into(tensors: Iterable[Tensor]) -> str:
    """By what torch looks into what runs, which for compiled code it cannot: tensors of torch.func have no
    memory, and a forward-mode tangent would be lost. "": by nothing."""
    if torch._C._are_functorch_transforms_active():
        recorded, wrapped = torch.is_grad_enabled(), torch._C._functorch.is_functorch_wrapped_tensor
        theirs = any((recorded and t.requires_grad) or wrapped(t.detach()) for t in tensors)
        return FUNC if theirs else ""
    dual = forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    return FORWARD if dual else ""


def _looked_into(given: Sequence[Tensor], weights: Iterable[Tensor]) -> str:
    """As `looked_into`; raises InputError for what is no tensor, or lies where no compiled code runs."""
    if not all(isinstance(value, torch.Tensor) for value in given):
        kinds = [*dict.fromkeys(type(value).__name__ for value in given)]
        do = runtime.PACKED if "PackedSequence" in kinds else "torch.from_numpy(x), or layer.compiled()(x)"
        raise InputError(message("this layer takes tensors", got=", ".join(kinds), expected="torch.Tensor", do=do))
    elsewhere = next((value.device for value in given if value.device.type not in PLACES), None)
    if elsewhere is not None:
        do = "x.to('cpu'); torch.compile and torch.export need no memory for shapes"
        raise InputError(
            message("compiled code does not run there", got=elsewhere, expected=" or ".join(PLACES), do=do)
        )
    return looked_into((*given, *weights))


@dataclass
class Parameters:
    """A layer's parameters, and what makes the net's weights of them, when these are asked for."""

    tensors: Sequence[Tensor]
    make: Callable[[], Mapping[str, Tensor]]
    made: Mapping[str, Tensor] | None = None

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The net's weights, made once: not by a cached_property, whose lock Dynamo cannot enter on Python 3.11."""
        if self.made is None:
            self.made = self.make()
        return self.made


def run(
    module: Compiled,
    inputs: Sequence[Tensor],
    state: State | None,
    parameters: Parameters,
    rows: Mapping[str, object],
    again: Again,
) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
    """All steps, with gradients where these are wanted: y and the last states.

    module: it has been compiled for training where gradients are wanted. inputs: in its order. rows: lengths, reset,
    and in training with regularisers seed and first_step. again: as of a `Call`."""
    device = inputs[0].device
    there = device.type == "cuda" and hasattr(module, "use_there")
    if not there:
        give(module, parameters)
    given, dropping = [*inputs, *flat(state)], "seed" in rows
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (*given, *parameters.tensors))
    if not gradients and not dropping and not there:
        y, last = module(list(inputs) if len(inputs) > 1 else inputs[0], state, **rows)
        return y, last
    weights = _moved(module, device, parameters.weights) if there else parameters.weights
    if not gradients and not dropping:
        if weights:
            module.use_there({name: tensor.detach() for name, tensor in weights.items()}, ("sequence",))
        y, last = module(list(inputs) if len(inputs) > 1 else inputs[0], state, **rows)
        return y, last
    second = partial(second_of, again.net, rows) if device.type == "cpu" else lambda: None
    call = Call(module, len(inputs), state, dict(rows), again, second, tuple(weights) if there else ())
    steps = Steps if dropping or "masks" not in module.manifest else Inference
    y, *last = steps.apply(call, *given, *weights.values())
    return y, call.named(last)


def drawn_seed(x: Tensor | None = None, in_graph: bool = False) -> int | Tensor:
    """A seed of torch's generator of the CPU, which torch.manual_seed sets. in_graph: a tensor at the place of x, which
    each call of a graph draws; so where a CUDA graph is captured."""
    if x is not None and (in_graph or (x.is_cuda and torch.cuda.is_current_stream_capturing())):
        return torch.randint((1 << 63) - 1, (1,), device=x.device)
    return int(torch.randint((1 << 63) - 1, (1,)))


def _moved(module: Compiled, device: torch.device, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights on a GPU, dense, in the dtype that the module reads."""
    return {name: tensor.to(device, held_dtype(module)).contiguous() for name, tensor in weights.items()}


def held_dtype(module: Compiled) -> torch.dtype:
    """The dtype of a module's weights: for 16-bit networks float32."""
    return torch.float64 if str(module.manifest.dtype) == "float64" else torch.float32


def give(module: Compiled, parameters: Parameters) -> None:
    """Give a module the weights that the parameters make, unless it has them."""
    if not holds(module, parameters.tensors):
        (_give_apart if "torch._dynamo" in sys.modules else _give)(module, parameters)


def _give(module: Compiled, parameters: Parameters) -> None:
    expected, found = held_dtype(module), parameters.weights
    wrong = next((name for name, tensor in found.items() if tensor.dtype is not expected or tensor.is_meta), None)
    if wrong is not None:
        got = f"{found[wrong].dtype} on {found[wrong].device}"
        do = f"layer.to({expected}); a layer of another dtype is made of one: rnn.RNN(..., dtype='float16')"
        do = "layer.to_empty(device='cpu'), then layer.load_state_dict(...)" if found[wrong].is_meta else do
        raise WeightError(message(f"weight {wrong} does not fit this layer", got=got, expected=expected, do=do))
    arrays, held = {name: array_of(name, tensor) for name, tensor in found.items()}, module.weights
    if known(module) or not all(
        n in held and a.dtype == held[n].dtype and np.array_equal(a, held[n]) for n, a in arrays.items()
    ):
        module.load_weights(arrays)
    keep(module, parameters.tensors, found)


# What is no tensor cannot be in a graph. Its first call imports Dynamo, which takes longer than all else of that call.
_give_apart = torch._disable_dynamo(_give)


class TorchLayer(torch.nn.Module):
    """A network that torch trains; see `tvm_rnn.to_torch`. The parameters are the net's weights under their own names,
    or under those of torch.nn's layers. net: with time first, as its code is, whatever the layer's calls have."""

    batch_first = False

    def __init__(self, net: RNN, module: Compiled, names: str) -> None:
        super().__init__()
        self._module = module  # first: it says why the layer cannot be pickled
        self._code, self._told, self.batch_first = Code(module), set[str](), net.batch_first
        self.net, self.form = net.time_first(), form_of(net) if names == "torch" else None
        values = net.weights if self.form is None else state_arrays(net)
        home = f"cuda:{module.device}" if hasattr(module, "device") and torch.cuda.is_available() else "cpu"
        self._names = [*values]
        for name, value in values.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value, device=home)))

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        lengths: object = None,
        reset: object = None,
        seed: int | None = None,
        first_step: int = 0,
        **inputs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """All steps: (y [T, B, D*H], {name: state after the last step}). Arguments as of a compiled Module's call, and
        of its `forward_train`: in training mode regularisers act, with a seed of torch's generator if none is given. Of
        a net with batch_first x, y, further inputs and reset are [B, T, ...]."""
        more: dict[str, Any] = {"lengths": lengths, "seed": seed, "first_step": first_step}
        if not self.batch_first:
            return self._all_steps(x, state, reset=reset, **more, **inputs)
        constants = self._code.constants
        turned = {name: value if name in constants else batch_first(name, value) for name, value in inputs.items()}
        again = None if reset is None else batch_first("reset", torch.as_tensor(reset))
        if isinstance(x, Mapping):
            first: object = {n: v if n in constants else batch_first(n, v) for n, v in x.items()}
        elif isinstance(x, list | tuple):
            first = [batch_first("x", value) for value in x]
        else:
            first = batch_first("x", x)
        y, last = self._all_steps(first, state, reset=again, **more, **turned)
        return y.transpose(0, 1), last

    def _all_steps(
        self,
        x: object,
        state: State | None = None,
        *,
        lengths: object = None,
        reset: object = None,
        seed: int | None = None,
        first_step: int = 0,
        **inputs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """forward() of tensors [T, B, ...]."""
        more: dict[str, Any] = {"lengths": lengths, "reset": reset, "seed": seed, "first_step": first_step}
        in_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # asked here: Dynamo compiles what is called
        if not in_graph and seen():
            in_graph = not looked_into([*self._code.ordered(x, inputs), *flat(state), *self.weights().values()])
        if in_graph and not unserved(self._code, self._code.ordered(x, inputs)[0], self.max_bytes):
            return self._steps(True, x, state, **more, **inputs)
        # Where Dynamo gives a frame up it compiles what that calls.
        apart = in_graph or "torch._dynamo" in sys.modules
        return (self._outside if apart else self._steps)(False, x, state, **more, **inputs)

    def _steps(
        self,
        in_graph: bool,
        x: object,
        state: State | None,
        *,
        lengths: object,
        reset: object,
        seed: int | None,
        first_step: int,
        **inputs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """The same, as nodes of a graph or at once."""
        module = self._module
        if module._held:
            x, state, inputs = module.hold(x, state, inputs, reset)
        values = self._code.ordered(x, inputs) if in_graph else module._name_inputs(x, inputs)
        parameters = self._parameters_now()
        why = "" if in_graph else _looked_into([*values, *flat(state)], parameters.tensors)
        rows = {"lengths": lengths, "reset": reset}
        if torch.is_autocast_enabled(values[0].device.type):
            kind = getattr(torch, self.net.dtype)
            values, state = [value.to(kind) for value in values], each(state, lambda part: part.to(kind))
        if self.training if self.net.regularisers else self.net.draws:
            rows |= {"seed": drawn_seed(values[0], in_graph) if seed is None else seed, "first_step": first_step}
        if in_graph:
            weights = [*parameters.weights.values()]
            y, last = steps_in_graph(self._code, values, flat(state), weights, rows, self.training)
            return y, last if for_others() else runtime.State(last)  # programs know torch's own kinds of results
        again = InTorch(self.net, rows)
        apart = self._mapped(why, values, state, rows)
        if apart is not None:
            again.check(module, values, state)
            states = flat(state and {name: state[name] for name in self._code.lists})
            tensors = values, states, [*parameters.weights.values()]
            y, last = mapped_steps((self.net, self._code), tensors, rows, apart, differentiated)
            return y, runtime.State(last)
        if why:
            return self._in_torch(why, again, (values, state, [*parameters.weights.values()]))
        y, last = run(module, values, state, parameters, rows, again)
        return y, runtime.State(last)

    def _mapped(
        self, why: str, values: Sequence[Tensor], state: State | None, rows: Mapping[str, object]
    ) -> bool | None:
        """What `served` says of a call that torch.func looks into; None: it is none that compiled code takes."""
        if why != FUNC or "seed" in rows or self.net.regularisers:
            return None
        if unserved(self._code, values[0], self.max_bytes) or (state is not None and {*state} != {*self._code.lists}):
            return None
        return served([*values, *flat(state)], self.weights().values())

    def _in_torch(
        self, why: str, steps: InTorch, given: tuple[Sequence[Tensor], State | None, Sequence[Tensor]]
    ) -> tuple[Tensor, runtime.State]:
        """forward() where torch looks into it, for a reason that is told once. given: inputs, state and weights."""
        steps.check(self._module, *given[:2])
        if why not in self._told:
            self._told.add(why)
            warn(message("torch's own operations ran this layer", where=repr(self.net), got=why))
        kind = given[0][0].dtype
        y, last = steps(*given)
        return y.to(kind), runtime.State(each(last, lambda part: part.to(kind)) or {})

    @torch._disable_dynamo  # as torch.compiler.disable, which would import Dynamo now
    def _outside(self, *given: Any, **named: Any) -> tuple[Tensor, dict[str, Tensor | list[Tensor]]]:
        """`_steps`, into which Dynamo does not look."""
        return TorchLayer._steps(self, *given, **named)

    def weights(self) -> dict[str, Tensor]:
        """The net's weights, {name: tensor}, made of the parameters: what `net.load` takes."""
        return dict(self._parameters_now().weights)

    def _parameters_now(self) -> Parameters:
        """The parameters, and how the net's weights are made of them."""
        plain = self._parameters  # others are what parametrizations make
        own = {name: plain[name] if name in plain else getattr(self, name) for name in self._names}
        if self.form is None:
            return Parameters([*own.values()], lambda: own)
        return Parameters([*own.values()], partial(net_weights, self._code.weights, self.form, own))

    @property
    def max_bytes(self) -> int | None:
        """Of the compiled module: how much memory a step of training may take besides its results."""
        found: int | None = self._module.max_bytes
        return found

    @max_bytes.setter
    def max_bytes(self, count: int | None) -> None:
        self._module.max_bytes = count

    def compiled(self) -> Compiled:
        """The compiled module with the present weights: to call without torch, or to export. Of a layer with
        batch_first it is a copy, whose calls have the batch first too."""
        give(self._module, self._parameters_now())
        if not self.batch_first:
            return self._module
        found = copy.copy(self._module)
        found.batch_first = True
        return found

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by torch.jit.script."""
        do = "script what is around the layer; layer.compiled().export(path) writes a file"
        raise ConfigError(message("torch cannot look into compiled code", got="torch.jit.script", do=do))

    def extra_repr(self) -> str:
        return repr(self.net)[1:-1] + ", batch_first=True" * self.batch_first


def batch_first(what: str, value: object) -> Tensor:
    """[T, B, ...] of a tensor [B, T, ...]. Raises InputError for what is none."""
    if isinstance(value, Tensor) and value.dim() > 1:
        return value.transpose(0, 1)
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    do = "torch.from_numpy(x), or layer.compiled()(x)" if not isinstance(value, Tensor) else "give it both axes"
    what = f"{what} does not fit this layer, which has the batch first"
    raise InputError(message(what, got=got, expected="a tensor [B, T, ...]", do=do))


def net_weights(shapes: Mapping[str, Shape], form: Form, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The net's weights, of these shapes, of tensors by torch's names, in torch's operations: gradients of the net's
    weights become those of torch's parameters. form: of torch's layer; one without biases has zeros for them."""
    found: dict[str, Tensor] = {}
    for place in form.places:
        parts = {n: own.get(form.name(n, *place)) for n in ("bias_ih", "bias_hh", "weight_hr")}
        values = {"W": own[form.name("weight_ih", *place)], "R": own[form.name("weight_hh", *place)]}
        first, second = parts["bias_ih"], parts["bias_hh"]
        if first is None or second is None:
            first = second = values["W"].new_zeros(len(values["W"]))
        values |= net_biases(form, first, second)
        if parts["weight_hr"] is not None:
            values["W_P"] = parts["weight_hr"]
        found |= {weight_name(name, *place): value for name, value in values.items()}
    return {name: found[name].reshape(shape) for name, shape in shapes.items()}


def net_biases(form: Form, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """The net's biases of a layer and direction, of torch's two."""
    whole = first + second
    if form.kind != "GRU":
        return {"b": whole}
    width = 2 * form.hidden_size  # the reset gate comes between: the third of these does not add to the first
    return {"b": torch.cat([whole[:width], first[width:]]), "b_R": second[width:]}


def torch_weights(net: RNN, form: Form, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The other way: of the net's weights those of torch's layer with biases, flat as its functions take them. One of
    the two biases is zeros, but for what a reset gate multiplies."""
    found = []
    for place in form.places:
        own = {name: weights[weight_name(name, *place)] for name in ("W", "R", "b")}
        W, R, first = own["W"].flatten(0, -2), own["R"].flatten(0, -2), own["b"].reshape(-1)
        second = torch.zeros_like(first)
        if form.kind == "GRU":
            second = torch.cat([second[: 2 * form.hidden_size], weights[weight_name("b_R", *place)].reshape(-1)])
        found += [W, R, first, second]
        if form.proj_size:
            found.append(weights[weight_name("W_P", *place)])
    return found
