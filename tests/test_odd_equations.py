"""Equations that few people write: results that are views, constants, inputs or each other, compiled, are the oracle.

Each cell here is small and has one oddity; the ones that the compiler once got wrong come first.
"""

from __future__ import annotations

import numpy as np
import pytest
from networks import arguments, compiled, flags

import tvm_rnn as rnn
from tvm_rnn import cell, concat, exp, max, maximum, minimum, outer, sigmoid, softmax, stack, sum, tanh, where
from tvm_rnn.oracle.tolerance import assert_close

# --- views as results ------------------------------------------------------------------------------------------------


@cell(states="h")
def join_of_hoisted_values(x: "I", h: "2*H", *, W: "H I", V: "H I"):
    return concat([tanh(W @ x), sigmoid(V @ x)])


@cell(states="h")
def join_of_a_hoisted_value_and_cheap_ones(x: "I", h: "2*I+3*H", *, W: "H I", b: "H", p: "I"):
    return concat([x, tanh(W @ x), tanh(b), b, x * p])


@cell(states="h c", output="y")
def join_that_others_read(x: "I", h: "2*H", c: "H", *, R: "H H", V: "H H"):
    both = concat([R @ c, tanh(V @ c)])
    return both, c + x[:1], softmax(both) * h


@cell(states="h c", output="y")
def permutation_that_a_product_reads(x: "I", h: "2*H", c: "2*H", *, R: "2*H 2*H", V: "2*H 2*H"):
    mixed = (R @ c).reshape(2, -1).T.reshape(-1)
    return mixed, max(mixed) + x[:1] + c, tanh(V @ mixed) * h


@cell(states="h c d", output="y")
def join_that_products_and_slices_read(x: "I", h: "H", c: "2*H", d: "2", *, R: "H H", V: "H 2*H"):
    d = d * 2.0 - d * d
    z = concat([tanh(R @ h), h * 0.5 + x[:1]])
    return tanh(V @ z), z, d + exp(-z[3:5] * z[3:5]) * d, max(z) + softmax(z[2:])


@cell(states="h c")
def gate_as_a_state(x: "I", h: "H", c: "H", *, W: "2 H I", R: "2 H H"):
    i, f = W @ x + R @ h
    return sigmoid(i) * tanh(f) + c, f


@cell(states="m", output="y")
def transposed_state(x: "I", m: "H H", *, W: "H I", V: "H I"):
    k, v = tanh(W @ x), V @ x
    return m.T * 0.9 + outer(k, v), m @ k + m.T @ v


@cell(states="h c")
def joins_of_joins(x: "I", h: "2*H", c: "4*H", *, W: "H I", V: "H I"):
    z = concat([tanh(W @ x), sigmoid(V @ x)])
    return z, concat([z, h])


@cell(states="m", output="y")
def stack_of_hoisted_values(x: "I", m: "2 H", *, W: "H I", V: "H I"):
    return stack([tanh(W @ x), sigmoid(V @ x)]), m[0] * m[1]


# --- leaves as results -----------------------------------------------------------------------------------------------


@cell(states="h c d")
def constants_as_states(x: "I", h: "H", c: "H", d: "H", *, W: "H I", b: "H"):
    return tanh(W @ x + c + d), b, 0.0 * b + 2.0


@cell(states="h c")
def input_as_output(x: "I", h: "I", c: "I"):
    return x, h


@cell(states="h c d")
def states_in_turn(x: "I", h: "H", c: "H", d: "H", *, R: "H H", W: "H I"):
    return c, d, tanh(R @ h) + W @ x


@cell(states="h c")
def one_value_twice(x: "I", h: "H", c: "H", *, W: "H I"):
    n = tanh(W @ x)
    return n, n


@cell(states="h", output="y")
def old_state_as_output(x: "I", h: "H", *, R: "H H", W: "H I"):
    return tanh(R @ h + W @ x), h


@cell(states="h")
def parameter_as_state(x: "I", h: "2*H", *, R: "H H", b: "H"):
    return concat([tanh(R @ b), b])


@cell(states="h")
def unused_inputs(x: "I", u: "3", h: "H", *, W: "H 3", R: "H H"):
    return tanh(W @ u + R @ h)


# --- small and special -----------------------------------------------------------------------------------------------


@cell(states="h c")
def two_gates_of_width_one(x: "I", h: "1", c: "1", *, W: "2 1 I", R: "2 1 1", b: "2 1"):
    i, f = W @ x + R @ h + b
    return sigmoid(i) * tanh(f), c * sigmoid(f) + i


@cell(states="h", output="y")
def reductions_of_hoisted_values(x: "I", h: "H+I", *, W: "H I", p: "I"):
    cheap = x * p
    joined = concat([W @ x, softmax(cheap) * cheap])
    return joined * max(joined), softmax(joined) + h * sum(joined, keepdims=True)


@cell(states="h k")
def choices_of_hoisted_values(x: "I", h: "H", k: "H", *, W: "H I", V: "H I"):
    a, b = W @ x, V @ x
    return where(a > b, maximum(a, h), minimum(b, h)), where(a > 0, a, 0.0) + where(b != b, k, h)


@cell(states="h")
def choice_by_a_join(x: "I", h: "H+I", *, W: "H I", p: "I"):
    return where(concat([W @ x > 0, x * p > 0.1]), h * 0.5, 1.0)


@cell(states="h")
def inputs_that_nothing_reads(x: "I", u: "", v: "2 3", h: "H", *, W: "H I"):
    return tanh(W @ x + h)


@cell(states="h")
def no_input_is_read(x: "I", u: "", h: "H"):
    return tanh(h * 0.5)


CELLS = [value for value in list(globals().values()) if isinstance(value, rnn.Cell)]
EVERY_CELL = pytest.mark.parametrize("c", CELLS, ids=lambda c: c.name)


def agrees(c: rnn.Cell, without: tuple[str, ...] = (), **options: object) -> None:
    """From a given state, ragged rows with resets too, and with a NaN in one row of the input."""
    net, module = compiled(c, 5, 7, without=without, dtype="float64", **options)
    oracle = rnn.reference(net)
    for batch in (1, 9):
        x, state = arguments(net, 4, batch)
        assert_close(module(x, state), oracle(x, state), "float64", 4)
        rows = flags(4, batch)
        assert_close(module(x, state, **rows), oracle(x, state, **rows), "float64", 4, "ragged rows")
        x["x"][1, batch // 2, 2] = np.nan
        assert_close(module(x, state), oracle(x, state), "float64", 4, "NaN")


@pytest.mark.broad_after(2)
@EVERY_CELL
def test_compiled_is_the_oracle(c: rnn.Cell) -> None:
    agrees(c)


@pytest.mark.slow
@pytest.mark.parametrize(
    "off", ["parallelise_time", "hoist_gemms", "combine_gemms", "fuse_pointwise", "tile_layers_and_time"]
)
@EVERY_CELL
def test_without_a_pass(c: rnn.Cell, off: str) -> None:
    agrees(c, (off,))


@pytest.mark.broad
@pytest.mark.parametrize("c", [joins_of_joins, states_in_turn, constants_as_states], ids=lambda c: c.name)
def test_in_layers_and_both_directions(c: rnn.Cell) -> None:
    agrees(c, num_layers=2, bidirectional=True)


def test_a_comparison_is_no_state() -> None:
    @cell(states="h")
    def truth(x: "I", h: "I"):
        return x > h

    with pytest.raises(rnn.CellError, match="a truth value"):
        rnn.RNN(truth, 5)
