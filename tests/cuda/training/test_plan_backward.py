"""backward's program: the order of layers and steps, tiles, and where gradients go."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import pytest
from networks import network
from training_plans import trained

from tvm_rnn import RNN, cell, cells, sigmoid, tanh
from tvm_rnn.bench.suites import recurrences
from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.layer.time_segments import TimeSegment
from tvm_rnn.cuda.rowwise.scan_over_time import Scan
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.cuda.training.plan_backward import Sequences, Tiles, gradient_width
from tvm_rnn.options import Options
from tvm_rnn.passes import parallelise_time
from tvm_rnn.passes.fuse_pointwise import read_at_last
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

H200 = resolve("nvidia-h200")


def test_gradients_come_in_the_order_that_the_manifest_says() -> None:
    net, plans = trained("lstm", num_layers=2, bidirectional=True)
    assert sorted(plans.backward.gradient_names) == sorted(net.weight_shapes)
    # The gradient of y, the tape, x, its gradient, the weights'; for segments of time four numbers and an address.
    assert plans.programs[1].inputs == 4 + len(net.weight_shapes) + 4 + 1


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("cell", "kept"), [("lstm", 4), ("gru", 4), ("elman", 1)])
def test_what_products_read_after_all_steps_has_rows_for_all_of_them(cell: str, kept: int) -> None:
    _, plans = trained(cell, precision="bfloat16")
    back = plans.backward.backs[0]
    assert len(back.layer.layout.kept) == kept
    assert back.bytes_per_row() == kept * 16 + back.layer.bytes_per_row
    # One product for all steps writes the gradient of x straight to where the user wants it.
    assert back.layer.layout.written_last and not back.input_gradients


@pytest.mark.broad
def test_what_is_accumulated_beside_the_steps_has_no_rows() -> None:
    """The product's gradient of m2rnn: 8 x 64 x 64 numbers of each row."""
    net = RNN(cells.m2rnn, 16, 64, dtype="bfloat16", N=8)
    back = plan(passed(net, Options(target=H200, training="states", precision="bfloat16")), H200).backward.backs[0]
    (made,), (number,) = back.layer.accumulated, back.layer.unstored
    assert made not in back.weight_gradients.nodes and made in back.weight_gradients.accumulated
    assert prod(back.layer.layout.kept[number].shape) == 8 * 64 * 64
    assert back.bytes_per_row() < back.layer.bytes_per_row + 2 * 8 * 64 * 64


def test_what_one_chain_has_in_registers_has_no_memory() -> None:
    """Nor does it write what kernels of matrices know without it, as a vector that is multiplied with the decay."""
    _, plans = trained("gated_delta_net", 32, "bfloat16")
    (layer,) = plans.backward.code
    found = layer.work_buffers(Program(), "T * B", 1, 0)["hoisted"]
    held = {*layer.layout.hoisted_nodes} - {*found}
    used = {argument.node for _, work in layer.groups for argument in work.arguments if argument.role != "weight"}
    assert held and held.isdisjoint(used)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("keep", ["states", "values"])
def test_operands_in_another_order_lie_where_hoisted_values_were(keep: str) -> None:
    """LSTM of 1024, 50 steps of 64 rows: the gates' gradients, these in order, and x or states in order."""
    net, unit = RNN(cells.lstm, 1024, 1024, dtype="bfloat16"), 50 * 64 * 1024 * 2
    trained = plan(passed(net, Options(H200, (64,), training=keep, precision="bfloat16")), H200)
    passing = trained.backward.backs[0].layer.passing
    assert passing is not None and len(passing.values) == (4 if keep == "states" else 0)
    bytes_of = working_memory(trained.programs[1], 132)
    assert 9 * unit < bytes_of(50, 64) < 10 * unit
    # Longer calls go through time in tiles.
    assert bytes_of(200, 64) < 22 * unit and bytes_of(1000, 64) < bytes_of(200, 64) + unit


@pytest.mark.parametrize("cell", ["lstm", "lem", "sru"])
def test_what_sums_read_is_there_behind_the_steps(cell: str) -> None:
    _, plans = trained(cell, precision="bfloat16")
    (back,) = plans.backward.backs
    passing = back.layer.passing
    assert passing is not None
    nodes = {node for node, _ in passing.values}
    assert nodes.isdisjoint(back.early) and nodes.isdisjoint(read_at_last(back.layer.graph))
    assert {*back.layer.hoisted_rows} - nodes == {*back.early} & {*back.layer.hoisted_rows}


def test_two_directions_are_added_up() -> None:
    _, plans = trained("gru", bidirectional=True)
    assert [gradient.root for gradient in plans.backward.backs[0].input_gradients] == [
        plans.backward.layers.graphs[0].output
    ]


def test_layers_run_from_the_last_one() -> None:
    _, plans = trained("lstm", num_layers=3)
    order = [line for line in plans.programs[1].sequence.lines if "_totals0" in line]
    assert len(order) == 3
    lines = "\n".join(plans.programs[1].sequence.lines)
    assert "T - done" in lines  # against the order of the forward steps
    assert lines.count("if (has_lengths || has_reset)") == 3  # a kernel of each layer that knows both


def text_of(cell: str, **options: Any) -> str:
    return "\n".join(trained(cell, **options)[1].programs[1].sequence.lines)


def test_layers_have_streams_of_their_own() -> None:
    text = text_of("lstm", num_layers=3)
    assert text.count("OnStream") == 2 and "fork(int64_t(2))" in text and "join(int64_t(2))" in text
    # Each layer waits for the one above and, for its place to be free, for the one below; each says twice where it is.
    assert text.count(".wait(") == 4 and text.count(".record(") == 6
    visits = text.split("OnStream")[1:]
    assert all(v.index(".wait(") < v.index("persistent") for v in visits)
    # The layer below begins before the sums.
    assert all(v.index(".record(") < v.index("_totals0") < v.rindex(".record(") for v in visits)


def test_layers_beyond_the_streams_share_them() -> None:
    text = text_of("elman", num_layers=10)
    assert "fork(int64_t(7))" in text and "call_state, int64_t(wave_1 ? 8 : 0)" not in text
    assert text.count("OnStream") == 10 - 2  # the first one and the ninth are on the caller's


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("lstm", {}),
        ("lstm", {"num_layers": 2, "bidirectional": True}),
        ("gru", {"num_layers": 2, "reverse": True}),
        ("lstm", {"num_layers": 2, "precision": "float64"}),  # step by step
    ],
)
def test_others_use_the_callers_stream_alone(cell: str, options: dict[str, Any]) -> None:
    text = text_of(cell, **options)
    assert "OnStream" not in text and "fork" not in text and ".wait(" not in text


@pytest.mark.broad
def test_layers_run_one_after_the_other_where_the_pass_was_left_out() -> None:
    net, _ = trained("lstm", num_layers=2)
    options = Options(resolve("nvidia-h200"), (4,), ("tile_layers_and_time",), "float32", training="values")
    plans = plan(passed(net, options), options.target)
    assert "OnStream" not in "\n".join(plans.programs[1].sequence.lines)


@pytest.mark.broad
def test_what_is_handed_down_is_of_tiles() -> None:
    """Of four tiles for each layer: a longer sequence needs less than its part more."""
    _, three = trained("lstm", 32, num_layers=3, precision="bfloat16")
    bytes_of = working_memory(three.programs[1], 132)
    tile = 100 * 4 * 32 * 2
    assert bytes_of(1200, 4) - bytes_of(12, 4) >= 5 * (tile - tile // 100)
    layout = "\n".join(three.programs[1].layout)
    assert "between_1" in layout and "T * B" not in next(x for x in three.programs[1].layout if "between_1" in x)


def test_memory_is_bounded_by_tiles_of_time() -> None:
    _, plans = trained("lstm", precision="bfloat16")
    layout = "\n".join(plans.programs[1].layout)
    assert "tile_steps" in layout and "kept_1" in layout


STEPS, B, WIDTH = 5, 3, 7
BYTES = STEPS * B * WIDTH * 2


def tiles(layers: int, wave: int) -> tuple[Tiles, Program]:
    program = Program("bfloat16")
    program.buffer("before", "B * 1000")
    net = network("lstm", 3, WIDTH, dtype="bfloat16", num_layers=layers)
    made = Tiles(net, program, str(STEPS), str(wave))
    made.last = program.buffer("last", made.size, "bfloat16")
    return made, program


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


def test_linear_states_have_no_steps_in_either_pass() -> None:
    """Backward is a scan too, against time; a product writes the gradient of x where it goes, and rows that ended are
    blanked there."""
    _, plans = trained("min_gru", precision="bfloat16")
    texts = ["\n".join(program.sequence.lines) for program in plans.programs]
    for way, text, facts in zip(("0, ", "1, "), texts, (p.facts["templates"] for p in plans.programs), strict=True):
        assert "_apply" in text and "_ends" in text and " s_" not in text, way
        assert "vector_scan_cuda" in {row["template"] for row in facts}
    (back,) = plans.backward.backs
    assert back.direct and not back.layer.layout.has_steps and back.layer.graph.output in back.early
    assert "_blank" not in "".join(plans.programs[1].kernels)  # the forward output's


def test_a_gradient_that_goes_back_in_time_is_cut_with_what_scans_carry() -> None:
    """Also between parts of the time."""
    _, plans = trained("min_gru", bidirectional=True)
    kernels = [program.kernels for program in plans.programs]
    forward = next(k for name, k in kernels[0].items() if name.endswith("restart_all"))
    back = next(k for name, k in kernels[1].items() if name.endswith("cut"))
    assert "state0" in dict(forward.pointers) and "state0" in dict(back.pointers)


def test_parts_of_an_input_s_gradient_are_written_where_they_belong() -> None:
    """A recurrence alone, whose x is put together of vectors: no kernel puts the gradient together, rows that have
    ended are blanked there, and the gradient of y is read where it is."""
    n, m, h = 8, 2, 16
    net = RNN(recurrences.CELLS["gated_delta"], n * (2 * h + m * h + 2 * m), h, dtype="bfloat16", N=n, M=m)
    plans = plan(passed(net, Options(H200, (4,), precision="bfloat16", training="values")), H200)
    back = plans.backward.backs[0]
    layout = back.layer.layout
    assert list(layout.in_output.values()) == [0, n * h, 2 * n * h, (2 + m) * n * h, (2 + m) * n * h + n * m]
    assert back.direct and not back.input_gradients and not {*layout.hoisted_nodes} & {*layout.in_output}
    for node, begin in layout.in_output.items():
        (target,) = layout.targets(node, "before")
        assert (target.kind, target.number, target.place.row_stride) == ("part", begin, net.input_size)
    lines = [line.strip() for line in plans.programs[1].sequence.lines]
    assert any("blank_input0" in line for line in lines) and not any("_give" in line for line in lines)
    assert not any(node.op == "broadcast" and prod(node.shape) == n * m * h for node in layout.home)
    again = {own.located(one)[0]: own.scale(one) for own in layout.matrices for one in own.vectors}
    assert [again.get(node) for node in layout.in_output] == [None, None, -1.0, None, None]  # the values' gradient


def test_a_kernel_that_walks_pointwise_steps_writes_the_gradient_of_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both states are in registers, nothing but what a sum over rows reads is kept, and no launch copies a gradient."""

    @cell(states="v a", output="y")
    def coupled(x: "H", v: "H", a: "H", *, tau: "H"):
        v = sigmoid(tau) * tanh(v) + x - a
        return v, 0.5 * a + 0.2 * tanh(v), v * a

    monkeypatch.setattr(parallelise_time, "FILLING", 1)
    (back,) = trained(coupled)[1].backward.backs
    (regime,) = back.layer.regimes
    assert isinstance(regime, Scan) and back.direct and not back.input_gradients and len(back.layer.layout.kept) == 1
    assert all(("y", "float32") in kernel.pointers for kernel in regime.kernels)
