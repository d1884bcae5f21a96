"""What a kernel of a nest is given: arrays that it reads, the one that it makes, and every size that it names."""

from __future__ import annotations

import numpy as np
from graphs import graph_of
from tvm import relax

from tvm_rnn.cuda.surroundings.element_kernel import element_kernel
from tvm_rnn.cuda.surroundings.inline import pieces_of
from tvm_rnn.cuda.surroundings.nest_kernel import NestKernel
from tvm_rnn.cuda.surroundings.statements import Statements


def nest_of(shape: list[str | int], make: object) -> NestKernel:
    found = Statements(graph_of(shape, make))
    (piece,) = pieces_of(found.done, found.outputs)
    return NestKernel("k", piece, found.sizes)


def test_arrays_and_sizes() -> None:
    nest = nest_of(["n", 4, "t"], lambda x: relax.op.add(x, relax.const(np.arange(4, dtype="f4")[:, None])))
    assert [str(own.name) for own in nest.arrays] == ["x0", "w", "y0"]
    assert {str(own) for own in nest.sizes} == {"n", "t"}
    assert nest.known(nest.own) is None and nest.known(nest.own[1:2]) == 4


def test_a_launch_says_how_many_elements_it_makes() -> None:
    nest = nest_of(["n", 4], lambda x: relax.op.sum(x, 1))
    launch = element_kernel(nest)
    assert str(launch.elements) == "n" and launch.written.same_as(nest.target)
    assert [name for name, _ in launch.kernel.pointers] == ["a0", "a1"]
    assert launch.when(launch.elements).where is launch.elements
