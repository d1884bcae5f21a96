"""rnn.nn: torch.nn's LSTM, GRU and RNN, which run compiled code; and `Cell`, of `cell.py`.

In: whatever torch's layers take, in their constructors and calls. Out: what they return. They are torch's classes in
everything but forward(), so that parameters, state_dicts, copies and pickles are torch's. A layer compiles when it is
first called, for what that call needs (`compiler/compiled_files.py` keeps it on disk); a call that compiled code does
not serve is torch's own, and the layer says so once.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial, wraps
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from tvm_rnn.compiler.compiled_files import compiled_once, name_here
from tvm_rnn.errors import TvmRnnError, message
from tvm_rnn.frontends.torch import form_of_layer
from tvm_rnn.frontends.torch_names import Form
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN as Network

from .autograd import (
    FORWARD,
    FUNC,
    Again,
    Compiled,
    Parameters,
    State,
    differentiated,
    drawn_seed,
    each,
    flat,
    held_dtype,
    looked_into,
    net_biases,
    net_weights,
    run,
    torch_weights,
)
from .cell import SERVED, TARGETS, packed_as
from .cell import Cell as Cell
from .graph_ops import IN_GRAPHS, Code, exports_onnx, put_in_graphs, records, seen, steps_in_graph
from .in_torch import InTorch
from .kept import holds
from .mapped import code_of, mapped_steps, served
from .warn import warn

# A network with code, or that for a call like the last one; in graphs the code; under torch.func what serves it; a
# network alone: its equations, in torch's operations.
Made: TypeAlias = "tuple[Network, Compiled] | InferenceCall | Code | Transformed | Network"
# With gradients torch's own code is quicker up to so many steps; without where so many bytes of parameters, which each
# call compares with what they were, are more than a step's. Measured on a CPU with one thread.
SHORT, COMPARED, SEVERAL = 4, 1 << 19, 16
THEIRS = "torch's own code ran this layer"
FORM = [item.name for item in fields(Form)]
Hidden: TypeAlias = "Tensor | tuple[Tensor, Tensor] | None"  # an LSTM has two


class Use(NamedTuple):
    """What a module of a layer is for. dropout: between layers, in training."""

    device: str
    dtype: torch.dtype
    training: bool
    dropout: float


class Transformed(NamedTuple):
    """A network and its code under torch.func. apart: as of `mapped.served`."""

    net: Network
    code: Code
    apart: bool


class InferenceCall:
    """A module for calls on a CPU without gradients, which has the weights: it runs them at once."""

    def __init__(self, net: Network, module: Compiled) -> None:
        self.module, self.names = module, [item.name for item in net.cell.states]

    def __call__(self, x: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """All steps."""
        arrays = [value.detach().numpy() for value in given]
        y, last = self.module(x.detach().numpy(), dict(zip(self.names, arrays, strict=True)) if arrays else None)
        return torch.from_numpy(y), [torch.from_numpy(last[name]) for name in self.names]


MATRICES = {"W": "weight_ih", "R": "weight_hh", "W_P": "weight_hr"}  # the net's names, and torch's


@cache
def _names(form: Form) -> tuple[list[tuple[str, str]], list[tuple[tuple[int, int], str, str]]]:
    """(the net's, torch's) names of matrices; of each layer and direction the names of torch's biases."""
    own = [*MATRICES.items()][: 3 if form.proj_size else 2]
    matrices = [(weight_name(n, *place), form.name(theirs, *place)) for place in form.places for n, theirs in own]
    return matrices, [(p, form.name("bias_ih", *p), form.name("bias_hh", *p)) for p in form.places]


class InferenceOnGpu(InferenceCall):
    """The same on a GPU, where nothing tells whether parameters have changed: `take` gives the module those of now, of
    which biases alone are made, in each call."""

    def __init__(self, net: Network, module: Compiled, form: Form, kind: torch.dtype) -> None:
        super().__init__(net, module)
        self.form, self.kind = form, kind

    def take(self, parameters: Mapping[str, Tensor | None], place: torch.device) -> bool:
        """False: nothing was done, for they are not all whole arrays of the weights' dtype at that place, or are to
        have gradients."""
        matrices, biases = _names(self.form)
        found = {own: parameters.get(theirs) for own, theirs in matrices}
        pairs = [(parameters.get(first), parameters.get(second)) for _, first, second in biases]
        expected, recorded = held_dtype(self.module), torch.is_grad_enabled()
        for part in (*found.values(), *(part for pair in pairs for part in pair)):
            if part is None or part.__class__ is not torch.nn.Parameter or part.dtype is not expected:
                return False
            if part.device != place or not part.is_contiguous() or (recorded and part.requires_grad):
                return False
        for (at, _, _), (first, second) in zip(biases, pairs, strict=True):
            found |= {weight_name(name, *at): value for name, value in net_biases(self.form, first, second).items()}
        self.module.use_there(found, ("sequence",))
        return True

    def __call__(self, x: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if x.dtype is not self.kind:  # torch.autocast
            x, given = x.to(self.kind), [part.to(self.kind) for part in given]
        y, last = self.module(x, dict(zip(self.names, given, strict=True)) if given else None)
        return y, [last[name] for name in self.names]


@dataclass
class Own:
    """What a layer of ours has besides torch's: its network and module by use, and the reasons that it told. before:
    the facts of the last call, and the module that ran it."""

    made: dict[Use, tuple[Network, Compiled] | str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)
    before: tuple[tuple[object, ...], InferenceCall] | None = None


def _batched(tensor: Tensor) -> bool:
    """Whether torch.func.vmap has a batch of it, also where another transform of torch.func is around that."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False


_own = weakref.WeakKeyDictionary[torch.nn.Module, Own]()  # not attributes: copies and pickles are torch's


class DropIn(torch.nn.RNNBase):
    """What the three have in common; `torchs` is the class of torch.nn that a layer stands for."""

    torchs: type[torch.nn.RNNBase]

    def _call(
        self, theirs: Callable[[Tensor, Hidden], tuple[Tensor, Hidden]], input: Tensor, hx: Hidden
    ) -> tuple[Tensor, Hidden]:
        """What forward() returns: of compiled code, or where that does not serve the call of `theirs`."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # asked here: Dynamo compiles what is called
            return self._in_graph(theirs, input, hx)
        if isinstance(input, torch.fx.Proxy):  # the layer is one node of its graph, as torch's own is
            own = input.tracer
            return own.create_proxy("call_module", own.path_of_module(self), (input, hx)[: 1 + (hx is not None)], {})
        packed = isinstance(input, PackedSequence)
        values = input.data if packed else input
        given = _given(self, hx)
        where = _place((input, *given))
        if where and _undisturbed():
            if where == "cpu" and _is_short(self, input, given):
                return theirs(input, hx)
            if (plain := (_as_before if where == "cpu" else _as_before_on_gpu)(self, input, given)) is not None:
                return self._result(*_dense(self, plain, input, given))
        if seen() and not looked_into((values, *given, *self._flat_weights)):
            return self._in_graph(theirs, input, hx)
        why = _unserved(self, values, given, input.batch_sizes if packed else None)
        made: Made | str = _made(self, values, given) if why is None else why
        if why == FUNC and (mapped := _mapped(self, values, given)):
            made = mapped
        elif why in (FUNC, FORWARD) or (why and any(map(_batched, (values, *given, *self._flat_weights)))):
            # torch's own code has no rules for batches of layers, and on CPUs no tangents of an LSTM.
            made = _equations(self, values)
            _tell(self, THEIRS, why)
        if isinstance(made, str):
            result = theirs(input, hx)  # raises torch's own error where the call is wrong
            _tell(self, THEIRS, made)
            return result
        found = _packed(self, made, input, given) if packed else _dense(self, made, values, given)
        if type(made) is tuple and not packed and not _dropout(self):
            own = InferenceCall(*made) if values.is_cpu else _inference_on_gpu(self, made[0], made[1], _kind(values))
            _own[self].before = None if own is None else (_facts(self, values, given), own)
        return self._result(*found)

    def _in_graph(
        self, theirs: Callable[[Tensor, Hidden], tuple[Tensor, Hidden]], input: Tensor, hx: Hidden
    ) -> tuple[Tensor, Hidden]:
        """The same for a graph of torch's: of the operations of `graph_ops.py`, or of `theirs`."""
        given = _given(self, hx)
        made = None if isinstance(input, PackedSequence) else _graphed(self, input, given)
        if made is None:
            return theirs(input, hx)
        return self._result(*_dense(self, made, input, given))

    def _result(self, y: Tensor, last: Sequence[Tensor]) -> tuple[Tensor, Hidden]:
        """As torch's layers return it."""
        return y, tuple(last) if self.mode == "LSTM" else last[0]

    def __setattr__(self, name: str, value: object) -> None:
        """torch's quantisation gives every layer that it passes a qconfig."""
        if name == "qconfig":
            why = "torch.ao.quantization, which does not know this layer and leaves it as it is"
            do = "quantise before rnn.accelerate(model), which leaves quantised layers as they are"
            _tell(self, "this layer is not quantised", why, do)
        super().__setattr__(name, value)

    def _get_name(self) -> str:
        return f"tvm_rnn.{type(self).__name__}"

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """For torch.jit.script: torch's layer with the same parameters."""
        return as_torchs(self)


class LSTM(DropIn, torch.nn.LSTM):
    """torch.nn.LSTM: the same arguments, parameters, calls and results, by compiled code."""

    torchs = torch.nn.LSTM

    @wraps(torch.nn.LSTM.forward)
    def forward(self, input: Tensor, hx: Hidden = None) -> tuple[Tensor, Hidden]:
        return self._call(super().forward, input, hx)


class GRU(DropIn, torch.nn.GRU):
    """torch.nn.GRU: the same arguments, parameters, calls and results, by compiled code."""

    torchs = torch.nn.GRU

    @wraps(torch.nn.GRU.forward)
    def forward(self, input: Tensor, hx: Hidden = None) -> tuple[Tensor, Hidden]:
        return self._call(super().forward, input, hx)


class RNN(DropIn, torch.nn.RNN):
    """torch.nn.RNN: the same arguments, parameters, calls and results, by compiled code."""

    torchs = torch.nn.RNN

    @wraps(torch.nn.RNN.forward)
    def forward(self, input: Tensor, hx: Hidden = None) -> tuple[Tensor, Hidden]:
        return self._call(super().forward, input, hx)


DROP_INS: dict[type[torch.nn.RNNBase], type[DropIn]] = {own.torchs: own for own in (LSTM, GRU, RNN)}


def as_torchs(layer: DropIn) -> torch.nn.Module:
    """torch's layer with the same parameters, and all else that this one has."""
    found = object.__new__(layer.torchs)
    vars(found).update(vars(layer))
    return found


# --- what a call is ---------------------------------------------------------------------------------------------------


def _given(layer: DropIn, hx: Hidden) -> Sequence[Tensor]:
    """The first states, of which an LSTM has two."""
    if hx is None:
        return ()
    return hx if layer.mode == "LSTM" and isinstance(hx, tuple | list) else (hx,)


def _facts(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> tuple[object, ...]:
    """What decides who runs a call, besides the parameters."""
    own = layer.mode, layer.training, layer.dropout, layer.batch_first
    return *own, values.device, _kind(values), values.dtype, values.shape, *(part.shape for part in given)


def _is_short(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether a call on a CPU is of so few steps that torch's own code takes less time."""
    if not 1 < values.dim() < 4:
        return False
    axis = _batch_axis(layer)
    steps, rows = (values.shape[1 - axis], values.shape[axis]) if values.dim() == 3 else (len(values), 1)
    if torch.is_grad_enabled() and any(part.requires_grad for part in (values, *given, *layer._flat_weights)):
        return steps <= SHORT
    if layer.mode == "LSTM":  # torch's begins each call with an order of weights of its own
        return False
    return steps * (1 + rows // SEVERAL) * COMPARED < sum(part.nbytes for part in layer._flat_weights)


def _as_before(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> InferenceCall | None:
    """What runs a call without gradients that is as the last one was, with the weights of then; else None. It asks the
    least that tells: steps of a small layer take less time than all else that a call needs."""
    own = _own.get(layer)
    before = None if own is None else own.before
    if before is None or before[0] != _facts(layer, values, given):
        return None
    layer._update_flat_weights()
    if torch.is_grad_enabled() and any(part.requires_grad for part in (values, *given, *layer._flat_weights)):
        return None
    return before[1] if holds(before[1].module, layer._flat_weights) else None


def _as_before_on_gpu(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> InferenceCall | None:
    """The same on a GPU: what has the weights of now."""
    own = _own.get(layer)
    before = None if own is None else own.before
    if before is None or before[0] != _facts(layer, values, given):
        return None
    if torch.is_grad_enabled() and any(part.requires_grad for part in (values, *given)):
        return None
    call = before[1]
    return call if isinstance(call, InferenceOnGpu) and call.take(layer._parameters, values.device) else None


def _inference_on_gpu(layer: DropIn, net: Network, module: Compiled, kind: torch.dtype) -> InferenceOnGpu | None:
    """What runs calls like one that was on a GPU. None: they go the whole way."""
    able = hasattr(module, "use_there") and layer.bias
    return InferenceOnGpu(net, module, form_of_layer(layer, layer.torchs.__name__), kind) if able else None


def _place(values: Sequence[Tensor]) -> str:
    """Where values are, if they are tensors of one dtype at one place, with memory that is as it looks: cpu or cuda."""
    if not all(part.__class__ is Tensor for part in values):
        return ""
    kind, place = values[0].dtype, values[0].device
    if not all(part.dtype is kind and part.device == place and not part.is_neg() for part in values):
        return ""
    return place.type if place.type in TARGETS else ""


def _undisturbed() -> bool:
    """Whether nothing of torch's looks into what runs, or changes it."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active()
    return not modes and forward_ad._current_level < 0 and not torch.is_autocast_enabled("cpu")


def _unserved(layer: DropIn, values: Tensor, given: Sequence[Tensor], batch_sizes: Tensor | None) -> str | None:
    """Why torch's own code takes a call; "": because it is not as torch wants it, or has no steps, and torch says so,
    or because it is of shapes alone. None: compiled code takes it."""
    layer._update_flat_weights()
    tensors = (values, *given, *layer._flat_weights)
    kinds = {type(tensor) for tensor in tensors}
    if not all(issubclass(kind, Tensor) for kind in kinds) or not _together(tensors):
        return ""
    if not _fits(layer, values, given, batch_sizes):
        return ""
    if values.is_meta or FakeTensor in kinds:  # nothing is computed
        return ""
    if theirs := kinds - {Tensor, torch.nn.Parameter}:
        return f"tensors of a class of their own: {', '.join(sorted(kind.__name__ for kind in theirs))}"
    device, kind = values.device.type, _kind(values)
    if kind not in SERVED.get(device, ()):
        return f"{kind} on {device}"
    if device == "cpu" and torch.is_autocast_enabled(device):
        return "torch.autocast"
    if layer.training and layer.dropout == 1.0 and layer.num_layers > 1:
        return "dropout=1.0"
    return looked_into(tensors) or None


def _kind(values: Tensor) -> torch.dtype:
    """The dtype of a call: on GPUs, as torch's layers have it, that of torch.autocast."""
    if values.is_cuda and values.dtype != torch.float64 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return values.dtype


def _together(tensors: Sequence[Tensor]) -> bool:
    """Whether they are at one place and, but where torch.autocast casts them, of one dtype."""
    if any(tensor.device != tensors[0].device for tensor in tensors):
        return False
    cast = _kind(tensors[0]) != tensors[0].dtype or (tensors[0].is_cuda and torch.is_autocast_enabled("cuda"))
    allowed = {torch.float32, torch.float16, torch.bfloat16} if cast else {tensors[0].dtype}
    return all(tensor.dtype in allowed for tensor in tensors)


def _fits(layer: DropIn, values: Tensor, given: Sequence[Tensor], batch_sizes: Tensor | None) -> bool:
    """Whether the shapes are those of torch's documentation, with at least one step of one row."""
    axes = values.dim()
    if axes not in ((2,) if batch_sizes is not None else (2, 3)) or values.shape[-1] != layer.input_size:
        return False
    batch = [int(batch_sizes[0])] if batch_sizes is not None else [values.shape[_batch_axis(layer)]] * (axes == 3)
    rows, widths = layer.num_layers * (1 + bool(layer.bidirectional)), [layer.proj_size or layer.hidden_size]
    widths += [layer.hidden_size] * (layer.mode == "LSTM")
    fitting = [(rows, *batch, width) for width in widths]
    return values.numel() > 0 and (not given or [tuple(part.shape) for part in given] == fitting)


def _batch_axis(layer: DropIn) -> int:
    return 0 if layer.batch_first else 1


def _tell(layer: DropIn, what: str, why: str, do: str | None = None) -> None:
    """Warn of what becomes of a layer's calls, once for each reason."""
    told = _own.setdefault(layer, Own()).told
    if why and why not in told:
        told.add(why)
        warn(message(what, where=repr(layer), got=why, do=do))


# --- what runs it -----------------------------------------------------------------------------------------------------


def _mapped(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> Transformed | None:
    """What takes a call under torch.func; None: compiled code does not."""
    if _kind(values) != values.dtype or _dropout(layer):
        return None
    apart = served((values, *given), layer._flat_weights)
    made = None if apart is None else _made(layer, values, given, trains=True)
    if apart is None or not isinstance(made, tuple):
        return None
    net, module = made
    return Transformed(net, code_of(net, module), apart)


def _made(
    layer: DropIn, values: Tensor, given: Sequence[Tensor], trains: bool = False
) -> tuple[Network, Compiled] | str:
    """The network and the module for a call, made when one first needs them. A text: why there are none."""
    device = values.device.type
    asked = trains or any(part.requires_grad for part in (values, *given, *layer._flat_weights))
    dropout = _dropout(layer)
    training = bool(dropout) or device == "cuda" or trains or (torch.is_grad_enabled() and asked)
    use, own = Use(device, _kind(values), training, dropout), _own.setdefault(layer, Own())
    found = own.made.get(use._replace(training=True)) or own.made.get(use)  # what trains also infers
    if found is None:
        with own.lock:
            if use not in own.made:
                # Dynamo, where it is, would compile each function of the compiler.
                own.made[use] = (_compiled_apart if "torch._dynamo" in sys.modules else _compiled)(layer, use)
            found = own.made[use]
    return found


def _dropout(layer: DropIn) -> float:
    return float(layer.dropout) if layer.training and layer.num_layers > 1 else 0.0


def _network(form: Form, use: Use) -> Network:
    dtype = str(use.dtype).removeprefix("torch.")
    make = partial(Network, form.cell, form.input_size, form.hidden_size, form.num_layers, form.bidirectional, dtype)
    return make(dropout=use.dropout, P=form.proj_size) if form.proj_size else make(dropout=use.dropout)


def networks_of(layer: DropIn, device: str, kinds: Sequence[torch.dtype] = ()) -> list[Network]:
    """Those that calls on a device need, in training and eval mode, in the layer's dtype and these."""
    form = form_of_layer(layer, layer.torchs.__name__)
    own = [getattr(layer, layer._flat_weights_names[0]).dtype, *kinds]
    chances = [0.0, layer.dropout] if layer.dropout and layer.num_layers > 1 else [0.0]
    return [_network(form, Use(device, kind, True, chance)) for kind in own for chance in chances if chance < 1.0]


def _equations(layer: DropIn, values: Tensor) -> Network:
    """The network for a call, without code."""
    form = form_of_layer(layer, layer.torchs.__name__)
    return _network(form, Use(values.device.type, _kind(values), layer.training, _dropout(layer)))


def _graphed(layer: DropIn, values: Tensor, given: Sequence[Tensor]) -> Code | None:
    """The code for a graph; None: torch's own takes the call."""
    own = [getattr(layer, name) for name in layer._flat_weights_names]
    tensors = (values, *given, *own)
    device, kind = values.device.type, _kind(values)
    if kind not in SERVED.get(device, ()) or not _together(tensors):
        return None
    if not (torch.jit.is_tracing() or _fits(layer, values, given, None)):  # a trace is of any sizes
        return None
    if (device == "cpu" and torch.is_autocast_enabled("cpu")) or (layer.training and layer.dropout == 1):
        return None
    dropout = _dropout(layer)
    if exports_onnx():
        return None
    form = form_of_layer(layer, layer.torchs.__name__)
    training = bool(dropout) or device == "cuda" or records(tensors, layer.training)
    name = _code_of(*(getattr(form, item) for item in FORM), device, kind, training, dropout)
    return getattr(IN_GRAPHS, name) if name else None


def _code_of(*facts: Any) -> str:
    """The name of the code of a form's fields, and of those of a `Use`; "": there is none."""
    form, use = facts[: len(FORM)], Use(*facts[len(FORM) :])
    net = _network(Form(*form), use)
    try:
        module = _once_apart(net, TARGETS[use.device], use.training)
    except TvmRnnError:
        return ""
    name = name_here(net, TARGETS[use.device], use.training)
    put_in_graphs(name, module)
    return name


# As torch.compiler.assume_constant_result does, which would import Dynamo.
vars(_code_of)["_dynamo_marked_constant"] = True


def _compiled(layer: DropIn, use: Use) -> tuple[Network, Compiled] | str:
    try:
        net = _network(form_of_layer(layer, layer.torchs.__name__), use)
        return net, compiled_once(net, TARGETS[use.device], use.training)
    except TvmRnnError as reason:
        return str(reason)


# Functions into which Dynamo does not look; torch.compiler.disable would import it now.
_once_apart = torch._disable_dynamo(compiled_once)
_compiled_apart = torch._disable_dynamo(_compiled)


def _dense(layer: DropIn, made: Made, values: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Steps as torch has them: [T, B, I], [B, T, I] or [T, I]."""
    axis, single = _batch_axis(layer), values.dim() == 2
    x = values.unsqueeze(axis) if single else values
    state = [part.unsqueeze(1) for part in given] if single else given
    y, last = _steps(layer, made, x.transpose(0, 1) if layer.batch_first else x, state)
    y = y.transpose(0, 1) if layer.batch_first else y
    return (y.squeeze(axis), [part.squeeze(1) for part in last]) if single else (y, last)


def _packed(
    layer: DropIn, made: Made, input: PackedSequence, given: Sequence[Tensor]
) -> tuple[PackedSequence, list[Tensor]]:
    """Rows of several lengths; states are in the caller's order."""
    x, lengths = pad_packed_sequence(input)
    y, last = _steps(layer, made, x, given, lengths)
    return packed_as(input, y, lengths), last


def _steps(
    layer: DropIn,
    made: Made,
    x: Tensor,
    given: Sequence[Tensor],
    lengths: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """All steps of x [T, B, I] from these states, [L*D, B, width] each."""
    if isinstance(made, InferenceCall):
        return made(x, given)
    form, dropping = form_of_layer(layer, layer.torchs.__name__), _dropout(layer) > 0.0
    rows: dict[str, object] = {"lengths": lengths, "reset": None}
    if dropping:
        rows |= {"seed": drawn_seed(x, isinstance(made, Code)), "first_step": 0}
    kind = _kind(x)
    x, given = x.to(kind), [part.to(kind) for part in given]
    if isinstance(made, Code):
        weights = net_weights(made.weights, form, {name: getattr(layer, name) for name in layer._flat_weights_names})
        y, last = steps_in_graph(made, [x], given, [*weights.values()], rows, layer.training)
        return y, flat(last)
    if isinstance(made, Transformed):
        weights = net_weights(
            made.code.weights, form, dict(zip(layer._flat_weights_names, layer._flat_weights, strict=True))
        )
        tensors = [x], given, [*weights.values()]
        y, last = mapped_steps((made.net, made.code), tensors, rows, made.apart, differentiated)
        return y, flat(last)
    net = made if isinstance(made, Network) else made[0]
    names = [item.name for item in net.cell.states]
    own = dict(zip(layer._flat_weights_names, layer._flat_weights, strict=True))
    plain = not dropping and lengths is None and kind.itemsize > 2  # of 16 bits torch's have no second derivatives
    again: Again = TorchsOwn(net, form) if plain else InTorch(net, rows)
    state = dict(zip(names, given, strict=True)) if given else None
    parameters = Parameters(layer._flat_weights, lambda: net_weights(net.weight_shapes, form, own))
    if isinstance(made, Network):
        y, last = InTorch(net, rows)([x], state, [*parameters.weights.values()])
        y, last = y.to(kind), dict(each(last, lambda part: part.to(kind)) or {})
    else:
        y, last = run(made[1], [x], state, parameters, rows, again)
    return y, flat({name: last[name] for name in names})


@dataclass(frozen=True)
class TorchsOwn:
    """The same steps in torch's own layer. form: of that."""

    net: Network
    form: Form

    def __call__(
        self, inputs: Sequence[Tensor], state: State | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """weights: the net's, in its order."""
        net, form, (x,) = self.net, self.form, inputs
        names = [item.name for item in net.cell.states]
        if state is None:
            rows = form.num_layers * (1 + form.bidirectional)
            widths = form.proj_size or form.hidden_size, form.hidden_size
            state = {name: x.new_zeros(rows, x.shape[1], width) for name, width in zip(names, widths, strict=False)}
        given = tuple(state[name] for name in names) if len(names) > 1 else state[names[0]]
        own = [w.to(x.dtype) for w in torch_weights(net, form, dict(zip(net.weight_shapes, weights, strict=True)))]
        function = getattr(torch, form.kind.lower() + f"_{form.nonlinearity}" * (form.kind == "RNN"))
        y, *last = function(x, given, own, True, form.num_layers, 0.0, False, form.bidirectional, False)
        return y, dict(zip(names, last, strict=True))
