"""A whole step of training in a CUDA graph, beside torch's: `python -m tvm_rnn.bench.run.training_step`.

In: the sizes of an LSTM of `rnn.nn` and of torch.nn, with the same weights. Out: records and a table: microseconds of
forward, loss, backward and Adam of a layer and a product behind it, as calls and as one CUDA graph. The losses of both
after some steps are compared first.
"""

from __future__ import annotations

import argparse
import copy
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
MOST_APART = 0.05  # of the losses after so many steps, in parts of the first one: Adam in 16 bits amplifies rounding
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

    from tvm_rnn.torch_layer.nn import LSTM

    if not torch.cuda.is_available():
        raise ConfigError(message("a step is measured on a GPU", got="torch finds none"))
    versions = {"tvm_rnn": __version__, "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    found = list[Record]()
    with writing(found, records) as write:
        write({"kind": "facts", "device": torch.cuda.get_device_name(), "versions": versions})
        torch.manual_seed(0)
        dtype, shape = getattr(torch, sizes.dtype), (sizes.inputs, sizes.hidden, sizes.layers)
        layers = {
            OURS: LSTM(*shape, device="cuda", dtype=dtype),
            "torch": torch.nn.LSTM(*shape, device="cuda", dtype=dtype),
        }
        layers["torch"].load_state_dict(layers[OURS].state_dict())
        in_one_piece(layers["torch"])
        x = torch.randn(sizes.steps, sizes.batch, sizes.inputs, device="cuda", dtype=dtype)
        losses = {name: _losses(step_of(layer, x)) for name, layer in copy.deepcopy(layers).items()}
        (_, ours), (first, theirs) = losses[OURS], losses["torch"]
        if not (abs(ours - theirs) <= MOST_APART * first and theirs < first):
            raise ConfigError(message("the layers do not learn the same", got=ours, expected=theirs))
        steps = {name: step_of(layer, x) for name, layer in layers.items()}
        runs = {name: called(step) for name, step in steps.items()}
        graphs: dict[str, Captured] = {f"{name}-graph": capture(step) for name, step in steps.items()}
        for name, times in rounds_us({**runs, **graphs}, rounds).items():
            us = statistics.median(times)
            own = {"us": us, "spread": spread(times), "loss": losses[name.partition("-")[0]][1]}
            write({"kind": "point", "point": sizes.name, **asdict(sizes), "framework": name, **own})
    return found


def step_of(layer: torch.nn.Module, x: torch.Tensor) -> Step:
    """A step of training of a layer and a product behind it, which returns its loss."""
    import torch

    head = torch.nn.Linear(layer.hidden_size, 1, device=x.device, dtype=x.dtype)
    torch.nn.init.constant_(head.weight, 0.1)
    own = [*layer.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(own, RATE, capturable=x.is_cuda)

    def step() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = (head(layer(x)[0]) - 1.0).square().mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def _losses(step: Step) -> tuple[float, float]:
    """The first loss, and that after some steps."""
    found = [float(step()) for _ in range(STEPS)]
    return found[0], found[-1]


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
