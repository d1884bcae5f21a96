"""Weight gradients: sums over rows, of every form of product, against NumPy; how they are cut into tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_rnn import target
from tvm_rnn.compiler.link import generate
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.training.weight_gradient_sums import ROW_SUMS, accumulate, vector_axes
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, variable

HOST = target.resolve("llvm")
Shapes = tuple[tuple[int, ...], ...]
CASES: list[tuple[str, Shapes, str]] = [
    ("gemm", ((33,), (21,)), "a,k->ak"),
    ("one by one", ((1,), (1,)), "a,k->ak"),
    ("transposed", ((130,), (7,)), "a,k->ka"),
    ("gates", ((3, 17), (19,)), "ga,k->gak"),
    ("heads", ((2, 5), (2, 9)), "hi,hj->hij"),
    ("elements", ((19,), (19,)), "a,a->a"),
    ("summed", ((4, 6), (5, 6)), "ij,kj->ik"),
    ("vectors along another axis", ((9, 3), (3, 21)), "ij,jk->ki"),
    ("number", ((9,), (9,)), "k,k->"),
    ("vector", ((37,),), ""),
    ("matrix", ((3, 18),), ""),
    ("scalar", ((),), ""),
]


def node_of(shapes: Shapes, spec: str) -> Node:
    leaves = [Node("input", shape=s, name=f"x{i}") for i, s in enumerate(shapes)]
    return make("einsum_rows", *leaves, spec=spec) if spec else make("sum_rows", *leaves, rank=len(shapes[0]))


def sums_of(node: Node, dtype: str, arrays: list[np.ndarray], calls: int) -> np.ndarray:
    """The compiled sum over the arrays' rows, `calls` times over, as the padded buffer has it."""
    lanes, rows, parallel = HOST.lanes(dtype), variable("rows"), Emitter(HOST, dtype, ())
    places, flat, at = {}, [], 0
    for leaf, array in zip(node.args, arrays, strict=True):
        stride = row_stride(leaf.shape, lanes, np.dtype(dtype).itemsize)
        steps = strides_of(leaf.shape, lanes)[0]
        places[leaf] = Array("workspace", int64(at), stride, steps, leaf.shape)
        padded = np.full((len(array), stride), np.nan, dtype)
        for row, values in zip(padded, array, strict=True):
            for index in np.ndindex(*leaf.shape):
                row[sum(i * s for i, s in zip(index, steps, strict=True))] = values[index]
        flat.append(padded.ravel())
        at += padded.size
    buffers = {name: buffer(name, dtype) for name in ("workspace", "packed", ROW_SUMS)}
    into = Array(ROW_SUMS, int64(0), 0, strides_of(node.shape, lanes)[0], node.shape)
    reads = Places(buffers, places.get, lambda n: [], {})
    body = accumulate(parallel, node, rows, reads, into)
    module = tvm.IRModule({"sum": function("sum", [rows, *buffers.values()], body)})
    run: Any = generate(module, HOST)["sum"]
    work = aligned(np.concatenate([*flat, np.full(4096, np.nan, dtype)]))
    result = aligned(np.zeros(strides_of(node.shape, lanes)[1] + 64, dtype))
    for _ in range(calls):
        run(len(arrays[0]), *(tvm_ffi.from_dlpack(a) for a in (work, aligned(np.zeros(64, dtype)), result)))
    return result


def aligned(array: np.ndarray) -> np.ndarray:
    raw = np.empty(array.nbytes + 64, np.uint8)
    found = raw[-raw.ctypes.data % 64 :][: array.nbytes].view(array.dtype)
    found[:] = array
    return found


@pytest.mark.broad_after(4)
@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
def test_sums_are_numpys(name: str) -> None:
    _, shapes, spec = next(case for case in CASES if case[0] == name)
    dtype = "float32" if name in ("gemm", "matrix") else "float64"
    node, rng = node_of(shapes, spec), np.random.default_rng(0)
    for rows in (1, 13) if name == "gemm" else (13,):
        arrays = [rng.normal(size=(rows, *shape)).astype(dtype) for shape in shapes]
        found = sums_of(node, dtype, arrays, 2)
        expected = 2 * TABLE[node.op].numpy(*(a.astype("float64") for a in arrays), **node.attrs)
        steps = strides_of(node.shape, HOST.lanes(dtype))[0]
        for index in np.ndindex(*node.shape):
            own = found[sum(i * s for i, s in zip(index, steps, strict=True))]
            np.testing.assert_allclose(own, expected[index], rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-5)


def test_a_gemm_has_a_tall_letter_and_a_last_one() -> None:
    axes = vector_axes(node_of(((33,), (21,)), "a,k->ak"))
    assert (axes.tall, axes.last, axes.outer, axes.summed) == ("a", "k", "", "")
    axes = vector_axes(node_of(((3, 17), (19,)), "ga,k->gak"))
    assert (axes.tall, axes.last, axes.outer) == ("a", "k", "g")


def test_letters_of_both_operands_are_no_rows_of_a_tile() -> None:
    axes = vector_axes(node_of(((2, 5), (2, 9)), "hi,hj->hij"))
    assert (axes.tall, axes.outer) == ("i", "h")
    assert vector_axes(node_of(((19,), (19,)), "a,a->a")).tall == ""
    axes = vector_axes(node_of(((4, 6), (5, 6)), "ij,kj->ik"))
    assert (axes.tall, axes.last, axes.summed) == ("i", "k", "j")
