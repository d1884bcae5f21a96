"""Kernels for states: which values they touch, and that they compile for states of every shape."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import layers_of, text_of
from emulated import POISON, decoded, encoded, rounded, run

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.rowwise.state_moves import COPIES, Buffers, StateCopy, StateKernels, Step, Tile, copy_states


def kernels(name: str, precision: str) -> StateKernels:
    net, layers = layers_of(name)
    graph = layers.graphs[0]
    return StateKernels(Layout(graph, precision, Weights(graph, 0, precision), precision), "g0", net.cell.initial)


def names(kernel: Kernel) -> list[str]:
    return [name for name, _ in kernel.pointers]


def test_storage_copies_follow_the_states() -> None:
    states = kernels("lstm", "bfloat16")
    assert names(states._restart) == ["state0", "state1", "shadow0", "reset", "lengths"]
    expected = ["old0", "old1", "old_shadow0", "state0", "state1", "shadow0", "output", "lengths"]
    assert names(states._freeze) == expected


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["lstm_projection", "mlstm"])
def test_states_of_several_shapes(name: str, precision: str) -> None:
    states = kernels(name, precision)
    text = text_of(states._restart, states._freeze)
    assert text.count("__launch_bounds__(128)") >= 2


def test_a_restart_writes_the_initial_value() -> None:
    states = kernels("slstm", "float32")
    assert "-1.000000e+30" in text_of(states._restart)


def test_moves_of_several_layers_are_one_launch() -> None:
    program = Program("bfloat16")
    copies = [
        StateCopy(Pointer("a", "bfloat16"), Pointer("b", "float32"), n + 1, Place("float32", 8)) for n in range(COPIES)
    ]
    copy_states(program.sequence, "load", copies)
    assert len(program.kernels) == 1
    copy_states(program.sequence, "save", [*copies, *copies[:3]])
    assert sorted(program.kernels) == ["load0", "save0", "save1"]
    assert names(program.kernels["save1"])[:2] == ["from0", "to0"] and len(program.kernels["save1"].pointers) == 6
    text_of(*program.kernels.values())


def test_what_has_to_be_said() -> None:
    x, y = Pointer("x", "float32"), Pointer("y", "float32")
    tile = Tile([x], y, "start", "count", False, 0)
    assert tile.kept == [] and Buffers({}, [(x, y)], {}, {}, {}).mask_keys is None
    assert Step(tile, "t", [x], [y], {}, {}).tile is tile


def test_several_elements_at_a_time_where_addresses_allow_it() -> None:
    """Of all copies of a launch: whose sizes do not allow it have no such kernel."""
    for size, dtype, wide in ((12, "bfloat16", True), (10, "bfloat16", False), (12, "float64", False)):
        program = Program(dtype)
        kind = "float64" if dtype == "float64" else "float32"
        copies = [StateCopy(Pointer("a", dtype), Pointer("b", kind), n, Place(kind, 16)) for n in (4, size)]
        copy_states(program.sequence, "load", copies)
        assert sorted(program.kernels) == (["load0", "load0_wide"] if wide else ["load0"])
        assert any("% 8 == 0 && " in line for line in program.sequence.lines) == wide


def test_states_that_steps_left_and_outputs_behind_the_end() -> None:
    """Of a tile of 3 steps from step 2 on."""
    own, lengths, rng = kernels("elman", "float32"), np.array([0, 2, 3, 4, 5, 9]), np.random.default_rng(0)
    (state,) = own._sizes
    old, new = rng.normal(size=(2, 6, own.layout.state(0).row_stride)).astype(np.float32)
    arrays = {"old0": old, "state0": new.copy(), "lengths": lengths}
    run(own._settle, arrays, {"rows": 6, "start": 2, "count": 3}, 6)
    odd = np.array([True, True, False, True, False, False])
    np.testing.assert_array_equal(arrays["state0"][:, :state], np.where(odd[:, None], old, new)[:, :state])
    output = np.ones((18, own.layout.output.row_stride), np.float32)
    run(own._blank, {"output": output, "lengths": lengths}, {"rows": 18, "batch": 6, "start": 2}, 5)
    np.testing.assert_array_equal(output[:, 0], [float(2 + row // 6 < lengths[row % 6]) for row in range(18)])


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("source", "target"), [("bfloat16", "float32"), ("float32", "float16")])
@pytest.mark.broad
def test_what_is_moved(source: str, target: str) -> None:
    """Rows of two states, the targets' further apart; what lies between is left alone."""
    rows, sizes, stride = 3, (520, 4), 528
    program, rng = Program(source), np.random.default_rng(0)
    pairs = [(Pointer("a", source), Pointer("b", target), size) for size in sizes]
    copy_states(program.sequence, "load", [StateCopy(a, b, size, Place(target, stride)) for a, b, size in pairs])
    values = [rng.normal(size=(rows, size)) for size in sizes]
    for name, blocks in (("load0", rows * 5), ("load0_wide", rows * 2)):
        arrays = {f"from{n}": encoded(value, source) for n, value in enumerate(values)}
        arrays |= {f"to{n}": encoded(np.full((rows, stride), POISON), target) for n in range(2)}
        run(program.kernels[name], arrays, {"rows": rows}, blocks)
        for n, value in enumerate(values):
            found = decoded(arrays[f"to{n}"], target)
            np.testing.assert_array_equal(found[:, : sizes[n]], rounded(rounded(value, source), target))
            assert np.isnan(found[:, sizes[n] :]).all()
