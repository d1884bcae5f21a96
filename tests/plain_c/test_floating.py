"""Floats in C: every pointwise operation on ordinary numbers, zeros, infinities and NaN, against NumPy's column."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest
from plain_programs import HOST

from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.plain_c.floating import CALLS, HELPERS, Floating, blocked

SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.3, 7.0, -30.0, np.inf, -np.inf, np.nan]
EXACT = [
    "neg",
    "abs",
    "sign",
    "relu",
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "floor",
    "where",
    "mod",
    "sqrt",
]


def test_every_operation_is_numpys(tmp_path: Path) -> None:
    """In one program: for each operation a line for each combination of operands."""
    numbers = Floating("float64")
    checks, expected = [], []
    for op in CALLS:
        leaves = [Node("input", shape=()) for _ in range(TABLE[op].arity or 1)]
        node = make(op, *leaves)
        for values in itertools.product(SPECIAL, repeat=min(len(leaves), 2)):
            operands = [*values, 2.0][: len(leaves)] if len(leaves) < 3 else [float(values[0] > 0), values[1], 2.0]
            text = numbers.apply(node, [numbers.literal(node, v) for v in operands])
            checks.append(f'  printf("%.17g\\n", (double)({text}));')
            with np.errstate(all="ignore"):
                expected.append((op, operands, float(TABLE[op].numpy(*map(np.float64, operands)))))
    source, program = tmp_path / "all.c", tmp_path / "all"
    head = "#include <math.h>\n#include <stdio.h>\n" + "\n".join(numbers.helpers().values())
    source.write_text(head + "\nint main(void) {\n" + "\n".join(checks) + "\n  return 0;\n}\n")
    options = [*HOST, "-Wno-unused-function", "-Wno-float-equal", str(source), "-o", str(program), "-lm"]
    subprocess.run(options, check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    for text, (op, operands, wanted) in zip(found, expected, strict=True):
        np.testing.assert_allclose(float(text), wanted, 0 if op in EXACT else 1e-14, 1e-300, err_msg=f"{op}{operands}")
        assert op != "mod" or np.isnan(wanted) or np.signbit(float(text)) == np.signbit(wanted), operands


def test_numbers_are_read_back_as_they_were() -> None:
    values = np.random.default_rng(0).normal(size=50).astype("f4") * np.float32(1e-20)
    array = Floating("float32").array(Node("const"), values)
    assert array.kind == "float" and array.size == 4
    np.testing.assert_array_equal(np.array([t.strip("()f") for t in array.numbers], "f4"), values)
    assert Floating("float32").literal(Node("const"), -np.inf) == "((float)-INFINITY)"
    assert {*HELPERS} < {*Floating("float32").helpers()}


def test_a_matrix_lies_in_blocks_of_rows() -> None:
    matrix = np.arange(15.0).reshape(5, 3)
    found = blocked(matrix, 4)
    assert found.shape == (2, 3, 4)
    np.testing.assert_array_equal(found[0], matrix[:4].T)
    np.testing.assert_array_equal(found[1, :, 1:], 0.0)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 31, 64])
def test_products_take_blocks_that_waste_little(rows: int) -> None:
    node = make("gemm", Node("param", shape=(rows, 3)), Node("input", shape=(3,)))
    (line,) = Floating("float32").product(node, [np.ones((rows, 3))]).lines
    own = int(line.split("(")[0].removeprefix("product"))
    assert own == 1 or -(-rows // own) * own * 8 <= rows * 9
