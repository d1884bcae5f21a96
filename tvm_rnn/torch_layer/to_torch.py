"""to_torch: an RNN as a torch.nn.Module that torch trains: parameters, autograd, optimisers, state_dict.

In: an RNN with weights, and a target. Out: a layer that is called as a compiled Module is; the class
that it is of needs torch, and lives in `autograd.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_rnn.errors import ConfigError, WeightError, message, not_installed, unknown
from tvm_rnn.frontends.torch import form_of
from tvm_rnn.network.rnn import RNN, no_network

if TYPE_CHECKING:
    from tvm_rnn.target import Target

    from .autograd import Compiled, TorchLayer

NAMES = ("net", "torch")


def to_torch(
    net: RNN, target: str | Target = "llvm", names: str = "net", max_bytes: int | None = None, **options: Any
) -> TorchLayer:
    """The network as a torch.nn.Module on the target: a CPU, or a GPU, where its parameters are then.

    Call it as a Module: `y, state = layer(x, state, lengths=n, reset=mask)`, with x [T, B, I] ([B, T, I] of a net with
    batch_first) and a state that is a dict, all tensors of the net's dtype. What y and state depend on gets gradients,
    also by torch.func's `vmap` and `grad`. Its forward mode and third derivatives are torch's own operations, which
    take much longer than compiled code; on GPUs so are gradients of gradients. `layer.compiled()` is the compiled
    Module with the present weights, to export or to call without torch, and `net.load(layer.weights())` takes them
    back.

    A net's regularisers act in training mode (`layer.train()`, as at first) with a new seed from torch's generator in
    each call, so that torch.manual_seed gives the same bits again; `layer(x, seed=n, first_step=t)` gives it. In eval
    mode the layer is inference, whose results of a net with regularisers have no gradients.

    On a GPU its tensors are used where they are, on the current stream; of a 16-bit network the parameters are float32,
    and under torch.autocast x is cast to the network's dtype.

    Args:
        net: an RNN with weights, which the parameters begin with.
        target: as for `compile`.
        names: of the parameters. "net": as in `net.weights`. "torch": as torch.nn's LSTM, GRU and RNN have them, with
            their shapes and both of their biases, so that their state_dict fits (only for networks that
            `to_torch_layer` takes).
        max_bytes: how much memory a training step may take besides what it returns, in bytes, as
            `TrainingModule.max_bytes`; `layer.max_bytes` sets it later.
        **options: of `compile`, such as batch=16 or keep="states".

    Returns:
        The layer.

    Raises:
        ConfigError: names are wrong, or torch is not installed.
        WeightError: the net has no weights.
    """
    if not isinstance(net, RNN):
        raise no_network("to_torch", net)
    if names not in NAMES:
        raise ConfigError(message("to_torch: no such names of parameters", **unknown("names", str(names), NAMES)))
    if names == "torch":
        try:
            form_of(net)
        except ConfigError as reason:
            what, do = "to_torch: torch has no such layer, and no names for its parameters", 'leave out names="torch"'
            raise ConfigError(message(what, got=str(reason).splitlines()[0], do=do)) from None
    if not net.weights and net.weight_shapes:
        raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
    net.check_weights()
    try:
        from .autograd import TorchLayer
    except ImportError:
        raise ConfigError(not_installed("torch")) from None
    from tvm_rnn.compiler.compile import compile

    module: Compiled = compile(net.time_first(), target, training=True, **options)
    module.max_bytes = max_bytes
    return TorchLayer(net, module, names)
