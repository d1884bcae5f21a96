"""Images as rows of pixels and back: kernels that turn arrays, what a program copies, and what it does not."""

from __future__ import annotations

import numpy as np
from emulated import run

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.plan.images import Images, _spread, _transposed


def test_what_is_given_and_taken_is_copied_where_there_is_an_address() -> None:
    program = Program("float32")
    images = Images(program, 6)
    images.give("input[0]", [(3, "T * B")])
    images.take("output", [(4, "T * B")])
    images.give("state_in[0]", [(4, "2 * B"), (5, "B")])
    images.flags()
    images.finish()
    assert program.each == 6
    assert {*program.kernels} == {
        "turn_3_6_float32",
        "turn_4_6_float32",
        "turn_5_6_float32",
        "turn_6_4_float32",
        "spread_lengths",
        "spread_reset",
    }
    text = "\n".join(program.sequence.lines)
    assert text.index("input[0] = (work") < text.index("kernels::turn_3_6") < text.index("kernels::turn_6_4")
    assert "if (has_lengths)" in text and "(T * B) / 6" in text and "(2 * B) / 6" in text


def test_images_turned_there_and_back() -> None:
    images, lines, columns = 2, 5, 35
    given = np.arange(images * lines * columns, dtype=np.float32).reshape(images, lines, columns)
    made = np.full((images, columns, lines), np.nan, np.float32)
    run(_transposed("float32", (lines, columns)), {"source": given, "target": made}, {"images": images}, images * 2)
    np.testing.assert_array_equal(made, given.transpose(0, 2, 1))


def test_each_pixel_has_its_row_s_number() -> None:
    made = np.zeros(9, np.int64)
    given = np.array([4, 0, 7], np.int64)
    run(_spread("spread", "int64", 3), {"source": given, "target": made}, {"count": 9}, 1)
    np.testing.assert_array_equal(made, np.repeat(given, 3))
