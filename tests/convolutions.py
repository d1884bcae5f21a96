"""Cells with convolutions of every form, for tests."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn import cell, conv, tanh


@cell(states="h")
def images(x: "I Y X", h: "H Y X", *, W: "H I U V", R: "2 H H 3 1"):
    """A kernel of any size over inputs, and one with two leading axes, of taps two rows apart, over the state."""
    a, b = conv(h, R, dilation=2)
    return tanh(conv(x, W) + a) * 0.5 + b * 0.1


@cell(states="h", output="y")
def lines(x: "I L", h: "H L", *, W: "H I 4", R: "H H 3", V: "3 H 3"):
    """Sequences: an even kernel, and an output that is shorter and has other channels."""
    h = tanh(conv(x, W) + conv(h, R, padding=1))
    return h, conv(h, V, "valid")


@cell(states="h")
def made(x: "I Y X", h: "H Y X", *, W: "H I 3 3", R: "H H 3 3"):
    """A kernel that is made anew at each step."""
    return tanh(conv(x, W) + conv(h, R * rnn.mean(h)))


@cell(states="h")
def line(x: "I L", h: "H L", *, W: "H I 4", R: "H H 3", b: "H"):
    """An even kernel over lines, and taps three places apart."""
    return tanh(conv(x, W) + conv(h, R, dilation=3) + b[..., None])


@cell(states="h")
def mapped(x: "I Y X", h: "H Y X", *, W: "H I 3 3", R: "H H 3 3", a: "H Y 1", m: "Y X", b: "H Y X"):
    """Parameters with a number for each pixel, for each line, and for each pixel of all channels alike."""
    return tanh(conv(x, W) * m + conv(h, R) + rnn.exp(b) * h) * 0.5 + a * h * 0.1


@cell(states="h")
def joined(x: "I Y X", h: "H Y X", *, W: "2 H I 3 3", R: "2 H H 3 3", M: "H H 1 1"):
    """One kernel over what is joined, and a matrix at each pixel."""
    a, b = conv(rnn.concat([x, h], axis=-3), rnn.concat([W, R], axis=-3))
    return tanh(a + conv(h, M)) * 0.5 + b * 0.1
