"""A block's place: which part, row, head and keys it has, and how many of the part's steps its row has."""

from __future__ import annotations

import numpy as np
from again_pairs import EVERY
from emulated import run

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.linear.pair import STATE, Made, Pair, Read
from tvm_rnn.cuda.linear.part_place import Place
from tvm_rnn.cuda.linear.recurrence import Rows
from tvm_rnn.cuda.linear.steps_again import StepsAgain
from tvm_rnn.tir.index import wide

STEPS, BATCH = EVERY + 3, 2


def test_every_place_is_had_once() -> None:
    rows = Rows(24, 48, "float32")
    pair = Pair(2, 24, 24, "float32", Made(None, ((rows, rows),)), None, (Read(STATE, rows, rows),))
    layout = StepsAgain("k", pair)

    def body(w: Writer) -> None:
        place = Place(w, layout, masked=True)
        found = (place.key0, place.head, place.row, place.first, place.limit)
        with w.when(place.thread < 1):
            block = ((wide(place.number) * pair.heads + wide(place.head)) * layout.tiles) + wide(
                place.key0 // layout.keys
            )
            for i, value in enumerate(found):
                w.store(w["found"], value, block * len(found) + i)

    blocks = layout.blocks(BATCH, STEPS)
    found = np.full((blocks, 5), -1, np.int32)
    pointers = [("found", "int32"), *MASK_POINTERS]
    scalars = [("steps", "int32"), ("batch", "int32"), *MASK_SCALARS]
    given = {"found": found, "lengths": np.array([STEPS, 7], np.int64), "reset": np.zeros(1, np.uint8)}
    numbers = {"steps": STEPS, "batch": BATCH, "start": 0, "total": STEPS, "has_lengths": 1, "has_reset": 0}
    run(write("k", pointers, scalars, body, threads=layout.threads), given, numbers, blocks)
    heads, keys = range(2), range(0, layout.tiles * layout.keys, layout.keys)
    places = {(k, h, b, t) for t in (0, EVERY) for b in range(BATCH) for h in heads for k in keys}
    assert {tuple(line[:4]) for line in found.tolist()} == places and len(places) == blocks
    for _, _, row, first, limit in found.tolist():
        assert limit == max(0, min((STEPS, 7)[row] - first, EVERY))
