"""The tape on the GPU: what is kept, that both programs agree on where, and how much it is."""

from __future__ import annotations

import pytest
from networks import network
from training_plans import trained

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.layer.time_segments import TimeSegment, time_segment
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.cuda.training.tape_layout import kept_nodes, narrowed, states_read
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


def test_an_lstm_keeps_its_gates_and_both_states() -> None:
    _, plans = trained("lstm", precision="bfloat16", num_layers=2)
    graph, layout = plans.forward.code[0].graph, plans.forward.code[0].layout
    assert states_read(graph) == [0, 1]
    assert kept_nodes(graph) == layout.kept and len(layout.kept) == 4 + 2
    assert {layout.kept_place(n).dtype for n in layout.kept} == {"bfloat16"}
    sizes = plans.forward.tape.sizes()
    # Of each layer: four gates for T steps, two states for T + 1. What the upper one reads is the lower one's state,
    # and x is the caller's, but in calls with lengths or resets;
    # and so is y, which is the upper one's.
    assert sizes == [*([[16, 0]] * 4 + [[16, 1]] * 2), *[[16, 0]] * 4, [16, 1], [16, 1, 1], [16, 0, 1], [16, 0, 1]]
    program = Program()
    found = plans.forward.tape.pointers(program, Pointer("input[1]"), 0, TimeSegment())
    x = found[plans.forward.tape.inputs[0]]
    assert x.text.startswith("(has_lengths || has_reset ? ") and x.text.endswith(" : input[0])")
    own, state = found[plans.forward.tape.inputs[1]], found[plans.forward.tape.visits[0, 0][4]]
    assert own.text.startswith("(has_lengths || has_reset ? ") and state.text in own.text


def test_a_matrix_is_kept_before_some_steps_alone() -> None:
    _, plans = trained("gated_delta_net", precision="float32")
    tape, code = plans.forward.tape, plans.forward.code[0]
    assert code.marked == [0] and not states_read(code.graph)
    (array,) = [array for array in tape.arrays if array.every > 1]
    assert tape.sizes()[tape.matrices[0, 0][0]] == [array.row_bytes, 0, 0, 64] == [4 * 8 * 8, 0, 0, 64]
    assert array.size("T") == "(T + 63) / 64 * B * 256"
    at = tape.matrix([Pointer(f"p{i}", "float32") for i in range(len(tape.arrays))], (0, 0), 0, "start")
    assert "start / 64 * B * 64" in at.text


@pytest.mark.broad
def test_outputs_that_are_no_state_or_lie_otherwise_are_kept_apart() -> None:
    for options in ({"width": 7}, {"bidirectional": True}):
        _, plans = trained("lstm", precision="bfloat16", num_layers=2, **options)
        tape = plans.forward.tape
        assert not tape.shared and tape.output is None
        assert [i for i, array in enumerate(tape.arrays) if array.flagged] == tape.users
        assert len(plans.forward.tape.inputs) == 2


@pytest.mark.broad
@pytest.mark.parametrize(("reverse", "members"), [(False, 0), (True, 0), (False, 2)])
def test_the_last_layer_s_state_is_found_in_y(reverse: bool, members: int) -> None:
    """From the step before y's first on, or behind its last; also where y is members' states as one vector."""
    width, options = (4, {"members": members}) if members else (8, {})
    _, plans = trained("gru", width, "bfloat16", reverse=reverse, **options)
    tape = plans.forward.tape
    assert tape.output is not None and tape.output[0] == tape.visits[0, 0][-1]
    texts = []
    for given in (1, 2):  # forward_train, backward
        program = Program()
        texts.append(tape.pointers(program, Pointer("input[1]"), given, TimeSegment())[tape.output[0]].text)
    assert texts[0] == texts[1] and texts[0].startswith("(has_lengths || has_reset ? ")
    assert texts[0].endswith(" : output)") if reverse else "(output + int64_t(4 * int64_t((0 - B * 8))))" in texts[0]


@pytest.mark.broad
def test_tapes_of_float32_may_be_narrower_but_for_what_products_read() -> None:
    """Gates and c in bfloat16, h, which the gradient of R reads, as it is."""
    net = network("lstm", 8, 8, num_layers=2)
    target = resolve("nvidia-h200")
    forward = plan(passed(net, Options(target, (4,), precision="tf32", training="values:bfloat16")), target).forward
    layout = forward.code[0].layout
    assert [layout.kept_place(n).dtype for n in layout.kept] == [*["bfloat16"] * 4, "float32", "bfloat16"]
    assert forward.tape.shared  # h is what the upper layer reads
    assert narrowed(forward.code[0].graph, "") == {}
    whole = plan(passed(net, Options(target, (4,), precision="tf32", training="values")), target).forward.tape.sizes()
    assert sum(row for row, *_ in forward.tape.sizes()) == sum(row for row, *_ in whole) - 2 * 5 * 16


@pytest.mark.broad
def test_calls_for_a_part_have_what_layers_hand_on_of_all_steps() -> None:
    _, plans = trained("gru", num_layers=2, bidirectional=True)
    program = Program()
    of = time_segment(program, 2, 2)
    found = plans.forward.tape.pointers(program, Pointer("input[1]"), 0, of)
    assert [array.whole for array in plans.forward.tape.arrays] == [True] + [False] * (len(found) - 1)
    assert not program.layout and f"{of.first} * B" in found[0].text and of.first not in found[1].text
    first = next(line for line in program.sequence.lines if "tape_1" in line)
    assert f"{of.whole} * B * 64" in first


def test_states_that_no_gradient_reads_are_not_kept() -> None:
    _, plans = trained("elman_relu")
    graph = plans.forward.code[0].graph
    assert len(kept_nodes(graph)) == len(graph.emitted) + len(states_read(graph))
    assert states_read(graph) == [0]  # h, for R's gradient


def test_addresses_follow_each_other_and_are_aligned() -> None:
    _, plans = trained("gru", bidirectional=True)
    program = Program()
    found = plans.forward.tape.pointers(program, Pointer("input[1]"), 0, TimeSegment())
    assert len(found) == len(plans.forward.tape.arrays) == 1 + 2 * 5
    assert all("/ 256 * 256" in line for line in program.layout)
    assert len({pointer.text for pointer in found}) == len(found)
