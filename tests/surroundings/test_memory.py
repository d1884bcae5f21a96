"""Places of values: what is free is taken again where it surely fits."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.surroundings.memory import ALIGNED, Memory
from tvm_rnn.tir.index import int64


def test_a_free_place_is_taken_again() -> None:
    memory, n = Memory(), tirx.Var("n", "int64")
    first = memory.take((n, 4), "float32")
    rooms = [first, memory.take((n, 4), "float32")]
    memory.give(first, "float32")
    rooms += [memory.take((4, n), "float32"), memory.take((n, 4), "float32")]
    assert rooms[2] is not first or rooms[3] is not first
    assert len({id(room) for room in rooms}) <= 3


def test_places_begin_where_others_end_in_names() -> None:
    memory, n = Memory(), tirx.Var("n", "int64")
    rooms = [memory.take((n // 2,), "float32") for _ in range(3)]
    assert int(rooms[0].at) == 0 and all(isinstance(room.at, tirx.Var) for room in rooms[1:])
    assert [name.name for _, name in memory.held.names] == ["n", "at"]  # the second begins at the first one's size


def test_a_smaller_array_takes_a_larger_place() -> None:
    memory = Memory()
    first = memory.take((int64(100),), "float32")
    memory.give(first, "float32")
    assert memory.take((10, 2), "float32") is first
    assert memory.take((10, 2), "float32") is not first
    assert int(memory.sizes["float32"]) == 3 * ALIGNED


def test_dtypes_have_memory_of_their_own() -> None:
    memory = Memory()
    memory.take((1,), "float32")
    memory.take((1,), "int64")
    assert {name: int(size) for name, size in memory.sizes.items()} == {"float32": ALIGNED, "int64": ALIGNED}
