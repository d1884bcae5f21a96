"""A node's operands: sizes of all of them, and what must be true of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from tvm_rnn.surroundings.graph_node import Asked, Node
from tvm_rnn.surroundings.sizes import sizes_of

B, N = tirx.Var("B", "int64"), tirx.Var("N", "int64")


def node(*inputs: Any) -> Node:
    return Node(Asked(relax.BlockBuilder()), "Add", list(inputs), {})


def value(*shape: Any) -> Any:
    return relax.Var("x", relax.TensorType(list(shape), "float32"))


def test_sizes_of_other_names_go_with_each_other_or_are_one() -> None:
    own = node()
    assert own.joined([B, N]) is not None and own.asked.demands[0].text == "B = N"
    assert own.joined([N]) is N and own.joined([]) == 1 and len(own.asked.demands) == 1


def test_what_goes_together_stays() -> None:
    given = [value(B, 3), value(3), value(1, 3)]
    assert node().aligned(given) == given


def test_what_is_known() -> None:
    own = node(sizes_of([B, 2]), relax.const(np.array([4, 5])), value(B))
    assert own.sizes(0).tolist() == [B, 2] and own.sizes(1).tolist() == [4, 5] and own.sizes(3) is None
    with pytest.raises(ValueError, match="only a run shows"):
        own.sizes(2)


def test_demands_that_are_known() -> None:
    own = node().asked
    own.demand(True, "well")
    with pytest.raises(ValueError, match="needed is 3 = 4"):
        own.demand(False, "3 = 4")
    assert not own.demands
