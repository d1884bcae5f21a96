"""Cells that are right: what `@cell` reads from a function, and the graphs that tracing makes of equations.

In: small cells defined here. Out: failures of `language/cell.py`, `language/trace.py` and `graph/graph.py`. Wrong cells
are in `errors/`.
"""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

from tvm_rnn import RNN, Cell, CellError, cell, cells, concat, dot, outer, reference, sigmoid, softmax, tanh, where
from tvm_rnn import sum as total
from tvm_rnn.graph.graph import topological

SIZES = {"I": 3, "H": 4}


@cell(states="h c", initial={"c": 0.5}, init={"b": "zeros", "w": 2.0})
def mine(x: "I", a: "", h: "H", c: "2 H", *, W: "H I", b: "H", w: ""):
    """Two inputs, two states, three parameters.

    More text.
    """
    return a * tanh(W @ x + b) + w * h, c + h


def step(made: Cell, x: np.ndarray, **sizes: int) -> np.ndarray:
    """y of one step of one row, with parameters of 1 (by the oracle)."""
    net = RNN(made, x.shape[-1], **{"hidden_size": 4, **sizes}, dtype="float64")
    net.load({name: np.ones(shape) for name, shape in net.weight_shapes.items()})
    return reference(net)(x[None, None])[0][0, 0]


def test_what_a_cell_knows_of_its_function() -> None:
    assert mine.name == "mine" and mine.output == "h"
    assert [a.name for a in mine.inputs] == ["x", "a"]
    assert [a.name for a in mine.states] == ["h", "c"]
    assert [a.name for a in mine.params] == ["W", "b", "w"]
    assert mine.size_names == ("I", "H")
    assert mine.initial == {"c": 0.5} and mine.init == {"b": "zeros", "w": 2.0}
    assert mine.doc == "Two inputs, two states, three parameters.\n\nMore text."
    file, line = mine.where.rsplit(":", 1)
    assert file == __file__ and int(line) == mine.function.__code__.co_firstlineno
    assert repr(mine) == "<cell mine(x[I], a[], state h[H], state c[2, H], *, W[H, I], b[H], w[])>"


def test_the_graph_of_one_step() -> None:
    graph = mine.trace(SIZES, "float64")
    assert (graph.cell, graph.dtype, graph.output_name) == ("mine", "float64", "h")
    assert [n.shape for n in graph.inputs] == [(3,), ()]
    assert [n.shape for n in graph.states] == [n.shape for n in graph.results] == [(4,), (2, 4)]
    assert [(n.name, n.shape) for n in graph.params] == [("W", (4, 3)), ("b", (4,)), ("w", ())]
    assert graph.output is graph.results[0]
    assert all(n.source.startswith(__file__) for n in graph.nodes() if not n.leaf)
    seen = set()
    for node in topological(graph.roots):
        assert seen.issuperset(node.args)
        seen.add(node)


def test_states_and_inputs_in_any_order_by_name() -> None:
    @cell(states=("c", "h"), output="h", name="other")
    def shuffled(h: "H", x: "I", c: "H", *, W: "H I"):
        return c + h, tanh(W @ x) + c

    assert shuffled.name == "other" and [s.name for s in shuffled.states] == ["c", "h"]
    graph = shuffled.trace(SIZES)
    assert graph.output is graph.results[1]
    assert [n.name for n in graph.results[0].args] == ["c", "h"]


def test_a_new_state_may_be_a_leaf() -> None:
    @cell(states="h last")
    def delayed(x: "I", h: "I", last: "I", *, start: "I"):
        return last, x + 0.0 * (h + start)

    net = RNN(delayed, 3, dtype="float64").init()
    x = np.arange(12.0).reshape(4, 1, 3)
    y, state = reference(net)(x)
    np.testing.assert_array_equal(y, np.concatenate([np.zeros((1, 1, 3)), x[:-1]]))
    np.testing.assert_array_equal(state["last"][0], x[-1])


def test_an_output_that_is_no_state() -> None:
    @cell(states="h", output="y")
    def read(x: "I", h: "I", *, V: "2 I"):
        h = h + x
        return h, V @ h

    net = RNN(read, 3, dtype="float64").load({"V_l0": np.ones((2, 3))})
    y, state = reference(net)(np.ones((4, 1, 3)))
    np.testing.assert_array_equal(y[:, 0], [[3 * t, 3 * t] for t in range(1, 5)])
    assert list(state) == ["h"] and net.output_size == 2


@cell(states="S", output="y")
def heads(x: "I", S: "N? H K=H", *, W: "N? H I", V: "N? K I"):
    S = 0.5 * S + outer(W @ x, V @ x)
    return S, (S @ np.ones(S.shape[-1])).reshape(-1)


@pytest.mark.parametrize(
    ("sizes", "shape"), [({}, (4, 4)), ({"N": 2}, (2, 4, 4)), ({"K": 5}, (4, 5)), ({"N": 1, "K": 5}, (1, 4, 5))]
)
def test_axes_that_may_be_left_out(sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    assert (heads.size_names, heads.required, heads.optional) == (("I", "N", "H", "K"), ("I", "H"), {"N"})
    net = RNN(heads, 3, 4, num_layers=2, dtype="float64", **sizes).init()
    assert net.layers[0].graph.states[0].shape == net.initial_state(1)["S"].shape[2:] == shape
    assert net.layers[0].sizes["K"] == shape[-1]
    y, _ = reference(net)(np.ones((4, 1, 3)))
    assert y.shape == (4, 1, np.prod(shape[:-1])) and np.isfinite(y).all()
    assert "N" not in repr(RNN(heads, 3, 4)).split("<RNN heads")[1]


def test_a_python_loop_over_a_size() -> None:
    @cell
    def deep(x: "I", h: "H", *, W: "H I", R: "depth H H"):
        h = h + W @ x
        for matrix in R:
            h = tanh(matrix @ h)
        return h

    expected = np.full(4, 6.0)
    for _ in range(3):
        expected = np.tanh(np.ones((4, 4)) @ expected)
    np.testing.assert_allclose(step(deep, np.array([1.0, 2.0, 3.0]), depth=3), expected)
    assert sum(n.op == "einsum" for n in deep.trace({**SIZES, "depth": 3}).nodes()) == 4


def test_cells_and_plain_functions_inside_a_cell() -> None:
    def gate(v):
        return sigmoid(v) * v

    @cell(states="h c")
    def gru(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", b: "4 H", W2: "3 H H", R2: "3 H H", b2: "3 H", b3: "H"):
        y, c = cells.lstm(x, gate(h), c, W=W, R=R, b=b)
        return cells.gru(y, h, W=W2, R=R2, b=b2, b_R=b3), c

    assert gru.name == cells.gru.name  # not taken for recursion: cells are compared, not their names
    assert [n.shape for n in gru.trace(SIZES).results] == [(4,), (4,)]


def test_a_cell_is_an_ordinary_function_of_arrays() -> None:
    rng = np.random.default_rng(0)
    x, h = rng.normal(size=3), rng.normal(size=4)
    W, R, b = rng.normal(size=(4, 3)), rng.normal(size=(4, 4)), rng.normal(size=4)
    np.testing.assert_allclose(cells.elman(x, h, W=W, R=R, b=b), np.tanh(W @ x + R @ h + b), rtol=1e-15)


def test_constants_of_any_kind() -> None:
    table = np.arange(12.0).reshape(4, 3)

    @cell
    def constants(x: "I", h: "H"):
        h = h + table @ x + table[:, 0] * 2 + np.float64(3.0) * h + np.float32(0.5)
        h = [1.0, 2.0, 3.0, 4.0] * h + True
        h = np.ones(4) - h
        return where(np.array([True, False, True, False]), h, -h) ** 2

    x = np.array([1.0, -1.0, 0.5])
    a = np.array([1.0, 2.0, 3.0, 4.0]) * (table @ x + table[:, 0] * 2 + 0.5) + 1
    np.testing.assert_allclose(step(constants, x), (1 - a) ** 2)


def test_every_operator() -> None:
    @cell
    def operators(x: "I", h: "H", *, W: "H I"):
        v = +(W @ x) - h
        v = abs(-v) * 2 / 4 + 1 - v
        v = (2 * v, 3 - v, 1 / v, 2**v, v**0.5, v**-2, v**3)
        low, high = v[0] < v[1], v[2] <= 1
        either = (low & high) | ~(v[3] == v[4]) | (v[0] != 1)
        return where(either & (v[3] > 0) & (v[5] <= 1e9), total(concat(v)) + v[0], 0.0)

    x = np.array([1.0, 2.0, 3.0])
    v = np.full(4, 6.0)
    v = abs(-v) * 2 / 4 + 1 - v
    with np.errstate(invalid="ignore"):
        parts = [2 * v, 3 - v, 1 / v, 2**v, v**0.5, v**-2.0, v**3]
    expected = np.sum(parts) + parts[0]
    np.testing.assert_allclose(step(operators, x), expected)


def test_a_condition_may_be_broadcast_and_indexed() -> None:
    @cell(states="C", output="y")
    def conditions(x: "I", C: "I I"):
        positive = x > 0.0  # [I], made [1, I] beside a matrix
        C = where(positive, C + 1.0, C - 1.0)
        return C, where(positive[0], C[0], C[1]) + where(positive.reshape(3, 1), C, -C)[2]

    x = np.array([-1.0, 2.0, 3.0])
    C = np.array([[-1.0, 1.0, 1.0]] * 3)
    np.testing.assert_array_equal(step(conditions, x, hidden_size=None), C[1] + C[2])


def test_matmul_of_every_rank() -> None:
    @cell(states="C", output="y")
    def products(x: "I", C: "2 I I", *, A: "2 I I"):
        C = A @ C + outer(x, x)  # [2, I, I] @ [2, I, I]
        rows = x @ C[0]  # [I] @ [I, I]
        return C, rows + (A @ x)[1] + (A @ C[1])[0] @ x + dot(x, x) + (x @ x)

    x = np.array([1.0, 2.0, 3.0])
    C, A = np.outer(x, x), np.ones((3, 3))
    expected = x @ C + A @ x + A @ C @ x + 2 * (x @ x)
    np.testing.assert_allclose(step(products, x, hidden_size=None), expected)


def test_indexing_of_every_form() -> None:
    @cell(states="C", output="y")
    def indexing(x: "I", C: "2 I I"):
        C = C + outer(x, x)
        parts = [
            C[0, 1],
            C[-1, :, 0],
            C[..., 2][1],
            C[1, 1:3, None, 2].reshape(-1),
            C[:, 0, -1],
            C[np.int64(0), 0, :-1],
        ]
        assert [p.shape for p in parts] == [(3,), (3,), (3,), (2,), (2,), (2,)]
        assert C[None].shape == (1, 2, 3, 3) and C[..., None].shape == (2, 3, 3, 1) and C.T.shape == (3, 3, 2)
        assert C.transpose(1, 0, 2).shape == C.transpose((1, 0, 2)).shape == C.transpose(-2, 0, 2).shape == (3, 2, 3)
        assert (C.ndim, C.size, len(C)) == (3, 18, 2) and C[...] is C
        first, second = C
        return C, concat([*parts, (first - second)[0]])

    x = np.array([1.0, 2.0, 3.0])
    C = np.outer(x, x)
    expected = np.concatenate([C[1], C[:, 0], C[:, 2], C[1:3, 2], [C[0, 2]] * 2, C[0, :2], np.zeros(3)])
    np.testing.assert_allclose(step(indexing, x, hidden_size=None), expected)


@pytest.mark.parametrize("text", ["4*H", "4H", "2*2*H", "(4)*H", "H+3*H", "5*H-H", "8*H//2"])
def test_dims_with_arithmetic(text: str) -> None:
    def equations(x, h, *, W):
        return (W @ x).reshape(4, -1)[0] + h

    equations.__annotations__ = {"x": "I", "h": "H", "W": f"{text} I"}
    assert cell(equations).trace(SIZES).params[0].shape == (16, 3)


def test_tracing_in_several_threads() -> None:
    @cell
    def slow(x: "I", h: "H", *, W: "H I"):
        barrier.wait(timeout=10)
        return W @ x + h

    barrier, graphs = threading.Barrier(2), []
    threads = [threading.Thread(target=lambda: graphs.append(slow.trace(SIZES))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graphs) == 2


@cell(states="h c", constants="memory gain", output="y")
def reading(x: "I", memory: "S M", h: "H", c: "H", gain: "", *, W: "H I", C: "H M", v: "M"):
    """A constant of two axes between an input and a state, and one without axes behind them."""
    read = memory.T @ softmax(memory @ v)
    new = tanh(gain * (W @ x) + C @ read + h)
    return new, c + new, new * c


def test_constants_are_states_that_no_step_changes() -> None:
    assert reading.constants == ("memory", "gain") and [a.name for a in reading.inputs] == ["x"]
    assert "constant memory[S, M]" in repr(reading) and "state h[H]" in repr(reading)
    graph = reading.trace({"I": 3, "H": 4, "S": 5, "M": 2})
    assert [s.name for s in graph.states] == ["h", "c", "memory", "gain"]
    assert graph.results[2:] == graph.states[2:]


def test_pickles_know_a_cell_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(cells.lstm)) is cells.lstm
    assert copy.deepcopy(cells.lstm) is cells.lstm

    @cell(states="h")
    def inner(x: "H", h: "H"):
        return x + h

    with pytest.raises(CellError, match="a pickle finds a cell under its name"):
        pickle.dumps(inner)
