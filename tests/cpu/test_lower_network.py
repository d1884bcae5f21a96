"""lower: the loops around the tiles, the workspace they use, and the guard of the order of time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from headed_cells import given
from networks import arguments, check, compiled, flags, network
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import PassError, target
from tvm_rnn.cpu.lower_network import Lowering, verify
from tvm_rnn.module_file.schema import plain
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.runtime import runtime
from tvm_rnn.target import TABLE

V4 = target.TABLE["x86-64-v4"]
CELLS = ("lstm", "gru", "lstm_layer_norm", "lstm_fgr", "mlstm", "delta_net", "rhn", "sru", "lstm_projection", "augru")
QUICK = ("lstm", "lstm_layer_norm", "delta_net", "augru")
GUARD = 4096


def lowered(net: rnn.RNN, without: tuple[str, ...] = ()) -> Lowering:
    return Lowering(net, pipeline.run(net, V4, without)[-1][1], Options(V4)).run()


def net_of(name: str, **options: object) -> rnn.RNN:
    c = rnn.cells.get(name)
    width = 6 if "I" in c.size_names else 21
    return rnn.RNN(c, width, 21, **{n: 2 for n in c.size_names if n not in ("I", "H")}, **options).init(3)


@pytest.mark.parametrize("both", [False, True])
def test_code_does_not_grow_with_layers(both: bool) -> None:
    texts = []
    for layers in (2, 10):
        net = rnn.RNN(rnn.cells.lstm, 16, 8 if both else 16, num_layers=layers, bidirectional=both)
        script = lowered(net).module["sequence"].script()
        texts.append(re.sub(r"\d+", "N", script))
    assert texts[0] == texts[1]


def test_a_graph_without_tiling_is_refused() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 5)
    stages = dict(pipeline.run(net, V4))
    with pytest.raises(PassError, match="no tiling"):
        Lowering(net, stages["fuse_pointwise"], Options(V4))


def test_inputs_that_are_only_multiplied_are_read_where_the_caller_has_them() -> None:
    """Then nothing of them is in the workspace, whose tiles are as large whatever their number."""

    def per_tile_row(name: str, inputs: int, layers: int = 1) -> int:
        return lowered(rnn.RNN(rnn.cells.get(name), inputs, 16, num_layers=layers)).memory.per_tile_row

    assert per_tile_row("lstm", 16) == per_tile_row("lstm", 900)
    assert per_tile_row("lstm", 100, layers=3) == per_tile_row("lstm", 900, layers=3)  # the first has code of its own
    # An attention that scales a gate is no product's; layers that share code share what they read.
    assert [lowered(net_of("augru"))._is_read_in_place(i) for i in (0, 1)] == [True, False]
    for units, whole in ((16, True), (12, False)):  # gates that come as they are: whole vectors, or with padding behind
        net = rnn.RNN(given, 4 * 3 * units, N=3, D=units)
        assert lowered(net)._is_read_in_place(0) is whole
    assert not lowered(rnn.RNN(rnn.cells.lstm, 16, 16, num_layers=3))._is_read_in_place(0)


def heads_side_by_side(x: "I", h: "N D", *, R: "N D D") -> Any:
    h = rnn.tanh(x.reshape(h.shape) + rnn.matvec(R, h))
    return h, h.reshape(-1)


@pytest.mark.parametrize(("units", "is_copied"), [(16, False), (12, True)])
def test_the_output_goes_from_registers_to_the_caller(units: int, is_copied: bool) -> None:
    """Each step's, though it has another shape, unless there is padding between the heads."""
    cell = rnn.cell(states="h", output="y")(heads_side_by_side)
    net = rnn.RNN(cell, 3 * units, N=3, D=units)
    own = lowered(net)
    found: list[tirx.BufferStore] = []

    def inside(store: tirx.BufferStore) -> None:
        if store.buffer.name == "y":
            found.append(store)

    def step(loop: tirx.For) -> None:
        if loop.loop_var.name == "step":
            tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, inside))

    tvm_ffi.structural_walk(own.module["sequence"].body, (tirx.For, step))
    of_values = [store for store in found if isinstance(store.value, tvm.ir.TensorLoad)]
    assert len(of_values) == 1 and len(found) == 2  # and zeros for rows that have ended
    assert ("local" in str(of_values[0].value)) is not is_copied


@pytest.mark.broad
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CELLS])
def test_the_workspace_is_large_enough_and_its_contents_do_not_matter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workspace and packed weights start as NaN, then as 1e30: equal results, and nothing behind them is touched."""
    real, guards = runtime._aligned, []

    def poisoned(value: float) -> object:
        def allocate(elements: int, dtype: np.dtype[np.floating]) -> np.ndarray:
            whole = real(elements + GUARD, dtype)
            whole[:] = value
            guards.append((whole[elements:], value))
            return whole[:elements]

        return allocate

    net = net_of(name, num_layers=2, bidirectional=name in ("gru", "lstm_fgr", "delta_net", "lstm_projection", "augru"))
    compiled = rnn.compile(net)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(5, 3, *shape)).astype("float32") for shape in net.input_shapes.values()]
    results = []
    for value in (np.nan, 1e30):
        monkeypatch.setattr(runtime, "_aligned", poisoned(value))
        module = runtime.load(compiled.path)
        results.append(module(tuple(inputs) if len(inputs) > 1 else inputs[0], lengths=[5, 0, 3])[0])
    assert guards and np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])
    for guard, value in guards:
        np.testing.assert_array_equal(guard, np.full(GUARD, value, guard.dtype))


def test_flops_of_an_lstm() -> None:
    products = 2 * 4 * 32 * (8 + 32)
    assert products < lowered(rnn.RNN(rnn.cells.lstm, 8, 32)).describe().flops_per_row < 1.5 * products
    twice = lowered(rnn.RNN(rnn.cells.lstm, 32, 32, num_layers=2)).describe().flops_per_row
    assert twice == 2 * lowered(rnn.RNN(rnn.cells.lstm, 32, 32)).describe().flops_per_row


def test_packs_cover_every_weight_once_and_do_not_overlap() -> None:
    net = rnn.RNN(rnn.cells.lstm, 6, 5, num_layers=3, bidirectional=True)
    low = lowered(net)
    names = [n for pack in low.packs for n in pack.weights]
    assert sorted(names) == sorted(net.weight_shapes)
    offsets = sorted(pack.offset for pack in low.packs)
    assert len(set(offsets)) == 6 and offsets[-1] < low.packed_elements


@pytest.mark.parametrize("width", [7, 16, 130])
def test_packing_has_no_condition_in_its_loops(width: int) -> None:
    """With one, LLVM took ten seconds at some widths that are no multiple of a vector."""
    assert "if " not in lowered(rnn.RNN(rnn.cells.lstm, 3, width)).module["pack_0"].script()


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("cell", ["lstm", "min_gru"])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_reverse_direction_alone(cell: str, layers: int) -> None:
    """Of a forward network on flipped steps the flipped output, also where rows end early; restarts as the oracle's."""
    options: dict[str, Any] = {"num_layers": layers, "dtype": "float64"}
    net, module = compiled(cell, 5, 6, reverse=True, **options)
    forward = network(cell, 5, 6, **options)
    assert net.weights.keys() == forward.weights.keys() and module.manifest.reverse
    x, state = arguments(net, 9, 3)
    y, end = module(x, state)
    flipped, same = rnn.reference(forward)(x["x"][::-1], state)
    assert_close((y, end), (flipped[::-1], same), "float64", 9)
    for steps, batch in ((9, 4), (1, 1), (130, 2)):
        check(net, module, steps, batch)
        check(net, module, steps, batch, **flags(steps, batch))
    with pytest.raises(rnn.InputError, match="cannot step"):
        module.step(x["x"][0])


def sequence() -> Any:
    net = rnn.RNN(rnn.cells.lstm, 3, 5)
    return Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run().module["sequence"]


@pytest.mark.parametrize("loop", ["tile", "step"])
def test_a_parallel_loop_over_time_is_refused(loop: str) -> None:
    func = sequence()

    def parallel(node: tirx.For) -> tirx.For:
        if node.loop_var.name != loop:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.PARALLEL, node.body)

    verify(func)
    broken = func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, parallel)))
    with pytest.raises(PassError, match=f"loop over {loop} is not serial"):
        verify(broken)


def test_a_loop_over_time_inside_a_parallel_one_is_refused() -> None:
    func = sequence()
    var = tirx.Var("outer", "int64")
    body = tirx.For(var, tirx.IntImm("int64", 0), tirx.IntImm("int64", 2), tirx.ForKind.PARALLEL, func.body)
    with pytest.raises(PassError, match="inside a parallel loop"):
        verify(func.with_body(body))


def test_what_the_manifest_says() -> None:
    net, options = rnn.RNN(rnn.cells.gru, 3, 5), Options(TABLE["x86-64-v4"], (2,), stored="bfloat16")
    lowered = Lowering(net, passed(net, options).layers, options).run()
    facts = plain(lowered.describe())
    assert facts["weight_dtype"] == "bfloat16" and facts["batch"] == [2] and facts["cell"] == "gru"
    assert len(facts["packs"]) == len(lowered.packs) and facts["packed_elements"] > 0 and facts["flops_per_row"] > 0
    assert {row["template"] for row in facts["templates"]} >= {"gemm_cpu"}
