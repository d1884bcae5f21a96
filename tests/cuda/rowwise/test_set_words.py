"""set_words: memory set before a persistent kernel, run by the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.layer.row_kernels import THREADS
from tvm_rnn.cuda.rowwise.set_words import EACH, LARGE, set_bytes


@pytest.mark.parametrize(("value", "word"), [(0, 0), (0xFF, -1), (0x2A, 0x2A2A2A2A)])
def test_words_are_set_by_a_kernel_and_none_behind_them(value: int, word: int) -> None:
    program = Program()
    set_bytes(program.sequence, program.buffer("x", "T"), "T", value)
    text = "\n".join(program.sequence.lines)
    assert f"int64_t({word})" in text and f"<= {LARGE}" in text and f", {value}, " in text  # what is large: a memset
    count, words = 1031, np.full(1040, 7, np.uint32)
    run(program.kernels["set_words"], {"words": words}, {"rows": count, "value": word}, -(-count // (EACH * THREADS)))
    assert (words[:count].view(np.uint8) == value).all() and (words[count:] == 7).all()


def test_nothing_is_launched_for_nothing() -> None:
    program = Program()
    set_bytes(program.sequence, program.buffer("x", "T"), 0)
    assert not program.kernels and not program.sequence.lines
