"""torch.nn's recurrent layers as RNNs with weights, and back, bit for bit.

In: a torch.nn.RNN, LSTM or GRU, one of their cells, a ScriptModule that has one, or such a layer's state_dict, in
memory, inside of a checkpoint, or in a .safetensors file.
Out: an `RNN` of one of the zoo's cells; from such an RNN torch's own names and tensors, or a layer of torch.nn again.

torch has two biases per layer where our cells have their sum: `Origin.biases` keeps the two, so that the way back gives
them again as long as the sum has not changed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin, same_bits, sha256_of
from tvm_rnn.network.rnn import RNN
from tvm_rnn.network.tensor_files import open_safetensors

from .. import cells
from ..dtypes import held_dtype, summed
from ..errors import ConfigError, WeightError, message, not_installed
from .torch_blocks import read_block
from .torch_model import from_model
from .torch_names import GATES, Form, Given, locate, read_form, select

if TYPE_CHECKING:
    import torch

Array = np.ndarray

NUMPY_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def from_torch(
    source: object,
    kind: object = None,
    *,
    prefix: str | None = None,
    nonlinearity: str = "tanh",
    batch_first: bool | None = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
) -> RNN | Model:
    """An RNN with the weights of a layer of torch.nn; or, with an example of its inputs, a whole model.

    A whole model, `from_torch(model, example)`, goes through torch.onnx and `from_onnx`: what it does on the example is
    what is compiled, its recurrent layers as networks. Inputs are called as forward's parameters, results y0, y1 ...

    Inputs and outputs of the RNN lie as the layer's do: [T, B, ...], or [B, T, ...] of a layer with batch_first=True.
    Weights are copies; `state_dict(net)` gives torch's names
    and the same bits again. Dropout between layers acts in training, as everywhere.

    Args:
        source: a torch.nn.RNN, LSTM, GRU, RNNCell, LSTMCell or GRUCell (float32, float64, float16 or bfloat16, on any
            device; every option), a state_dict of one by torch's names, a checkpoint with a state_dict somewhere inside
            (`net.origin.layer` says where it was), a ScriptModule, or the path of a .safetensors file with these names.
            Of Hugging Face's transformers a Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet or
            RecurrentGemmaRecurrentBlock, whole, which have the batch first.
        kind: for a state_dict or a file: "LSTM", "GRU" or "RNN"; where the shapes tell, it may be left out. For a whole
            model its example: a tensor, or a tuple of them, in the order of forward's parameters.
        prefix: which of a larger model's names are meant, "encoder.rnn."; only needed where several layers are there.
        nonlinearity: of kind "RNN": "tanh" or "relu".
        batch_first: of the RNN: True: [B, T, ...]; False: [T, B, ...], whatever the layer has. None: as the layer; of
            names and files, which do not say, False.
        axes: of a whole model, the axes that may have another size than in the example: {"x": {0: "B", 1: "T"}}.

    Returns:
        The RNN; of a whole model what `from_onnx` gives: `rnn.compile(net).run({"x": x})`.

    Raises:
        ConfigError: the layer is not supported, or its kind cannot be told; a whole model cannot be exported, or has
            operators that are not supported.
        WeightError: weights do not fit, or a file has none.
    """
    if isinstance(source, (str, os.PathLike)):
        net = _from_file(os.fspath(source), kind, prefix, nonlinearity)
    elif isinstance(source, Mapping):
        net = _from_names(source, kind, prefix, nonlinearity)
    else:
        torch = _import_torch()
        if _is_example(kind, torch):
            if batch_first is not None:
                do = "leave it out: a whole model's inputs lie as the example does"
                raise ConfigError(message("from_torch: batch_first= is for layers", got=f"{batch_first!r}", do=do))
            return from_model(source, kind, axes or {})
        if axes:
            raise ConfigError(message("from_torch: axes= is for whole models", do="give an example of the inputs too"))
        scripted = isinstance(source, torch.jit.ScriptModule)
        net = _from_script(source, kind, prefix, nonlinearity) if scripted else _from_module(source)
    net.batch_first = net.batch_first if batch_first is None else bool(batch_first)
    return net


def _is_example(value: object, torch: ModuleType) -> bool:
    parts = value if isinstance(value, tuple | list) else (value,)
    return bool(parts) and all(isinstance(part, torch.Tensor) for part in parts)


def _from_names(source: Mapping[str, object], kind: object, prefix: str | None, nonlinearity: str) -> RNN:
    """Of a state_dict, or of a checkpoint that has one inside."""
    at, found = locate(source, prefix)
    values = {str(name): value for name, value in found.items()}
    names, prefix = select(values, prefix)  # a larger model's other arrays may be anything
    form, arrays = read_form({name: _array(name, values[name]) for name in names}, kind, prefix, nonlinearity)
    return _network(form, arrays, Origin("torch", _layer_name(form, prefix, at)))


def _from_file(path: str, kind: object, prefix: str | None, nonlinearity: str) -> RNN:
    if path.endswith((".pt", ".pth", ".bin", ".ckpt", ".pkl")):
        do = "load it yourself with torch.load(path, weights_only=True) and pass that, or write it as .safetensors"
        raise ConfigError(message("from_torch does not open pickles: they can run code", got=repr(path), do=do))
    tensors = open_safetensors(path)
    names, prefix = select(tensors, prefix)  # a larger model's other arrays are never read
    arrays = {}
    for name in names:
        dtype = NUMPY_DTYPES.get(tensors[name].dtype)
        if dtype is None:
            raise _wrong_dtype(name, tensors[name].dtype)
        arrays[name] = (tensors[name].read(), dtype)
    form, arrays = read_form(arrays, kind, prefix, nonlinearity)
    return _network(form, arrays, Origin("torch", _layer_name(form, prefix), path, sha256_of(path)))


def _layer_name(form: Form, prefix: str, at: str = "") -> str:
    """Its class, and where it was: below a prefix, and at which place of a checkpoint."""
    name = f"torch.nn.{form.kind}{'Cell' if form.single else ''}"
    return f"{name}{f' {prefix[:-1]!r}' if prefix else ''}{f' in checkpoint{at}' if at else ''}"


# --- a layer in memory -----------------------------------------------------------------------------------------------


def _from_module(layer: torch.nn.Module) -> RNN:
    torch = _import_torch()
    known = {name: getattr(torch.nn, name) for name in (*GATES, *(f"{kind}Cell" for kind in GATES))}
    if isinstance(layer, torch.nn.Module) and (net := _from_block(layer)) is not None:
        return net
    name = next((n for n, base in known.items() if isinstance(layer, base)), None)
    # The forward() of our own layers names the one of torch's that it stands for.
    if name is None or inspect.unwrap(type(layer).forward) is not known[name].forward:
        raise _no_layer(layer, torch, known)
    form = form_of_layer(layer, name)
    first = not form.single and bool(layer.batch_first)
    arrays = {n: _array(n, getattr(layer, n)) for n in form.shapes()}
    dropout = float(layer.dropout) if form.num_layers > 1 else 0.0  # it acts between layers
    return _network(form, arrays, Origin("torch", f"torch.nn.{name}", batch_first=first), dropout)


def form_of_layer(layer: torch.nn.Module, name: str) -> Form:
    """What a layer of torch.nn is, in torch's words. name: of its class there."""
    single = name.endswith("Cell")
    return Form(
        kind=name.removesuffix("Cell"),
        input_size=layer.input_size,
        hidden_size=layer.hidden_size,
        num_layers=1 if single else layer.num_layers,
        bias=bool(layer.bias),
        bidirectional=False if single else bool(layer.bidirectional),
        proj_size=0 if single else layer.proj_size,
        nonlinearity=layer.nonlinearity if name in ("RNN", "RNNCell") else "tanh",
        single=single,
    )


def _from_script(script: torch.jit.ScriptModule, kind: object, prefix: str | None, nonlinearity: str) -> RNN:
    """Of a ScriptModule its weights; a layer that was scripted, and not traced, also says its options."""
    values = script.state_dict()
    names, prefix = select(values, prefix)
    part = dict(script.named_modules())[prefix.removesuffix(".")]
    name, where = part.original_name, part._c._type().qualified_name()
    if not where.startswith("__torch__.torch.nn.modules.rnn."):
        do = "pass script.state_dict() if its equations are torch's, else write them as a cell"
        raise ConfigError(message("from_torch: not a recurrent layer of torch.nn", got=where, do=do))
    first = bool(getattr(part, "batch_first", False))
    told = getattr(part, "mode", name if hasattr(part, "nonlinearity") or not name.startswith("RNN") else None)
    arrays = {name: _array(name, values[name]) for name in names}
    form, arrays = read_form(arrays, kind or told, prefix, getattr(part, "nonlinearity", nonlinearity))
    dropout = float(getattr(part, "dropout", 0.0)) if form.num_layers > 1 else 0.0
    return _network(form, arrays, Origin("torch", _layer_name(form, prefix), batch_first=first), dropout)


def _from_block(module: torch.nn.Module) -> RNN | None:
    """A block of a large model, [B, T, ...] as all of them are; None where it is of no known class."""
    given = dict(module.named_parameters())
    dtypes: set[str] = set()

    def read(name: str) -> Array:
        array, dtype = _array(name, given[name])
        dtypes.add(dtype)
        return array

    block = read_block(module, read)
    if block is None:
        return None
    # Parameters that are kept in float32 beside others in 16 bits: the network is of the dtype of most.
    dtype = _array("", next(p for p in given.values() if p.ndim > 1))[1]
    net = RNN(block.cell, block.input_size, dtype=dtype, batch_first=True)
    held = held_dtype(dtype)
    return net.load({weight_name(name, 0, 0): np.asarray(value, held) for name, value in block.weights.items()})


def _import_torch() -> ModuleType:
    try:
        import torch
    except ImportError:
        more = "weights in a .safetensors file or a dict of arrays need no torch"
        raise ConfigError(not_installed("torch", more)) from None
    return torch


def _no_layer(layer: object, torch: ModuleType, known: Mapping[str, type[object]]) -> ConfigError:
    expected = ", ".join(f"torch.nn.{name}" for name in known) + ", a state_dict, or a .safetensors file"
    got = f"{type(layer).__module__}.{type(layer).__qualname__}"
    do = "pass one of these; or a whole model with an example: from_torch(model, x)"
    if isinstance(layer, torch.nn.Module):
        inside = [n for n, part in layer.named_modules() if n and isinstance(part, tuple(known.values()))]
        if inside:
            layers = ", ".join(f"model{_attribute(n)}" for n in inside)
            do = f"pass the layer itself: {layers}; or the whole model with an example: from_torch(model, x)"
        elif isinstance(layer, tuple(known.values())):
            got, do = f"{got}, which has a forward() of its own", "write its equations as a cell"
    return ConfigError(message("from_torch: not a recurrent layer of torch.nn", got=got, expected=expected, do=do))


def _attribute(path: str) -> str:
    """A submodule's name as Python: "0.rnn" is [0].rnn, as a Sequential has it."""
    return "".join(f".{part}" if part.isidentifier() else f"[{part}]" for part in path.split("."))


def _tensor_array(name: str, tensor: torch.Tensor) -> tuple[Array, str]:
    if tensor.is_meta:
        do = "give it weights: layer.to_empty(device='cpu'), then load_state_dict"
        raise WeightError(message(f"parameter {name} has no values", got="a tensor on device meta", do=do))
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in NUMPY_DTYPES.values():
        raise _wrong_dtype(name, dtype)
    tensor = tensor.detach().cpu()
    return (tensor.float() if dtype == "bfloat16" else tensor).numpy(), dtype


def _array(name: str, value: object) -> tuple[Array, str]:
    """A parameter as NumPy array (16 bits widened to float32) and the name of its dtype."""
    if hasattr(value, "detach"):
        return _tensor_array(name, value)
    array = np.asarray(value)
    if array.dtype.name not in NUMPY_DTYPES.values():
        raise _wrong_dtype(name, array.dtype.name)
    return array, array.dtype.name


def _wrong_dtype(name: str, dtype: str) -> WeightError:
    expected = ", ".join(NUMPY_DTYPES.values())
    return WeightError(message(f"parameter {name} has an unsupported dtype", got=dtype, expected=expected))


# --- torch's arrays to ours and back ---------------------------------------------------------------------------------


def _network(form: Form, given: Given, origin: Origin, dropout: float = 0.0) -> RNN:
    """origin: framework, name of the layer and file; options and biases are added here. dropout: between layers."""
    dtypes = {dtype for _, dtype in given.values()}
    if len(dtypes) > 1:
        raise WeightError(message("from_torch: the parameters differ in dtype", got=", ".join(sorted(dtypes))))
    (dtype,) = dtypes
    make = partial(RNN, form.cell, form.input_size, form.hidden_size, form.num_layers, form.bidirectional, dtype)
    net = make(dropout=dropout, P=form.proj_size) if form.proj_size else make(dropout=dropout)
    net.batch_first = origin.batch_first
    arrays = {name: np.array(array, held_dtype(dtype)) for name, (array, _) in given.items()}
    weights: dict[str, Array] = {}
    biases = {}
    for layer_index, d in form.places:
        W, R, *pair = (
            arrays.get(form.name(n, layer_index, d)) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        assert W is not None and R is not None
        zero = np.zeros(len(W), W.dtype)
        one, two = (zero if bias is None else bias for bias in pair)
        own: dict[str, Array] = {"W": W, "R": R, **_sum(form.kind, one, two, dtype)}
        if form.proj_size:
            own["W_P"] = arrays[form.name("weight_hr", layer_index, d)]
        for name, value in own.items():
            full = weight_name(name, layer_index, d)
            weights[full] = value.reshape(net.weight_shapes[full])
        biases[weight_name("b", layer_index, d)] = (one, two)
    net.load(weights)
    names = {"bias": form.bias, "single": form.single}
    net.origin = replace(origin, options=names, biases=biases if form.bias else {})
    return net


def _sum(kind: str, one: Array, two: Array, dtype: str) -> dict[str, Array]:
    """Our bias of torch's two; a GRU keeps the second one's last third apart, which the reset gate multiplies."""
    if kind != "GRU":
        return {"b": summed(one, two, dtype)}
    H = len(one) // 3
    joined = summed(one[: 2 * H], two[: 2 * H], dtype)
    return {"b": np.concatenate([joined, one[2 * H :]]), "b_R": two[2 * H :]}


def form_of(net: RNN) -> Form:
    """The layer of torch.nn with this network's equations and sizes. Raises ConfigError where torch has none."""
    kinds = {
        cells.lstm: "LSTM",
        cells.lstm_projection: "LSTM",
        cells.gru: "GRU",
        cells.elman: "RNN",
        cells.elman_relu: "RNN",
    }
    if not isinstance(net, RNN):
        raise ConfigError(message("this is not an RNN", got=f"{net!r:.80}", do="pass what from_torch or RNN gave"))
    if net.cell not in kinds:
        expected = ", ".join(cell.name for cell in kinds)
        do = "rnn.to_onnx(net, path) writes any cell"
        raise ConfigError(message("torch.nn has no layer of this cell", got=net.cell.name, expected=expected, do=do))
    if net.reverse:
        do = "flip the steps of inputs and outputs around the layer of a forward network"
        raise ConfigError(message("torch.nn has no layer of the reverse direction alone", got=repr(net), do=do))
    if len({tuple(sorted((k, v) for k, v in layer.sizes.items() if k != "I")) for layer in net.layers}) > 1:
        got = [layer.sizes for layer in net.layers]
        raise ConfigError(message("torch.nn's layers are all of one size", got=got, do="make one layer of each"))
    options = net.origin.options if net.origin is not None else {}
    return Form(
        kind=kinds[net.cell],
        input_size=net.input_size,
        hidden_size=net.layers[0].sizes["H"],
        num_layers=net.num_layers,
        bias=bool(options.get("bias", True)) or _any_bias(net),
        bidirectional=net.bidirectional,
        proj_size=net.layers[0].sizes.get("P", 0),
        nonlinearity="relu" if net.cell is cells.elman_relu else "tanh",
        single=bool(options.get("single", False)),
    )


def _any_bias(net: RNN) -> bool:
    """Whether a bias that torch's layer did not have has been given values since."""
    return any(value.any() for name, value in net.weights.items() if name.startswith(("b_l", "b_R_l")))


def state_arrays(net: RNN) -> dict[str, Array]:
    """The weights by torch's names and in its shapes, float32 for the 16-bit dtypes.

    Where biases are still the sums of those that the network came with, those; else our b and zeros.
    """
    form = form_of(net)
    if not net.weights:
        raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
    net.check_weights()
    biases = net.origin.biases if net.origin is not None else {}
    found: dict[str, Array] = {}
    for layer, d in form.places:
        own = {p: net.weights[weight_name(p, layer, d)] for p in ("W", "R", "b")}
        if form.kind == "GRU":
            own["b_R"] = net.weights[weight_name("b_R", layer, d)]
        values = {"weight_ih": own["W"].reshape(-1, own["W"].shape[-1])}
        values["weight_hh"] = own["R"].reshape(-1, own["R"].shape[-1])
        if form.bias:
            pair = split_biases(form.kind, own, biases.get(weight_name("b", layer, d)), net.dtype)
            values["bias_ih"], values["bias_hh"] = pair
        if form.proj_size:
            values["weight_hr"] = net.weights[weight_name("W_P", layer, d)]
        found |= {form.name(name, layer, d): np.array(value) for name, value in values.items()}
    return found


def split_biases(
    kind: str, own: Mapping[str, Array], pair: tuple[Array, Array] | None, dtype: str
) -> tuple[Array, Array]:
    """The two biases of one direction, flat: those that the network came with while they still add up to its own, else
    ours and zeros. kind: "GRU" for one whose reset gate comes after the product, anything else for a plain sum."""
    if pair is not None:
        again = _sum(kind, *pair, dtype)
        if all(same_bits(value.reshape(own[name].shape), own[name]) for name, value in again.items()):
            return pair
    one = own["b"].reshape(-1)
    two = np.zeros_like(one)
    if kind == "GRU":
        two[-len(own["b_R"]) :] = own["b_R"]
    return one, two


def state_dict(net: RNN) -> dict[str, torch.Tensor]:
    """The weights as torch tensors of the network's dtype by torch's names, for `load_state_dict`.

    Args:
        net: an RNN with weights.

    Returns:
        {name: tensor}: the same bits that `from_torch` was given, unless weights were changed since.

    Raises:
        ConfigError: torch.nn has no layer of this cell, or torch is not installed.
        WeightError: there are no weights.
    """
    torch, arrays = _import_torch(), state_arrays(net)
    dtype = getattr(torch, net.dtype)
    return {name: torch.from_numpy(value).to(dtype) for name, value in arrays.items()}


def to_torch_layer(net: RNN) -> torch.nn.Module:
    """The layer of torch.nn with this network's weights.

    Args:
        net: an RNN with weights.

    Returns:
        An RNN, LSTM or GRU of torch.nn, or the cell that the network was made from; in eval mode, on the CPU, with
        batch_first as the network, or as the layer that it came from, and its dropout between layers.

    Raises:
        ConfigError, WeightError: as `state_dict` does, and for regularisers that torch.nn does not have.
    """
    own = net.regularisers.facts() if isinstance(net, RNN) else {}
    if strange := [name for name in own if name != "dropout"]:
        do = "make the network without them"
        raise ConfigError(message("torch.nn's layers have no such regularisers", got=", ".join(strange), do=do))
    torch, values, form = _import_torch(), state_dict(net), form_of(net)
    options: dict[str, object] = {"bias": form.bias, "dtype": getattr(torch, net.dtype)}
    if form.kind == "RNN":
        options["nonlinearity"] = form.nonlinearity
    if form.single:
        layer = getattr(torch.nn, f"{form.kind}Cell")(form.input_size, form.hidden_size, **options)
    else:
        if form.proj_size:
            options["proj_size"] = form.proj_size
        options |= {"num_layers": form.num_layers, "bidirectional": form.bidirectional, **own}
        options["batch_first"] = net.batch_first or (net.origin is not None and net.origin.batch_first)
        layer = getattr(torch.nn, form.kind)(form.input_size, form.hidden_size, **options)
    layer.load_state_dict(values)
    return layer.eval()
