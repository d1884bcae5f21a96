"""tiles: what a tile's statement is made of. That tiles compute the right thing is tested through whole modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.lower_layer import Layer
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.graph.graph import Group
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.records import Records
from tvm_rnn.schedule import Unit, templates
from tvm_rnn.schedule.schedule_template import Config
from tvm_rnn.tune.workload import Candidate, Choice, Trial

V4 = target.TABLE["x86-64-v4"]


def loops(statement: object) -> list[tuple[str, int, int]]:
    """(name, kind, extent) of every loop with a constant extent, inner ones first."""
    found: list[tuple[str, int, int]] = []

    def visit(node: tirx.For) -> None:
        if isinstance(node.extent, tirx.IntImm):
            found.append((node.loop_var.name, int(node.kind), int(node.extent)))

    tvm_ffi.structural_walk(statement, (tirx.For, visit))
    return found


def sequence(name: str, **sizes: int) -> tirx.PrimFunc:
    net = rnn.RNN(rnn.cells.get(name), 8, 32, **sizes)
    return Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run().module["sequence"]


def test_lanes_are_vectors_and_accumulators_unrolled() -> None:
    found = loops(sequence("lstm"))
    vectors = [extent for _, kind, extent in found if kind == tirx.ForKind.VECTORIZED]
    assert vectors and set(vectors) == {16}
    unrolled = {extent for _, kind, extent in found if kind == tirx.ForKind.UNROLLED}
    assert 4 in unrolled and max(unrolled) <= 8
    assert all(extent in (8, 32) for name, kind, extent in found if name == "k")


def test_every_buffer_of_a_tile_is_small_and_local() -> None:
    sizes = []

    def visit(node: tirx.AllocBuffer) -> None:
        size = 4
        for extent in node.buffer.shape:
            size *= int(extent)
        sizes.append(size)

    for name in ("lstm", "lstm_layer_norm", "mlstm", "delta_net"):
        tvm_ffi.structural_walk(sequence(name).body, (tirx.AllocBuffer, visit))
    assert sizes and max(sizes) <= 8192


def test_tiles_touch_flat_buffers_only_through_their_parameters() -> None:
    func = sequence("mlstm")
    names = {p.name for p in func.params if hasattr(p, "shape")}
    stored: set[str] = set()
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda node: stored.add(node.buffer.name)))
    flat = {n for n in stored if n in names}
    assert flat == {"workspace", "y", "C_out", "n_out", "m_out"}


def test_an_emitter_records_what_it_used() -> None:
    net = rnn.RNN(rnn.cells.lstm_layer_norm, 8, 32)
    graph = pipeline.run(net, V4)[-1][1].graphs[0]
    emitter = Emitter(V4, "float32", (1,))
    layer = Layer(graph, {}, emitter, 4)
    assert layer.states_per_row == 2 * (32 + 32) and layer.packed.size > 4 * 32 * 40
    groups: list[Group] = [g for g in graph.groups if g.kind == "gemm"]
    unit = emitter._unit(groups[0])
    assert isinstance(unit, Unit) and unit.width == 128 and unit.depths == (8,) and unit.batches == (1,)


def compiled(net: rnn.RNN, ahead: int) -> rnn.Module:
    """The module whose step has that knob."""
    first = Trial()
    rnn.compile(net, batch=1, records=first)
    unit = next(u for u in first.asked.values() if u.kind == "gemm" and u.region == "step")
    knobs = {"ahead": ahead}
    records: Records = Trial(Candidate((Choice(unit.key, "gemm_cpu", version("gemm_cpu"), knobs),)))
    return rnn.compile(net, batch=1, records=records)


def version(name: str) -> int:
    from tvm_rnn.schedule.schedule_template import templates

    return templates()[name].version


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "sizes"), [("elman", (3, 33)), ("lstm", (5, 33)), ("gru_reset_before", (7, 16)), ("elman", (3, 130))]
)
def test_results_are_the_same_bits(cell: str, sizes: tuple[int, int]) -> None:
    net = rnn.RNN(rnn.cells.get(cell), *sizes).init(3)
    x = np.random.default_rng(0).standard_normal((9, 1, sizes[0])).astype("float32")
    plain, asking = (compiled(net, ahead) for ahead in (0, 8))
    knobs = [row["knobs"].get("ahead") for row in asking.manifest.templates if row["unit"].startswith("step gemm")]
    assert knobs and knobs[0] == 8
    np.testing.assert_array_equal(plain(x)[0], asking(x)[0])


def by_k(sch: Schedule, unit: Unit, config: Config) -> None:
    """What a tile is without a schedule, as one."""
    for number in range(len(unit.depths)):
        row, panel, gate, lane, k = sch.get_loops(f"product_{number}")
        sch.reorder(k, row, panel, gate, lane)
        sch.vectorize(lane)
        for loop in (row, panel, gate):
            sch.unroll(loop)
        sch.decompose_reduction(f"product_{number}", k)


def test_a_schedule_of_ones_own_gets_the_sums_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule that makes the loops which are there without one gives the same bits."""
    net = rnn.RNN(rnn.cells.gru_reset_before, 5, 9).init(0)
    x = np.random.default_rng(0).standard_normal((3, 3, 5)).astype("float32")
    plain, own = rnn.compile(net, records="none")(x)[0], templates()["gemm_cpu"]
    seen = list[tuple[int, ...]]()

    def schedule(sch: Schedule, unit: Unit, config: Config) -> None:
        seen.append(unit.depths)
        by_k(sch, unit, config)

    monkeypatch.setitem(templates(), "gemm_cpu", replace(own, schedule=schedule))
    np.testing.assert_array_equal(rnn.compile(net, records="none")(x)[0], plain)
    assert seen and {*seen} == {(5,), (9,)}
