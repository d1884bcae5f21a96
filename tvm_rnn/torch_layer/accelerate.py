"""accelerate: any torch model, its recurrent layers run by compiled code.

In: a torch.nn.Module. Out: the same one, whose LSTM, GRU and RNN are of `nn.py`'s classes: they are the same objects
with the same parameters, hooks and names, so that optimisers, checkpoints and whoever else holds them see no change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tvm_rnn.errors import ConfigError, message, not_installed

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(model: Model, progress: Callable[[str], object] | bool | None = None) -> Model:
    """Let compiled code run the recurrent layers of a torch model, on CPUs and GPUs.

    Every torch.nn.LSTM, GRU and RNN in the model becomes the `rnn.nn` layer of that name, in place. It compiles when it
    is first called. Calls that compiled code does not serve are torch's own, with a warning once that says why.

    Args:
        model: any torch.nn.Module, such a layer itself included.
        progress: called with one line for each recurrent module: what it is now, or why it stays. None: they go to
            stderr; False: nothing is said.

    Returns:
        The model.

    Raises:
        ConfigError: it is no torch module, or torch is not installed.
    """
    try:
        import torch

        from . import nn
    except ImportError:
        raise ConfigError(not_installed("torch")) from None
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(message("accelerate needs a torch module", got=f"{model!r:.80}", do="rnn.accelerate(model)"))
    lines = []
    for name, module in model.named_modules():
        own = nn.DROP_INS.get(type(module))
        if own is not None:
            module.__class__ = own
        if own is not None or isinstance(module, nn.DropIn):
            lines.append(f"{name or 'the model'}: {module!r}")
        elif why := _why_not(module, [*nn.DROP_INS]):
            lines.append(f"{name or 'the model'}: {module!r:.80} stays: {why}")
    tell = progress if callable(progress) else _print
    for line in (lines or ["nothing recurrent was found"]) if progress is not False else ():
        tell(line)
    return model


def _print(line: str) -> None:
    print(f"accelerate: {line}", file=sys.stderr)


def _why_not(module: torch.nn.Module, known: Sequence[type[torch.nn.Module]]) -> str:
    """Why a recurrent module stays as it is; "": it is not recurrent, as far as one can see."""
    kind = type(module)
    base = next((one for one in known if isinstance(module, one)), None)
    if base is not None and kind.forward is not base.forward:
        return f"{kind.__qualname__} has a forward() of its own"
    if base is not None:
        return f"{kind.__qualname__} is a class of its own: derive it from rnn.nn.{base.__name__}, or parametrize later"
    name = getattr(module, "original_name", kind.__name__)  # that of a ScriptModule is what it was
    if name in ("RNNCell", "LSTMCell", "GRUCell"):
        return "it makes one step per call; a layer over time can be compiled"
    return f"it is of {kind.__module__}, not of torch.nn" if name in [one.__name__ for one in known] else ""
