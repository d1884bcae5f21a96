"""Places of values: what is free is taken again where it surely fits."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.cpu.surroundings.memory import ALIGNED, Memory
from tvm_rnn.tir.index import int64


def test_a_free_place_is_taken_again() -> None:
    memory, n = Memory(), tirx.Var("n", "int64")
    first = memory.take((n, 4), "float32")
    memory.take((n, 4), "float32")
    memory.give(first, "float32")
    assert memory.take((4, n), "float32") is not first or memory.take((n, 4), "float32") is not first
    assert len(memory.bound) <= 3


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
