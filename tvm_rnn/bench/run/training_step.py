"""A whole step of training in a CUDA graph, beside torch's: `python -m tvm_rnn.bench.run.training_step`.

In: the sizes of an LSTM of `rnn.nn` and of torch.nn, with the same weights. Out: records and a table: microseconds of
forward, loss, backward and Adam of a layer and a product behind it, as calls and as one CUDA graph. The losses of both
are compared first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tvm_rnn.bench.measure.gpu_graphs import Captured, called, capture, rounds_us
from tvm_rnn.bench.peers.models import in_one_piece
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.version import __version__

from .compare import OURS, spread
from .gpu_suite import Record, writing

if TYPE_CHECKING:
    import torch

STEPS, RATE = 10, 1e-3
MOST_APART = 0.05  # of the losses after so many steps, in 16 bits
Step = Callable[[], "torch.Tensor"]


@dataclass(frozen=True)
class Sizes:
    """Of the layer and a call."""

    inputs: int = 256
    hidden: int = 256
    layers: int = 1
    steps: int = 128
    batch: int = 32
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """Of the point."""
        return f"lstm-i{self.inputs}-h{self.hidden}-l{self.layers}-b{self.batch}-t{self.steps}-{self.dtype}-step"


def run(sizes: Sizes, rounds: int = 9, records: str | None = None) -> list[Record]:
    """Measure both and return the records. records: a file of lines of JSON to write. Raises ConfigError where torch
    finds no GPU, and where the two do not learn the same."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(message("a step is measured on a GPU", got="torch finds none"))
    versions = {"tvm_rnn": __version__, "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", "device": torch.cuda.get_device_name(), "versions": versions})
        losses = learned(sizes, "cuda", sizes.dtype)
        _check([own[-1] for own in losses.values()])
        layers, x = both(sizes, "cuda", sizes.dtype)
        steps = {name: step_of(layer, x) for name, layer in layers.items()}
        runs = {name: called(step) for name, step in steps.items()}
        graphs: dict[str, Captured] = {f"{name}-graph": capture(step) for name, step in steps.items()}
        for name, times in rounds_us({**runs, **graphs}, rounds).items():
            us = statistics.median(times)
            own = {"us": us, "spread": spread(times), "loss": losses[name.partition("-")[0]][-1]}
            write({"kind": "point", "point": sizes.name, **asdict(sizes), "framework": name, **own})
    return found


def step_of(layer: torch.nn.Module, x: torch.Tensor) -> Step:
    """A step of training of a layer and a product behind it, which returns its loss."""
    import torch

    head = torch.nn.Linear(layer.hidden_size, 1, device=x.device, dtype=x.dtype)
    torch.nn.init.constant_(head.weight, 0.1)  # drawn, the two layers would have heads of their own
    torch.nn.init.zeros_(head.bias)
    own = [*layer.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(own, RATE, capturable=x.is_cuda)

    def step() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = (head(layer(x)[0]) - 1.0).square().mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def both(sizes: Sizes, device: str, dtype: str) -> tuple[dict[str, torch.nn.Module], torch.Tensor]:
    """Our layer and torch's, with the same weights, and an input."""
    import torch

    from tvm_rnn.torch_layer.nn import LSTM

    torch.manual_seed(0)
    shape, form = (sizes.inputs, sizes.hidden, sizes.layers), {"device": device, "dtype": getattr(torch, dtype)}
    ours, theirs = LSTM(*shape, **form), torch.nn.LSTM(*shape, **form)
    theirs.load_state_dict(ours.state_dict())
    return {OURS: ours, "torch": in_one_piece(theirs)}, torch.randn(sizes.steps, sizes.batch, sizes.inputs, **form)


def learned(sizes: Sizes, device: str, dtype: str) -> dict[str, list[float]]:
    """The loss of each step of both."""
    layers, x = both(sizes, device, dtype)
    steps = {name: step_of(layer, x) for name, layer in layers.items()}
    return {name: [float(step()) for _ in range(STEPS)] for name, step in steps.items()}


def _check(losses: Sequence[float]) -> None:
    """Raises ConfigError where ours and torch's differ."""
    ours, theirs = losses
    if not abs(ours - theirs) <= MOST_APART * abs(theirs):
        raise ConfigError(message("the layers do not learn the same", got=ours, expected=theirs))


def table(records: Sequence[Record]) -> str:
    """Markdown: both, as calls and as a CUDA graph."""
    points = {record["framework"]: record for record in records if record["kind"] == "point"}
    lines = ["| a whole step | tvm_rnn, us | torch, us | torch / tvm_rnn |", "|---|---|---|---|"]
    for way, mark in (("calls", ""), ("one CUDA graph", "-graph")):
        ours, theirs = (points[f"{name}{mark}"]["us"] for name in (OURS, "torch"))
        lines.append(f"| {points[OURS]['point']}, {way} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """The command: words of the shell in, a table out."""
    parser = argparse.ArgumentParser(description="A whole step of training, ours and torch's, in CUDA graphs.")
    for name, usual in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    parser.add_argument("--rounds", type=int, default=9, help="alternating rounds, of which the median counts")
    parser.add_argument("--records", help="a file of records to write")
    given = vars(parser.parse_args())
    rounds, records = given.pop("rounds"), given.pop("records")
    print(table(run(Sizes(**given), rounds, records)))


if __name__ == "__main__":
    main()
