"""Fixed point of a layer: exponents, matrices with a scale for each row, tables; what it has not is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Node, constant, make
from tvm_rnn.plain_c.fixed_point import GUARD, FixedPoint, exponent_of, matrix, quantised
from tvm_rnn.plain_c.fixed_rows import Exponents, fitted


def test_the_exponent_leaves_room_for_the_largest() -> None:
    for most in (1e-9, 0.7, 1.0, 32767.0, 5e4, 1e9):
        e = exponent_of(most)
        assert -15 <= e <= 30 and (most * 2.0**e <= 32767 or e == -15)
    assert exponent_of(1.0) == 14 and exponent_of(0.0) == 15 and exponent_of(np.inf) == -15
    np.testing.assert_array_equal(quantised(np.array([0.5, -9.0, np.nan, np.inf]), 14), [8192, -32768, 0, 32767])


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("columns", [3, 700])
def test_a_product_is_what_its_scales_say(bits: int, columns: int) -> None:
    """Rows of very different size, one of them zero: each within half a step of its own weights."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(5, columns)) * np.array([1.0, 1e-2, 0.0, 3.0, 0.1])[:, None]
    x = rng.integers(-32768, 32767, (20, columns))
    exact = (x * 2.0**-14) @ weights.T
    e = Exponents(exponent_of(np.abs(exact).max()), (14,))
    own = matrix(weights, bits, e)
    assert np.abs(own.w).max() == (1 << bits - 1) - 1 and own.wide == (bits == 16 and columns == 700)
    found = fitted(own.times(x), GUARD) * 2.0**-e.out
    steps = np.abs(weights).max(axis=1) / ((1 << bits - 1) - 1) / 2 * np.abs(x * 2.0**-14).sum(axis=1)[:, None]
    assert (np.abs(found - exact) <= steps + 2.0**-e.out).all()


def test_a_function_of_one_operand_is_a_table() -> None:
    """Also a power of a known exponent; the bits of the table's ends are right."""
    x = Node("input", shape=(3,))
    nodes = [make("tanh", x), make("power", x, constant(3.0, 1))]
    numbers = FixedPoint(8, {x: 13, nodes[0]: 15, nodes[1]: 9, nodes[1].args[1]: 13}, {})
    given = np.array([[-32768, 4096, 32767]])
    for node, exact in zip(nodes, (np.tanh, lambda v: v**3), strict=True):
        e = numbers.exponents[node]
        found = numbers.evaluate(node, [given, np.array(0)][: len(node.args)]) * 2.0**-e
        np.testing.assert_allclose(found, exact(given * 2.0**-13), 0, 6e-3 if e == 9 else 1e-4)
    assert [*numbers.tables()] == ["tanh_13_15", "power_0_3p0_13_9"]
    assert numbers.apply(nodes[0], ["x[i]"]) == "line(tanh_13_15, x[i])"


def test_what_has_no_fixed_point_is_named() -> None:
    a, b = (Node("input", shape=(2,)) for _ in "ab")
    node = make("power", a, b)
    with pytest.raises(rnn.ConfigError, match="no fixed point for power"):
        FixedPoint(8, dict.fromkeys((a, b, node), 10), {}).apply(node, ["a", "b"])
