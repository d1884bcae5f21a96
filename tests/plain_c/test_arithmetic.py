"""Both kinds of numbers are what the loops compute with."""

from __future__ import annotations

import inspect

import pytest

from tvm_rnn.plain_c.arithmetic import Arithmetic
from tvm_rnn.plain_c.fixed_point import FixedPoint
from tvm_rnn.plain_c.floating import Floating


@pytest.mark.parametrize("kind", [Floating, FixedPoint])
def test_a_kind_has_all_that_loops_call(kind: type) -> None:
    asked = [name for name, value in vars(Arithmetic).items() if inspect.isfunction(value) and name[0] != "_"]
    assert len(asked) > 8
    for name in asked:
        own, wanted = (inspect.signature(getattr(c, name)) for c in (kind, Arithmetic))
        assert [*own.parameters] == [*wanted.parameters], name
