"""matrix_again: matrices and their gradients, made again step by step for what backward reads of them."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from derivatives import Case, autograd, draw, named
from networks import network

import tvm_rnn as rnn
from tests.cpu.matrix_parts import delta_part
from tests.cpu.training.test_lower_network import both
from tests.passes.test_matrix_gradient import both_ways, driven, shared
from tvm_rnn.cpu.matrix_again import MatrixAgain
from tvm_rnn.graph.recurrences import KEPT_EVERY
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.tir.index import int64


class Place(MatrixAgain):
    """The order of three steps, where forward went back in time (side 1) or not."""

    def __init__(self, side: int) -> None:
        part = delta_part(4, 4)
        self.part = replace(part, work=replace(part.work, walk=replace(part.work.walk, count=int64(3))))
        self.side = int64(side)


RNG = np.random.default_rng(3)


def ends(steps: int, batch: int) -> dict[str, Any]:
    return {"lengths": RNG.integers(0, steps + 1, batch), "reset": RNG.random((steps, batch)) < 0.15}


def gradients(module: Any, case: Case) -> dict[str, np.ndarray]:
    _, _, tape = module.forward_train(case.x, case.state, **case.rows)
    return named(*module.backward(tape, case.gy, case.gstate))


def compare(net: rnn.RNN, shapes: list[tuple[int, int]], torch: bool = False, **options: Any) -> None:
    module = rnn.compile(net, training=True, **options)
    for steps, batch in shapes:
        for rows in ({}, ends(steps, batch)):
            case = draw(net, steps, batch, seed=steps, **rows)
            y, state, _ = module.forward_train(case.x, case.state, **case.rows)
            wanted = rnn.reference(net)(case.x, case.state, **case.rows)
            assert_close(y, wanted[0], net.dtype, steps)
            for name, value in wanted[1].items():
                assert_close(state[name], value, net.dtype, steps)
            found = gradients(module, case)
            expected = named(*rnn.reference(net).gradients(case.x, case.state, case.gy, case.gstate, **case.rows))
            if torch:
                for name, value in autograd(net, case).items():
                    np.testing.assert_allclose(expected[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
            for name, value in expected.items():
                assert_close(found[name], value, net.dtype, steps)


NEAR = [(1, 2), (KEPT_EVERY - 1, 1), (KEPT_EVERY, 2), (KEPT_EVERY + 1, 2), (3 * KEPT_EVERY + 5, 3)]


def test_working_memory_has_matrices_of_one_part_of_time_and_a_gradient() -> None:
    _, backward = both(network("delta_net", 4, 16))
    size = 16 * 16
    more = backward.memory.sizes().per_row - (KEPT_EVERY + 1) * size
    assert 2 * size <= more <= 3 * size  # two copies of the gradient that is carried
    forward_places = [Place(side) for side in (0, 1)]
    assert [[int(p.time(int64(i))) for i in range(3)] for p in forward_places] == [[0, 1, 2], [2, 1, 0]]


@pytest.mark.broad
def test_a_key_on_the_first_axis_two_products_and_a_decay_for_each_key() -> None:
    compare(rnn.RNN(both_ways, 5, K=3, V=6).init(1), [(KEPT_EVERY + 4, 2)])


@pytest.mark.broad
def test_a_tape_has_one_matrix_in_sixteen_steps() -> None:
    net = rnn.RNN(rnn.cells.delta_net, 4, 32).init(0)
    module = rnn.compile(net, training=True)
    x = np.zeros((20 * KEPT_EVERY, 2, 4), net.dtype)
    assert module.forward_train(x)[2].nbytes < 2 * 20 * (32 * 64 + KEPT_EVERY * 8 * 32) * 4
    assert module.plan_memory(len(x), 2).bytes > 2 * 20 * 32 * 32 * 4


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("c", [rnn.cells.gla, rnn.cells.mlstm, rnn.cells.rwkv7], ids=lambda c: c.name)
def test_lengths_resets_and_parts_that_are_not_full(c: rnn.Cell) -> None:
    compare(rnn.RNN(c, 5, 7, N=2).init(1), NEAR, torch=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways", [{"reverse": True}, {"bidirectional": True, "num_layers": 2}, {"num_layers": 3}], ids=str
)
def test_directions_and_layers(ways: dict[str, Any]) -> None:
    compare(rnn.RNN(rnn.cells.gated_delta_net, 5, 19, **ways).init(1), NEAR)


@pytest.mark.slow
def test_matrices_that_others_drive_and_heads_that_share_keys() -> None:
    compare(rnn.RNN(driven, 5, H=7).init(1), NEAR, torch=True)
    compare(rnn.RNN(shared, 5, V=5, K=9).init(1), NEAR, torch=True)
    compare(rnn.RNN(rnn.cells.mamba2, 5, H=6, K=4, N=2, M=3).init(1), NEAR, torch=True)


@pytest.mark.slow
def test_float64_other_vectors_and_many_rows() -> None:
    compare(rnn.RNN(both_ways, 5, K=18, V=6, dtype="float64").init(1), NEAR, torch=True)
    compare(rnn.RNN(rnn.cells.gated_delta_net, 5, 19).init(1), [(KEPT_EVERY + 4, 2)], target="x86-64-v3")
    compare(rnn.RNN(rnn.cells.gated_delta_net, 5, 5).init(1), [(2 * KEPT_EVERY + 3, 300)])


@pytest.mark.broad
@pytest.mark.slow_after(3)
@pytest.mark.peers
@pytest.mark.parametrize("name", ["delta_net", "gated_delta_net", "mlstm", "gla", "mamba2", "hgrn2"])
@pytest.mark.parametrize("sizes", [{}, {"N": 2}], ids=str)
def test_gradients_are_torchs_of_the_same_function(name: str, sizes: dict[str, int]) -> None:
    """By an evaluator that shares nothing with the compiler."""
    run = pytest.importorskip("torch_equations").run
    net = network(name, 5, 4, dtype="float64", **sizes)
    source = inspect.getsource(net.cell.function)
    source = f"def drawn{source[source.index('(', source.index('def ')) :]}"
    module = rnn.compile(net, training=True)
    for steps, rows in ((2 * KEPT_EVERY + 5, {}), (KEPT_EVERY + 5, ends(KEPT_EVERY + 5, 3))):
        case = draw(net, steps, 3, **rows)
        (y, _), expected = run(source, net, case)
        assert_close(module(case.x, case.state, **case.rows)[0], y, "float64", steps)
        found = gradients(module, case)
        for key, value in expected.items():
            assert_close(found[key], value, "float64", steps, key)


@pytest.mark.broad
def test_parts_of_time_and_any_number_of_threads_make_the_same_bits() -> None:
    net = rnn.RNN(rnn.cells.mlstm, 5, 19, bidirectional=True).init(1)
    module, case = rnn.compile(net, training=True), draw(net, 75, 3, **ends(75, 3))
    wanted = gradients(module, case)
    module.threads = 1
    for name, value in gradients(module, case).items():
        assert np.array_equal(value, wanted[name])
    sizes = module.plan_memory(75, 3)
    module.max_bytes = int(0.6 * sizes.bytes)
    assert module.plan_memory(75, 3).again
    for name, value in gradients(module, case).items():
        assert_close(value, wanted[name], net.dtype, 75)


@pytest.mark.broad
def test_gates_that_are_closed_for_long_make_no_nan() -> None:
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 8).init(1)
    module, steps = rnn.compile(net, training=True), 400
    case = draw(net, steps, 3)
    for value in case.x.values():
        value[100:200] *= 1e3
        value[200:300] = 0.0
        value[300:] = value[300]
    found = gradients(module, case)
    expected = named(*rnn.reference(net).gradients(case.x, case.state, case.gy, case.gstate))
    for name, value in expected.items():
        assert np.isfinite(found[name]).all()
        assert_close(found[name], value, net.dtype, steps)
