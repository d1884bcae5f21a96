"""backward's program: the order of layers and steps, tiles, and where gradients go."""

from __future__ import annotations

import pytest
from training_plans import trained


def test_gradients_come_in_the_order_that_the_manifest_says() -> None:
    net, plans = trained("lstm", num_layers=2, bidirectional=True)
    assert sorted(plans.backward.gradient_names) == sorted(net.weight_shapes)
    # The gradient of y, the tape, x, its gradient, the weights'; for parts of the time four numbers and an address.
    assert plans.programs[1].inputs == 4 + len(net.weight_shapes) + 4 + 1


@pytest.mark.parametrize(("cell", "kept"), [("lstm", 4), ("gru", 4), ("elman", 1)])
def test_what_products_read_after_all_steps_has_rows_for_all_of_them(cell: str, kept: int) -> None:
    _, plans = trained(cell, precision="bfloat16")
    back = plans.backward.backs[0]
    assert len(back.layer.layout.kept) == kept
    assert back.bytes_per_row() == kept * 16 + back.layer.bytes_per_row
    # One product for all steps writes the gradient of x straight to where the user wants it.
    assert back.layer.layout.written_last and not back.givers


def test_two_directions_are_added_up() -> None:
    _, plans = trained("gru", bidirectional=True)
    assert [giver.root for giver in plans.backward.backs[0].givers] == [plans.backward.layers.graphs[0].output]


def test_layers_run_from_the_last_one() -> None:
    _, plans = trained("lstm", num_layers=3)
    order = [line for line in plans.programs[1].sequence.lines if "_totals0" in line]
    assert len(order) == 3
    lines = "\n".join(plans.programs[1].sequence.lines)
    assert "T - done" in lines  # against the order of the forward steps
    assert lines.index("has_reset && ") > 0


def test_memory_is_bounded_by_tiles_of_time() -> None:
    _, plans = trained("lstm", precision="bfloat16")
    layout = "\n".join(plans.programs[1].layout)
    assert "tile_steps" in layout and "kept_1" in layout
