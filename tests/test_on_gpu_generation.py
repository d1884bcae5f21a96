"""Closed loops on a real GPU: tokens are those of a loop in float64, samples the oracle's of the same seed, but for
near ties; memory is poisoned, and every repeat has the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module
from near_ties import steps_that_agree

import tvm_rnn as rnn
from tvm_rnn.bench.suites import writers
from tvm_rnn.oracle.tolerance import assert_close

REPEATS, SEED = 20, 2**64 - 5
SIZES = {256: ((1, 300), (16, 100), (256, 20)), 32000: ((1, 40), (16, 12), (256, 4))}


def network(name: str, tokens: int) -> rnn.RNN:
    """Weights that make many different texts."""
    net = rnn.RNN(writers.CELLS[name], 1, 512, V=tokens).init(1)
    factors = {"E_l0": 20.0, "Q_l0": 8.0}
    return net.load({key: factors.get(key, 1.0) * value for key, value in net.weights.items()})


def poison(module: Any) -> None:
    """What the calls before left in the memory of calls becomes NaN."""
    for device in module._devices.values():
        for block in module._local.slots[device.number]:
            device.send(np.full(block.size, 255, np.uint8), block.address)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("name", writers.CELLS)
def test_what_it_writes_is_what_the_oracle_writes(name: str, tokens: int) -> None:
    net, module = network(name, tokens), gpu_module(f"generate_{name}_{tokens}", _bare(name, tokens), **options(tokens))
    module.load_weights(net.weights)
    reference, rng = rnn.reference(net), np.random.default_rng(0)
    for batch, steps in SIZES[tokens]:
        prompt = rng.integers(tokens, size=(3, batch))
        seed = SEED if net.draws else None
        expected, states, _ = reference.generate(steps, prompt=prompt, seed=seed)
        found = []
        for _ in range(REPEATS):
            found.append(module.generate(steps, prompt=prompt, seed=seed))
            poison(module)
        same = steps_that_agree(reference, prompt, found[0][0], expected, seed) == steps
        assert same.mean() > 0.9
        assert_close(_of(same, found[0][1]), _of(same, states), "float32", steps, "states")
        for y, last, _ in found[1:]:
            np.testing.assert_array_equal(y, found[0][0])
            assert all(np.array_equal(last[key], found[0][1][key]) for key in last)
        stop = int(expected[steps // 2, 0])
        y, last, lengths = module.generate(steps, prompt=prompt, seed=seed, stop=stop)
        expected, states, ends = reference.generate(steps, prompt=prompt, seed=seed, stop=stop)
        np.testing.assert_array_equal(y[:, same], expected[:, same])
        np.testing.assert_array_equal(lengths[same], ends[same])
        assert_close(_of(same, last), _of(same, states), "float32", steps, "states")


def _of(rows: np.ndarray, states: dict[str, Any]) -> dict[str, Any]:
    """The states of some rows."""
    return {name: value[:, rows] for name, value in states.items()}


def _bare(name: str, tokens: int) -> rnn.RNN:
    """Without weights: a file stays small."""
    return rnn.RNN(writers.CELLS[name], 1, 512, V=tokens)


@pytest.mark.parametrize("name", writers.CELLS)
def test_a_text_may_part_at_a_near_tie_alone(name: str) -> None:
    net = rnn.RNN(writers.CELLS[name], 1, 4, V=6).init(1)
    seed = SEED if net.draws else None
    twin = {key: value.copy() for key, value in net.weights.items()}
    reference, prompt = rnn.reference(net), np.array([[0, 1], [2, 3]])
    expected, _, _ = reference.generate(5, prompt=prompt, seed=seed)
    other = expected.copy()
    other[3:, 1] = (other[3:, 1] + 1) % 6
    with pytest.raises(AssertionError, match="row 1 at step 3 writes"):
        steps_that_agree(reference, prompt, other, expected, seed)
    ours, theirs = int(other[3, 1]), int(expected[3, 1])
    if not net.draws:
        twin["Q_l0"][ours] = twin["Q_l0"][theirs]
        tied = rnn.reference(net.load(twin))
        text, _, _ = tied.generate(5, prompt=prompt)
        swapped = np.where(np.isin(text, (ours, theirs)), ours + theirs - text, text)
        first = np.where((text != swapped).any(0), (text != swapped).argmax(0), 5)
        assert steps_that_agree(tied, prompt, swapped, text).tolist() == first.tolist()


def options(tokens: int) -> dict[str, Any]:
    return {"generate": True, "batch": tuple(batch for batch, _ in SIZES[tokens])}
