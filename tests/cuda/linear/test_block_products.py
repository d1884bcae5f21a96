"""Products of a part's steps; what tensor cores do is tested with all of a part (test_blocks_again.py)."""

from __future__ import annotations

from again_pairs import pair

from tvm_rnn.cuda.linear.blocks_again import BlocksAgain


def test_scores_are_made_once_and_each_matrix_is_multiplied_with_what_reads_it() -> None:
    """Instructions of tensor cores: 2 for each 16 values of a unit of scores and of steps, and for each block of steps
    that goes on to another one."""
    own = pair(16, 16, "bfloat16", writes=(1, 1), reads="sgb", chained=True, summed=False)
    text = BlocksAgain("k", own).kernels[0].func.script()
    score, matrices, blocks = 2, 2 * 4 * 2, 2 * 6 * 2
    assert text.count("ptx.mma") == score + matrices + blocks
