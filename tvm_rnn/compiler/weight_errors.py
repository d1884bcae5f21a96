"""What it costs in accuracy to store weights in fewer bits: a module's own error.

In: a compiled module and the RNN that it was made from, with weights. Out: one number, which `compile.py` writes into
the manifest as `weight_error` and `tvm-rnn inspect` shows.
"""

from __future__ import annotations

import math

import numpy as np

from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import relative_error
from tvm_rnn.runtime.runtime import Module

STEPS, BATCH = 32, 4


def weight_error(net: RNN, module: Module) -> float | None:
    """The largest error of y relative to float64, over STEPS steps of BATCH rows of random inputs in -1..1.

    None where that is no number: a cell that overflows on such inputs, or weights with a NaN.
    """
    rng, inputs = np.random.default_rng(0), module.manifest.inputs
    x = {i.name: rng.uniform(-1, 1, (STEPS, BATCH, *i.shape)).astype(net.dtype) for i in inputs}
    with np.errstate(all="ignore"):
        expected, _ = reference(net)(x)
    error = relative_error(module(x)[0], expected)
    return error if math.isfinite(error) and np.isfinite(expected).all() else None
