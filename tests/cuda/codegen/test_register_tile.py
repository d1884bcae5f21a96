"""Register tiles: fragments are consecutive registers, in row-major order."""

from __future__ import annotations

import pytest

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.register_tile import RegisterTile


def body_of(emit) -> str:
    def body(w: Writer) -> None:
        from tvm.script.ir_builder import tirx as I

        I.cta_id([1]), I.thread_id([32])
        emit(w)

    kernel: Kernel = write("f", [("out", "float32")], [], body, threads=32)
    return kernel.func.script()


def test_fragments_are_consecutive_registers() -> None:
    found = []

    def emit(w: Writer) -> None:
        tile = RegisterTile(2, 3, 4)
        found.extend(int(register.indices[0]) for register in tile[1, 2])
        assert len(tile.flat) == 24 and tile.number(1, 2, 3) == 23

    body_of(emit)
    assert found == [20, 21, 22, 23]


def test_store_names_the_fragment_and_the_register_within_it() -> None:
    def emit(w: Writer) -> None:
        tile = RegisterTile(3, 4, dtype="uint32")
        tile.store(7, 2, 1)
        w.store(w["out"], tile[2][1].astype("float32"), 0)

    text = body_of(emit)
    assert "[9] = " in text and "(12,)" in text and "uint32" in text


def test_fill_sets_all_registers() -> None:
    text = body_of(lambda w: RegisterTile(2, 2).fill(1.0))
    assert text.count("= T.float32(1.0)") == 4


def test_a_constant_scales_all_registers() -> None:
    assert body_of(lambda w: RegisterTile(2, 2).scale(-1.0)).count("* T.float32(-1.0)") == 4
    assert "*" not in body_of(lambda w: RegisterTile(2, 2).scale(1.0))


def test_an_index_outside_of_the_tile_is_refused() -> None:
    def emit(w: Writer) -> None:
        tile = RegisterTile(2, 4)
        for wrong in ((2, 0), (0, 4), (-1, 0), (0, 0, 0)):
            with pytest.raises(IndexError):
                tile.number(*wrong)
        with pytest.raises(IndexError):
            tile[2]

    body_of(emit)
