"""Networks drawn by chance: what a benchmark's grid of round sizes does not see.

In: a seed. Out: the facts of points, always the same ones of a seed, in an order that says nothing: the first of them,
as many as there was time for, are a fair sample of all.
"""

from __future__ import annotations

import math
import random

COUNT = 200
CELLS = ("lstm", "gru", "lstm", "gru", "elman", "elman_relu")  # those of torch.nn and cuDNN, the usual ones twice
PRECISIONS = ("bfloat16", "bfloat16", "float16", "tf32")
MOST_WEIGHTS = 1 << 26  # of a network: it has fewer layers, then one direction, where it would have more
MOST_VALUES = 1 << 27  # T * B * H, which the oracle has in float64: it has fewer steps where it would be more
GATES = {"lstm": 4, "gru": 3}


def random_networks(seed: int, count: int = COUNT) -> list[dict[str, object]]:
    """`count` points for `Point.from_dict`: inputs and widths of 16 to 3000 units, odd and even, B of 1 to 512, T of 1
    to 2000, up to six layers, one direction or two, with lengths and without, in a CUDA graph and without. Sizes are
    drawn evenly between their logarithms. Modules are compiled for no batch size in particular."""
    draw = random.Random(f"networks {seed}")
    return [_network(draw) for _ in range(count)]


def random_sizes(seed: int, count: int = 60) -> list[tuple[str, int, int, int]]:
    """(cell, inputs, hidden units, rows) of LSTMs and GRUs as CPUs run them: 20 to 1500 units, 1 to 40 rows; every
    other one with inputs of a size of their own. Drawn evenly between logarithms, each once."""
    draw, found = random.Random(f"sizes {seed}"), dict[tuple[str, int, int, int], None]()
    while len(found) < count:
        cell, hidden, batch = ("lstm", "gru")[len(found) % 2], _size(draw, 20, 1500), _size(draw, 1, 40)
        inputs = _size(draw, 20, 1500) if draw.random() < 0.5 else hidden
        found[cell, inputs, hidden, batch] = None
    return list(found)


def _network(draw: random.Random) -> dict[str, object]:
    cell, precision = draw.choice(CELLS), draw.choice(PRECISIONS)
    inputs, hidden = _size(draw, 16, 3000), _size(draw, 16, 3000)
    batch, layers, directions = _size(draw, 1, 512), draw.choice((1, 1, 2, 3, 4, 5, 6)), draw.choice((1, 1, 1, 2))
    while layers > 1 and _weights(cell, inputs, hidden, layers, directions) > MOST_WEIGHTS:
        layers -= 1
    directions = directions if _weights(cell, inputs, hidden, layers, directions) <= MOST_WEIGHTS else 1
    steps = _size(draw, 1, max(1, min(2000, MOST_VALUES // (batch * hidden))))
    lengths, eager = draw.random() < 0.25, draw.random() < 0.5
    sizes = {"input": inputs, "hidden": hidden, "steps": steps, "batch": batch}
    form = {"layers": layers, "directions": directions}
    ways = {"lengths": lengths, "eager": eager, "any_batch": True}
    return {"cell": cell, "precision": precision, "sizes": (), "without": (), **sizes, **form, **ways}


def _size(draw: random.Random, least: int, most: int) -> int:
    return min(most, int(math.exp(draw.uniform(math.log(least), math.log(most + 1)))))


def _weights(cell: str, inputs: int, hidden: int, layers: int, directions: int) -> int:
    columns = inputs + hidden + (layers - 1) * (directions * hidden + hidden)
    return GATES.get(cell, 1) * hidden * directions * columns
