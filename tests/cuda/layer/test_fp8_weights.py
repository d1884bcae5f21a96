"""Weights in 8 bits: codes and scales, and every code back in 16 bits."""

from __future__ import annotations

from typing import Any

import e4m3
import numpy as np
import pytest
from compiled_kernels import graph_of
from emulated import decoded, encoded, run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer import fp8_weights
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.weight_packing import Weights, scales_of
from tvm_rnn.dtypes import rounded

NAME = "float8_e4m3"
PRECISIONS = ["bfloat16", "float16"]
ROWS, DEPTH = 12, 7


def decoding(precision: str) -> Kernel:
    """Two words of 16-bit values from each word of codes, of those that never change and of those that come by."""

    def body(k: Writer) -> None:
        at = I.cta_id([1]) * 256 + I.thread_id([256])
        found, zero = k.local(4, "uint32"), k.local(1, "uint32")
        k.store(zero, tirx.const(0, "uint32"), 0)
        codes = k.keep(k["codes"][tirx.Cast("int64", at)])
        for name, none in (("resident", zero[0]), ("passing", None)):
            fp8_weights.decode(k, precision, codes, (found[2], found[3]), found, none)
            for z in range(2):
                k.store(k[name], found[2 + z], tirx.Cast("int64", at * 2 + z))

    return write("k", [(name, "uint32") for name in ("codes", "resident", "passing")], [], body, threads=256)


@pytest.mark.broad
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_code_is_decoded_in_every_place(precision: str) -> None:
    """Subnormals, zeros of both signs and 448 among them. No weight has the codes of NaN."""
    codes = np.array([(np.arange(256) * step + step) % 256 for step in (1, 3, 5, 7)]).T
    codes[codes % 128 == 127] = 0
    found = {name: np.zeros(512, np.uint32) for name in ("resident", "passing")}
    run(decoding(precision), {"codes": e4m3.words(codes, precision), **found}, {}, 1)
    expected = encoded(e4m3.values(codes).astype(np.float32), precision).view(np.uint16)
    for name in found:
        np.testing.assert_array_equal(found[name].view(np.uint16), expected.ravel())


def matrix(precision: str) -> np.ndarray:
    """Rows of all sizes: of zeros, of subnormals, with ties, at the ends of the precision's range."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, DEPTH)) * 10.0 ** rng.uniform(-3, 1, (ROWS, 1))
    rows[1] = 0
    rows[2] = np.array([448, 447, 432, 17, 17.5, 2.0**-9, 3 * 2.0**-10]) / 64
    rows[3] = np.array([449, -448.5, 1, 1.0625, 1.1875, 2.0**-10, -(2.0**-6)]) / 512
    rows[4] = np.array([65504, 3, -57344, 100, 0, -0.0, 1]) * (1.98 * 2.0**111 if precision == "bfloat16" else 1.0)
    rows[5] = np.array([1, 2, 3, -1000, 17, 0, 5]) * (2.0**-120 if precision == "bfloat16" else 2.0**-24)
    return np.asarray(rounded(rows, precision), np.float32)


def packed(precision: str, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, words of codes and 16-bit weights of a matrix in row-major order, by the kernels that load it."""
    graph = graph_of("elman", inputs=DEPTH, hidden=ROWS)
    node = next(n for n in graph.params if n.name == "W")
    kept = Weights(graph, 0, precision, NAME)

    def index(at: Any) -> Any:
        row, k = tirx.truncdiv(at, tirx.IntImm("int64", DEPTH)), tirx.truncmod(at, tirx.IntImm("int64", DEPTH))
        return (row, k), row < tirx.IntImm("int64", ROWS)

    kept.want(Pack(node, "uint32", ROWS * DEPTH // 4, index, ("codes",), coded=precision))
    kept.want(Pack(node, precision, ROWS * DEPTH, index, ("wide",)))
    kept.pack(Program(precision), 0, 0)
    scales, words = np.zeros(ROWS, np.float32), np.zeros(ROWS * DEPTH // 4, np.uint32)
    wide = encoded(np.zeros(ROWS * DEPTH), precision)
    run(kept.kernels[scales_of(node)][0], {"r0": given, "scales": scales}, {}, ROWS)
    for name, found in (("codes", words), ("wide", wide)):
        run(kept.kernels[name,][0], {"r0": given, "scales": scales, "packed": found}, {}, 1)
    return scales, words, decoded(wide, precision).reshape(ROWS, DEPTH)


@pytest.mark.broad
@pytest.mark.parametrize("precision", PRECISIONS)
def test_codes_and_16_bit_weights_are_the_same_numbers(precision: str) -> None:
    given = matrix(precision)
    scales, words, wide = packed(precision, given)
    np.testing.assert_array_equal(scales, e4m3.scales(given, precision))
    np.testing.assert_array_equal(words, e4m3.words(e4m3.codes(given, precision), precision))
    np.testing.assert_array_equal(wide, e4m3.rounded(given, precision))
    error = np.abs(wide - given) / np.maximum(np.abs(given), scales[:, None] * 2.0**-6)
    assert error[np.abs(given) <= 448 * scales[:, None]].max() <= 2.0**-4


@pytest.mark.broad
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan(bad: float) -> None:
    given = matrix("float16")
    given[7, 3] = bad
    scales, words, wide = packed("float16", given)
    assert np.flatnonzero(np.isnan(scales)).tolist() == [7]
    assert np.isfinite(e4m3.values(words.view(np.uint8))).all()  # the scale alone makes NaN
    assert np.flatnonzero(np.isnan(wide).any(1)).tolist() == [7] and np.isnan(wide[7]).all()


def test_what_codes_are_worth() -> None:
    """With rows of random size, 2 to 3 percent of a row's norm is lost, wherever powers of two lie."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(64, 512)) * 10.0 ** rng.uniform(-2, 2, (64, 1))
    lost = np.linalg.norm(e4m3.rounded(rows, "bfloat16") - rows, axis=1) / np.linalg.norm(rows, axis=1)
    assert lost.min() > 0.015 and lost.max() < 0.035
