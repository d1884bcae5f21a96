"""Every row of the op table: shape rule against NumPy, gradient against central differences, refused shapes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from tvm_rnn.graph import ops
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.language import functions
from tvm_rnn.language.trace import Value, apply
from tvm_rnn.oracle.reference import evaluate

Case = tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]

UNARY = ["neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "relu", "softplus", "erf"]
UNARY += ["sin", "cos", "floor", "to_int8", "to_uint8", "stop_gradient"]
BINARY = ["add", "sub", "mul", "div", "power", "maximum", "minimum", "mod"]
COMPARE = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_and", "logical_or"]
POSITIVE = {"log", "log1p", "sqrt", "power"}  # drawn above 0.2
TRUTHS = {"logical_and": {0, 1}, "logical_or": {0, 1}, "logical_not": {0}, "where": {0}}

OWN_GRADIENT = ("stop_gradient", "surrogate")  # not that of their value

# test_recurrences.py has those of scans; a table's rows have tests of their own below.
OF_THEIR_OWN = ("take", "neighbours", "at_pixel", "sum_images")  # rows that read by places, or other rows
ROWS = [op for op in TABLE.values() if op.kind not in ("random", "scan") and op.name not in OF_THEIR_OWN]
CASES: list[Case] = [
    *((op, (shape,), {}) for op in UNARY for shape in ((), (3,), (2, 5))),
    *((op, shapes, {}) for op in BINARY for shapes in (((3,), (3,)), ((4, 1), (1, 3)), ((2, 3), (1, 3)), ((), ()))),
    *((op, ((2, 3), (1, 3)), {}) for op in COMPARE),
    ("logical_not", ((2, 3),), {}),
    ("where", ((3,), (3,), (3,)), {}),
    ("where", ((4, 1), (1, 3), (4, 3)), {}),
    ("where", ((1, 1), (2, 3), (1, 1)), {}),
    ("reshape", ((2, 6),), {"rank": 2, "to": (3, 4)}),
    ("reshape", ((6,),), {"rank": 1, "to": (1, 2, 3)}),
    ("reshape", ((),), {"rank": 0, "to": (1,)}),
    ("transpose", ((2, 3),), {"axes": (1, 0)}),
    ("transpose", ((2, 3, 4),), {"axes": (2, 0, 1)}),
    ("slice", ((5,),), {"axis": -1, "start": 1, "stop": 3}),
    ("slice", ((4, 3, 2),), {"axis": -3, "start": 2, "stop": 4}),
    ("slice", ((4, 3),), {"axis": -1, "start": 0, "stop": 3}),
    ("index", ((5,),), {"axis": -1, "at": 4}),
    ("index", ((4, 3, 2),), {"axis": -2, "at": 0}),
    ("surrogate", ((3,), (3,)), {}),
    ("surrogate", ((2, 3), (2, 3)), {}),
    ("flip", ((5,),), {"axis": -1}),
    ("flip", ((2, 3, 4),), {"axis": -2}),
    ("concat", ((2,), (3,), (1,)), {"axis": -1}),
    ("concat", ((2, 3), (1, 3)), {"axis": -2}),
    *(
        (op, ((2, 3, 4),), {"axis": axis, "keepdims": keepdims})
        for op in ("sum", "max")
        for axis in (-1, -2, -3)
        for keepdims in (False, True)
    ),
    ("einsum", ((3, 4), (4,)), {"spec": "ij,j->i"}),
    ("einsum", ((3, 4), (3, 4)), {"spec": "ij,ij->i"}),
    ("einsum", ((4,), (4,)), {"spec": "k,k->"}),
    ("einsum", ((2, 3, 4), (4, 5)), {"spec": "gij,jk->kgi"}),
    ("einsum", ((3,), (4,)), {"spec": "i,j->ji"}),
    ("gemm", ((3, 4), (4,)), {}),
    ("gemm", ((2, 3, 4), (4,), (2, 3, 5), (5,)), {}),
    ("gemm", ((4,), (4,)), {}),
    ("batched_gemm", ((2, 3, 4), (2, 4)), {}),
    ("batched_gemm", ((2, 3, 5, 4), (2, 4), (2, 3, 5, 6), (2, 6)), {}),
    ("conv", ((5, 2, 3), (2, 8)), {"spec": "ecu,cux->ex", "taps": (3,), "dilation": (2,)}),
    ("conv", ((2, 3, 2, 1, 2), (2, 3, 4)), {"spec": "efcuv,cuvyx->efyx", "taps": (1, 2), "dilation": (1, 1)}),
    ("windows", ((2, 5),), {"taps": (2,), "dilation": (3,)}),
    ("windows", ((2, 3, 4),), {"taps": (2, 3), "dilation": (1, 1)}),
    ("broadcast", ((2, 1, 3),), {"to": (2, 5, 3)}),
    ("broadcast", ((1,),), {"to": (1,)}),
    ("broadcast", ((),), {"to": ()}),
    ("sum_rows", ((2, 3),), {"rank": 2}),
    ("sum_rows", ((),), {"rank": 0}),
    ("einsum_rows", ((3,), (4,)), {"spec": "i,j->ij"}),
    ("einsum_rows", ((2, 3), (2,)), {"spec": "ij,i->ij"}),
    ("einsum_rows", ((2, 3), (4, 3)), {"spec": "ij,kj->ik"}),
]
OVER_ROWS = ("sum_rows", "einsum_rows")
NAMES = [op.name for op in ROWS]


def cases_of(name: str) -> list[Case]:
    return [case for case in CASES if case[0] == name]


def draw(case: Case, *leads: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Operands of a case, each with its own leading axes; booleans where the op wants truth values."""
    op, shapes, _ = case
    rng = np.random.default_rng(seed)
    arrays = []
    for position, shape in enumerate(shapes):
        full = (leads[position] if leads else ()) + shape
        array = rng.uniform(0.2, 2.0, full) if op in POSITIVE else rng.normal(size=full)
        arrays.append(np.asarray(array > 0 if position in TRUTHS.get(op, ()) else array))
    return arrays


def meaning(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(TABLE[case[0]].numpy(*arrays, **case[2]))


def test_every_row_has_a_case() -> None:
    assert {op for op, _, _ in CASES} == {op.name for op in ROWS}


def test_masks_have_a_shape_and_no_argument() -> None:
    op = TABLE["mask"]
    how = {"stream": "zoneout.h", "keep": 0.25, "every": "step", "to": (2, 3)}
    assert op.kind == "random" and op.arity == 0 and op.gradient is None and op.shape(**how) == (2, 3)
    found = op.numpy((1, 2), 5, 7, **how)
    assert found.shape == (5, 2, 3) and {*np.unique(found)} == {0.0, 1.0}
    for step in (0, 7):
        same = op.numpy((1, 2), 5, step, **{**how, "every": "sequence"})
        np.testing.assert_array_equal(same, op.numpy((1, 2), 5, 0, **how))
    for wrong in ({"keep": 0.0}, {"keep": 1.0}, {"every": "row"}):
        with pytest.raises(ValueError, match="a mask of"):
            op.shape(**{**how, **wrong})


def test_random_numbers_have_a_shape_and_no_argument() -> None:
    op = TABLE["uniform"]
    how = {"stream": "random.0", "every": "step", "to": (2, 3)}
    assert op.kind == "random" and op.arity == 0 and op.gradient is None and op.shape(**how) == (2, 3)
    found = op.numpy((1, 2), 500, 7, **how)
    assert found.shape == (500, 2, 3) and found.min() > 0.0 and found.max() < 1.0
    assert abs(found.mean() - 0.5) < 0.02 and abs(found.var() - 1 / 12) < 0.005
    np.testing.assert_array_equal(found, found.astype(np.float32))
    assert (op.numpy((1, 2), 500, 8, **how) != found).any()


@pytest.mark.parametrize(
    "shapes", [((5,), ()), ((5,), (3,)), ((5, 4), (1,)), ((5, 2, 3), (4, 1, 1)), ((5, 4), (2, 3, 1))]
)
def test_rows_of_a_table(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    op, size, rank = TABLE["take"], shapes[0][0], len(shapes[0])
    rng = np.random.default_rng(0)
    table, places = rng.normal(size=shapes[0]), rng.integers(0, size, (6, *shapes[1]))
    shape = op.shape(*shapes, rank=rank)
    found = op.numpy(table, places.astype(float), rank=rank)
    assert found.shape == (6, *shape)
    np.testing.assert_array_equal(found, table[places.reshape(6, *shapes[1][: len(shapes[1]) - rank + 1])])
    assert op.gradient is not None
    grad = rng.normal(size=shape)
    d_table, d_places = op.gradient(functions, grad, found[0], [table, places[0]], rank=rank)
    expected = np.zeros_like(table)
    np.add.at(expected, places[0].reshape(shape[: len(shape) - rank + 1]), grad)
    assert d_places is None
    np.testing.assert_allclose(d_table, expected, rtol=1e-14, atol=1e-15)


def test_neighbours_of_a_pixel_are_what_the_taps_of_an_image_see() -> None:
    op, rng = TABLE["neighbours"], np.random.default_rng(0)
    how = {"taps": (2, 3), "dilation": (1, 2), "before": (0, 3), "image": (4, 5), "wide": 8}
    assert op.shape((3,), **how) == (48,) and op.gradient is None and op.kind == "move"
    images = rng.normal(size=(2, 3, 4, 5))
    padded = np.pad(images, ((0, 0), (0, 0), (0, 1), (3, 1)))
    seen = TABLE["windows"].numpy(padded, taps=(2, 3), dilation=(1, 2))  # [B, C, *taps, Y, X]
    expected = np.zeros((2, 4, 5, 2, 3, 8))
    expected[..., :3] = np.moveaxis(seen, (1, 2, 3), (-1, -3, -2))
    pixels = np.moveaxis(images, 1, -1).reshape(1, 40, 3)
    np.testing.assert_array_equal(op.numpy(pixels, **how), expected.reshape(1, 40, 48))
    for wrong in ((9,), (3, 1)):
        with pytest.raises(ValueError, match="channels"):
            op.shape(wrong, **how)


def test_a_table_of_pixels_is_read_image_after_image_and_its_gradient_is_a_sum_of_images() -> None:
    reads, sums, rng = TABLE["at_pixel"], TABLE["sum_images"], np.random.default_rng(0)
    table, rows = rng.normal(size=(2, 3, 4)), np.zeros((5, 12, 7))  # two images of 2 x 3 in each step
    assert reads.shape(table.shape, (7,), image=(2, 3)) == (4,) and reads.gradient is None and reads.kind == "move"
    np.testing.assert_array_equal(reads.numpy(table, rows, image=(2, 3)), np.tile(table.reshape(6, 4), (2, 1)))
    values = rng.normal(size=(5, 12, 4))
    assert sums.shape((4,), rank=1, image=(2, 3)) == (2, 3, 4) and sums.kind == "sum_rows"
    expected = values.reshape(5, 2, 2, 3, 4).sum((0, 1))
    np.testing.assert_allclose(sums.numpy(values, rank=1, image=(2, 3)), expected, rtol=1e-14)
    for wrong in (((3, 2, 4), (7,)), ((2, 3, 4), (1, 7))):
        with pytest.raises(ValueError, match="pixels"):
            reads.shape(*wrong, image=(2, 3))


def test_no_row_of_a_table_is_nan() -> None:
    places = np.array([-1.0, -0.0, 1.0, 2.0, 0.5, np.nan, np.inf, -np.inf])
    found = TABLE["take"].numpy(np.array([3.0, 4.0]), places, rank=1)
    np.testing.assert_array_equal(found, [np.nan, 3.0, 4.0, *[np.nan] * 5])


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_rows_are_complete(op: ops.Op) -> None:
    """Pointwise rows have an expression and others none; every row has a gradient; arity agrees with the cases."""
    assert (op.expression is not None) == (op.kind == "pointwise")
    assert op.gradient is not None
    assert op.kind in ("pointwise", "move", "reduce", "contract", "sum_rows") and op.cost >= 1
    counts = {len(shapes) for other, shapes, _ in CASES if other == op.name}
    assert counts == {op.arity} or op.arity is None
    assert f"| {op.name} | {op.kind} |" in ops.markdown()


@pytest.mark.parametrize("name", NAMES)
def test_shape_rule_is_that_of_numpy(name: str) -> None:
    """Without T and B, with both, with one of size 0, and with some operands (parameters) that have neither."""
    for case in cases_of(name):
        op, shapes, attrs = case
        shape = TABLE[op].shape(*shapes, **attrs)
        assert meaning(case, draw(case)).shape == shape
        everyone = range(len(shapes))
        fixed = {p for p in everyone if op in ops.GEMMS and p % 2 == 0}  # a GEMM's weights are parameters
        for lead in ((5,), (3, 2), (1,), (0,), (4, 0)):
            full = shape if op in OVER_ROWS else lead + shape
            assert meaning(case, draw(case, *[() if p in fixed else lead for p in everyone])).shape == full
            for parameter in everyone:
                leads = [() if p == parameter or p in fixed else lead for p in everyone]
                if any(leads):
                    assert meaning(case, draw(case, *leads)).shape == full


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*ops.GEMMS, *OVER_ROWS)])
def test_a_batch_is_its_rows(name: str) -> None:
    for case in cases_of(name):
        arrays = draw(case, *[(3,)] * len(case[1]))
        whole = meaning(case, arrays)
        for row in range(3):
            np.testing.assert_allclose(whole[row], meaning(case, [a[row] for a in arrays]), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", OVER_ROWS)
def test_a_total_is_the_sum_of_its_rows(name: str) -> None:
    for case in cases_of(name):
        arrays = draw(case, *[(3, 2)] * len(case[1]))
        rows = [meaning(case, [a[place] for a in arrays]) for place in np.ndindex(3, 2)]
        np.testing.assert_allclose(meaning(case, arrays), np.sum(rows, axis=0), rtol=1e-14, atol=1e-14)
        fixed = [arrays[0], *[a[0, 0] for a in arrays[1:]]]  # an operand without rows counts at every one
        rows = [meaning(case, [fixed[0][place], *fixed[1:]]) for place in np.ndindex(3, 2)]
        np.testing.assert_allclose(meaning(case, fixed), np.sum(rows, axis=0), rtol=1e-14, atol=1e-14)


def reduce_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Un-broadcast: sum the axes along which an operand was repeated."""
    for axis, size in enumerate(shape):
        if size == 1 and gradient.shape[axis] != 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient


def differences(case: Case, arrays: list[np.ndarray], position: int, grad: np.ndarray) -> np.ndarray:
    """d sum(grad * op(arrays)) / d arrays[position], by central differences in float64."""
    step, result = 1e-6, np.zeros(arrays[position].shape)
    for place in np.ndindex(*result.shape):
        ends = []
        for sign in (step, -step):
            moved = [np.array(a) for a in arrays]
            moved[position][place] += sign
            ends.append(np.sum(grad * meaning(case, moved)))
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def analytic(case: Case, arrays: list[np.ndarray], grad: np.ndarray) -> list[np.ndarray | None]:
    """The gradient column on NumPy arrays."""
    row = TABLE[case[0]]
    assert row.gradient is not None
    found = row.gradient(functions, grad, meaning(case, arrays), arrays, **case[2])
    assert len(found) == len(arrays)
    return [None if g is None else reduce_to(np.asarray(g), a.shape) for g, a in zip(found, arrays, strict=True)]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OWN_GRADIENT])
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    for case, seed in product(cases_of(name), (1, 2)):
        arrays = draw(case, seed=seed)
        grad = np.random.default_rng(seed + 100).normal(size=meaning(case, arrays).shape)
        for position, found in enumerate(analytic(case, arrays, grad)):
            if arrays[position].dtype == bool:
                assert found is None
                continue
            expected = differences(case, arrays, position, grad)
            np.testing.assert_allclose(0.0 if found is None else found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_traced_values_is_that_of_arrays(name: str) -> None:
    """The column is written once: traced, it makes a graph of rows of the table with the same value."""
    for case in cases_of(name):
        op, shapes, attrs = case
        arrays = draw(case)
        grad = np.random.default_rng(3).normal(size=meaning(case, arrays).shape)
        leaves = [Node("param", shape=a.shape, name=f"a{i}") for i, a in enumerate(arrays)]
        above = Node("param", shape=grad.shape, name="g")
        truths = TRUTHS.get(op, set())
        args = [apply("greater", Value(leaf), 0.0) if i in truths else Value(leaf) for i, leaf in enumerate(leaves)]
        out = Value(Node(op, tuple(v.node for v in args), attrs, TABLE[op].shape(*shapes, **attrs)))
        gradient = TABLE[op].gradient
        assert gradient is not None
        traced = gradient(functions, Value(above), out, args, **attrs)
        for value, expected, array in zip(traced, analytic(case, arrays, grad), arrays, strict=True):
            assert (value is None) == (expected is None)
            if value is None or expected is None:
                continue
            values = {leaf: a.astype(float) for leaf, a in zip(leaves, arrays, strict=True)} | {above: grad}
            evaluate(list(topological([value.node])), values)
            np.testing.assert_allclose(reduce_to(values[value.node], array.shape), expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_ones_own() -> None:
    value, slope, above = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])
    assert analytic(("stop_gradient", ((2,),), {}), [value], above) == [None]
    first, second = analytic(("surrogate", ((2,), (2,)), {}), [value, slope], above)
    assert first is None and second is not None and second.tolist() == above.tolist()


def test_gradient_of_max_is_shared_by_equal_elements() -> None:
    case: Case = ("max", ((4,),), {"axis": -1, "keepdims": False})
    found = analytic(case, [np.array([1.0, 3.0, 3.0, 0.0])], np.asarray(2.0))[0]
    assert found is not None and found.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_gradient_of_einsum_refuses_an_axis_summed_alone() -> None:
    gradient = TABLE["einsum"].gradient
    assert gradient is not None
    with pytest.raises(ValueError, match="axis of 'ij' is summed alone"):
        gradient(functions, np.ones(3), np.ones(3), [np.ones((3, 4)), np.ones(3)], spec="ij,i->i")


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "reason"),
    [
        ("add", ((3,), (4,)), {}, "axis 0 has sizes 3 and 4"),
        ("mul", ((2, 3), (3, 3)), {}, "axis 0 has sizes 2 and 3"),
        ("where", ((2,), (2,), (3,)), {}, "axis 0 has sizes 2 and 2 and 3"),
        ("reshape", ((6,),), {"rank": 1, "to": (4,)}, "6 elements cannot become"),
        ("reshape", ((4,),), {"rank": 1, "to": (-2, -2)}, "4 elements cannot become"),
        ("broadcast", ((2, 3),), {"to": (2, 6)}, "cannot be repeated to"),
        ("broadcast", ((2,),), {"to": (1, 2)}, "cannot be repeated to"),
        ("transpose", ((2, 3),), {"axes": (0, 0)}, "not each of the 2 axes once"),
        ("transpose", ((2, 3),), {"axes": (0,)}, "not each of the 2 axes once"),
        ("slice", ((5,),), {"axis": -1, "start": 2, "stop": 2}, "2:2 is not inside an axis of size 5"),
        ("slice", ((5,),), {"axis": -1, "start": 0, "stop": 6}, "0:6 is not inside"),
        ("index", ((5,),), {"axis": -1, "at": 5}, "index 5 is not inside an axis of size 5"),
        ("index", ((5,),), {"axis": -1, "at": -1}, "index -1 is not inside"),
        ("take", ((5, 4), (3,)), {"rank": 2}, r"places \[3\] of a table \[5, 4\]"),
        ("take", ((5, 4), ()), {"rank": 2}, r"places \[\] of a table"),
        ("take", ((), (3,)), {"rank": 0}, r"of a table \[\]"),
        ("surrogate", ((2,), (1,)), {}, r"the value has \[2\], what has its gradient \[1\]"),
        ("flip", ((2,),), {"axis": -2}, "axis -2 is none of 1"),
        ("concat", ((2, 3), (2, 4)), {"axis": -2}, "differ outside the joined axis"),
        ("concat", ((2, 3), (3,)), {"axis": -1}, "differ outside the joined axis"),
        ("sum", ((3, 0),), {"axis": -1, "keepdims": False}, "the axis is empty"),
        ("einsum", ((3, 4), (5,)), {"spec": "ij,j->i"}, "axis 'j' has sizes 4 and 5"),
        ("einsum", ((3,), (5,)), {"spec": "ij,j->i"}, "'ij' names 2 axes, the operand has 1"),
        ("gemm", ((3, 4), (5,)), {}, "does not take operand"),
        ("batched_gemm", ((2, 3, 4), (3, 4)), {}, "does not take operand"),
        ("gemm", ((3, 4), (4,), (2, 4), (4,)), {}, "does not take operand"),
    ],
)
def test_shape_rule_refuses(op: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TABLE[op].shape(*shapes, **attrs)


def test_special_values_go_through() -> None:
    """NaN stays NaN in every numeric row but bytes, which have none; saturating functions reach their limits."""
    assert TABLE["to_int8"].numpy(np.array(np.nan)) == 0 == TABLE["to_uint8"].numpy(np.array(np.nan))
    for op in {*UNARY, *BINARY} - {"to_int8", "to_uint8"}:
        with np.errstate(invalid="ignore"):  # as the oracle's interpreter has it
            assert np.isnan(TABLE[op].numpy(*[np.array([np.nan])] * (TABLE[op].arity or 1))).all(), op
    for first, second in ((np.nan, 1.0), (1.0, np.nan)):
        assert np.isnan(TABLE["maximum"].numpy(first, second)) and np.isnan(TABLE["minimum"].numpy(first, second))
    ends = np.array([-np.inf, -1000.0, 1000.0, np.inf])
    assert TABLE["sigmoid"].numpy(ends).tolist() == [0, 0, 1, 1]
    assert TABLE["tanh"].numpy(ends).tolist() == [-1, -1, 1, 1]
    assert TABLE["softplus"].numpy(ends).tolist() == [0, 0, 1000, np.inf]
    assert TABLE["relu"].numpy(ends).tolist() == [0, 0, 1000, np.inf]
