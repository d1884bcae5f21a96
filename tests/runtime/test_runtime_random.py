"""runtime_random: the published words of Threefry, and statistics of masks with fixed seeds.

In: nothing but seeds. A mask is good where its mean is the probability, and where it tells nothing of masks of other
steps, rows, units, layers, directions, names and seeds. Limits are of one in 10,000 or rarer; seeds are fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tvm_rnn.runtime import runtime_random
from tvm_rnn.runtime.runtime_random import key, keys, mask, threefry, threshold

SIGMAS = 4.5  # of a sum of many independent draws: once in 150,000
WORDS = [  # counter, key, result: of Random123, the authors' library, version 1.09, tests/kat_vectors
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "words", "expected"), WORDS)
def test_words_are_the_published_ones(
    counter: tuple[int, int], words: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert tuple(map(int, threefry(words, counter))) == expected


def masks(keep: float, steps: int, rows: int, units: int, seed: int = 0, name: str = "zoneout.h") -> np.ndarray:
    words = key(seed, name, 0, 0)
    return np.stack([mask(words, keep, rows, units, t) for t in range(steps)])


def z_score(values: np.ndarray, keep: float) -> float:
    """How many standard deviations the sum of independent draws is from what is expected."""
    return float((values.sum() - keep * values.size) / np.sqrt(values.size * keep * (1 - keep)))


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.7, 0.95])
def test_means(keep: float) -> None:
    """Over everything, and along each of T, B and units."""
    drawn = masks(keep, 40, 50, 60, seed=7)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert abs(z_score(drawn, keep)) < SIGMAS
    for axes in itertools.combinations(range(3), 2):
        each = drawn.mean(axis=axes)
        count = drawn.size // each.size
        deviations = (each - keep) / np.sqrt(keep * (1 - keep) / count)
        assert np.abs(deviations).max() < SIGMAS
        assert 0.5 < deviations.std() < 1.7  # neither all alike nor wild


def others(keep: float) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Pairs of masks that must not know of each other."""
    base = masks(keep, 40, 50, 60)
    yield "steps", base[1:], base[:-1]
    yield "rows", base[:, 1:], base[:, :-1]
    yield "units", base[:, :, 1:], base[:, :, :-1]
    yield "a row's last unit and the next row's first", base[:, 1:, 0], base[:, :-1, -1]
    for seed in (1, 1 << 32, 1 << 63, (1 << 64) - 1):
        yield f"seed {seed}", base, masks(keep, 40, 50, 60, seed)
    yield "names", base, masks(keep, 40, 50, 60, name="zoneout.c")
    own = key(0, "zoneout.h", 0, 0)
    for place in ((0, 1), (1, 0), (1, 1), (7, 0)):
        words = key(0, "zoneout.h", *place)
        assert words != own
        yield f"layer and direction {place}", base[0], mask(words, keep, 50, 60, 0)


@pytest.mark.parametrize("keep", [0.3, 0.8])
def test_masks_do_not_know_of_each_other(keep: float) -> None:
    """Where both are 1: as often as independent draws would be; a chi-square of the table of four."""
    for what, one, two in others(keep):
        counts = np.array([[((one == a) & (two == b)).sum() for b in (0, 1)] for a in (0, 1)], float)
        chances = np.array([1 - keep, keep])
        expected = np.outer(chances, chances) * one.size
        assert ((counts - expected) ** 2 / expected).sum() < 21.1, what  # 3 degrees of freedom: once in 10,000


def test_words_are_uniform() -> None:
    """Chi-square of 256 bins of the high and of the low byte, and of how often each bit is set."""
    words, _ = threefry(key(3, "dropout", 0, 0), (np.arange(1 << 16), np.uint32(5)))
    for byte in (words >> 24, words & 255):
        counts = np.bincount(byte, minlength=256)
        chi = ((counts - 256.0) ** 2 / 256.0).sum()
        assert 182 < chi < 347  # 255 degrees of freedom: within one in 10,000 at either end
    bits = (words[:, None] >> np.arange(32)) & 1
    assert max(abs(z_score(bits[:, i].astype(float), 0.5)) for i in range(32)) < SIGMAS


def test_pairs_of_units_are_uniform() -> None:
    """Serial test: a word's 4 high bits together with those of the next unit, of the next step, of the next row."""
    words = key(11, "zoneout.c", 2, 1)
    grid = np.stack([threefry(words, (np.arange(128 * 128), np.uint32(t)))[0] for t in range(8)]).reshape(8, 128, 128)
    high = (grid >> 28).astype(int)
    for one, two in ((high[:, :, :-1], high[:, :, 1:]), (high[:, :-1], high[:, 1:]), (high[:-1], high[1:])):
        counts = np.bincount((16 * one + two).ravel(), minlength=256)
        expected = counts.sum() / 256
        assert 182 < ((counts - expected) ** 2 / expected).sum() < 347


def test_runs_of_steps_have_the_lengths_of_independent_draws() -> None:
    """Zoneout's gaps: how many steps a unit keeps its value in a row."""
    drawn = masks(0.5, 400, 10, 40, seed=5)
    changes = (drawn[1:] != drawn[:-1]).astype(float)
    assert abs(z_score(changes, 0.5)) < SIGMAS


def test_masks_are_of_the_whole_sequence_and_of_any_batch() -> None:
    """A mask of fewer rows is the first rows of a mask of more; of step t whatever was drawn before."""
    words = key(9, "zoneout.h", 0, 0)
    whole = mask(words, 0.5, 33, 7, 4)
    np.testing.assert_array_equal(mask(words, 0.5, 3, 7, 4), whole[:3])
    assert (mask(words, 0.5, 33, 7, 5) != whole).any()
    np.testing.assert_array_equal(mask(words, 0.5, 33, 7, 4 + (1 << 32)), whole)


def test_a_larger_probability_keeps_all_that_a_smaller_one_kept() -> None:
    words = key(0, "dropout", 1, 0)
    few, many = (mask(words, keep, 20, 30, 2) for keep in (0.25, 0.75))
    assert (few <= many).all() and few.sum() < many.sum()
    assert threshold(0.5) == 1 << 31 and threshold(1.0 - 1e-16) == (1 << 32) - 1


def test_both_directions_share_what_layers_read() -> None:
    assert key(1, "dropout", 3, 0) == key(1, "dropout", 3, 1) != key(1, "dropout", 2, 0)
    names = ["dropout", "zoneout.h"]
    found = keys(5, names, 3, 2)
    assert found.shape == (3, 2, 2, 2) and found.dtype == np.uint32
    for layer, direction, number in itertools.product(range(3), range(2), range(2)):
        assert tuple(map(int, found[layer, direction, number])) == key(5, names[number], layer, direction)
    assert runtime_random.keys(5, [], 2, 1).shape == (2, 1, 0, 2)
