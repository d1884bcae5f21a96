"""Calls of a module on a real GPU beside the oracle: outputs poisoned, the same bits each time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

REPEATS, BYTES = 20, 1 << 26


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu().numpy())


def check_calls(module: Any, net: rnn.RNN, calls: Iterable[tuple[int, int, bool]]) -> None:
    """calls: T, B, and whether rows have lengths and resets. Inputs are drawn here."""
    import torch

    generator, reference = torch.Generator(device="cuda").manual_seed(2), rnn.reference(net)
    for steps, batch, ragged in calls:
        drawn = torch.randn((steps, batch, net.input_size), generator=generator, device="cuda")
        x = drawn.to(getattr(torch, net.dtype))
        more: dict[str, Any] = {}
        if ragged:
            more["lengths"] = torch.arange(steps, steps - batch, -1, device="cuda").clamp(min=0)
            more["reset"] = torch.rand(steps, batch, generator=generator, device="cuda") < 0.05
        found = [run_poisoned(partial(module, x, **more), BYTES) for _ in range(REPEATS)]
        (y, last), *others = found
        for again, ends in others:
            assert torch.equal(y, again) and all(torch.equal(last[key], value) for key, value in ends.items())
        expected, states = reference(plain(x), **{key: value.cpu().numpy() for key, value in more.items()})
        assert_close(plain(y), expected, net.dtype, steps, "y")
        assert_close({key: plain(value) for key, value in last.items()}, states, net.dtype, steps, "state")
