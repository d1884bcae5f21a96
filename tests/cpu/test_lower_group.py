"""emit: which loops run in parallel, and which unit a group is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu import lower_group
from tvm_rnn.cpu.lower_group import PARALLEL_ELEMENTS, Emitter
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.schedule import Config, Template, Unit, best
from tvm_rnn.schedule.schedule_template import Chosen
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64

V4 = target.TABLE["x86-64-v4"]


STEPS = ("parallelise_time",)  # left out: one step after the other


def parallel_loops(name: str, hidden: int, without: tuple[str, ...] = ()) -> list[str]:
    net = rnn.RNN(rnn.cells.get(name), 8, hidden)
    func = Lowering(net, pipeline.run(net, V4, without)[-1][1], Options(V4)).run().module["sequence"]
    found: list[str] = []

    def visit(node: tirx.For) -> None:
        if node.kind == tirx.ForKind.PARALLEL:
            found.append(node.loop_var.name)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return found


def test_products_of_several_panels_are_shared_among_threads() -> None:
    assert parallel_loops("lstm", 128) == ["chunk", "worker"]  # of a step each thread has a part, in turns
    assert parallel_loops("lstm", 16) == []


def test_how_many_threads_share_a_step_is_known_in_a_call() -> None:
    """Of its rows: few of a small network are one thread's."""
    net = rnn.RNN(rnn.cells.lstm, 8, 64)
    func = Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run().module["sequence"]
    shared, values = list[Expr](), dict[Expr, Expr]()

    def visit(node: tirx.For) -> None:
        if node.loop_var.name == "worker":
            shared.append(node.extent)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    tvm_ffi.structural_walk(func.body, (tirx.Bind, lambda node: values.update({node.var: node.value})))
    (few,) = (values[extent] for extent in shared)
    batch, threads = (next(p for p in func.params if p.name == name) for name in ("B", "threads"))
    for rows, number in ((1, 1), (2, 8)):
        known = Analyzer()
        known.bind(batch, int64(rows))
        known.bind(threads, int64(8))
        assert int(known.simplify(few)) == number


@pytest.mark.parametrize(("units", "lanes"), [(7, 16), (16, 16), (20, 32), (48, 16), (64, 32)])
def test_pointwise_work_takes_two_vectors_at_a_time(units: int, lanes: int) -> None:
    """Where they leave no rest."""

    @rnn.cell(states="c")
    def ema(x: "H", c: "H"):
        return 0.5 * c + 0.5 * rnn.tanh(x)

    passed = pipeline.run(rnn.RNN(ema, units, units), V4, STEPS)
    func = Lowering(rnn.RNN(ema, units, units), passed[-1][1], Options(V4)).run().module["sequence"]
    found: list[int] = []

    def visit(node: tirx.For) -> None:
        if node.kind == tirx.ForKind.VECTORIZED:
            found.append(int(node.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    assert max(found) == lanes


def test_matrix_states_are_shared_when_they_are_large() -> None:
    assert "i" not in parallel_loops("mlstm", 32, STEPS)
    assert "i" in parallel_loops("mlstm", 256, STEPS) and PARALLEL_ELEMENTS <= 256 * 256


def test_rows_before_the_steps_are_shared() -> None:
    """Once for all that is done between two recurrences; a product alone has panels to share."""
    assert parallel_loops("mlstm", 64) == ["section", "thread", "section", "thread", "section"]
    assert parallel_loops("gated_delta_net", 64) == ["section", "thread"]
    assert "section" not in parallel_loops("lstm", 64)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["mlstm", "gated_delta_net"])
def test_two_threads_share_rows(name: str) -> None:
    net = rnn.RNN(rnn.cells.get(name), 8, 24).init(seed=0)
    module, x = rnn.compile(net, batch=3), np.random.default_rng(0).normal(size=(200, 3, 8)).astype("f4")

    def on(threads: int) -> np.ndarray:
        module.threads = threads
        return np.asarray(module(x)[0])

    alone = on(1)
    np.testing.assert_array_equal(on(2), alone)
    assert_close(alone, rnn.reference(net)(x)[0], "float32", 200)


@pytest.mark.parametrize(("name", "gates", "depths"), [("lstm", 4, (8,)), ("gru", 3, (8,)), ("elman", 1, (8,))])
def test_units_of_the_input_product(name: str, gates: int, depths: tuple[int, ...]) -> None:
    net = rnn.RNN(rnn.cells.get(name), 8, 24)
    group = pipeline.run(net, V4)[-1][1].graphs[0].groups[0]
    unit = Emitter(V4, "float32", ())._unit(group)
    assert (unit.kind, unit.region, unit.gates, unit.width, unit.depths) == ("gemm", "before", gates, 24, depths)


# (cell, rows, panels, broad): tiles of one gate fit the 16 registers of AVX2, tall ones of three need AVX-512.
FEW = [("gru_reset_before", 1, 8, 1), ("gru_reset_before", 4, 1, 1), ("elman", 8, 2, 1), ("elman", 4, 4, 2)]
MANY = [
    (cell, *tile) for cell in ("gru_reset_before", "elman") for tile in ((1, 1, 1), (1, 4, 1), (2, 2, 1), (3, 2, 2))
]
TALL = [("gru_reset_before", 8, 2, 1), ("gru_reset_before", 4, 4, 2), ("elman", 8, 8, 1), ("elman", 8, 2, 2)]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "rows", "panels", "broad"), [*FEW, *(pytest.param(*tile, marks=pytest.mark.slow) for tile in MANY + TALL)]
)
def test_every_tile_with_every_rest(
    cell: str, rows: int, panels: int, broad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = 3 if cell == "gru_reset_before" else 1
    if (rows + 1) * broad * gates >= rnn.target.resolve("native").vector_registers:
        pytest.skip("the processor's registers do not hold this tile")

    def forced(unit: Unit, machine: rnn.Target) -> tuple[Template, Config]:
        record = {"rows": rows, "panels": panels, "broad": broad} if unit.kind == "gemm" else None
        return best(unit, machine, record)

    monkeypatch.setattr(lower_group, "best", forced)
    net = rnn.RNN(rnn.cells.get(cell), 3, 69).init(rows)  # 5 panels of 16: no multiple of any choice but 1
    module = rnn.compile(net)
    assert {t["knobs"]["rows"] for t in module.manifest.templates if t["template"] == "gemm_cpu"} == {rows}
    rng = np.random.default_rng(panels)
    for batch in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17):
        x = rng.normal(size=(3, batch, 3)).astype("float32")
        y, state = module(x)
        expected, expected_state = rnn.reference(net)(x)
        assert_close(y, expected, "float32", 3)
        assert_close(state["h"], expected_state["h"], "float32", 3)


@pytest.mark.broad
@pytest.mark.parametrize("rows", [2, 3])
def test_terms_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks of tiles, a part of one, and rows that fill no tile."""

    def forced(unit: Unit, machine: rnn.Target) -> Chosen:
        chosen = best(unit, machine, {"rows": rows} if unit.kind == "gemm" else None)
        return chosen._replace(knobs=chosen.knobs | {"parts": 4}) if unit.kind == "gemm" else chosen

    monkeypatch.setattr(lower_group, "best", forced)
    net = rnn.RNN(rnn.cells.gru, 16, 40).init(rows)
    module = rnn.compile(net)
    for batch in (1, rows, 2 * rows + 1, 67):
        x = np.random.default_rng(batch).normal(size=(3, batch, 16)).astype("float32")
        assert_close(module(x)[0], rnn.reference(net)(x)[0], "float32", 3)


@pytest.mark.broad
def test_threads_share_panels_without_changing_a_bit() -> None:
    net = rnn.RNN(rnn.cells.lstm, 40, 130, num_layers=2).init()
    module = rnn.compile(net)
    x = np.random.default_rng(0).normal(size=(3, 9, 40)).astype("float32")
    results = []
    for threads in (1, 2, 3, 7):  # more than there are cores: a launch then waits for turns of the operating system
        module.threads = threads
        results.append(module(x)[0])
    assert all(np.array_equal(results[0], r) for r in results[1:])


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("named", [(13,), (21, 3)], ids=str)
def test_named_batches_have_a_tile_for_what_is_left(named: tuple[int, ...]) -> None:
    """Also where weights are asked for early, which a small cache makes them."""
    net = rnn.RNN(rnn.cells.lstm, 5, 37).init(seed=3)
    mod = rnn.compile(net, target=replace(target.host(), l2_bytes=1), batch=named)
    rng = np.random.default_rng(1)
    for batch in (1, 2, 5, 7, 8, *named):
        x = rng.uniform(-1, 1, (3, batch, 5)).astype("float32")
        assert_close(mod(x)[0], rnn.reference(net)(x)[0], "float32", 3)


def asks(batch: int) -> int:
    """How many lines of weights the tiles of a step ask for ahead, in an LSTM whose weights no near cache holds."""
    net = rnn.RNN(rnn.cells.lstm, 8, 512)
    graph = pipeline.run(net, V4, ())[-1][1]
    return str(Lowering(net, graph, Options(V4, batches=(batch,))).run().module["sequence"]).count("prefetch")


@pytest.mark.parametrize(("batch", "more"), [(9, True), (11, True), (19, True), (13, False), (16, False)])
def test_leftovers_ask_for_weights_too_where_each_tile_asks_for_less_then(batch: int, more: bool) -> None:
    assert (asks(batch) > asks(12)) is more


@pytest.mark.broad
@pytest.mark.parametrize("rows", [11, 5])
def test_leftovers_beside_full_tiles(rows: int) -> None:
    """Of the batch size that was named, and of another one."""
    net = rnn.RNN(rnn.cells.lstm, 8, 520).init(seed=0)
    x = np.random.default_rng(0).normal(size=(3, rows, 8)).astype("f4")
    assert_close(rnn.compile(net, batch=11)(x), rnn.reference(net)(x), "float32", 3)


def heads_of_given_gates(x: "I", h: "N D", *, R: "N D D") -> Any:
    h = rnn.tanh(x.reshape(h.shape) + rnn.matvec(R, h))
    return h, h.reshape(-1)


def heads_ask(units: int, l2_bytes: int = 2 << 20) -> int:
    """How many lines of the caller's gates a tile asks for, where eight heads share them out."""
    net = rnn.RNN(rnn.cell(states="h", output="y")(heads_of_given_gates), 8 * units, N=8, D=units)
    machine = replace(V4, l2_bytes=l2_bytes)
    graph = pipeline.run(net, machine, ())[-1][1]
    code = str(Lowering(net, graph, Options(machine, batches=(16,))).run().module["sequence"])
    return sum("prefetch" in line and "packed" not in line for line in code.splitlines())


@pytest.mark.parametrize(("units", "lines"), [(16, 8 * 1), (64, 4 * 4), (40, 0)])
def test_tiles_of_heads_ask_for_gates_that_the_caller_has(units: int, lines: int) -> None:
    """Those of a head in a tile's rows, where parameters leave room in the second cache. With padding behind the units
    gates are copied first."""
    assert heads_ask(units) == lines
    assert heads_ask(units, l2_bytes=1 << 10) == 0


@pytest.mark.parametrize("rows", [16, 7])
def test_heads_of_given_gates(rows: int) -> None:
    net = rnn.RNN(rnn.cell(states="h", output="y")(heads_of_given_gates), 8 * 32, N=8, D=32).init(seed=0)
    x = np.random.default_rng(0).normal(size=(5, rows, 8 * 32)).astype("f4")
    assert_close(rnn.compile(net, batch=16)(x)[0], rnn.reference(net)(x)[0], "float32", 5)
