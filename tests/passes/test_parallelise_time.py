"""parallelise_time: which states are found to be linear in themselves, in every spelling; and the values stay."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import (
    absolute,
    cell,
    concat,
    cos,
    dot,
    exp,
    log_sigmoid,
    maximum,
    outer,
    sigmoid,
    sin,
    tanh,
    target,
    where,
)
from tvm_rnn.bench.suites.neurons import lif_neuron
from tvm_rnn.decisions import Decision, recording
from tvm_rnn.graph.graph import Graph, Node, has_steps, is_scan, recurrence_states, topological
from tvm_rnn.language.trace import Value
from tvm_rnn.oracle.reference import Reference, evaluate
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.differentiate import differentiate
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.passes.parallelise_time import FILLING, ParalleliseTime

V4 = target.TABLE["x86-64-v4"]


@cell
def gated_sum(x: "I", h: "H", *, W: "3 H I"):
    """The gate multiplies a sum, and the state stands in it twice."""
    a, b, c = W @ x
    return sigmoid(a) * (h + b * (c - h)) / (1.0 + exp(c))


@cell
def chosen(x: "I", h: "H", *, W: "2 H I"):
    """A choice by the input; what is not chosen may be infinite."""
    a, b = W @ x
    return where(a > 0.0, h / maximum(a, 0.0) + b, -h)


@cell(states="re im", output="y")
def rotated(x: "I", re: "H", im: "H", *, nu: "H", B: "2 H I", C: "2 H"):
    """Complex numbers as pairs, as in LRU."""
    size = exp(-exp(nu))
    u, v = B @ x
    re, im = size * cos(nu) * re - size * sin(nu) * im + u, size * sin(nu) * re + size * cos(nu) * im + v
    return re, im, C[0] * re - C[1] * im


@cell(states="a b c", output="y")
def delays(x: "H", a: "H", b: "H", c: "H", *, w: "4 H"):
    """A causal convolution: states keep the last inputs."""
    return x, a, b, w[0] * x + w[1] * a + w[2] * b + w[3] * c


@cell(states="h c d", output="y")
def kept_twice(x: "I", h: "H", c: "H", d: "H", *, W: "H I"):
    """Two states keep the same value; a third one keeps its old value, and the output reads both."""
    n = tanh(W @ x)
    return n, n, h, n + c * d


@cell(states="h g", output="y")
def driven(x: "I", h: "H", g: "H", *, W: "3 H I"):
    """A linear state whose gate and input are made of another one, before and after its step."""
    a, b, c = W @ x
    new = sigmoid(a) * g + b
    h = sigmoid(g) * h + tanh(new)
    return h, new, h * c


@cell(states="h m", output="y")
def stabilised(x: "I", h: "H", m: "H", *, W: "3 H I"):
    """A maximum of sums first, then a state that is scaled by it."""
    i, f, z = W @ x
    f = log_sigmoid(f)
    new = maximum(maximum(i, m + f), f - 1.0)
    h = exp(f + m - new) * h + exp(i - new) * z
    return h, new, h / maximum(absolute(h), exp(-new))


@cell(states="S", output="y")
def written_as_sum(x: "I", S: "H H", *, W: "3 H I", w: "I"):
    q, k, v = W @ x
    b = sigmoid(w @ x)
    return S + outer(b * (v - S @ k), k), S @ q


@cell(states="S", output="y")
def written_as_product(x: "I", S: "H H", *, W: "3 H I", w: "I"):
    q, k, v = W @ x
    b = sigmoid(w @ x)
    return S @ (np.eye(k.size) - b * outer(k, k)) + b * outer(v, k), S @ q


@cell(states="S", output="y")
def written_by_elements(x: "I", S: "H H", *, W: "3 H I", w: "I"):
    q, k, v = W @ x
    b = sigmoid(w @ x)
    read = rnn.sum(S * k, axis=-1)
    return S - b * outer(read, k) + outer(v, b * k), rnn.sum(S * q, axis=-1)


@cell(states="S", output="y")
def second_rank(x: "I", S: "H H", *, W: "6 H I", w: "2 I"):
    """Nobody's: a decay per key channel, two products of rank one after each other, a gate on what is read."""
    q, k, v, p, u, g = W @ x
    b, c = sigmoid(w @ x)
    S = sigmoid(u) * S
    S = S - b * outer(S @ k, k)
    S = S - c * outer(S @ p, p) + outer(v, k)
    return S, tanh(g) * (S @ q) / (1.0 + absolute(dot(k, q)))


@cell(states="S", output="y")
def transposed(x: "I", S: "H H", *, W: "3 H I"):
    """Keys along the first axis."""
    q, k, v = W @ x
    return 0.9 * S + outer(k, v), q @ S


@cell(states="S", output="y")
def shared_heads(x: "I", S: "2 4 3", *, W: "24 I", K: "8 I", V: "6 I"):
    """Three queries for each head, a decay for each."""
    q, k, v = rnn.reshape(W @ x, (2, 3, 4)), rnn.reshape(K @ x, (2, 4, 1)), rnn.reshape(V @ x, (2, 1, 3))
    S = sigmoid(k) * S + k * v
    return S, rnn.reshape(rnn.einsum("ngk,nkv->ngv", q, S), (18,))


@cell(states="S", output="y")
def through_matrices(x: "I", S: "H H", *, W: "2 H I", M: "2 H H I"):
    """Known matrices between the state and the vectors that it is multiplied with."""
    k, v = W @ x
    A, B = M @ x
    return 0.5 * S - outer((S @ tanh(A)) @ v, k) + outer(v, k), (S @ tanh(B)) @ k


LINEAR = {
    through_matrices: ("scan_matrix",),
    shared_heads: ("scan_matrix",),
    gated_sum: ("scan",),
    chosen: ("scan",),
    rotated: ("scan", "scan"),
    delays: ("delay", "delay", "delay"),
    kept_twice: ("delay", "delay", "delay"),
    driven: ("scan", "scan"),
    stabilised: ("scan", "scan_max"),
    written_as_sum: ("scan_matrix",),
    written_as_product: ("scan_matrix",),
    written_by_elements: ("scan_matrix",),
    second_rank: ("scan_matrix",),
    transposed: ("scan_matrix",),
    rnn.cells.min_gru: ("scan",),
    rnn.cells.min_lstm: ("scan",),
    rnn.cells.t_rnn: ("scan",),
    rnn.cells.mlstm: ("scan_matrix", "scan", "scan_max"),
    rnn.cells.delta_net: ("scan_matrix",),
    rnn.cells.gated_delta_net: ("scan_matrix",),
}


def network(c: rnn.Cell, size: int = 5) -> rnn.RNN:
    return rnn.RNN(c, size, size if "H" in c.size_names else None).init(seed=3)


def found(c: rnn.Cell, graph: Graph | None = None) -> tuple[Graph, list[Decision]]:
    net = network(c)
    given = normalise(net.layers[0].graph) if graph is None else graph
    with recording() as told:
        return ParalleliseTime().apply(given, net, V4), told


def rows(graph: Graph) -> tuple[str, ...]:
    return tuple(n.op if is_scan(n) else "step" for n in graph.results)


each_linear = pytest.mark.parametrize("c", LINEAR, ids=lambda c: c.name)


@each_linear
def test_a_linear_state_is_found(c: rnn.Cell) -> None:
    graph, told = found(c)
    assert rows(graph) == LINEAR[c] and all(d.done for d in told)


@each_linear
def test_operands_need_no_state(c: rnn.Cell) -> None:
    """But what another recurrence has made."""
    graph, _ = found(c)
    for row in graph.results:
        operands = row.args[len(recurrence_states(row)) :]
        assert not [n for o in operands for n in _unsolved(o)]


def _unsolved(node: Node) -> list[Node]:
    """States below a value that no recurrence stands before."""
    if node.op == "state":
        return [node]
    return [] if is_scan(node) else [n for a in node.args for n in _unsolved(a)]


@each_linear
def test_values_stay(c: rnn.Cell) -> None:
    net = network(c)
    graph, _ = found(c)
    rng = np.random.default_rng(5)
    x, reset = rng.standard_normal((7, 3, 5)), rng.random((7, 3)) < 0.2
    state = {n: rng.standard_normal(v.shape) for n, v in net.initial_state(3).items()}
    ends = {"lengths": np.array([7, 0, 4]), "reset": reset}
    (y, last), (y_new, last_new) = (Reference(net, [g])(x, state, **ends) for g in (net.layers[0].graph, graph))
    np.testing.assert_allclose(y_new, y, rtol=1e-9, atol=1e-9)
    for name in last:
        np.testing.assert_allclose(last_new[name], last[name], rtol=1e-9, atol=1e-9)


@each_linear
def test_new_states_are_linear_in_old_ones(c: rnn.Cell) -> None:
    """By numbers: the second difference of a step in its recurrence's states is 0."""
    graph, _ = found(c)
    linear = [n for n in graph.results if n.op in ("scan", "scan_matrix")]
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((1, *n.shape)) for n in topological(linear) if n.leaf and n.value is None}

    def step(states: dict[Node, np.ndarray]) -> list[np.ndarray]:
        own = {**values, **states}
        evaluate(list(topological(linear)), own)
        return [own[n] for n in linear]

    for row in linear:
        own = recurrence_states(row)[0]
        a, b = (rng.standard_normal((1, *own.shape)) for _ in range(2))
        at = linear.index(row)
        if any(n.op == "carried" and n.args[1] is own for r in linear for n in topological(r.args[1:])):
            continue  # others read it
        both, first, second, none = (step({own: v})[at] for v in (a + b, a, b, np.zeros_like(a)))
        np.testing.assert_allclose(both - first - second + none, 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("c", "row"),
    [(gated_sum, "scan"), (driven, "scan"), (rnn.cells.min_gru, "scan"), (rotated, "scan"), (rnn.cells.sru, "scan")],
    ids=lambda value: getattr(value, "name", value),
)
def test_gradients_are_linear_too(c: rnn.Cell, row: str) -> None:
    """Back-propagation of a linear recurrence is one, with time reversed; of SRU, whose gates read its state, too."""
    back = differentiate(network(c).layers[0].graph).backward
    assert back is not None
    graph, _ = found(c, back)
    assert set(rows(graph)) == {row}


def test_equal_spellings_have_equal_operands() -> None:
    counts = set()
    for c in (written_as_sum, written_as_product, written_by_elements):
        (row,) = found(c)[0].results
        counts.add((row.attrs["writes"], len(row.args), row.attrs["key"]))
    assert counts == {(1, 6, -1)}


def test_products_of_rank_one_with_the_same_vector_are_one() -> None:
    (row,) = found(second_rank)[0].results
    assert (len(row.args) - 2) // 2 == row.attrs["writes"] + 2


@cell
def squared(x: "H", h: "H"):
    return h * h + x


@cell
def gate_reads_state(x: "I", h: "H", *, W: "2 H I", v: "H"):
    a, b = W @ x
    return sigmoid(a + v * h) * h + b


@cell
def mixed(x: "I", h: "H", *, W: "H I", R: "H H"):
    return R @ h + W @ x


@cell(states="h c", output="y")
def needs_the_loop(x: "I", h: "H", c: "H", *, W: "2 H I", R: "H H"):
    """c is linear, but its gate is made of a state that is not."""
    a, b = W @ x
    new = tanh(a + R @ h)
    return new, sigmoid(new) * c + b, c


@cell(states="S", output="y")
def whole_matrix_is_read(x: "I", S: "H H", *, W: "2 H I"):
    k, v = W @ x
    S = S + outer(v, k)
    return S, tanh(S) @ k


@cell(states="S", output="y")
def elements_decay(x: "I", S: "H H", *, W: "3 H I", A: "H H"):
    k, v, d = W @ x
    return exp(A * d) * S + outer(v, k), S @ k


@cell(output="y")
def unchanged(x: "H", h: "H"):
    return 1.0 * h + 0.0, x * h


@pytest.mark.parametrize(
    ("c", "reason"),
    [
        (squared, "h * h stands in the way"),
        (gate_reads_state, "sigmoid(W @ x + ...) stands in the way"),
        (mixed, "R @ h stands in the way"),
        (needs_the_loop, "reads h, known only within the loop"),
        (whole_matrix_is_read, "something else than a product with a known vector reads it"),
        (elements_decay, "varies along both axes of S"),
        (rnn.cells.lstm, "stands in the way"),
        (unchanged, "does not change"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_stays_in_the_loop_is_told_why(c: rnn.Cell, reason: str) -> None:
    graph, told = found(c)
    assert "step" in rows(graph)
    assert any(not d.done and reason in d.why for d in told), [d.why for d in told]


def test_what_another_state_of_the_cell_hinders_stays() -> None:
    graph, _ = found(needs_the_loop)
    assert rows(graph) == ("step", "step")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("c", [gated_sum, driven, delays, rnn.cells.mlstm, second_rank], ids=lambda c: c.name)
def test_every_later_stage_means_the_same(c: rnn.Cell, training: bool) -> None:
    net = network(c)
    rng = np.random.default_rng(2)
    x, gy = rng.standard_normal((6, 2, 5)), rng.standard_normal((6, 2, net.output_size))
    ends = {"lengths": np.array([6, 3]), "reset": rng.random((6, 2)) < 0.2}
    stages = pipeline.run(net, V4, training=training)
    expected = _run(Reference(net), x, gy, ends, training)
    for name, layers in stages:
        values = _run(Reference(net, [layers.graphs[i] for i in layers.of_layer]), x, gy, ends, training)
        for own, wanted in zip(values, expected, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-9, err_msg=name)
    if not training:
        assert not has_steps(stages[-1][1].graphs[0])


def _run(run: Reference, x: np.ndarray, gy: np.ndarray, ends: dict[str, np.ndarray], training: bool) -> list[object]:
    if training:
        d_x, d_state, d_weights = run.gradients(x, gy=gy, **ends)
        return [d_x, *d_state.values(), *d_weights.values()]
    y, state = run(x, **ends)
    return [y, *state.values()]


@pytest.mark.parametrize("c", [rnn.cells.gated_delta_net, rnn.cells.rwkv7, rnn.cells.gla], ids=lambda c: c.name)
def test_nothing_is_left_of_the_loop_in_training(c: rnn.Cell) -> None:
    with recording() as told:
        graph = pipeline.run(network(c), V4, training=True)[-1][1].graphs[0]
    assert graph.backward is not None and not has_steps(graph) and not has_steps(graph.backward)
    assert "keep state S before each 16th step alone" in [d.what for d in told if d.stage == "parallelise_time"]


def broad(x: "I", S: "V=1025 H", *, W: "2 H I", V: "V I"):
    """More values than a warp has registers for."""
    q, k = W @ x
    S = S * 0.5 + outer(V @ x, k)
    return S, S @ q


def test_gpus_train_over_all_time_and_say_what_they_do_not() -> None:
    net = rnn.RNN(rnn.cells.mlstm, 8, 8)
    with recording() as told:
        graph = pipeline.run(net, target.resolve("nvidia-h200"), training="values")[-1][1].graphs[0]
    assert rows(graph) == ("scan_matrix", "scan", "scan_max") and graph.backward is not None
    assert not has_steps(graph.backward)
    assert "keep state C before each 64th step alone" in [d.what for d in told if d.stage == "parallelise_time"]
    wide = rnn.RNN(cell(states="S", output="y")(broad), 4, 4)
    with recording() as told:
        pipeline.run(wide, target.resolve("nvidia-h200"), training="values")
    assert any("up to 1024 values in training" in d.why for d in told if d.what == "state S")
    back = pipeline.run(rnn.RNN(rnn.cells.sru, 8, 8), target.resolve("nvidia-h200"), training=True)[-1][1].graphs[0]
    assert has_steps(back) and back.backward is not None and not has_steps(back.backward)


@cell(states="S", output="y")
def looks_back(x: "I", S: "H H", *, W: "3 H I"):
    """A function of what is read of the matrix decides what is written at the next step."""
    q, k, v = W @ x
    return S + outer(tanh(S @ k) + v, k), S @ q


@cell(states="S", output="y")
def summed_up(x: "I", S: "H H", *, W: "3 H I", P: "H H"):
    """A parameter multiplies each element of the matrix: its gradient is a sum of matrices."""
    q, k, v = W @ x
    return 0.9 * S + outer(v, k), (P * S) @ q


@pytest.mark.parametrize("c", [looks_back, summed_up], ids=lambda c: c.name)
def test_what_stands_in_the_way_of_a_matrix_keeps_the_loop_of_both_passes(c: rnn.Cell) -> None:
    with recording() as told:
        graph = pipeline.run(network(c), V4, training=True)[-1][1].graphs[0]
    assert graph.backward is not None and has_steps(graph) and has_steps(graph.backward)
    assert any(not d.done and d.what == "state S" for d in told if d.stage == "parallelise_time")


def test_it_is_left_out_with_what_it_needs() -> None:
    with recording() as told:
        pipeline.run(network(rnn.cells.min_gru), V4, ["hoist_gemms"])
    assert any(d.stage == "parallelise_time" and d.why == "needs hoist_gemms" for d in told)


def test_a_target_that_runs_no_recurrence_keeps_the_loop() -> None:
    graph, net = normalise(network(rnn.cells.min_gru).layers[0].graph), network(rnn.cells.min_gru)
    assert ParalleliseTime(rows=frozenset()).apply(graph, net, V4) is graph


def test_columns_of_a_state_that_are_read_one_by_one_are_no_pointwise_recurrence() -> None:
    @cell(states="h", output="y")
    def swapped(x: "H", h: "2 H"):
        return concat([h[1], h[0] + x]).reshape((2, x.size)), h[0]

    with recording() as told:
        net = rnn.RNN(swapped, 4, 4)
        graph = ParalleliseTime().apply(normalise(net.layers[0].graph), net, V4)
    assert rows(graph) == ("step",) and not told[0].done


# --- updates that are linear by construction, in random spellings ---------------------------------------------------


class Spelling:
    """Draws expressions: known values of x, and sums and products that keep a matrix linear in S."""

    def __init__(self, seed: int, vectors: list[Value], numbers: list[Value]) -> None:
        self.rng, self.vectors, self.numbers = random.Random(seed), vectors, numbers

    def vector(self) -> Value:
        v = self.rng.choice(self.vectors)
        return self.rng.choice([lambda: v, lambda: tanh(v), lambda: self.number() * v, lambda: -v])()

    def number(self) -> Value:
        return sigmoid(self.rng.choice(self.numbers))

    def matrix(self, S: Value, depth: int) -> Value:
        """Linear in S."""
        k, size = self.vector(), S.shape[-1]
        if not depth:
            return S
        inner = self.matrix(S, depth - 1)
        return self.rng.choice(
            [
                lambda: self.number() * inner,
                lambda: sigmoid(k) * inner,
                lambda: inner + outer(self.vector(), k),
                lambda: inner - outer(inner @ k, self.vector()),
                lambda: inner + outer(self.number() * (self.vector() - inner @ k), k),
                lambda: inner @ (np.eye(size) - self.number() * outer(k, self.vector())),
                lambda: 0.5 * (inner + self.number() * inner),
                lambda: where(self.number() > 0.5, inner, 0.9 * inner),
                lambda: inner - rnn.einsum("v,k->vk", rnn.sum(inner * k, axis=-1), self.vector()),
            ]
        )()


@pytest.mark.parametrize("seed", range(24))
def test_random_spellings_of_linear_updates(seed: int) -> None:
    @cell(states="S", output="y")
    def drawn(x: "I", S: "H H", *, W: "4 H I", w: "3 I"):
        vectors, numbers = [*(W @ x)], [*(w @ x)]
        draw = Spelling(seed, vectors, numbers)
        S = draw.matrix(S, 1 + seed % 4)
        return S, draw.vector() * (S @ draw.vector())

    graph, told = found(drawn)
    assert rows(graph) == ("scan_matrix",), [d.why for d in told]
    net = network(drawn)
    rng = np.random.default_rng(seed)
    x, state = rng.standard_normal((4, 2, 5)), {"S": rng.standard_normal((1, 2, 5, 5))}
    (y, last), (y_new, last_new) = (Reference(net, [g])(x, state) for g in (net.layers[0].graph, graph))
    np.testing.assert_allclose(y_new, y, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(last_new["S"], last["S"], rtol=1e-9, atol=1e-9)


def test_a_recurrence_that_steps_read_does_not_go_back_into_the_loop() -> None:
    """Of numbers alone, and read by a function of another state."""

    @cell(states="h s")
    def scaled(x: "I", h: "H", s: "", *, W: "H I"):
        return sin(h) * s + tanh(W @ x), 0.5 * s + 0.1

    graph = pipeline.run(network(scaled), V4)[-1][1].graphs[0]
    assert {graph.region_of(n) for n in graph.nodes() if is_scan(n)} == {"before"}


def test_pointwise_steps_of_gradients_that_fill_a_gpu_are_walked() -> None:
    """There alone: fewer elements, a CPU, and a cell with a product have a recurrence over all time."""
    gpu = target.resolve("nvidia-h200")

    def steps(own: rnn.Cell, machine: target.Target, rows: int) -> bool:
        net = rnn.RNN(own, 64, 64)
        back = pipeline.run(net, machine, batches=(rows,), training=True)[-1][1].graphs[0].backward
        assert back is not None
        return has_steps(back)

    assert steps(lif_neuron, gpu, FILLING // 64) and not steps(lif_neuron, gpu, FILLING // 64 - 1)
    assert not steps(lif_neuron, V4, FILLING) and not steps(rnn.cells.min_gru, gpu, FILLING)
