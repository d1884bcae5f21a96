"""The TIR passes of CPU code: what stays on the stack, which vectors become loops, and equations that TVM refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from networks import compiled
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import cell, exp, maximum, mean, minimum, sum, tanh
from tvm_rnn.cpu.tir_pipeline import STACK_BYTES, keep_on_stack, one_by_one
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.tir.statements import vector


@cell(states="h")
def negated(x: "I", h: "H", *, W: "H I", s: ""):
    return h * mean(-maximum(tanh(h), s), keepdims=True) + W @ x


@cell(states="h s")
def scaled(x: "I", h: "H", s: "", *, W: "H I"):
    return h * sum(0.1 * minimum(exp(-h * h), s), keepdims=True) + tanh(W @ x), 0.5 * s + 0.1


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("c", [negated, scaled], ids=lambda c: c.name)
@pytest.mark.parametrize("hidden", [5, 16])
def test_scalars_against_functions_inside_a_reduction(c: Any, hidden: int) -> None:
    net, module = compiled(c, 3, hidden, dtype="float64")
    x = np.random.default_rng(0).normal(size=(7, 4, 3))
    assert_close(module(x), rnn.reference(net)(x), "float64", 7)


def loops_of(function: str, dtype: str = "float64") -> Any:
    source, into = (tirx.decl_buffer((8,), dtype, name=name) for name in ("source", "into"))

    def body(v: Any) -> Any:
        value = tirx.BufferLoad(source, [v])
        called = tirx.call_pure_extern(dtype, function, value) if function else value + value
        return tirx.BufferStore(into, called, [v])

    return vector("v", 8, body)


def test_only_vectors_with_calls_become_loops() -> None:
    assert one_by_one(loops_of("tanh")).kind == tirx.ForKind.SERIAL
    plain = loops_of("")
    assert one_by_one(plain).same_as(plain) and plain.kind == tirx.ForKind.VECTORIZED


@pytest.mark.parametrize(("elements", "kept"), [(STACK_BYTES // 8, True), (STACK_BYTES // 8 + 1, False)])
def test_small_buffers_stay_on_the_stack(elements: int, kept: bool) -> None:
    found = keep_on_stack(tirx.AllocBuffer(tirx.decl_buffer((elements,), "float64", scope="local")))
    assert ("disable_lower_builtin" in found.annotations) == kept
