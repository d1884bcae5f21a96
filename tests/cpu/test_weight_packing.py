"""packing: what a layer reads of its parameters has a place each, matrices as many bytes as their storage says."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.weight_packing import PackedWeights, Tail
from tvm_rnn.cpu.weight_storage import Storages, storage_on
from tvm_rnn.graph.graph import depends
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]
VNNI = replace(V4, features=("avx512f", "avx512vnni"))


def weights_of(c: rnn.Cell, hidden: int, stored: str = "") -> PackedWeights:
    graph = pipeline.run(rnn.RNN(c, 8, hidden), V4)[-1][1].graphs[0]
    leaves = depends(graph.nodes())
    free = {n for n in graph.nodes() if not leaves[n]}
    return PackedWeights(graph, free, 16, 0, Storages(storage_on(VNNI, stored)))


PARTS = {"": 1, "bfloat16": 2, "float16": 2, "int8": 4, "int8_dynamic": 4}


@pytest.mark.parametrize(("stored", "part"), PARTS.items())
def test_matrices_take_the_room_of_their_storage(stored: str, part: int) -> None:
    own = weights_of(rnn.cells.lstm, 24, stored)
    scales = {"int8": 2 * 4 * 32, "int8_dynamic": 4 * 4 * 32}.get(stored, 0)  # the latter's sums, too
    assert own.packed.size == 4 * 32 * (8 + 24) // part + scales + 4 * 32
    product, *_ = own.products
    assert own.ratio(product) == (1 if stored == "int8_dynamic" else part)
    assert bool(own.scales) == stored.startswith("int8")


@pytest.mark.parametrize("stored", ["", "int8", "int8_dynamic"])
def test_no_two_places_overlap(stored: str) -> None:
    own = weights_of(rnn.cells.lstm_layer_norm, 33, stored)
    places = sorted(own.packed.names.values())
    assert len(set(places)) == len(places) and places[-1] < own.packed.size
    assert all(place % 16 == 0 for place in places)


@pytest.mark.parametrize(
    ("hidden", "tail"), [(32, None), (34, Tail(2, 1)), (71, Tail(7, 2)), (45, None), (7, Tail(7, 2))]
)
def test_gates_of_the_last_units_lie_side_by_side_where_that_is_shorter(hidden: int, tail: Tail | None) -> None:
    own = weights_of(rnn.cells.lstm, hidden)
    hoisted, step = own.products
    assert own.tails.get(hoisted) == tail and step not in own.tails
    assert not weights_of(rnn.cells.lstm, hidden, "int8").tails
