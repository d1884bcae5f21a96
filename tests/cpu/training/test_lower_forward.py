"""lower_forward_train: its functions, and that nothing between layers is in the workspace."""

from __future__ import annotations

from networks import network

from tests.cpu.training.test_lower_network import both


def test_functions_by_name() -> None:
    forward, _ = both(network("elman", 5, 8, num_layers=2))
    assert set(forward.functions()) == {"forward_train", "train_pack_0", "train_pack_1"}


def test_states_and_inputs_are_in_the_tape() -> None:
    """The workspace has what a tile hoists, and scratch: an Elman layer has one hoisted value."""
    forward, _ = both(network("elman", 40, 16, num_layers=3))
    sizes = forward.memory.sizes()
    assert sizes.per_row == 0 and sizes.per_sequence_row == 0 and sizes.per_tile_row == 16
    assert forward.tape.inputs[0][1] == 48 and [stride for _, stride in forward.tape.inputs[1:]] == [16, 16]
