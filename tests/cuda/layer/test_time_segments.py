"""Calls for a segment of time: what programs of training read of them, and what each layer and direction does."""

from __future__ import annotations

import pytest
from training_plans import trained

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.layer.time_segments import COUNT, TimeSegment, time_segment
from tvm_rnn.cuda.training.add_entry_points import of_parts
from tvm_rnn.module_file.schema import TimeParts


def test_a_program_reads_four_numbers() -> None:
    program = Program()
    found = time_segment(program, 3, 2)
    assert program.inputs == 3 + COUNT and found.given
    assert len(program.sequence.lines) == COUNT
    assert all(f"reinterpret_cast<int64_t>(input[{3 + i}])" in line for i, line in enumerate(program.sequence.lines))
    host = program.sequence
    with found.of_visit(host, 1, 1), found.of_layer(host, 2):
        host.code("here;")
    text = " ".join(line.strip() for line in host.lines[COUNT:])
    v = found.visit
    assert text == f"if ({v} < 0 || {v} == 3) {{ if ({v} < 0 || {v} / 2 == 2) {{ here; }} }}"


def test_one_direction_has_no_conditions() -> None:
    for parts in (TimeSegment(), time_segment(Program(), 0, 1)):
        host = Program().sequence
        with parts.of_visit(host, 0, 0), parts.of_layer(host, 0):
            host.code("here;")
        assert [line.strip() for line in host.lines] == ["here;"]


@pytest.mark.broad
def test_which_programs_have_them() -> None:
    """Networks that go forward in time need none, reverse ones know what follows, and two directions what lasts."""
    for options, numbers, facts in (
        ({}, 0, None),
        ({"reverse": True}, COUNT, TimeParts("borders")),
        ({"bidirectional": True}, COUNT, TimeParts("visits", 1, 2 * 16 * 4)),
    ):
        net, plans = trained("gru", num_layers=2, **options)
        forward, backward = plans.programs
        assert forward.inputs == 2 + numbers
        gradients = len(plans.backward.gradient_names)
        assert backward.inputs == 4 + gradients + numbers + int(net.num_directions == 2)
        assert of_parts(plans) == facts
