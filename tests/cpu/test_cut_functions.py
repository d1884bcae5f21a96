"""Functions of many loops are cut: how many loops a part has, what stays together, and that it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from derivatives import draw, named, oracle
from networks import flags, network
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn.cpu import cut_functions
from tvm_rnn.cpu.cut_functions import LEAST, MOST, WHOLE, Part, cut
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.tir.expr import Stmt
from tvm_rnn.tir.statements import bind, buffer, function, loop, sequence, store, when

INTO = buffer("into", "float32")


def filled(count: int = 1, into: Any = INTO) -> list[Stmt]:
    """Loops, one after the other."""
    return [loop("i", 8, lambda i: store(into, i, tirx.const(1.0, "float32"))) for _ in range(count)]


def parts_of(body: Stmt) -> tuple[Stmt, list[Stmt]]:
    """What becomes of a function's body, and its parts."""
    found: list[Stmt] = []

    def note(mark: tirx.AttrStmt) -> None:
        found.append(mark.body)

    result = cut(function("f", [INTO], body)).body
    tvm_ffi.structural_walk(result, (tirx.AttrStmt, note))
    return result, found


def test_a_function_of_few_loops_is_the_same() -> None:
    whole = function("f", [INTO], sequence(filled(WHOLE)))
    assert cut(whole).same_as(whole)


def test_neighbours_share_a_part_and_none_is_lost() -> None:
    many = 3 * WHOLE
    steps = loop("step", 4, lambda s: [filled(many), when(s > 0, filled(MOST), filled(MOST + 1)), filled(1)])
    whole, parts = parts_of(steps)
    assert Part(whole).loops == Part(steps).loops
    assert all(LEAST <= Part(p).loops <= MOST for p in parts)
    assert sum(Part(p).loops for p in parts) == many + MOST + MOST  # the last of MOST + 1 is too small for a part


def test_who_reads_a_register_tile_stays_with_it() -> None:
    tile = tirx.decl_buffer((8,), "float32", name="tile", scope="local")
    surrounded = sequence(tirx.AllocBuffer(tile), filled(3 * MOST, tile), filled(MOST))
    (part,) = parts_of(surrounded)[1]
    assert Part(part).loops == MOST
    whole = loop("l", 2, lambda i: [tirx.AllocBuffer(tile), filled(MOST - 1, tile)])
    assert [Part(p).loops for p in parts_of(sequence([whole] * 4))[1]] == [MOST] * 4


def test_a_variable_is_set_where_others_see_it() -> None:
    one, set_one = bind("one", 1)
    body = sequence(filled(MOST), set_one, loop("i", one, lambda i: filled(WHOLE)))
    whole, parts = parts_of(body)
    assert Part(whole).loops == MOST + 1 + WHOLE
    assert not any(isinstance(s, tirx.Bind) for p in parts for s in getattr(p, "seq", [p]))


def compiled_in_parts(monkeypatch: pytest.MonkeyPatch, net: rnn.RNN, **options: Any) -> Any:
    for name, value in {"WHOLE": 0, "MOST": 4, "LEAST": 1}.items():
        monkeypatch.setattr(cut_functions, name, value)
    return rnn.compile(net, records="none", **options)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("name", "layers"), [("lstm_layer_norm", 2), ("rwkv7", 1)])
def test_parts_have_the_same_gradients(monkeypatch: pytest.MonkeyPatch, name: str, layers: int) -> None:
    net = network(name, 4, 5, num_layers=layers)
    module = compiled_in_parts(monkeypatch, net, training=True, batch=3)
    case = draw(net, 7, 3, **flags(7, 3))
    _, _, tape = module.forward_train(case.x, case.state, **case.rows)
    assert_close(named(*module.backward(tape, case.gy, case.gstate)), oracle(net, case), net.dtype, 7)


def test_parts_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("elman", 3, 5)
    x = np.random.default_rng(0).normal(size=(7, 3, 3)).astype("float32")
    assert_close(compiled_in_parts(monkeypatch, net)(x), rnn.reference(net)(x), "float32", 7)
