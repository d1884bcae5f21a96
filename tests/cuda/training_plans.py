"""Plans of training for tests: the two host programs of a small network."""

from __future__ import annotations

import functools
from typing import Any

from networks import network

from tvm_rnn import RNN
from tvm_rnn.cuda.training.add_entry_points import Trained, plan
from tvm_rnn.target import resolve


@functools.cache
def trained(cell: str, width: int = 8, precision: str = "float32", **options: Any) -> tuple[RNN, Trained]:
    dtype = "float32" if precision == "tf32" else precision
    net = network(cell, width, width, dtype=dtype, **options)
    return net, plan(net, resolve("nvidia-h200"), (4,), (), precision, "values")
