"""matrix_update: what a step makes of a matrix."""

from __future__ import annotations

from tests.cpu.matrix_parts import delta_rule
from tvm_rnn.cpu.matrix_update import Addend, update_of


def test_a_delta_rule_writes_and_erases_along_one_vector() -> None:
    root = delta_rule(5, 6).root
    assert root is not None
    _, _, written, v, erased, k = root.args
    update = update_of(root, lambda n: n.op == "input")
    numbers = written.args[1], erased.args[0]
    assert update.columns == ((k, (Addend((numbers[0],), v), Addend((numbers[1],), 0))),)


def test_vectors_whose_parts_cannot_be_read_stay_apart() -> None:
    root = delta_rule(5, 6).root
    assert root is not None
    update = update_of(root, lambda n: n.op == "mul")
    assert update.columns == ((root.args[2], (Addend((), root.args[3]),)), (root.args[4], (Addend((), 0),)))
