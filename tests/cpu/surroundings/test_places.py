"""Where arrays lie: statements on arguments, and on pieces of flat arrays."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.surroundings.places import Place, moved
from tvm_rnn.surroundings.memory import Room
from tvm_rnn.tir.index import int64

SIZES = {"x": (3, 4), "y": (3, 4), "w": (99,)}
X, Y, WORK = (tirx.decl_buffer([int64(n) for n in shape], "float32", name=name) for name, shape in SIZES.items())
AT = (int64(1), int64(2))


def test_statements_move() -> None:
    store = tirx.BufferStore(Y, tirx.BufferLoad(X, AT), AT)
    found = moved(store, [(X, Place(WORK, Room(int64(64), int64(12)))), (Y, Place(X))])
    assert tvm_ffi.structural_equal(found, tirx.BufferStore(X, tirx.BufferLoad(WORK, [int64(64 + 6)]), AT))


def test_addresses() -> None:
    assert tvm_ffi.structural_equal(Place(X).address, tirx.address_of(tirx.BufferLoad(X, [int64(0)] * 2)))
    room = Place(WORK, Room(int64(64), int64(12)))
    assert tvm_ffi.structural_equal(room.address, tirx.address_of(tirx.BufferLoad(WORK, [int64(64)])))
