"""A graph's constants: which are arguments, in which layout, and which are numbers in the code."""

from __future__ import annotations

import numpy as np

from tvm_rnn.cpu.surroundings.constants import Constants
from tvm_rnn.surroundings.calls import Value


def value(array: np.ndarray) -> Value:
    return Value(tuple(array.shape), array.dtype.name, array)


def test_another_last_axis_is_another_array() -> None:
    constants, w = Constants(), value(np.arange(24, dtype="f4").reshape(2, 3, 4))
    assert constants.along(w, 2) is w
    turned = constants.along(w, 0)
    assert constants.along(w, 0) is turned and turned.shape == (3, 4, 2)
    np.testing.assert_array_equal(turned.array[1, 2], w.array[:, 1, 2])


def test_constants_lie_in_one_array_of_each_dtype() -> None:
    constants = Constants()
    own = [
        value(np.arange(n, dtype=dtype).reshape(-1, 5)) for n, dtype in ((30, "f4"), (5, "i8"), (0, "f4"), (70, "f4"))
    ]
    places = [constants.place(one) for one in own]
    assert places[0].buffer.same_as(places[3].buffer) and constants.begins[own[3]] == 64
    floats, whole = constants.arrays
    for one, place in zip(own, places, strict=True):
        array = whole if one.dtype == "int64" else floats
        at, size = int(place.room.at), one.array.size
        np.testing.assert_array_equal(array[at : at + size], one.array.reshape(-1))


def test_panels_have_all_that_a_tile_reads_in_a_row() -> None:
    constants, w = Constants(), value(np.arange(30, dtype="f4").reshape(5, 2, 3))
    cut = constants.panels(w, 0, 4)
    assert constants.panels(w, 0, 4) is cut and cut.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(cut.array[0, 1, 2], w.array[:4, 1, 2])
    np.testing.assert_array_equal(cut.array[1, 1, 2], [w.array[4, 1, 2], 0, 0, 0])
