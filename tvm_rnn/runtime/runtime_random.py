"""The random numbers of regularisers: of which seed, step, row and unit each mask is made, and nothing else.

In: a seed, the name of a mask ("zoneout.h"), a layer and direction, a step, rows and units. Out: masks of 0 and 1. They
are functions of these numbers alone: whoever needs one makes it again, so none is kept, and NumPy here, compiled code
for CPUs (`cpu/dropout_masks.py`) and for GPUs (`cuda/rowwise/dropout_masks.py`) have the same ones bit for bit. Works
alone beside a .so.

    key    = threefry((seed's low half, its high half), (crc32 of the name, 2 * layer + direction))
    word   = threefry(key, (row * units + unit, step))[0]        both modulo 2**32; step 0 of masks for whole sequences
    mask   = 1 where word < keep * 2**32, else 0
    number = (2 * (word >> 9) + 1) / 2**24: even between 0 and 1, neither of them, exact in float32

`step` is that of the sequence, counted from `first_step` on: chunks of a sequence have the masks of the whole. A mask
does not depend on B or T. What layers read of the one below has one mask for both directions.

Source: Threefry-2x32 with 20 rounds, Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"
(table 2 for the rotations; they found 13 rounds to pass BigCrush). It has no multiplications, so that vectors of 32-bit
integers are enough on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np

PARITY = 0x1BD11BDA  # what the third key word begins with, from the paper's reference
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
GROUPS = 5  # of four rounds, each followed by the injection of key words
WORDS = 1 << 32
SHARED = "dropout"  # the name of the mask that both directions of a layer share
ONCE = "weight_drop."  # how names of masks of weights begin
RAW = "masks."  # how names begin of what GPU programs take among raw weights, and is none

Word = int | np.integer | np.ndarray  # uint32


def rounds(step: Callable[[int], None], inject: Callable[[int, int, int], None]) -> None:
    """The order of Threefry's work. step(r): x0 += x1; x1 = rotate_left(x1, r) ^ x0. inject(i, j, n): x0 += key[i];
    x1 += key[j] + n."""
    for group in range(GROUPS):
        for rotation in ROTATIONS[group % 2]:
            step(rotation)
        inject((group + 1) % 3, (group + 2) % 3, group + 1)


def threefry(key: tuple[Word, Word], counter: tuple[Word, Word]) -> tuple[np.ndarray, np.ndarray]:
    """Two uint32 words for each counter. key, counter: integers or arrays of uint32 that broadcast."""
    k = [np.asarray(word, np.uint32) for word in key]
    words = [k[0], k[1], k[0] ^ k[1] ^ np.uint32(PARITY)]
    first, second = np.broadcast_arrays(*(np.asarray(c, np.uint32) for c in counter), *k)[:2]
    with np.errstate(over="ignore"):
        x = [first + words[0], second + words[1]]

        def step(rotation: int) -> None:
            x[0] = x[0] + x[1]
            x[1] = ((x[1] << np.uint32(rotation)) | (x[1] >> np.uint32(32 - rotation))) ^ x[0]

        def inject(i: int, j: int, number: int) -> None:
            x[0] = x[0] + words[i]
            x[1] = x[1] + (words[j] + np.uint32(number))

        rounds(step, inject)
    return x[0], x[1]


def key(seed: int, name: str, layer: int, direction: int) -> tuple[int, int]:
    """The two key words of one mask of one layer and direction."""
    place = 2 * layer + (0 if name == SHARED else direction)
    first, second = threefry((seed % WORDS, (seed >> 32) % WORDS), (name_word(name), place))
    return int(first), int(second)


def name_word(name: str) -> int:
    """The number that stands for a mask's name."""
    return zlib.crc32(name.encode())


def threshold(keep: float) -> int:
    """Words below it mean 1."""
    return min(round(keep * WORDS), WORDS - 1)


def mask(words: tuple[int, int], keep: float, rows: int, units: int, step: int) -> np.ndarray:
    """The mask [rows, units] of one step, 0.0 and 1.0 in float64. words: of `key`."""
    places = np.arange(rows * units, dtype=np.uint64).astype(np.uint32).reshape(rows, units)
    found, _ = threefry(words, (places, np.uint32(step % WORDS)))
    result: np.ndarray = (found < np.uint32(threshold(keep))).astype(np.float64)
    return result


def uniform(words: tuple[int, int], rows: int, units: int, step: int) -> np.ndarray:
    """Numbers [rows, units] of one step, even between 0 and 1, in float64. words: of `key`."""
    places = np.arange(rows * units, dtype=np.uint64).astype(np.uint32).reshape(rows, units)
    found, _ = threefry(words, (places, np.uint32(step % WORDS)))
    return (2.0 * (found >> np.uint32(9)) + 1.0) / 2.0**24


def checked(
    manifest: Mapping[str, object], seed: object, first_step: object, error: Callable[..., Exception]
) -> tuple[int, int]:
    """The seed, from 0 to below 2**64, and the first step of a call of a network with masks. error(what, got, expected,
    do): what is raised where they are not integers, or where there is no seed."""
    if seed is None:
        do = "give one that differs from call to call: forward_train(x, seed=step)"
        got = manifest.get("regularisers") or manifest.get("draws")
        raise error("training with random numbers needs a seed", got, "an integer", do)
    found = []
    for what, value, low, high in (("the seed", seed, -(1 << 63), 1 << 64), ("first_step", first_step, 0, 1 << 62)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value < high:
            raise error(f"{what} is wrong", repr(value), f"an integer from {low} to {high - 1}")
        found.append(int(value))
    return found[0] % (1 << 64), found[1]


def keys(seed: int, names: list[str], layers: int, directions: int) -> np.ndarray:
    """The key words of all masks, [layers, directions, names, 2], uint32."""
    every = [[[key(seed, n, layer, d) for n in names] for d in range(directions)] for layer in range(layers)]
    return np.array(every, np.uint32).reshape(layers, directions, len(names), 2)


__all__ = [
    "ONCE",
    "RAW",
    "SHARED",
    "checked",
    "key",
    "keys",
    "mask",
    "name_word",
    "rounds",
    "threefry",
    "threshold",
    "uniform",
]
