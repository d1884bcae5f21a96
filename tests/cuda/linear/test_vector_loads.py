"""What steps read: each word once, whoever asks for its elements, and places one addition apart."""

from __future__ import annotations

import numpy as np
from emulated import run
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.linear.vector_loads import Loads, Row, same
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import wide

THREADS, STEPS = 32, 3


def test_a_step_is_used_while_another_one_is_loaded() -> None:
    """Two elements of a word: one load; other steps are asked for into registers that were taken."""
    place = Place("float32", 2 * THREADS, align=8)

    def body(w: Writer) -> None:
        I.cta_id([1])
        thread = w.keep(I.thread_id([THREADS]))
        first = w.keep(wide(thread) * 2)
        stride = {place.row_stride: w.keep(wide(place.row_stride))}

        def word(place: Place, at: Expr) -> tuple[int, Expr, int]:
            return 2, first, 0 if at is first else 1

        def row(number: int) -> Row:
            return Row(w, w.keep(wide(0)), number, stride, {})

        loads = Loads(w, "float32", word)
        asked = (first, first + 1)
        for at in asked:
            loads.value(0, row(0), "given", place, at)
        assert len(loads.words) == 1 and loads.asked == [(0, 0), (0, 1)]
        for step in range(STEPS):
            loads.take()
            if step + 1 < STEPS:
                loads.ask(row(step + 1))
            for number, at in enumerate(asked):
                value = loads.value(number, row(step), "given", place, at)
                w.store(w["found"], value, step * place.row_stride + at)

    given = np.arange(STEPS * 2 * THREADS, dtype="float32")
    found = np.zeros_like(given)
    kernel = write("k", [("given", "float32"), ("found", "float32")], [], body, threads=THREADS)
    run(kernel, {"given": given, "found": found}, {}, 1)
    np.testing.assert_array_equal(found, given)


def test_places_are_the_same_as_they_are_written() -> None:
    assert same(3, 3) and not same(3, 4) and same(wide(3), wide(3)) and not same(wide(3), 3)
