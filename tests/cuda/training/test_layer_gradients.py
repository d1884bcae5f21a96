"""Where gradients lie on their way down: places that layers at work at the same time never share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from networks import network

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.layer.time_segments import TimeSegment
from tvm_rnn.cuda.training.layer_gradients import Sequences, Tiles, gradient_width

STEPS, B, WIDTH = 5, 3, 7
BYTES = STEPS * B * WIDTH * 2


def tiles(layers: int, wave: int) -> tuple[Tiles, Program]:
    program = Program("bfloat16")
    program.buffer("before", "B * 1000")
    return Tiles(
        network("lstm", 3, WIDTH, dtype="bfloat16", num_layers=layers), program, str(STEPS), str(wave)
    ), program


def offset(program: Program, pointer: Pointer) -> int:
    """The address, in bytes from the working memory's beginning: what a buffer at that place would need before it."""
    layout = [*program.layout, "const int64_t work = 0;", f"at = {pointer.text};", "most = 0;"]
    layout.append("const int64_t found = reserve(at, most, 1);")
    return working_memory(Program(layout=layout), 132)(STEPS, B) - 256


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_layers_side_by_side_have_two_tiles_each(layers: int) -> None:
    made, program = tiles(layers, 1)
    places = [
        offset(program, made.place(layer, str(tile), 0, WIDTH)) for layer in range(layers - 1) for tile in range(2)
    ]
    assert [offset(program, made.place(0, str(tile), 0, WIDTH)) for tile in (2, 3)] == places[:2]  # in turn
    every = sorted([*places, offset(program, made.place(layers - 1, "1", 0, WIDTH))])
    assert len(every) == 2 * layers - 1 and every[0] == B * 1000 // 256 * 256 + 256
    assert all(b - a >= BYTES for a, b in pairwise(every))
    assert working_memory(program, 132)(STEPS, B) - every[-1] >= BYTES


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_one_after_the_other_they_have_two_together(layers: int) -> None:
    made, program = tiles(layers, 0)
    places = [offset(program, made.place(layer, "1", 0, WIDTH)) for layer in range(layers - 1)]
    assert len(set(places)) == min(2, layers - 1)
    assert all(abs(a - b) >= BYTES for a, b in pairwise(places))  # one is read while the other is written
    beside = working_memory(tiles(3, 1)[1], 132)(STEPS, B)
    assert working_memory(program, 132)(STEPS, B) < beside


def test_one_layer_has_the_users_copy_alone() -> None:
    made, program = tiles(1, 0)
    assert offset(program, made.place(0, "0", 0, WIDTH)) == 3072
    assert working_memory(program, 132)(STEPS, B) == 3072 + 256


def test_whole_sequences_are_two_however_many_layers() -> None:
    net = network("lstm", 3, WIDTH, num_layers=3, bidirectional=True)
    assert gradient_width(net) == 2 * WIDTH
    program = Program("float32")
    made = Sequences(net, program, TimeSegment(2), None)
    first, second, third = (made.place(layer, "0", "4 * B", 14).text for layer in (2, 1, 0))
    assert first == third != second and "4 * B * 14" in first
    assert sum("reserve" in line for line in program.layout) == 2
    # The caller's, of a part: from the part's first step on.
    given = Sequences(net, Program("float32"), TimeSegment(2, "whole", "first", given=True), Pointer("input[9]"))
    assert "first * B * 14" in given.place(2, "0", 0, 14).text
