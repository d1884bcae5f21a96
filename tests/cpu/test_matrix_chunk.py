"""matrix_chunk: a few steps of a matrix at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tvm import tirx

from tests.cpu.matrix_parts import delta_part
from tvm_rnn.cpu.matrix_chunk import Chunk, steps_together


@pytest.mark.parametrize(("keys", "steps"), [(19, 4), (512, 4), (4096, 1)])
def test_vectors_of_many_keys_have_no_room_on_the_stack(keys: int, steps: int) -> None:
    assert steps_together(delta_part(16, keys)) == steps


@pytest.mark.parametrize(("columns", "steps"), [(1, 4), (2, 2), (3, 2)])
def test_a_chunk_has_few_columns(columns: int, steps: int) -> None:
    update = SimpleNamespace(products=[None], columns=[None] * columns)
    part = SimpleNamespace(update=update, reads=[None], keys=64, lanes=8)
    assert steps_together(part) == steps


@pytest.mark.parametrize(("steps", "products"), [(1, 1), (4, 6 + 10 + 6)])
def test_what_is_asked_reads_what_is_written_before_it(steps: int, products: int) -> None:
    part = delta_part(16, 19)
    rows = [tirx.const(t, "int64") for t in range(steps)]
    chunk = Chunk(part, rows, part.matrix)
    assert len(chunk.pairs) == products and "vectorized" in str(chunk.statement())
