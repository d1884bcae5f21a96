"""What taps see around a pixel, element by element, beside the op's meaning in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from tvm_rnn.cuda.gemm.around import Around
from tvm_rnn.cuda.gemm.operands import operand_of
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE

HOW = {"taps": (2, 3), "dilation": (2, 1), "before": (1, 2), "image": (4, 5), "wide": 8}
PIXELS = Node("input", shape=(3,))


class Numbers:
    """A writer whose values are known now."""

    @staticmethod
    def bind(value: object) -> object:
        return value

    keep = bind


def number(value: object) -> int:
    from tvm import sym

    return int(sym.Analyzer().simplify(tirx.Cast("int32", value)))


def test_an_operand_knows_what_is_around() -> None:
    node = make("neighbours", PIXELS, **HOW)
    operand = operand_of(node, 0, lambda n: Place("bfloat16", 8) if n is PIXELS else None)
    assert operand.around == Around((2, 3), (2, 1), (1, 2), (4, 5), 3, 8)
    assert operand.base is PIXELS and operand.depth == 48 and operand.offset == 0 and operand.piece("bfloat16") == 16


@pytest.mark.parametrize("row", [0, 7, 19, 33])
def test_each_element_is_where_numpy_finds_it(row: int) -> None:
    around, w = Around.of(make("neighbours", PIXELS, **HOW)), Numbers()
    values = np.arange(1.0, 40 * 3 + 1).reshape(40, 3)
    (expected,) = TABLE["neighbours"].numpy(values[None], **HOW)
    pixel = tirx.const(number(around.pixel(w, tirx.const(row, "int64"))), "int32")
    found = np.zeros(48)
    for k in range(48):
        look = around.look(w, tirx.const(k, "int32"))
        channel = number(look.channel)
        assert number(look.reach(4)) == max(0, min(4, 3 - channel))
        if number(look.sees(pixel)) and channel < 3:
            found[k] = values[row + number(look.rows), channel]
    np.testing.assert_array_equal(found, expected[row])
    assert number(around.look(w, tirx.const(48, "int32")).reach(4)) == 0
