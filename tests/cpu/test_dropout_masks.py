"""masks: what compiled loops fill is what NumPy has, bit for bit; dropped weights likewise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.cpu.training.test_weight_gradient_sums import aligned
from tvm_rnn import target
from tvm_rnn.compiler.link import generate
from tvm_rnn.cpu.dropout_masks import Draw, drop_function, fill
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.runtime import runtime_random
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, variable

HOST = target.resolve("llvm")
STREAMS = ("dropout", "zoneout.h")
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (33,), (130,), (3, 5), (2, 3, 17)]


def filled(node: Node, dtype: str, rows: int, batch: int, start: int, keys: np.ndarray) -> np.ndarray:
    """The compiled loop's rows [rows, *shape], on memory full of NaN, with a guard behind it."""
    lanes, names = HOST.lanes(dtype), [variable(n) for n in ("rows", "start", "batch")]
    stride, steps = row_stride(node.shape, lanes, np.dtype(dtype).itemsize), strides_of(node.shape, lanes)[0]
    into, words = buffer("workspace", dtype), buffer("keys", "uint32", 4)
    array = Array("workspace", int64(0), stride, steps, node.shape)
    draw = Draw(words, int64(4), STREAMS, names[1], names[2])
    body = fill(node, array, into, names[0], draw, lanes)
    module = tvm.IRModule({"fill": function("fill", [*names, into, words], body)})
    run: Any = generate(module, HOST)["fill"]
    memory = aligned(np.full(rows * stride + 64, np.nan, dtype))
    run(rows, start, batch, *(tvm_ffi.from_dlpack(a) for a in (memory, keys.ravel())))
    assert np.isnan(memory[rows * stride :]).all()
    found = memory[: rows * stride].reshape(rows, stride)
    assert node.op != "mask" or {*np.unique(found)} <= {0.0, 1.0}
    result = np.empty((rows, *node.shape), dtype)
    for index in np.ndindex(*node.shape):
        result[(slice(None), *index)] = found[:, sum(i * s for i, s in zip(index, steps, strict=True))]
    return result


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_are_numpys(shape: tuple[int, ...], dtype: str) -> None:
    keys = runtime_random.keys(1234567890123, list(STREAMS), 2, 1)
    for every, start in (("step", 0), ("step", (1 << 32) - 2), ("sequence", 5)):
        node = make("mask", stream="zoneout.h", keep=0.3, every=every, to=shape)
        batch, count = 5, 4
        found = filled(node, dtype, count * batch, batch, start, keys)
        words = runtime_random.key(1234567890123, "zoneout.h", 1, 0)
        for t in range(count):
            expected = TABLE["mask"].numpy(words, batch, start + t, **node.attrs)
            np.testing.assert_array_equal(found[t * batch : (t + 1) * batch], expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_numpys(dtype: str) -> None:
    keys = runtime_random.keys(77, list(STREAMS), 2, 1)
    node = make("uniform", stream="zoneout.h", every="step", to=(2, 33))
    found = filled(node, dtype, 15, 5, 8, keys)
    words = runtime_random.key(77, "zoneout.h", 1, 0)
    for t in range(3):
        expected = TABLE["uniform"].numpy(words, 5, 8 + t, **node.attrs)
        np.testing.assert_array_equal(found[t * 5 : t * 5 + 5], expected)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropped_weights_are_numpys(dtype: str) -> None:
    lanes = HOST.lanes(dtype)
    func = drop_function(lanes, dtype, np.dtype(dtype).itemsize)
    run: Any = generate(tvm.IRModule({"weight_drop": func}), HOST)["weight_drop"]
    words, keep = runtime_random.key(8, "weight_drop.R", 1, 1), 0.6
    for size in (1, 7, 16, 33, 4 * 130 * 130):
        source = np.random.default_rng(0).normal(size=size).astype(dtype)
        target_array = np.full(size + 40, np.nan, dtype)
        run(size, *words, runtime_random.threshold(keep), 1 / keep, *map(tvm_ffi.from_dlpack, (source, target_array)))
        expected = np.where(
            runtime_random.mask(words, keep, 1, size, 0)[0] > 0, source * np.dtype(dtype).type(1 / keep), 0
        )
        np.testing.assert_array_equal(target_array[:size], expected)
        assert np.isnan(target_array[size:]).all()
