"""head_loops: which groups of a step share the loop over their heads, and that results are the oracle's with them."""

from __future__ import annotations

import headed_cells as own
import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.head_loops import Heads, runs
from tvm_rnn.graph.graph import Group
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

HEADS, ENOUGH = 4, 8


@rnn.cell(states="h", output="y")
def crossed(x: "I", h: "N N", *, W: "N N I", R: "N N N"):
    """As many units as heads: what is transposed, or is a sum over heads, has a first axis of the same size."""
    u = rnn.tanh(W @ x + rnn.matvec(R, h))
    h = rnn.sigmoid(u) * rnn.transpose(u) + rnn.sum(u, 0)
    return h, h.reshape(-1)


def groups(cell: rnn.Cell, inputs: int = 8, **sizes: int) -> list[Group]:
    net = rnn.RNN(cell, inputs, **sizes)
    own = pipeline.run(net, target.TABLE["x86-64-v4"])[-1][1].graphs[0].groups
    return [g for g in own if g.region == "step"]


def together(step: list[Group], tall: bool = False, tasks: int = 1) -> list[list[int]]:
    """The runs, where every group of two axes has a loop over the first."""

    def heads(group: Group) -> Heads | None:
        shape = group.nodes[-1].shape if group.root is None else group.root.shape
        return Heads(shape[0], tall and group.kind == "reduce", tasks) if len(shape) > 1 else None

    return runs(step, [heads(g) for g in step], ENOUGH)


def test_what_a_head_makes_and_reads_is_in_one_loop() -> None:
    step = groups(rnn.cells.m2rnn, N=HEADS, K=16, H=16)
    assert [g.kind for g in step] == ["reduce", "pointwise", "pointwise", "reduce", "pointwise"]
    assert together(step) == [[0, 1, 2, 3], [4]]  # y is one vector of all heads
    step = groups(own.given, 4 * HEADS * 16, N=HEADS, D=16)
    assert together(step) == [[*range(len(step) - 1)], [len(step) - 1]]


def test_what_reads_another_head_begins_a_loop_of_its_own() -> None:
    step = groups(crossed, N=HEADS)
    assert ["transpose" in (a.op for n in g.nodes for a in n.args) for g in step[1:4]] == [False, True, False]
    assert [g.root.op for g in (step[0], step[3]) if g.root is not None] == ["einsum", "sum"]
    assert together(step) == [[0, 1], [2], [3], [4], [5]]


def test_another_head_of_the_step_before_may_be_read() -> None:
    step = groups(own.turned, N=HEADS, D=16)
    assert together(step) == [[*range(len(step) - 1)], [len(step) - 1]]


def test_few_heads_of_many_parts_keep_loops_of_their_own() -> None:
    """Two heads would be two parts for threads."""
    step = groups(own.given, 4 * 2 * 64, N=2, D=64)
    assert all(len(run) == 1 for run in together(step, tall=True, tasks=8))
    assert together(step, tall=True, tasks=2) == [[*range(len(step) - 1)], [len(step) - 1]]


CELLS = [own.lstm, own.gru, own.normed, own.given, own.given_whole, own.mixed, own.turned, own.coupled, crossed]
WHOLE = [rnn.cells.m2rnn, rnn.cells.slstm, rnn.cells.block_gru]


@pytest.mark.broad
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("cell", [*CELLS, *WHOLE], ids=lambda cell: cell.name)
@pytest.mark.parametrize("units", [9, pytest.param(16, marks=pytest.mark.slow)])
def test_against_the_oracle(cell: rnn.Cell, units: int) -> None:
    """In inference and in both passes, with one thread and two; x begins at a place that is no vector's."""
    heads = 9 if cell is crossed else 10
    sizes = {"N": heads} | {axis: units for axis in ("D", "H", "K") if axis in cell.size_names}
    sizes |= {axis: 24 for axis in ("P", "A") if axis in cell.size_names}
    net = rnn.RNN(cell, own.inputs_of(cell, 12, {"N": heads, "D": units}), **sizes).init(1)
    module = rnn.compile(net, training=True, batch=[16])
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        raw = np.zeros(int(np.prod(shape)) + 1, "float32")[1:].reshape(shape)
        raw[...] = rng.uniform(-1, 1, shape)
        return raw

    for batch in (1, 18):
        x = tuple(drawn(5, batch, *shape) for shape in net.input_shapes.values())
        given = x if len(x) > 1 else x[0]
        named = dict(zip((a.name for a in cell.inputs), x, strict=True))
        lengths = np.arange(batch) % 5 + 1
        gy = rng.uniform(-1, 1, (5, batch, *net.output_shape)).astype("float32")
        expected, last = rnn.reference(net)(named, lengths=lengths)
        exact = rnn.reference(net).gradients(named, None, gy, None, lengths=lengths)
        for threads in (1, 2):
            module.threads = threads
            y, state = module(given, lengths=lengths)
            assert_close(y, expected, "float32", 5, "y")
            assert_close(state, last, "float32", 5, "state")
            _, _, tape = module.forward_train(given, lengths=lengths)
            assert_close(module.backward(tape, gy)[-1], exact[-1], "float32", 50, "weights")
