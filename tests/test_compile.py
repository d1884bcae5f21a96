"""What every compiled module promises, whatever the cell: batches, steps, chunks, spellings, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from networks import arguments, compiled, network

import tvm_rnn as rnn
from tvm_rnn import cell, concat, sigmoid, tanh, target
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

ALONE = """
import sys, numpy as np
import tvm_rnn.runtime as runtime
module = runtime.load(sys.argv[1])
y, _ = module(np.load(sys.argv[2]))
assert "tvm" not in sys.modules, "the compiler was imported"
np.save(sys.argv[3], y)
"""


@pytest.mark.slow
def test_named_batches_change_no_result() -> None:
    net = network("gru", 5, 37)
    modules = [rnn.compile(net, batch=b) for b in ((), [2, 16])]
    for batch in (1, 2, 3, 5, 16, 21):
        x, _ = arguments(net, 4, batch)
        results = [m(x)[0] for m in modules]
        for result in results[1:]:
            assert_close(result, results[0], "float32", 4)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    "name",
    ["lstm", pytest.param("lstm_fgr", marks=pytest.mark.slow), "mlstm", pytest.param("augru", marks=pytest.mark.slow)],
)
def test_steps_chunks_and_the_whole_sequence_agree(name: str) -> None:
    net, module = compiled(name, 5, 21, num_layers=2)
    x, state = arguments(net, 10, 3)
    whole, final = module(x, state)
    parts, current = [], state
    for t in range(10):
        y, current = module.step({n: v[t] for n, v in x.items()}, current)
        parts.append(y)
    np.testing.assert_array_equal(np.stack(parts), whole)
    first, middle = module({n: v[:4] for n, v in x.items()}, state)
    second, last = module({n: v[4:] for n, v in x.items()}, middle)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    for key in final:
        np.testing.assert_array_equal(current[key], final[key])
        np.testing.assert_array_equal(last[key], final[key])


def test_empty_sequences_and_batches() -> None:
    net, module = compiled("lstm", 5, 7, bidirectional=True)
    _, state = arguments(net, 0, 3)
    y, final = module(np.zeros((0, 3, 5), "float32"), state)
    assert y.shape == (0, 3, 14)
    np.testing.assert_array_equal(final["c"], state["c"])
    y, final = module(np.zeros((4, 0, 5), "float32"))
    assert y.shape == (4, 0, 14) and final["h"].shape == (2, 0, 7)


@pytest.mark.broad
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    net, module = compiled("gru", 5, 40)
    x = arguments(net, 6, 9)[0]["x"]
    together = module(x)[0]
    for b in range(9):
        assert_close(module(x[:, b : b + 1])[0], together[:, b : b + 1], "float32", 6)


@pytest.mark.broad
def test_strided_and_unaligned_inputs() -> None:
    net, module = compiled("lstm", 5, 7)
    x = arguments(net, 6, 4)[0]["x"]
    expected = module(x)[0]
    wide = np.zeros((6, 8, 10), "float32")
    wide[:, ::2, ::2] = x
    raw = np.zeros(x.nbytes + 4, np.uint8)
    shifted = raw[4:].view("float32").reshape(x.shape)
    shifted[...] = x
    for form in (wide[:, ::2, ::2], x[::-1].copy()[::-1], np.asfortranarray(x), shifted):
        np.testing.assert_array_equal(module(form)[0], expected)


@cell(states="h c")
def by_gate(
    x: "I", h: "H", c: "H", *, Wi: "H I", Wf: "H I", Wg: "H I", Wo: "H I", Ri: "H H", Rf: "H H", Rg: "H H", Ro: "H H",
    bi: "H", bf: "H", bg: "H", bo: "H"
):  # fmt: skip
    i, f = Wi @ x + Ri @ h + bi, Wf @ x + Rf @ h + bf
    g, o = Wg @ x + Rg @ h + bg, Wo @ x + Ro @ h + bo
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(states="h c")
def joined(x: "I", h: "H", c: "H", *, W: "4*H I+H", b: "4*H"):
    i, f, g, o = (W @ concat([x, h]) + b).reshape(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def code(c: rnn.Cell) -> tvm.tirx.PrimFunc:
    machine = target.TABLE["x86-64-v4"]
    net = rnn.RNN(c, 9, 20)
    return Lowering(net, pipeline.run(net, machine)[-1][1], Options(machine)).run().module["sequence"]


@pytest.mark.parametrize("c", [by_gate, joined], ids=lambda c: c.name)
def test_every_spelling_of_an_lstm_is_the_same_code(c: rnn.Cell) -> None:
    assert tvm_ffi.structural_equal(code(c), code(rnn.cells.lstm), map_free_vars=True)


@pytest.mark.broad
def test_an_exported_module_runs_where_the_compiler_is_never_imported(tmp_path: Path) -> None:
    net, module = compiled("gru_reset_before", 17, 17, num_layers=2)  # layers of one size share code
    module.export(tmp_path / "m.so")
    x = arguments(net, 8, 6)[0]["x"]
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", ALONE, *(str(tmp_path / n) for n in ("m.so", "x.npy", "y.npy"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), module(x)[0])


def test_weights_that_their_storage_cannot_hold_are_refused_on_every_way_in() -> None:
    net = rnn.RNN(rnn.cells.elman, 3, 4).init(seed=0)
    mod = rnn.compile(net, weights="float16")
    large = {**net.weights, "W_l0": np.full((4, 3), 7e4, np.float32)}
    with pytest.raises(rnn.WeightError, match="W_l0 would be infinite in float16"):
        mod.load_weights(large)
    mod.load_weights({**large, "W_l0": np.full((4, 3), np.nan, np.float32)})
    with pytest.raises(rnn.WeightError, match=r"(?s)infinite in float16.*W_l0: 12 of 12 numbers"):
        rnn.compile(net.load(large), weights="float16")
    with pytest.raises(rnn.WeightError, match=r"(?s)infinite in float16.*W_l0: 12 of 12 numbers"):
        rnn.RNN(rnn.cells.elman, 3, 4, dtype="float16").load(large)
