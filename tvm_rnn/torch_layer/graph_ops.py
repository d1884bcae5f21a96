"""Compiled steps as operations of torch's: what torch.compile, torch.export and torch.jit.trace put into their graphs.

In: tensors of the CPU, or of a GPU, and the name of a `Code` for it. Out: `tvm_rnn::steps`, `tvm_rnn::steps_recorded`
and, of the latter, `tvm_rnn::gradients`: new tensors. On a GPU work is enqueued on torch's current stream, the packing
of weights too, so that CUDA graphs have it. Without a graph `autograd.py` calls the modules itself, which takes less
time.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tvm_rnn.compiler.compiled_files import kept
from tvm_rnn.errors import ConfigError, InputError, WeightError, message
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.runtime.runtime_cuda_training import ITEM_BYTES, CudaTrainingModule, reads_output, tape_bytes
from tvm_rnn.runtime.runtime_training import TrainingModule, tape_elements

Shape: TypeAlias = tuple[int, ...]
Plain: TypeAlias = "np.ndarray | None"
Arrays: TypeAlias = "np.ndarray | list[np.ndarray]"
States: TypeAlias = "dict[str, Tensor | list[Tensor]]"

PROXY = torch._C._TorchDispatchModeKey.PROXY
_numbers = itertools.count()
_known = weakref.WeakValueDictionary[str, "Code"]()


class InGraphs:
    """Attributes: each `Code` that is in a graph, by its name. Graphs know names alone: it stays as long as the
    process. Dynamo guards the attribute that it reads; of a dict it would guard all."""


IN_GRAPHS = InGraphs()


class Code:
    """A compiled module for graphs, which know it by `name`. Copies of a layer share it: each call gives its weights.

    inputs, constants: their names. weights: their shapes. lists: of each state, how many arrays it has where layers
    differ in shape, else 0. device: "cpu" or "cuda". read: how many inputs backward reads again. kind, exact: torch's
    dtypes of arrays, and of weights and their gradients."""

    def __init__(self, module: Module, name: str = "") -> None:
        self.name = name or f"{module.manifest.cell} {next(_numbers)}"
        self.inputs, self.constants = [name for name, _ in module._inputs], {*module._held}
        self.weights = {**module._weight_shapes}
        self.lists = {name: len(each) if len({*each}) > 1 else 0 for name, (_, _, each) in module._states.items()}
        self.device = "cuda" if isinstance(module, CudaTrainingModule) else "cpu"
        self.read = len(self.inputs) if self.device == "cuda" and module.manifest.get("reads_inputs", False) else 0
        self.kind: torch.dtype = getattr(torch, str(module.manifest.dtype))
        self.exact = torch.promote_types(self.kind, torch.float32)
        self.lock, self._given = threading.Lock(), module
        self._own: Module | None = None
        _known[self.name] = self

    def __deepcopy__(self, memo: object) -> Code:
        return self

    @property
    def facts(self) -> Module:
        """The module, to read its manifest."""
        return self._given

    def ordered(self, x: object, named: Mapping[str, Tensor]) -> list[Tensor]:
        """All inputs, in this order: one is a tensor, several are a tuple or a dict."""
        values = x if isinstance(x, list | tuple) else [x]
        given = {**(x if isinstance(x, dict) else dict(zip(self.inputs, values, strict=False))), **named}
        given = {name: value for name, value in given.items() if name not in self.constants}
        if sorted(given) != sorted(self.inputs):
            raise InputError(message("the inputs are not the module's", got=[*given], expected=self.inputs))
        return [given[name] for name in self.inputs]

    def split(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> tuple[Sequence[Tensor], ...]:
        """Inputs, first states or none, weights, and what rows have, of all tensors of an operation."""
        first, last = len(self.inputs), len(tensors) - sum(numbers[:3])
        weights = last - len(self.weights)
        return tensors[:first], tensors[first:weights], tensors[weights:last], tensors[last:]

    def _alone(self) -> Module:
        """A module of its own."""
        if self._own is None:
            self._own = copy.copy(self._given)
            if isinstance(self._own, TrainingModule):
                self._own.tape_memory = _zeros  # the tape is a result: the same one for the same call
        return self._own

    def there(self, weights: Sequence[Tensor], way: str) -> CudaTrainingModule:
        """The same on a GPU, for one of its programs: "sequence", "forward_train" or "backward". The caller has the
        lock, and calls `let_go` of it afterwards."""
        own = self._alone()
        assert isinstance(own, CudaTrainingModule)
        if weights:
            own.use_there(dict(zip(self.weights, (value.detach() for value in weights), strict=True)), (way,))
        return own

    def module(self, weights: Sequence[Tensor]) -> Module:
        """A module of its own with these weights; the caller has the lock."""
        own, named = self._alone(), {n: array_of(n, value) for n, value in zip(self.weights, weights, strict=True)}
        held = own.weights
        if not all(name in held and np.array_equal(value, held[name]) for name, value in named.items()):
            own.load_weights(named)
        return own

    def named(self, flat: Sequence[Tensor]) -> States:
        """States by their names."""
        rest, found = iter(flat), {}
        for name, count in self.lists.items():
            found[name] = [next(rest) for _ in range(count)] if count else next(rest)
        return found

    def shapes(self, batch: int) -> list[Shape]:
        """Of the states, flat."""
        found: list[Shape] = []
        for name, (directions, _, layers) in self.facts._states.items():
            each = layers if self.lists[name] else layers[:1]
            rows = directions if self.lists[name] else directions * len(layers)
            found += [(rows, batch, *shape) for shape in each]
        return found


def array_of(name: str, weight: Tensor) -> np.ndarray:
    """A weight's memory, for a moment: after `numpy()` torch could not free it any more, as FSDP does between calls.
    Raises WeightError."""
    try:
        return np.from_dlpack(weight.detach().resolve_neg())  # which DLPack does not ask for
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return runtime._numpy(name, weight, WeightError)  # which says what it is


def _in_graph(name: str) -> Code:
    """The code of this name, which is in a graph now."""
    found: Code | None = getattr(IN_GRAPHS, name, None)
    if found is None:
        setattr(IN_GRAPHS, name, found := _code(name))
    return found


def put_in_graphs(name: str, module: Module) -> None:
    """So that graphs find a module of compiled_files by that name."""
    if name not in vars(IN_GRAPHS):
        setattr(IN_GRAPHS, name, Code(module, name))


def _code(name: str) -> Code:
    found = _known.get(name)
    if found is None and (module := kept(name)) is not None:
        found = Code(module, name)
    if found is None:
        do = "make the graph in this process, of a layer that lives"
        raise ConfigError(message("a graph calls compiled code that is not here", got=name, do=do))
    return found


def _arrays(code: Code, flat: Sequence[Tensor]) -> dict[str, Arrays] | None:
    """States as modules take them; None: there are none."""
    named = code.named([part.detach() for part in flat]) if flat else {}
    each = {n: [part.numpy() for part in v] if isinstance(v, list) else v.numpy() for n, v in named.items()}
    return each or None


def _inputs(given: Sequence[Tensor]) -> np.ndarray | list[np.ndarray]:
    values = [value.detach().numpy() for value in given]
    return values if len(values) > 1 else values[0]


def _plain(value: Tensor | None) -> np.ndarray | None:
    return None if value is None else value.numpy()


def _tensors(*results: object) -> list[Tensor]:
    """Of arrays, lists of them, and dicts of both."""
    found = []
    for value in results:
        if isinstance(value, np.ndarray):
            found.append(torch.from_numpy(value))
        elif isinstance(value, Mapping | list):
            found += _tensors(*(value.values() if isinstance(value, Mapping) else value))
    return found


def _zeros(elements: int, dtype: np.dtype) -> np.ndarray:
    array = runtime._aligned(elements, dtype)
    array.fill(0)
    return array


def unserved(code: Code, x: Tensor, max_bytes: int | None) -> str:
    """Why graphs cannot call a layer's code with x and that budget of memory; "": they can.

    Raises ConfigError where the graph is a program of its own."""
    why = (
        f"tensors on {x.device.type}" if x.device.type != code.device else "max_bytes" if max_bytes is not None else ""
    )
    why = "a cell with constants" if code.constants else why
    why = "torch.onnx.export" if exports_onnx() else why
    if why and for_others():
        do = "layer.max_bytes = None, or layer.compiled().export(path), which writes a file for any device"
        raise ConfigError(message("torch.export and traces have no compiled steps of this", got=why, do=do))
    return why


def exports_onnx() -> bool:
    """Whether torch.onnx makes a file of what runs: there are no operations of ours in it."""
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()


vars(exports_onnx)["_dynamo_marked_constant"] = True  # as torch.compiler.assume_constant_result, without Dynamo


def proxied() -> bool:
    """Whether torch's make_fx makes a graph of what runs."""
    return bool(torch._C._len_torch_dispatch_stack()) and torch._C._get_dispatch_mode(PROXY) is not None


def seen() -> bool:
    """Whether something of torch's looks at operations that run: `proxied`, or its counter of FLOPs."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    counts = (flop_counter.FlopCounterMode, getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode))
    return proxied() or any(isinstance(mode, counts) for mode in _get_current_dispatch_mode_stack())


def for_others() -> bool:
    """Whether that graph is a program of its own, which may be called with gradients or without."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def records(tensors: Iterable[Tensor], training: bool) -> bool:
    """Whether a graph has gradients. training: the layer's mode, which decides it for programs."""
    return (training if for_others() else torch.is_grad_enabled()) and any(tensor.requires_grad for tensor in tensors)


def steps_in_graph(
    code: Code,
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    rows: Mapping[str, object],
    training: bool,
) -> tuple[Tensor, States]:
    """What a layer returns, of the operations below. rows: lengths, reset, seed and first_step; training: the layer's
    mode."""
    given = [rows.get(name) for name in ("lengths", "reset", "seed")]
    present = [torch.as_tensor(value) for value in given if value is not None]
    if code.device == "cuda":
        weights = [value.to(code.exact).contiguous() for value in weights]
    tensors = [*inputs, *state, *weights, *present]
    numbers = [*(int(value is not None) for value in given), rows["first_step"] if "seed" in rows else 0]
    if "seed" in rows or records((*inputs, *state, *weights), training):
        y, *last = steps_recorded(code.name, tensors, numbers)
    else:
        y, *last = steps(code.name, tensors, numbers)
    return y, code.named(last)  # what is kept for backward comes behind the states


# --- the operations ---------------------------------------------------------------------------------------------------
#
# tensors: inputs, first states or none, weights, and of lengths, reset and seed those that there are; one list, as that
# of AOTInductor may not be empty. numbers: for each of the last three whether it is there, then that of the first step.


@torch.library.custom_op("tvm_rnn::steps", mutates_args=(), device_types="cpu")
def steps(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    """All steps, without gradients: y, then the last states."""
    own = _in_graph(code)
    inputs, state, weights, rows = own.split(tensors, numbers)
    lengths, reset, _ = _present(rows, numbers)
    with own.lock:
        found = own.module(weights)(_inputs(inputs), _arrays(own, state), lengths=lengths, reset=reset)
    return _tensors(*found)


@torch.library.custom_op("tvm_rnn::steps_recorded", mutates_args=(), device_types="cpu")
def steps_recorded(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    """All steps, with gradients: y, then the last states, then what is kept: the tape, and on a GPU, where backward
    reads y, the memory that has it with a step more."""
    own = _in_graph(code)
    inputs, state, weights, rows = own.split(tensors, numbers)
    lengths, reset, seed = _present(rows, numbers)
    x, first, step = _inputs(inputs), _arrays(own, state), numbers[3]
    with own.lock:
        module = own.module(weights)
        assert isinstance(module, TrainingModule)
        y, last, tape = module.forward_train(x, first, lengths=lengths, reset=reset, seed=seed, first_step=step)
    return _tensors(y, last, tape.array)


@torch.library.custom_op("tvm_rnn::gradients", mutates_args=(), device_types="cpu")
def gradients(
    code: str,
    kept: Sequence[Tensor],
    above: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    numbers: Sequence[int],
) -> list[Tensor]:
    """Of inputs, first states and weights. kept: as of `steps_recorded`; above: of y and the last states; tensors:
    inputs that are read again, weights, and what rows have; numbers: those above, then T and B."""
    own, (first_step, T, B), (tape,) = _code(code), numbers[3:], kept
    weights, rows = tensors[: len(own.weights)], tensors[len(own.weights) :]
    lengths, reset, seed = _present(rows, numbers)
    d_y, d_last = _above(own, above, B)
    carried = _arrays(own, d_last) if d_last else None
    with own.lock:
        module = own.module(weights)
        assert isinstance(module, TrainingModule)
        again = module.tape_of(tape.numpy(), (T, B), lengths, reset, seed, first_step)
        d_x, d_first, d_weights = module._gradients(again, _plain(d_y), carried)
    return _tensors(d_x, d_first, d_weights)


def _above(code: Code, above: Sequence[Tensor | None], batch: int) -> tuple[Tensor | None, list[Tensor]]:
    """The gradient of y, and those of the last states, or none of them."""
    d_y, *d_last = [None if d is None else d.detach() for d in above]
    one = next((d for d in d_last if d is not None), None)
    if one is None:
        return d_y, []
    pairs = zip(d_last, code.shapes(batch), strict=True)
    return d_y, [one.new_zeros(shape) if d is None else d for d, shape in pairs]


def _rows(rows: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor | None]:
    """lengths, reset and seed. Traces know no lists of what may be None."""
    values = iter(rows)
    return [next(values) if there else None for there in numbers[:3]]


def _present(rows: Sequence[Tensor], numbers: Sequence[int]) -> tuple[Plain, Plain, int | None]:
    """The same as modules for CPUs take them."""
    lengths, reset, seed = map(_plain, _rows(rows, numbers))
    return lengths, reset, None if seed is None else int(seed.item())


# --- the same on a GPU ------------------------------------------------------------------------------------------------


@steps.register_kernel("cuda")
def _steps_there(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    own = _in_graph(code)
    inputs, state, weights, rows = own.split(tensors, numbers)
    lengths, reset, _ = _rows(rows, numbers)
    with own.lock:
        module = own.there(weights, "sequence")
        y, last = module(_one(inputs), own.named(state) if state else None, lengths=lengths, reset=reset)
        module.let_go()
    return _apart(y, last)


@steps_recorded.register_kernel("cuda")
def _recorded_there(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    own = _in_graph(code)
    inputs, state, weights, rows = own.split(tensors, numbers)
    lengths, reset, seed = _rows(rows, numbers)
    first, more = own.named(state) if state else None, {"lengths": lengths, "reset": reset, "seed": _seed(seed)}
    with own.lock:
        module = own.there(weights, "forward_train")
        y, last, tape = module.forward_train(_one(inputs), first, first_step=numbers[3], **more)
        module.let_go()
    counts = _kept_bytes(own, y.shape[0], y.shape[1], numbers)
    none = torch.empty(0, dtype=torch.uint8, device=y.device)
    whole = [none.clone().set_(y.untyped_storage(), 0, (count,)) for count in counts[1:]]
    return [y.clone() if whole else y, *_apart(last), tape.array if counts[0] else none, *whole]


@gradients.register_kernel("cuda")
def _gradients_there(
    code: str,
    kept: Sequence[Tensor],
    above: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    numbers: Sequence[int],
) -> list[Tensor]:
    own, (first_step, T, B) = _code(code), numbers[3:]
    inputs, rest = tensors[: own.read], tensors[own.read :]
    weights, (lengths, reset, seed) = rest[: len(own.weights)], _rows(rest[len(own.weights) :], numbers)
    d_y, d_last = _above(own, above, B)
    with own.lock:
        module = own.there(weights, "backward")
        tape = module.tape_of(kept, (T, B), inputs, (lengths, reset), _seed(seed), first_step)
        found = module._gradients(tape, d_y, own.named(d_last) if d_last else None)
        module.let_go()
    return _apart(*found)


def _kept_bytes(code: Code, T: int, B: int, numbers: Sequence[int]) -> list[int]:
    """Of the tape, and where backward reads y, of the memory that has it with a step more."""
    manifest, flagged = code.facts.manifest, any(numbers[:2])
    y = ITEM_BYTES[manifest["dtype"]] * (T + 1) * B * math.prod(code.facts._output)
    return [tape_bytes(manifest, T, B, flagged), *([y] if reads_output(manifest, flagged) else [])]


def _one(inputs: Sequence[Tensor]) -> Tensor | list[Tensor]:
    return [*inputs] if len(inputs) > 1 else inputs[0]


def _seed(seed: Tensor | None) -> Tensor | int | None:
    """One of the CPU as a number."""
    return int(seed) if seed is not None and seed.is_cpu else seed


def _apart(*results: object) -> list[Tensor]:
    """Tensors, of those, lists of them, and dicts of both, each with memory of its own."""
    found: list[Tensor] = []
    for value in results:
        if isinstance(value, Tensor):
            shared = value.untyped_storage().nbytes() > value.nbytes
            found.append(value.clone() if shared else value)
        elif isinstance(value, Mapping | list):
            found += _apart(*(value.values() if isinstance(value, Mapping) else value))
    return found


# --- their shapes and gradients ---------------------------------------------------------------------------------------


@steps.register_fake
def _steps_shapes(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    own, x = _in_graph(code), tensors[0]
    T, B = x.shape[:2]
    return [x.new_empty((T, B, *own.facts._output)), *(x.new_empty(shape) for shape in own.shapes(B))]


@steps_recorded.register_fake
def _recorded_shapes(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    own, x = _in_graph(code), tensors[0]
    T, B = x.shape[:2]
    found = _steps_shapes(code, tensors, numbers)
    if own.device == "cpu":
        return [*found, x.new_empty((tape_elements(own.facts.manifest, T, B, T),))]
    return [*found, *(x.new_empty((count,), dtype=torch.uint8) for count in _kept_bytes(own, T, B, numbers))]


@gradients.register_fake
def _gradients_shapes(code: str, kept: Sequence[Tensor], *given: Sequence[int]) -> list[Tensor]:
    own, (*_, T, B) = _in_graph(code), given[-1]
    shapes = [(T, B, *shape) for _, shape in own.facts._inputs] + own.shapes(B)
    rows = [kept[0].new_empty(shape, dtype=own.kind) for shape in shapes]
    return [*rows, *(kept[0].new_empty(shape, dtype=own.exact) for shape in own.weights.values())]


Op: TypeAlias = "tuple[str, Sequence[Tensor], Sequence[int]]"


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: Op, output: Sequence[Tensor]) -> None:
    code, tensors, numbers = inputs
    own = _code(code)
    given, state, weights, rows = own.split(tensors, numbers)
    ctx.code, ctx.stated, ctx.numbers = code, bool(state), [*numbers, *tensors[0].shape[:2]]
    ctx.results = 1 + sum(count or 1 for count in own.lists.values())
    kept = output[ctx.results :]
    ctx.kept = len(kept)
    ctx.save_for_backward(*kept, *given[: own.read], *weights, *rows)
    ctx.set_materialize_grads(False)


def _backward(ctx: torch.autograd.function.FunctionCtx, d: Sequence[Tensor | None]) -> tuple[object, ...]:
    own, saved, count = _code(ctx.code), ctx.saved_tensors, sum(ctx.numbers[:3])
    kept, rest = saved[: ctx.kept], saved[ctx.kept :]
    found = gradients(own.name, [*kept], list(d[: ctx.results]), rest, ctx.numbers)
    one = len(own.inputs)
    two = one + ctx.results - 1
    states = found[one:two] if ctx.stated else []
    return None, [*found[:one], *states, *found[two:], *[None] * count], None


steps_recorded.register_autograd(_backward, setup_context=_save)


@flop_counter.register_flop_formula([torch.ops.tvm_rnn.steps, torch.ops.tvm_rnn.steps_recorded])
def _flops(code: str, tensors: Sequence[Shape], numbers: Sequence[int], **_: object) -> int:
    """Of all steps, pointwise work too. Arguments: as of the operation, of tensors their shapes."""
    return _flops_of(code, *tensors[0][:2])


@flop_counter.register_flop_formula(torch.ops.tvm_rnn.gradients)
def _flops_of_gradients(code: str, *given: Sequence[int], **_: object) -> int:
    """Each product has two gradients."""
    return 2 * _flops_of(code, *given[-1][-2:])


def _flops_of(code: str, T: int, B: int) -> int:
    return T * B * int(_code(code).facts._flops)
