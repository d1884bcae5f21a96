"""Matrices and gradients made again, of a plan: what is read of which, and in how many launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from again_pairs import pair
from linear_cells import OWN
from training_plans import H200, trained

import tvm_rnn as rnn
from tvm_rnn.cuda.linear.matrix_again import MatrixAgain, kernels_of
from tvm_rnn.cuda.linear.pair import BOTH, EVERY, GRADIENT, STATE
from tvm_rnn.cuda.linear.parts_again import PartsAgain
from tvm_rnn.errors import BuildError


def again(name: str, precision: str = "float32") -> MatrixAgain:
    """The one of a cell's backward pass, which has no steps."""
    _, found = trained(OWN[name][0] if name in OWN else rnn.cells.get(name), precision=precision)
    (code,) = found.backward.code
    assert not code.layout.has_steps and not found.forward.code[0].layout.has_steps
    (own,) = [work for _, work in code.groups if isinstance(work, MatrixAgain)]
    return own


def test_a_delta_rule() -> None:
    own = again("gated_delta_net")
    pair = own.pair
    assert pair.state is not None and pair.gradient is not None
    assert [len(made.writes) for made in (pair.state, pair.gradient)] == [1, 2]
    assert sorted(read.of for read in pair.reads) == [BOTH, GRADIENT, STATE, STATE]
    assert (pair.keys, pair.values, pair.keys_last) == (8, 8, True)
    assert str(EVERY) in str(own.fact["unit"])


@pytest.mark.broad
@pytest.mark.parametrize("name", ["mlstm", "gla", "retnet", "mamba2", "rwkv7", "hgrn2", "delta_net", "corrected_twice"])
def test_every_kind_of_matrix_has_one(name: str) -> None:
    own = again(name)
    assert {STATE, GRADIENT} >= {*own.begins} and own.pair.reads


@pytest.mark.broad
@pytest.mark.parametrize("name", ["mlstm", "retnet", "mamba2", "gated_delta_net", "delta_net", "gla"])
def test_in_16_bits_heads_that_decay_as_one_take_whole_parts(name: str) -> None:
    assert isinstance(again(name, "bfloat16").kernels, PartsAgain) == (name != "gla")


def test_gradients_are_kept_before_they_are_read() -> None:
    """Also where nothing that is read of the recurrence goes into what is made again."""
    _, found = trained("retnet")
    roots = [group.root.op for group in found.backward.code[0].graph.groups if group.kind == "scan" and group.root]
    assert roots == ["scan_matrix", "rescan"]


@pytest.mark.broad
def test_launches_do_not_grow_with_the_time() -> None:
    def loops(name: str, width: int = 8) -> list[str]:
        programs = trained(name, width)[1].programs
        lines = [line.strip() for program in programs for line in program.sequence.lines]
        return [line for line in lines if line.startswith("for (")]

    assert {line.split("=")[0] for line in loops("gated_delta_net")} == {
        line.split("=")[0] for line in loops("min_gru")
    }
    # A small LSTM has no loop over steps either: one launch runs them.
    assert len(loops("lstm", 1536)) > len(loops("lstm")) >= len(loops("gated_delta_net"))


def test_what_no_gpu_s_memory_holds_says_so() -> None:
    """Of a module for several GPUs, whose passes are those of the first."""
    own = pair(keys=64, values=64, precision="bfloat16", reads="sgb", chained=True)
    assert isinstance(kernels_of("k", own, H200), PartsAgain)
    with pytest.raises(BuildError, match="compile for this GPU alone"):
        kernels_of("k", own, replace(H200, shared_bytes=48 << 10))
