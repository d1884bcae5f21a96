"""rnn.nn.Cell: any cell over time as a layer of torch's kind, which compiles when it is first called.

In: a cell and sizes. Out: a torch.nn.Module as `to_torch` makes them, called as torch's layers are: states are a tensor
or a tuple. `compiler/compiled_files.py` keeps its code on disk.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tvm_rnn.compiler.compiled_files import compiled_once
from tvm_rnn.errors import ConfigError, InputError, message
from tvm_rnn.language.cell import Cell as Equations
from tvm_rnn.network.rnn import RNN as Network

from .autograd import Compiled, State, TorchLayer, drawn_seed, each, flat
from .graph_ops import Code

Part: TypeAlias = "Tensor | list[Tensor]"  # a list where layers differ in shape
Hidden: TypeAlias = "Part | tuple[Part, ...]"
SERVED = {
    "cpu": (torch.float32, torch.float64),
    "cuda": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
}
TARGETS = {"cpu": "llvm", "cuda": "cuda"}
_compiling = threading.RLock()


def packed_as(x: PackedSequence, y: Tensor, lengths: Tensor) -> PackedSequence:
    """y [T, B, ...] and lengths [B], in the order of x before its rows were sorted, packed as x is."""
    if x.sorted_indices is not None:
        y, lengths = y.index_select(1, x.sorted_indices), lengths[x.sorted_indices.cpu()]
    return PackedSequence(pack_padded_sequence(y, lengths).data, *x[1:])


class Cell(TorchLayer):
    """A cell over time, called as torch.nn.GRU is: `y, h = layer(x)`, `y, (h, c) = layer(x, (h, c))`.

    Its parameters have the names of `rnn.RNN(cell, ...).weights` and begin as `RNN.init` says, drawn by torch's
    generator. Code for training is compiled in the first call, for the parameters' device and dtype. Copies and pickles
    have parameters and no code; a pickle finds the cell under its name in its module.

    Args:
        cell: a Cell of `rnn.cells`, or a user's own.
        input_size: as of `rnn.RNN`.
        hidden_size: as of `rnn.RNN`.
        num_layers: as of `rnn.RNN`.
        bidirectional: as of `rnn.RNN`.
        batch_first: x, y, further inputs and reset are [B, T, ...]; states are [L*D, B, ...] all the same.
        dtype: torch's, of parameters and tensors; None: torch.get_default_dtype().
        device: of the parameters, as torch's layers have it.
        **options: of `rnn.RNN`: dropout and other regularisers, reverse, other axes of the cell.

    Raises:
        ConfigError: an argument is wrong.
        CellError: the equations do not fit these sizes.
    """

    def __init__(
        self,
        cell: Equations,
        input_size: int,
        hidden_size: int | Sequence[int] | None = None,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        torch.nn.Module.__init__(self)
        self.batch_first, self.form, self._told = batch_first, None, set[str]()
        self._budget: int | None = None
        self._made_of = (cell, input_size, hidden_size, num_layers, bidirectional), options
        kind = dtype or torch.get_default_dtype()
        self._begin(kind)
        self._names = [*self.net.weight_shapes]
        for name, shape in self.net.weight_shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=kind, device=device)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin again with new values of torch's generator."""
        self.net.init(int(drawn_seed()))
        with torch.no_grad():
            for name, value in self.net.weights.items():
                self.get_parameter(name).copy_(torch.tensor(value))
        self.net.weights = {}

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: Hidden | State | None = None,
        *,
        lengths: object = None,
        reset: object = None,
        seed: int | None = None,
        first_step: int = 0,
        **inputs: Tensor,
    ) -> tuple[Tensor | PackedSequence, Compiled]:
        """All steps: y, then the last state, or a tuple of the last states in the cell's order.

        x: [T, B, ...], with batch_first [B, T, ...], or one row without B; or packed, as y is then, with all else in
        the order of its rows before they were sorted. state: of the form of x too, also by name. inputs: further inputs
        of the cell and its constants, by name. The rest: as of `to_torch`'s layers."""
        if isinstance(x, PackedSequence):
            if lengths is not None:
                raise InputError(message("a packed x has its lengths", got="lengths= too", do="leave out lengths="))
            values, lengths = pad_packed_sequence(x, self.batch_first)
            y, last = self.forward(
                values, state, lengths=lengths, reset=reset, seed=seed, first_step=first_step, **inputs
            )
            return packed_as(x, y.transpose(0, 1) if self.batch_first else y, lengths), last
        state = self._named(state)
        if not isinstance(x, Tensor):
            do = "torch.from_numpy(x)"
            raise InputError(message("this layer takes tensors", got=type(x).__name__, expected="torch.Tensor", do=do))
        self._ready([x, *flat(state), *inputs.values()])
        rows, constants = 0 if self.batch_first else 1, self._code.constants
        single = x.dim() == self._axes

        def steps(value: Tensor) -> Tensor:
            value = value.unsqueeze(rows) if single else value
            return value.transpose(0, 1) if self.batch_first else value

        more = {n: (v.unsqueeze(0) if single else v) if n in constants else steps(v) for n, v in inputs.items()}
        again = None if reset is None else steps(torch.as_tensor(reset))
        state = each(state, lambda part: part.unsqueeze(1)) if single else state
        y, found = self._all_steps(
            steps(x), state, lengths=lengths, reset=again, seed=seed, first_step=first_step, **more
        )
        y = y.transpose(0, 1) if self.batch_first else y
        last = each(found, lambda part: part.squeeze(1)) if single else found
        assert last is not None
        parts = tuple(last[name] for name in self._states)
        return y.squeeze(rows) if single else y, parts if len(parts) != 1 else parts[0]

    def compiled(self) -> Compiled:
        """As of `to_torch`'s layers."""
        self._ready([])
        return super().compiled()

    @property
    def max_bytes(self) -> int | None:
        """How much memory a step of training may take besides its results."""
        return self._budget

    @max_bytes.setter
    def max_bytes(self, count: int | None) -> None:
        self._budget = count
        if self._use is not None:
            self._module.max_bytes = count

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("net", "_module", "_code", "_use")}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._begin(next(iter(self.parameters())).dtype if self._names else torch.get_default_dtype())

    def _begin(self, kind: torch.dtype) -> None:
        """Be a network of this dtype, without code."""
        given, options = self._made_of
        self.net = Network(*given, str(kind).removeprefix("torch."), **options)
        self._use: tuple[str, torch.dtype] | None = None
        self._axes = 1 + len(next(iter(self.net.input_shapes.values())))
        self._states = [item.name for item in self.net.cell.states if item.name not in self.net.cell.constants]

    def _named(self, state: Hidden | State | None) -> State | None:
        """The states by name, as compiled modules take them."""
        if state is None or isinstance(state, Mapping):
            return state
        several = isinstance(state, tuple) or (isinstance(state, list) and len(self._states) > 1)
        parts = [*state] if several else [state]
        if len(parts) != len(self._states):
            names = ", ".join(self._states)
            do = f"give a tuple ({names})" if len(self._states) > 1 else f"give {names} alone"
            raise InputError(message(f"{self.net.cell.name}: wrong number of states", got=len(parts), do=do))
        return dict(zip(self._states, parts, strict=True))

    def _ready(self, values: Sequence[object]) -> None:
        """Compile, unless that was done for what the parameters are now. values: what a call is given."""
        given = [part for part in values if isinstance(part, Tensor)]
        own = next((getattr(self, name) for name in self._names), given[0] if given else torch.empty(()))
        if any(part.device != own.device for part in given):
            devices = ", ".join(dict.fromkeys(str(part.device) for part in given))
            where, do = (
                f"{self.net.cell.name}, whose parameters are on {own.device}",
                "layer.to(x.device), and its state",
            )
            raise InputError(message("the layer's tensors are on several devices", where=where, got=devices, do=do))
        use = own.device.type, own.dtype
        if use != self._use:
            (_compile_apart if "torch._dynamo" in sys.modules else Cell._compile)(self, *use)

    def _compile(self, device: str, kind: torch.dtype) -> None:
        if kind not in SERVED.get(device, ()):
            expected = "float32 or float64 on a CPU; these, float16 or bfloat16 on an NVIDIA GPU"
            what, do = "compiled code does not serve these parameters", "layer.to(device, dtype)"
            raise ConfigError(message(what, got=f"{kind} on {device}", expected=expected, do=do))
        with _compiling:
            if self.net.dtype != str(kind).removeprefix("torch."):
                self._begin(kind)
            module: Compiled = compiled_once(self.net, TARGETS[device], True)
            module.max_bytes = self._budget
            self._module, self._code, self._use = module, Code(module), (device, kind)


_compile_apart = torch._disable_dynamo(Cell._compile)  # its first call imports Dynamo
