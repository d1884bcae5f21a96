"""A block's place: 64 bits wherever rows of long sequences lie."""

from __future__ import annotations

from typing import Any

import pytest
from linear_steps import SMALL, recurrence
from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.linear.chunk_block import Block
from tvm_rnn.cuda.linear.chunk_layout import ChunkLayout


@pytest.mark.parametrize("masked", [False, True])
def test_offsets_are_wide(masked: bool) -> None:
    own, seen = recurrence(), dict[str, Any]()
    layout = ChunkLayout("k", own, SMALL)

    def body(w: Writer) -> None:
        block = Block(w, ChunkLayout("k", own, SMALL), masked)
        seen["at"] = block.element(own.key, tirx.const(3, "int32"))
        w.store(w["state_out"], tirx.const(0.0, "float32"), seen["at"])

    scalars = [(name, "int32") for name in ("steps", "batch", "span", "start", "has_lengths")]
    assert write("f", [*own.pointers, ("lengths", "int64")], scalars, body, threads=layout.threads).func
    assert str(seen["at"].ty) == "int64"
