"""fill_cache: the compiled code of layers, for a machine that has no compiler.

In: a network, or a torch model with layers of `rnn.nn`, and a target. Out: files in a folder, which is TVM_RNN_CACHE on
that machine: layers find them in their first call (`compiler/compiled_files.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_rnn.compiler.compiled_files import fill
from tvm_rnn.errors import ConfigError, message, not_installed
from tvm_rnn.network.rnn import RNN
from tvm_rnn.target import resolve

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")


def fill_cache(
    what: RNN | torch.nn.Module,
    target: str,
    folder: str | os.PathLike[str],
    *,
    autocast: str | Sequence[str] = (),
    progress: Callable[[str], object] | None = None,
) -> list[Path]:
    """Compile for another machine what layers compile in their first call, so that there they need no compiler.

    Copy the folder there and set TVM_RNN_CACHE to it. The package must be of the same version, with the same sources.
    A file that is there already is written anew.

    Args:
        what: a network, or any torch.nn.Module: of its `rnn.nn` layers, also those of `rnn.accelerate`, and
            `rnn.nn.Cell`s the code for training and for inference, in the dtype of their parameters.
        target: a name of `tvm_rnn.target.names()`, such as "nvidia-h200".
        folder: made if it is not there.
        autocast: on GPUs also for these dtypes of torch.autocast: "float16", "bfloat16".
        progress: called with a line for each file.

    Returns:
        The files.

    Raises:
        ConfigError: an argument is wrong, or the model has no such layer.
        BuildError: a compiler fails or is missing, or a file cannot be written.
    """
    kinds = (autocast,) if isinstance(autocast, str) else tuple(autocast)
    if wrong := [kind for kind in kinds if kind not in DTYPES]:
        what_, expected = "fill_cache: no such dtype of torch.autocast", " or ".join(DTYPES)
        raise ConfigError(message(what_, got=", ".join(map(repr, wrong)), expected=expected))
    device = "cuda" if resolve(target).kind == "cuda" else "cpu"
    nets = [what] if isinstance(what, RNN) else [*_of_a_model(what, device, kinds if device == "cuda" else ())]
    found = []
    for net in nets:
        path = fill(net, target, folder)
        if path not in found:
            found.append(path)
            if progress is not None:
                progress(f"{path}: {net!r}")
    return found


def _of_a_model(model: torch.nn.Module, device: str, kinds: Iterable[str]) -> Iterator[RNN]:
    """The networks of all layers that compile."""
    try:
        import torch

        from .cell import Cell
        from .nn import DropIn, networks_of
    except ImportError:
        raise ConfigError(not_installed("torch")) from None
    layers = [layer for layer in model.modules() if isinstance(layer, DropIn | Cell)]
    if not layers:
        do = "give it rnn.accelerate(model), a model with layers of rnn.nn, or an rnn.RNN"
        raise ConfigError(message("fill_cache: nothing here compiles", got=f"{model!r:.80}", do=do))
    for layer in layers:
        if isinstance(layer, Cell):
            yield layer.net
        else:
            yield from networks_of(layer, device, [getattr(torch, kind) for kind in kinds])
