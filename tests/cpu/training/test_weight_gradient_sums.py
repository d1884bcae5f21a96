"""Weight gradients: sums over rows, of every form of product, against NumPy; how they are cut into tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
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
from tvm_rnn.graph.graph import Node, constant, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, sequence, variable

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


def sums_of(
    nodes: Sequence[Node], dtype: str, values: Mapping[Node, np.ndarray], calls: int = 1, gaps: Sequence[int] = ()
) -> list[np.ndarray]:
    """The compiled sums over the values' rows, `calls` times over. gaps: elements between the sums, 0 where none is
    given."""
    lanes, rows, parallel = HOST.lanes(dtype), variable("rows"), Emitter(HOST, dtype, ())
    places, flat, at, count = {}, [], 0, 0
    for leaf, array in values.items():
        stride, count = row_stride(leaf.shape, lanes, np.dtype(dtype).itemsize), len(array)
        steps = strides_of(leaf.shape, lanes)[0]
        places[leaf] = Array("workspace", int64(at), stride, steps, leaf.shape)
        padded = np.full((count, stride), np.nan, dtype)
        for row, own in zip(padded, array, strict=True):
            for index in np.ndindex(*leaf.shape):
                row[sum(i * s for i, s in zip(index, steps, strict=True))] = own[index]
        flat.append(padded.ravel())
        at += padded.size
    buffers = {name: buffer(name, dtype) for name in ("workspace", "packed", ROW_SUMS)}
    into, first, end = {}, {}, 0
    for node, gap in zip_longest(nodes, gaps[: len(nodes)], fillvalue=0):
        assert isinstance(node, Node)
        steps, size = strides_of(node.shape, lanes)
        first[node], into[node] = end + gap, Array(ROW_SUMS, int64(end + gap), 0, steps, node.shape)
        end += gap + size
    reads = Places(buffers, places.get, lambda n: [], {})
    body = sequence(accumulate(parallel, nodes, rows, reads, lambda n: into[n]))
    module = tvm.IRModule({"sum": function("sum", [rows, *buffers.values()], body)})
    run: Any = generate(module, HOST)["sum"]
    work = aligned(np.concatenate([*flat, np.full(4096, np.nan, dtype)]))
    result = aligned(np.zeros(end + 64, dtype))
    for _ in range(calls):
        run(count, *(tvm_ffi.from_dlpack(a) for a in (work, aligned(np.zeros(64, dtype)), result)))
    found = []
    for node in nodes:
        own = np.empty(node.shape, dtype)
        for index in np.ndindex(*node.shape):
            own[index] = result[first[node] + sum(i * s for i, s in zip(index, into[node].strides, strict=True))]
        found.append(own)
    return found


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
        (found,) = sums_of([node], dtype, dict(zip(node.args, arrays, strict=True)), 2)
        expected = 2 * TABLE[node.op].numpy(*(a.astype("float64") for a in arrays), **node.attrs)
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-5)


def rows_of(leaves: Sequence[Node]) -> dict[Node, np.ndarray]:
    rng = np.random.default_rng(0)
    return {leaf: rng.normal(size=(5, *leaf.shape)) for leaf in leaves}


def test_sums_that_are_alike_share_their_code_wherever_they_lie() -> None:
    a, b, c, x, y = (Node("input", shape=(n,), name=f"v{i}") for i, n in enumerate((19, 19, 19, 19, 7)))
    pairs = [(a, a), (a, x), (b, y), (c, x), (x, b), (c, y), (a, y)]
    nodes = [make("einsum_rows", *pair, spec="a,k->ak") for pair in pairs]
    values = rows_of((a, y, c, b, x))
    found = sums_of(nodes, "float64", values, gaps=(64, 0, 128, 8))
    for (left, right), own in zip(pairs, found, strict=True):
        np.testing.assert_allclose(own, values[left].T @ values[right], rtol=1e-13, atol=1e-13)
    emitter, rows = Emitter(HOST, "float64", ()), variable("rows")
    buffers = {name: buffer(name, "float64") for name in ("workspace", ROW_SUMS)}
    array = Array("workspace", int64(0), 24, (1,), (19,))
    reads = Places(buffers, lambda n: array if n.shape == (19,) else None, lambda n: [], {})
    total = Array(ROW_SUMS, int64(0), 0, (24, 1), (19, 19))
    assert len(accumulate(emitter, [nodes[0], nodes[1], nodes[3], nodes[4]], rows, reads, lambda n: total)) == 1
    assert len(emitter.used) == 1


def test_a_vector_that_is_a_choice_is_made_once_for_all_rows_of_a_tile() -> None:
    gradient, x = (Node("input", shape=(n, 3, 4), name=f"image{n}") for n in (21, 19))
    zeros = constant(np.zeros((19, 1, 4)))
    moved = make("concat", zeros, make("slice", x, axis=-2, start=0, stop=2), axis=-2)
    node = make("einsum_rows", gradient, moved, spec="oyx,cyx->oc")
    values = rows_of((gradient, x))
    with_constant = {**values, zeros: np.zeros((5, 19, 1, 4))}
    (found,) = sums_of([node], "float64", with_constant)
    seen = np.concatenate([np.zeros((5, 19, 1, 4)), values[x][:, :, :2]], axis=2)
    np.testing.assert_allclose(found, np.einsum("noyx,ncyx->oc", values[gradient], seen), rtol=1e-12, atol=1e-12)


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
