"""saturating_pairs: products of bytes are exact where the instruction adds two of them in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tests.cpu.test_int8_products import of_bytes, whole_numbers
from tvm_rnn import target
from tvm_rnn.cpu import weight_storage
from tvm_rnn.cpu.dot_product import PAIRS, dot_product
from tvm_rnn.cpu.saturating_pairs import FEW, Words, are_few
from tvm_rnn.cpu.weight_storage import bytes_on

MACHINE = "x86-64-v3"
needs_avx2 = pytest.mark.skipif(
    not set(target.resolve(MACHINE).features) <= set(target.host().features), reason="this CPU has no AVX2"
)
TRAINED = np.random.default_rng(0).normal(0, 20, (4, 64, 100)).round()


def test_pairs_that_move_are_counted_by_their_sums() -> None:
    assert are_few([TRAINED])
    assert not are_few([np.random.default_rng(0).integers(-127, 128, (4, 64, 100))])
    assert not are_few([]) and not are_few([np.zeros((3, 1))])
    many = np.zeros((1, int(2 / FEW)))  # as many pairs as one of which is FEW
    many[0, :2] = many[0, len(many[0]) // 2 :][:2] = (-128, 127)
    assert not are_few([many]) and are_few([many[:, 1:-1]])


def test_the_instruction_follows_the_weights_where_a_machine_has_no_better_one() -> None:
    stored = {name: bytes_on(target.resolve(name), [TRAINED]) for name in (MACHINE, "x86-64-v3+avxvnni", "x86-64-v2")}
    assert stored[MACHINE] is not None and stored[MACHINE].dot is PAIRS
    assert stored["x86-64-v3+avxvnni"] is not None and stored["x86-64-v3+avxvnni"].dot is not PAIRS
    assert stored["x86-64-v2"] is None
    untrained = bytes_on(target.resolve(MACHINE))
    assert untrained is not None and untrained.dot == dot_product(target.resolve(MACHINE))


def test_places_of_words_do_not_overlap() -> None:
    own, panels, words, gates, lanes = Words(0, 2, 3, 4, 8), range(2), range(3), range(4), range(8)
    kept = [int(own.kept(p, w, g, v)) for p in panels for w in words for g in gates for v in lanes]
    moved = [int(own.moved(p, w, g, v)) for p in panels for w in words for g in gates for v in lanes]
    listed = [int(own.listed(p, n)) for p in panels for n in range(4)]
    assert sorted([*kept, *moved, *listed]) == [*range(own.size)]


def extreme(inputs: int, hidden: int, share: float) -> tuple[rnn.RNN, np.ndarray]:
    """Weights of which a share is as large as can be, of both signs, and numbers that are mostly the largest."""
    rng, net = np.random.default_rng(hidden), rnn.RNN(of_bytes, inputs, hidden)
    shapes = net.weight_shapes.items()
    large = {name: rng.choice([-128, -127, 127, 64, -64, 65], shape) for name, shape in shapes}
    net.load(
        {
            name: np.where(rng.random(shape) < share, large[name], rng.integers(-9, 9, shape)).astype("f4")
            for name, shape in shapes
        }
    )
    return net, rng.choice([255, 255, 255, 7], (3, 5, inputs)).astype("f4")


@needs_avx2
@pytest.mark.parametrize(
    ("inputs", "hidden", "share"),
    [
        (3, 4, 1.0),
        *(pytest.param(*own, marks=pytest.mark.broad) for own in ((37, 66, 0.02), (64, 9, 1.0), (9, 33, 0.0))),
    ],
)
def test_sums_are_exact_whatever_the_weights(
    inputs: int, hidden: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = extreme(inputs, hidden, share)
    monkeypatch.setattr(weight_storage, "are_few", lambda matrices: True)
    module = rnn.compile(net, MACHINE)
    for batch in (1, 2, 5):
        expected = whole_numbers(net, x[:, :batch])
        for module.threads in (1, 2):
            np.testing.assert_array_equal(module(x[:, :batch])[0], expected)
