"""The tape on the GPU: what is kept, that both programs agree on where, and how much it is."""

from __future__ import annotations

from training_plans import trained

from tvm_rnn.cuda.program import Pointer, Program
from tvm_rnn.cuda.tape import kept_nodes, states_read


def test_an_lstm_keeps_its_gates_and_both_states() -> None:
    _, plans = trained("lstm", precision="bfloat16", num_layers=2)
    graph, layout = plans.forward.code[0].graph, plans.forward.code[0].layout
    assert states_read(graph) == [0, 1]
    assert kept_nodes(graph) == layout.kept and len(layout.kept) == 4 + 2
    assert {layout.kept_place(n).dtype for n in layout.kept} == {"bfloat16"}
    sizes = plans.forward.tape.sizes()
    # Of each layer: four gates for T steps, two states for T + 1. What the upper one reads is the lower one's state,
    # and x is the caller's, but in calls with lengths or resets.
    assert sizes == [*([[16, 0]] * 4 + [[16, 1]] * 2) * 2, [16, 0, 1], [16, 0, 1]]
    program = Program()
    found = plans.forward.tape.pointers(program, Pointer("input[1]"), 0)
    x = found[plans.forward.tape.inputs[0]]
    assert x.text.startswith("(has_lengths || has_reset ? ") and x.text.endswith(" : input[0])")
    own, state = found[plans.forward.tape.inputs[1]], found[plans.forward.tape.visits[0, 0][4]]
    assert own.text.startswith("(has_lengths || has_reset ? ") and state.text in own.text


def test_outputs_that_are_no_state_or_lie_otherwise_are_kept_apart() -> None:
    for options in ({"width": 7}, {"bidirectional": True}):
        _, plans = trained("lstm", precision="bfloat16", num_layers=2, **options)
        tape = plans.forward.tape
        assert not tape.shared and [i for i, part in enumerate(tape.parts) if part.flagged] == tape.users
        assert len(plans.forward.tape.inputs) == 2


def test_states_that_no_gradient_reads_are_not_kept() -> None:
    _, plans = trained("elman_relu")
    graph = plans.forward.code[0].graph
    assert len(kept_nodes(graph)) == len(graph.emitted) + len(states_read(graph))
    assert states_read(graph) == [0]  # h, for R's gradient


def test_addresses_follow_each_other_and_are_aligned() -> None:
    _, plans = trained("gru", bidirectional=True)
    program = Program()
    found = plans.forward.tape.pointers(program, Pointer("input[1]"), 0)
    assert len(found) == len(plans.forward.tape.parts) == 1 + 2 * 5
    assert all("/ 256 * 256" in line for line in program.layout)
    assert len({pointer.text for pointer in found}) == len(found)
