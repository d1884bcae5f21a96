"""step_memory: what launches are written with; that a layer fills it is in test_steps.py."""

from __future__ import annotations

from tvm_rnn.cuda.codegen.host_program import Pointer
from tvm_rnn.cuda.rowwise.step_memory import Buffers, Step, Tile


def test_what_has_to_be_said() -> None:
    x, y = Pointer("x", "float32"), Pointer("y", "float32")
    tile = Tile([x], y, "start", "count", False, 0)
    assert tile.kept == [] and Buffers({}, [(x, y)], {}, {}, {}, []).mask_keys is None
    assert Step(tile, "t", [x], [y], {}, {}).tile is tile
