"""Compiled training with regularisers is the oracle's: results and gradients with the same masks, in float64's sense.

In: nets with every kind of mask, random shapes, lengths, resets, layers and directions. Also: the same bits on every
rerun and in chunks of time, and a tape that has no masks.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import arguments, flags, network
from poison import poison

import tvm_rnn as rnn
from tvm_rnn import InputError
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime_training import TrainingModule

EVERYTHING: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "elman": ("elman", 7, 7, {"num_layers": 2, **EVERYTHING}),
    "lstm": ("lstm", 14, 7, {"num_layers": 3, "bidirectional": True, "dtype": "float64", **EVERYTHING}),
    "gru": ("gru", 7, 7, {"num_layers": 2, **EVERYTHING}),
    "matrices": ("mlstm", 5, 5, {"dtype": "float64", "zoneout": 0.3}),
}
# Both directions of three layers take long to compile.
QUICK = [pytest.param(n, marks=pytest.mark.slow if n == "lstm" else []) for n in CASES]


@functools.cache
def trained(name: str) -> tuple[rnn.RNN, TrainingModule]:
    cell, inputs, hidden, options = CASES[name]
    net = network(cell, inputs, hidden, **options)
    module = rnn.compile(net, training=True)
    assert isinstance(module, TrainingModule)
    return net, module


def check(
    net: rnn.RNN, module: TrainingModule, steps: int, batch: int, seed: int = 0, first: int = 0, **rows: Any
) -> None:
    case = draw(net, steps, batch, seed % 1000, **rows)
    case.training.update(seed=seed, first_step=first)
    y, state, tape = module.forward_train(case.x, case.state, **case.training, **rows)
    expected = rnn.reference(net, **case.training)(case.x, case.state, **rows)
    assert_close((y, state), expected, net.dtype, max(steps, 1))
    found = named(*module.backward(tape, case.gy, case.gstate))
    assert_close(found, oracle(net, case), net.dtype, max(steps, 1))


@pytest.mark.broad
@pytest.mark.parametrize("name", QUICK)
def test_training_is_the_oracles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = trained(name)
    guarded = poison(monkeypatch)
    module.load_weights(net.weights)  # packed anew, on poison
    for number, (steps, batch) in enumerate(((0, 2), (1, 1), (20, 3), (5, 33))):
        check(net, module, steps, batch, seed=number)
    check(net, module, 20, 5, seed=1 << 40, first=3000, **flags(20, 5))
    check(net, module, 7, 4, seed=-1, lengths=np.array([0, 7, 3, 0]))
    x, state = arguments(net, 6, 3)
    assert_close(module(x, state), rnn.reference(net)(x, state), net.dtype, 6)
    guarded()


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("hidden", [1, 33, 130])
def test_many_shapes(hidden: int, reverse: bool) -> None:
    """Layers that differ in their graphs; small and odd widths; more rows than a tile has."""
    net = network("lstm", 9, hidden, num_layers=3, reverse=reverse, **EVERYTHING)
    module = rnn.compile(net, training=True)
    assert isinstance(module, TrainingModule)
    for steps, batch in ((1, 7), (40, 33), (130, 2)):
        check(net, module, steps, batch, seed=steps)
        check(net, module, steps, batch, seed=steps, **flags(steps, batch))


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    """On one thread and on several, and from a second backward of one tape; another seed gives others."""
    net, module = trained(name)
    case = draw(net, 30, 20)
    found = []
    for threads in (1, 2, None, 1):
        module.threads = threads
        y, _, tape = module.forward_train(case.x, case.state, seed=77)
        found += [{"y": y, **named(*module.backward(tape, case.gy, case.gstate))} for _ in range(2)]
    module.threads = None
    for one in found[1:]:
        for key, value in one.items():
            np.testing.assert_array_equal(value, found[0][key], key)
    assert (module.forward_train(case.x, case.state, seed=78)[0] != found[0]["y"]).any()


def test_chunks_of_a_sequence_have_its_masks() -> None:
    """Truncated back-propagation through the same network as the whole: the same results in both chunks."""
    net, module = trained("elman")
    case = draw(net, 11, 3)
    whole, last, tape = module.forward_train(case.x, case.state, seed=5, first_step=2)
    one, middle, tape_one = module.forward_train({"x": case.x["x"][:4]}, case.state, seed=5, first_step=2)
    two, end, tape_two = module.forward_train({"x": case.x["x"][4:]}, middle, seed=5, first_step=6)
    np.testing.assert_array_equal(np.concatenate([one, two]), whole)
    for name, value in last.items():
        np.testing.assert_array_equal(end[name], value)
    gx, gstate, gweights = module.backward(tape, case.gy, case.gstate)
    gx_two, between, weights_two = module.backward(tape_two, case.gy[4:], case.gstate)
    gx_one, first, weights_one = module.backward(tape_one, case.gy[:4], between)
    parts = named(np.concatenate([gx_one, gx_two]), first, {n: weights_one[n] + weights_two[n] for n in weights_one})
    assert_close(parts, named(gx, gstate, gweights), "float32", 11)


@pytest.mark.slow
def test_the_tape_has_no_masks() -> None:
    _, module = trained("gru")
    plain = network("gru", 7, 7, num_layers=2)
    ours = rnn.compile(plain, training=True)
    assert module.manifest.training.tape == ours.manifest.training.tape
    assert module.manifest.regularisers == {
        **{"dropout": 0.4, "recurrent_dropout": {"h": 0.3}, "zoneout": {"h": 0.2}},
        "weight_drop": {"R": 0.35},
    }
    assert "regularisers" not in ours.manifest and "masks" not in ours.manifest
    x = arguments(plain, 3, 2)[0]["x"]
    y = ours.forward_train(x, seed=3, first_step=9)[0]  # which a network without regularisers needs not
    np.testing.assert_array_equal(y, ours.forward_train(x)[0])


def test_what_is_refused() -> None:
    net, module = trained("elman")
    x = arguments(net, 3, 2)[0]["x"]
    with pytest.raises(InputError, match="needs a seed"):
        module.forward_train(x)
    for wrong in (1.5, True, 1 << 64, "1"):
        with pytest.raises(InputError, match="the seed is wrong"):
            module.forward_train(x, seed=wrong)
    for first in (-1, None):
        with pytest.raises(InputError, match="first_step is wrong"):
            module.forward_train(x, seed=1, first_step=first)
    _, _, tape = module.forward_train(x, seed=1)
    module.load_weights(net.weights)
    with pytest.raises(InputError, match="other weights"):
        module.backward(tape)
