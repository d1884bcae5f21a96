"""Products summed over rows, as weight gradients are: operands, a kernel emulated on them, and what is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from emulated import decoded, encoded, run

from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node

LIMITS = {"bfloat16": 1e-6, "float16": 1e-6, "tf32": 1e-3, "float32": 1e-6, "float64": 1e-14}


def operand(name: str, depth: int, stride: int, dtype: str, offset: int | None = 0) -> Operand:
    node = Node("state", shape=(depth,), name=name)
    return Operand(node, node, Place(dtype, stride), depth, offset, name)


def sums(
    kernel: Kernel, blocks: int, lefts: Sequence[Operand], right: Operand, rows: int, parts: int, dtype: str = "float32"
) -> tuple[np.ndarray, ...]:
    """What the kernel makes of random rows, added up over parts, and what it should be. What is in no row is NaN. A
    second call adds the same: results are halved.

    blocks: of one part. dtype: of the sums."""
    rng = np.random.default_rng(0)
    arrays, values = {}, {}
    for one in (*lefts, right):
        offset = one.offset or 0
        whole = np.full((rows + 1, one.place.row_stride), np.nan)
        whole[:rows, offset : offset + one.depth] = rng.normal(size=(rows, one.depth))
        arrays[one.name] = encoded(whole, one.place.dtype)
        values[one.name] = decoded(arrays[one.name], one.place.dtype)[:rows, offset : offset + one.depth]
    arrays["sums"] = np.full((parts, len(lefts), lefts[0].depth, right.depth), np.nan, dtype)
    for add in range(2):
        run(kernel, arrays, {"rows": rows, "parts": parts, "add": add}, parts * blocks)
    return arrays["sums"].sum(0) / 2, np.stack([values[one.name].T @ values[right.name] for one in lefts])
