"""Frameworks that generate: the token of a step is the input of the next.

In: a `Problem`, whose input is a prompt of one step [1, B, ...]. Out: for each configuration a function that makes its
`steps` steps and returns the tokens [steps, B]. `worker.py` asks for these where a module was compiled to generate.
Random numbers of other frameworks are not ours: what draws has nothing to be compared with, and is timed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from . import models
from .models import Prepared, Problem, Unsupported

if TYPE_CHECKING:
    import torch

SEED = 0
COMPILED, GRAPH = "compiled", "a graph of one step"  # ways of torch on GPUs


def write_tvm_rnn(problem: Problem) -> Prepared:
    """This project's module: all steps in one call."""
    run = partial(problem.module().generate, problem.steps, prompt=problem.x, seed=SEED)
    return Prepared(problem.manifest.versions["tvm_rnn"], {"compiled": lambda: run()[0]})


class TorchWriter:
    """Embedding, LSTM cell, read-out and argmax in torch, as people write them: one step of Python after the other."""

    def __init__(self, problem: Problem, device: str = "cpu") -> None:
        _drawn(problem)
        if problem.manifest.cell != "lstm_greedy" or problem.manifest.num_layers > 1:
            raise Unsupported(f"nobody has written a loop for {problem.manifest.cell}")
        with models.imported("torch"):
            import torch
        values = {name: torch.tensor(problem.weight(name, 0, 0)).to(device) for name in ("E", "W", "R", "b", "Q")}
        self.table, self.read_out = values["E"], values["Q"]
        hidden = self.table.shape[1]
        self.cell = torch.nn.LSTMCell(hidden, hidden, device=device, dtype=self.table.dtype)
        own = {"weight_ih": values["W"], "weight_hh": values["R"], "bias_ih": values["b"]}
        own = {name: value.flatten(0, -2) if value.ndim > 2 else value.flatten() for name, value in own.items()}
        self.cell.load_state_dict({**own, "bias_hh": torch.zeros_like(own["bias_ih"])})
        self.steps = problem.steps
        prompt = problem.x[0, :, 0]
        zeros = torch.zeros(len(prompt), hidden, device=device, dtype=self.table.dtype)
        self.first = (torch.tensor(prompt, device=device).long(), zeros, zeros)

    def step(self, token: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """From token [B] and states [B, H] to the next ones."""
        import torch

        h, c = self.cell(self.table[token], (h, c))
        return torch.nn.functional.linear(h, self.read_out).argmax(-1), h, c

    def loop(self, step: Callable[..., tuple[torch.Tensor, ...]], threads: int) -> np.ndarray:
        """All steps. step: own or compiled."""
        import torch

        models.torch_threads(threads)
        with torch.inference_mode():
            values, found = self.first, []
            for _ in range(self.steps):
                values = step(*values)
                found.append(values[0])
            return torch.stack(found).cpu().numpy()

    def graph(self) -> Callable[[], np.ndarray]:
        """On a GPU: one step captured in a CUDA graph, which is replayed once a step. Its memory is its own: states are
        written where the next replay reads them, and each token to its place among all."""
        import torch

        device = self.first[0].device
        values = [value.clone() for value in self.first]
        found = torch.empty(self.steps, len(values[0]), device=device, dtype=torch.long)
        place = torch.zeros(1, device=device, dtype=torch.long)

        def advance() -> None:
            for value, new in zip(values, self.step(*values), strict=True):
                value.copy_(new)
            found.index_copy_(0, place, values[0][None])
            place.add_(1)

        def rewind() -> None:
            for value, first in zip(values, self.first, strict=True):
                value.copy_(first)
            place.zero_()

        with torch.inference_mode():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # libraries make their plans before the capture
                advance()
            torch.cuda.current_stream().wait_stream(aside)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                advance()

        def run() -> np.ndarray:
            with torch.inference_mode():
                rewind()
                for _ in range(self.steps):
                    captured.replay()
                return found.cpu().numpy()

        return run


def write_torch(problem: Problem, compiled: bool = False) -> Prepared:
    """torch on the CPU, eager, on all threads and on one. compiled: with torch.compile of one step."""
    writer = TorchWriter(problem)
    import torch

    step = torch.compile(writer.step, dynamic=False, fullgraph=True) if compiled else writer.step
    runs = {label: partial(writer.loop, step, count) for label, count in problem.thread_counts.items()}
    return Prepared(torch.__version__, runs)


def write_torch_cuda(problem: Problem, how: str = "eager") -> Prepared:
    """torch on a GPU: "eager", "compiled" with torch.compile of one step, or "a graph of one step", a CUDA graph."""
    _drawn(problem)
    with models.imported("torch"):
        import torch
    if not torch.cuda.is_available():
        raise Unsupported("torch has no GPU here")
    writer = TorchWriter(problem, "cuda")
    version = f"{torch.__version__}, {torch.cuda.get_device_name()}"
    if how == GRAPH:
        return Prepared(version, {how: writer.graph()})
    step = torch.compile(writer.step, dynamic=False, fullgraph=True) if how == COMPILED else writer.step
    return Prepared(version, {how: partial(writer.loop, step, problem.threads)})


def write_numpy(problem: Problem) -> Prepared:
    """The cell's own graph in NumPy, step by step."""
    _drawn(problem)
    model = models.NumpyModel(problem)

    def run() -> np.ndarray:
        x, state, found = problem.x.astype(problem.manifest.dtype), None, []
        for _ in range(problem.steps):
            x, state = model.run([x], state)
            found.append(x[0])
        y = np.stack(found)
        return y[..., 0].astype(np.int32) if problem.manifest.generation.get("tokens") else y

    return Prepared(np.__version__, {"all rows at once": run})


def _drawn(problem: Problem) -> None:
    """Raises Unsupported where the module draws."""
    if problem.manifest.get("draws"):
        raise Unsupported("it draws other random numbers: there is nothing to compare")


WRITERS: dict[str, Callable[[Problem], Prepared]] = {
    "tvm_rnn": write_tvm_rnn,
    "torch": write_torch,
    "torch-compile": partial(write_torch, compiled=True),
    "torch-cuda": write_torch_cuda,
    "torch-cuda-compile": partial(write_torch_cuda, how=COMPILED),
    "torch-cuda-graph": partial(write_torch_cuda, how=GRAPH),
    "numpy": write_numpy,
}


def prepare(name: str, problem: Problem) -> Prepared:
    """A framework ready to generate. Raises Unsupported where it does not."""
    if name not in WRITERS:
        raise Unsupported("it is not timed generating")
    return WRITERS[name](problem)
