"""Plans of training for tests: the two host programs of a small network."""

from __future__ import annotations

import functools
from typing import Any

from networks import network

from tvm_rnn import RNN, Cell
from tvm_rnn.cuda.training.add_entry_points import Trained, plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

H200 = resolve("nvidia-h200")


@functools.cache
def trained(cell: str | Cell, width: int = 8, precision: str = "float32", **options: Any) -> tuple[RNN, Trained]:
    dtype = "float32" if precision == "tf32" else precision
    net = network(cell, width, width, dtype=dtype, **options)
    return net, plan(passed(net, Options(H200, (4,), precision=precision, training="values")), H200)
