"""Words of elements: which there are, and that what they load and store is what single elements would."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import decoded, encoded, run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.rowwise.side_by_side import loaded, stored, word_of
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.index import wide

ROWS = 3


def test_words() -> None:
    x, parts = Node("input", shape=(24,)), Node("param", shape=(24,))
    cases = (
        ("bfloat16", 24, 16, 4, 4),
        ("bfloat16", 26, 16, 4, 2),
        ("bfloat16", 24, 4, 4, 2),
        ("float32", 24, 8, 4, 2),
    )
    for dtype, stride, align, together, elements in cases:
        found = word_of(Place(dtype, stride, align), parts, together)
        assert found is not None and found.elements == elements
    for place, together in ((("bfloat16", 25, 16), 4), (("float32", 24, 16), 1), (("float64", 24, 16), 4)):
        assert word_of(Place(*place), parts, together) is None
    assert word_of(Place("bfloat16", 24, 2), parts, 4) is None and word_of(Place("bfloat16", 0), parts, 4) is None
    assert word_of(Place("bfloat16", 24, 2), x, 4) is not None  # what is given begins at a multiple of 16 bytes


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.broad) for d in ("float16", "float32"))]
)
def test_a_copy(dtype: str) -> None:
    """Of all rows, to rows of another stride, the values of each word turned round."""
    node, sizes = Node("param", shape=(24,)), (28, 36)
    words = [word_of(Place(dtype, size), node, 4) for size in sizes]
    assert words[0] is not None and words[1] is not None and words[0].elements == words[1].elements
    own, count = words, words[0].elements

    def body(w: Writer) -> None:
        row, lane = wide(I.cta_id([tirx.const(ROWS, "int32")])), I.thread_id([32])
        first = w.keep(lane * count)
        with w.when(first < 24):
            values = loaded(w, "a", own[0], row, first)
            stored(w, "b", own[1], row, first, values[::-1])

    rng = np.random.default_rng(0)
    a = encoded(rng.standard_normal((ROWS, sizes[0])), dtype)
    arrays = {"a": a, "b": encoded(np.full((ROWS, sizes[1]), 7.0), dtype)}
    run(write("copy", [("a", dtype), ("b", dtype)], [], body, threads=32), arrays, {}, ROWS)
    expected = decoded(a, dtype)[:, :24].reshape(ROWS, -1, count)[..., ::-1].reshape(ROWS, 24)
    got = decoded(arrays["b"], dtype)
    assert np.array_equal(got[:, :24], expected) and (got[:, 24:] == 7.0).all()
