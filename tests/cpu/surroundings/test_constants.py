"""A graph's constants: which are arguments, in which layout, and which are numbers in the code."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.surroundings.constants import Constants, with_numbers
from tvm_rnn.surroundings.calls import Value
from tvm_rnn.tir.index import int64


def value(array: np.ndarray) -> Value:
    return Value(tuple(array.shape), array.dtype.name, array)


def test_another_last_axis_is_another_argument() -> None:
    constants, w = Constants(), value(np.arange(24, dtype="f4").reshape(2, 3, 4))
    assert constants.along(w, 2) is w
    turned = constants.along(w, 0)
    assert constants.along(w, 0) is turned and turned.shape == (3, 4, 2)
    np.testing.assert_array_equal(turned.array[1, 2], w.array[:, 1, 2])
    assert constants.buffer(turned) is constants.buffer(turned) and [*constants.buffers] == [turned]


def test_panels_have_all_that_a_tile_reads_in_a_row() -> None:
    constants, w = Constants(), value(np.arange(30, dtype="f4").reshape(5, 2, 3))
    cut = constants.panels(w, 0, 4)
    assert constants.panels(w, 0, 4) is cut and cut.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(cut.array[0, 1, 2], w.array[:4, 1, 2])
    np.testing.assert_array_equal(cut.array[1, 1, 2], [w.array[4, 1, 2], 0, 0, 0])


def test_numbers_are_in_the_code() -> None:
    x, two, odd = (tirx.decl_buffer(shape, "float32", name=n) for n, shape in (("x", (4,)), ("two", ()), ("odd", (1,))))
    load = tirx.BufferLoad(x, [int64(1)])
    power = tirx.BufferStore(x, tirx.pow(load, tirx.BufferLoad(two, [])), [int64(1)])
    known = {two: value(np.array(2, "f4")), odd: value(np.array([np.inf], "f4"))}
    assert tvm_ffi.structural_equal(with_numbers(power, known).value, load * load)
    strange = tirx.BufferStore(x, tirx.BufferLoad(odd, [int64(0)]), [int64(1)])
    assert tvm_ffi.structural_equal(with_numbers(strange, known), strange)


def test_a_zero_below_is_no_number_in_the_code() -> None:
    x, below = (tirx.decl_buffer((), "float32", name=name) for name in ("x", "below"))
    store = tirx.BufferStore(x, tirx.BufferLoad(below, []), [])
    assert tvm_ffi.structural_equal(with_numbers(store, {below: value(np.array(-0.0, "f4"))}), store)
