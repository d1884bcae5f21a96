"""Calls as statements side by side: one array for what one makes and another reads, no division in vain."""

from __future__ import annotations

import numpy as np
from graphs import graph_of
from tvm import relax

from tvm_rnn.cuda.surroundings.statements import Statements, loads_of


def test_arrays_are_shared_and_sizes_have_one_name() -> None:
    w = np.ones((3, 3, 1), "f4")
    graph = graph_of(["b", 3, "t"], lambda x: relax.op.nn.max_pool1d(relax.op.nn.conv1d(x, relax.const(w)), 2, 2))
    found = Statements(graph)
    assert len(found.inputs) == len(found.outputs) == 1 and len(found.constants) == 1
    made = [*found.arrays.values()]
    read = [load.source for own in found.done for load in loads_of(own)]
    assert all(any(load.same_as(own) for load in read) for own in made if not own.same_as(found.outputs[0]))
    names = [str(value) for value, _ in found.sizes.names]
    assert len(names) == len({*names})


def test_a_reshape_does_not_divide_by_sizes() -> None:
    def make(x: relax.Var) -> relax.Expr:
        return relax.op.reshape(x, relax.ShapeExpr([*x.ty.shape.values[:2], 12]))

    (nest,) = Statements(graph_of(["n", "b", 3, 4], make)).done
    (load,) = loads_of(nest)
    assert "//" not in str(load.indices[0]) and "%" not in str(load.indices[1])


def test_a_result_that_is_the_input_is_copied() -> None:
    graph = graph_of(["n", 4], lambda x: x)
    assert len(Statements(graph).done) == 1
