"""Whole torch models: exported to ONNX in memory, by torch itself, and read from there.

In: a torch.nn.Module and an example of its inputs. Out: an `RNN` or a `Model`, as `from_onnx` gives it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.network.model import Model
from tvm_rnn.network.rnn import RNN
from tvm_rnn.surroundings.nodes import import_onnx

from .onnx import from_onnx

if TYPE_CHECKING:
    import torch

OPSET = 17  # of which torch's exporter and from_onnx know all that they know


def from_model(model: object, example: object, axes: Mapping[str, Mapping[int, str]]) -> RNN | Model:
    """The whole of a model, as it runs on an example. axes: names of sizes that may differ. Raises ConfigError."""
    import torch

    import_onnx()
    if not isinstance(model, torch.nn.Module):
        got, do = type(model).__name__, "pass a torch.nn.Module with an example of its inputs"
        raise ConfigError(message("from_torch: this is no model", got=got, do=do))
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    names = _names(model, len(given))
    if strange := {*axes} - {*names}:
        raise ConfigError(message("from_torch: no such input", got=", ".join(sorted(strange)), expected=names))
    before, states, text = model.training, _States(model), io.BytesIO()
    try:
        model.eval()
        with (
            torch.no_grad(),
            _every_operator(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            outputs = _outputs(model(*given))
            states.put_back()
            dynamic = {name: dict(own) for name, own in axes.items()}
            torch.onnx.export(
                model,
                given,
                text,
                input_names=names,
                output_names=outputs,
                dynamic_axes=dynamic,
                opset_version=OPSET,
                dynamo=False,
            )
    except Exception as reason:  # of many classes, of torch and of the model itself
        got = (str(reason).strip().splitlines() or [type(reason).__name__])[0]
        do = "export it yourself with torch.onnx.export, and read the file with from_onnx"
        raise ConfigError(message("from_torch: torch cannot export this model", got=f"{got:.300}", do=do)) from None
    finally:
        states.put_back()
        model.train(before)
    return from_onnx(text.getvalue())


@contextlib.contextmanager
def _every_operator() -> Iterator[None]:
    """Attention as operators: for its kernel of a whole layer, taken in eval mode, torch has no export."""
    import torch

    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


class _States:
    """What a model's modules keep from call to call: tensors among their attributes and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        import torch

        places = [own for module in model.modules() for own in (vars(module), module._buffers)]
        found = [(own, name, value) for own in places for name, value in own.items() if isinstance(value, torch.Tensor)]
        self.kept = [(own, name, value, value.detach().clone()) for own, name, value in found]

    def put_back(self) -> None:
        """As they were, also where they were written in place."""
        import torch

        with torch.no_grad():
            for own, name, value, copy in self.kept:
                own[name] = value.copy_(copy)


def _names(model: torch.nn.Module, count: int) -> list[str]:
    """Those of forward's parameters, for so many inputs."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    named = [own.name for own in parameters if own.kind in (own.POSITIONAL_ONLY, own.POSITIONAL_OR_KEYWORD)][1:]
    return [*named, *(f"x{i}" for i in range(len(named), count))][:count]


def _outputs(result: object) -> list[str]:
    """A name for each tensor of a result."""

    def count(value: object) -> int:
        return sum(map(count, value)) if isinstance(value, tuple | list) else 1

    return [f"y{i}" for i in range(count(result))]
