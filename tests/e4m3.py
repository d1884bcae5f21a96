"""Weights in 8 bits as NumPy and ml_dtypes have them: what kernels that pack and read them are compared with.

In: matrices, a 16-bit precision. Out: scales, codes, words of codes in the order of fragments, rounded weights, and
networks with these, for the oracle.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Graph, topological
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

EXPONENTS = {"float16": (-15, 7), "bfloat16": (-117, 119)}
# Where the bits of a word's four codes lie for bfloat16, the lowest bit first.
BITS = {
    "bfloat16": [
        [4, 5, 6, 7, 8, 9, 10, 15],
        [20, 21, 22, 23, 24, 25, 26, 31],
        [0, 1, 2, 3, 12, 13, 14, 11],
        [16, 17, 18, 19, 28, 29, 30, 27],
    ],
    "float16": [list(range(8 * code, 8 * code + 8)) for code in range(4)],
}


def scales(matrix: np.ndarray, precision: str) -> np.ndarray:
    """One per row: the least power of two, within bounds, for which 448 times it is not below any magnitude."""
    largest = np.abs(matrix.astype(np.float64)).max(-1)
    fraction, exponent = np.frexp(np.where(np.isfinite(largest), largest, 0.0) / 448.0)
    exponent = np.clip(np.where(fraction == 0.5, exponent - 1, exponent), *EXPONENTS[precision])
    found = np.where(largest == 0, 1.0, np.ldexp(1.0, exponent))
    return np.where(np.isfinite(largest), found, np.nan).astype(np.float32)


def codes(matrix: np.ndarray, precision: str) -> np.ndarray:
    """uint8 of the matrix's shape, for rows that are finite."""
    quotient = matrix.astype(np.float64) / scales(matrix, precision)[..., None]
    return np.clip(quotient, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def values(found: np.ndarray) -> np.ndarray:
    """What codes mean, in float64."""
    return found.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def words(found: np.ndarray, precision: str) -> np.ndarray:
    """uint32 of four codes each."""
    four, result = found.astype(np.uint32).reshape(-1, 4), np.zeros(found.size // 4, np.uint32)
    for code, places in enumerate(BITS[precision]):
        for bit, place in enumerate(places):
            result |= (four[:, code] >> bit & 1) << place
    return result


def rounded(matrix: np.ndarray, precision: str) -> np.ndarray:
    """The matrix as its codes and scales have it, in float64."""
    return values(codes(matrix, precision)) * scales(matrix, precision)[..., None].astype(np.float64)


def matrices(graph: Graph) -> set[str]:
    """The parameters that products multiply by, by name, in a graph after the passes."""
    tops = [w for node in graph.nodes() if node.op == "gemm" for w in node.args[::2]]
    return {n.name for n in topological(tops) if n.op == "param"}


def network(net: rnn.RNN) -> rnn.RNN:
    """The same network with the weights that a GPU multiplies by."""
    sizes: dict[str, Any] = dict(net.sizes[0])
    sizes.pop("I", None)
    more: dict[str, Any] = {"num_layers": net.num_layers, "bidirectional": net.bidirectional, "dtype": net.dtype}
    found = rnn.RNN(net.cell, net.input_size, sizes.pop("H"), **more, **sizes)
    names = matrices(pipeline.run(net, resolve("nvidia-h200"))[-1][1].graphs[0])
    for name, value in net.weights.items():
        product = name.split("_l")[0] in names
        found.weights[name] = rounded(value, net.dtype).astype(np.float32) if product else value.copy()
    return found
