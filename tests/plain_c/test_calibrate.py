"""Scales from samples: every value of them fits, a state has one scale for all steps, layers agree where they meet."""

from __future__ import annotations

import numpy as np
from networks import arguments, network

import tvm_rnn as rnn
from tvm_rnn.plain_c.calibrate import Samples, calibrated, simulated
from tvm_rnn.plain_c.layer_values import LayerValues, layer_values


def layers_of(net: rnn.RNN) -> list[LayerValues]:
    return [
        layer_values(own.graph, {p.name: net.weights[f"{p.name}_l{own.index}"] for p in own.graph.params})
        for own in net.layers
    ]


def test_more_bits_of_weights_are_closer_to_float64() -> None:
    net = network("gru", 3, 7, num_layers=2)
    x = arguments(net, 30, 3)[0]["x"]
    expected, layers = rnn.reference(net)(x)[0], layers_of(net)
    samples, errors = Samples([x], {}, {}), []
    for bits in (8, 16):
        numbers = calibrated(layers, samples, bits)
        for values, own in zip(layers, numbers, strict=True):
            (state,), (result,) = values.graph.states, values.graph.results
            assert own.exponent(state) == own.exponent(result)
        assert numbers[1].exponent(layers[1].graph.inputs[0]) == numbers[0].exponent(layers[0].graph.output)
        y = simulated(layers, numbers, samples)
        assert y.shape == expected.shape and np.abs(y).max() <= 32768
        errors.append(np.abs(y * 2.0 ** -numbers[1].exponent(layers[1].graph.output) - expected).max())
    assert errors[1] < 3e-4 < errors[0] < 2e-2


def test_what_is_beyond_the_samples_is_cut_off() -> None:
    net = network("elman_relu", 2, 3)
    x = np.abs(arguments(net, 10, 2)[0]["x"])
    layers = layers_of(net)
    numbers = calibrated(layers, Samples([x], {}, {}), 8)
    large = simulated(layers, numbers, Samples([1e6 * x], {}, {}))
    assert large.max() <= 32767 and large.min() >= 0
