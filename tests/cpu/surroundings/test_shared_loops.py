"""What threads share, and where one does it all."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.cpu.second_thread import LOOP
from tvm_rnn.cpu.surroundings.shared_loops import product, serial, shared
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import variable

BODY = tirx.Evaluate(int64(0))


def test_a_product_of_numbers_is_a_number() -> None:
    assert int(product([int64(3), int64(5)])) == 15 and int(product([])) == 1
    assert not isinstance(product([int64(3), variable("n")]), tirx.IntImm)


def test_loops_stand_in_their_order() -> None:
    i, j = variable("i"), variable("j")
    outer = serial([(i, int64(2)), (j, int64(3))], BODY)
    assert outer.loop_var.same_as(i) and outer.body.loop_var.same_as(j) and outer.body.body.same_as(BODY)


def test_little_work_is_for_one_thread() -> None:
    loops = [(variable("i"), int64(4))]
    assert "parallel" not in str(shared(loops, BODY, int64(LOOP - 1), int64(2)))
    assert "parallel" in str(shared(loops, BODY, int64(LOOP), int64(2)))


def test_a_run_says_whether_work_of_an_unknown_size_is_shared() -> None:
    text = str(shared([(variable("i"), int64(4))], BODY, variable("n"), variable("threads")))
    assert text.count("tvm_rnn_pool_use") == 2 and str(LOOP) in text and "parallel" in text


def test_no_loops_are_left_alone() -> None:
    assert shared([], BODY, int64(LOOP), int64(2)).same_as(BODY)
