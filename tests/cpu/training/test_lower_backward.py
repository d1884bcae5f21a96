"""lower_backward: its functions, and sums and packed weights that cover every weight once."""

from __future__ import annotations

from itertools import pairwise

from networks import network

from tests.cpu.training.test_lower_network import both


def test_functions_by_name() -> None:
    _, backward = both(network("elman", 5, 8, num_layers=2))
    names = {"backward", "backward_pack_0", "backward_pack_1", "finish_0", "finish_1"}
    assert set(backward.functions()) == names


def test_facts_cover_every_weight_once_and_sums_do_not_overlap() -> None:
    net = network("lstm", 6, 5, num_layers=3, bidirectional=True)
    _, backward = both(net)
    facts = backward.facts()
    assert sorted(n for row in facts.finishes for n in row.gradients) == sorted(net.weight_shapes)
    offsets = sorted(row.offset for row in facts.finishes)
    sizes = {code.finish.size for code in backward.backs}
    assert len(set(offsets)) == 6 and offsets[-1] + min(sizes) <= facts.totals_elements
    assert all(b - a >= min(sizes) for a, b in pairwise(offsets))
    assert sorted(n for pack in facts.packs for n in pack.weights) == sorted(net.weight_shapes)


def test_gradients_between_layers_are_for_all_steps() -> None:
    """Two buffers in turn, each a row of the widest value for every step."""
    _, backward = both(network("elman", 40, 8, num_layers=2))
    assert backward.memory.per_sequence_row == 2 * backward.stride and backward.stride >= 40
