"""What a group of vectors is: its states, its tile, and how its values are accessed."""

from __future__ import annotations

from dataclasses import replace

from vector_scans import WIDTH, linear, maximum, pair

from tvm_rnn.cuda.layer.pointers import Place


def test_states_and_what_says_what_a_chunk_does() -> None:
    """A matrix, a vector and whether something cut the states off."""
    one, two = linear()[0], pair()[0]
    assert (one.words, two.words, one.width, one.round) == (3, 7, WIDTH, 6)
    assert [state.name for state in two.states] == ["h0", "h1"]
    assert maximum()[0].is_max and not one.is_max
    assert [a.role for a in one.arguments].count("write") == len(one.stored)
    assert all(a.node.op != "state" for a in one.arguments)


def test_elements_side_by_side_are_one_access_where_every_row_is_aligned() -> None:
    both = linear(side=2)[0]
    assert both.tile == 2 * linear()[0].tile
    even, odd = (Place("float32", stride, align=8) for stride in (8, 7))
    assert both.in_words(even) and both.is_aligned(even) and not both.in_words(odd)
    assert not both.is_aligned(replace(even, align=4)) and linear()[0].is_aligned(odd)
