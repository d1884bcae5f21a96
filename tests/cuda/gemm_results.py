"""What kernels of products write, on the emulator, against NumPy: of all rows, or of a list of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import POISON, decoded, encoded, run
from emulator import arrays
from gemm_groups import made, variant_of

from tvm_rnn.cuda.gemm import group_kernels
from tvm_rnn.cuda.gemm.wgmma import WgmmaTile
from tvm_rnn.graph.graph import Group

ROWS = WgmmaTile(columns=64).rows


def few_blocks(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """No more blocks than that, so that each has several items."""
    best = group_kernels.best

    def fewer(unit: Any, target: Any, record: Any = None) -> Any:
        template, knobs, _ = best(unit, target)
        return template, {**knobs, "wide_blocks": blocks}, "forced"

    monkeypatch.setattr(group_kernels, "best", fewer)


Listed = tuple[np.ndarray, np.ndarray, int, int]  # live, starts, first, steps


def check(
    size: str, precision: str, group: Group, rows: int, blocks: int, listed: Listed | None = None, **options: Any
) -> None:
    """What the kernel writes is x W + b, of rows of a list alone where there is one."""
    made_for = made(group, precision, listed=listed is not None, **options)
    gates, width, stride = made_for.unit.gates, made_for.unit.width, options.get("stride", 0)
    kernel = variant_of(made_for, size if listed is None else f"{size}_listed").kernel
    rng = np.random.default_rng(0)
    given: dict[str, np.ndarray] = {}
    total, written = np.zeros((rows, gates, width)), []
    weights = {}
    for argument in made_for.arguments:
        dtype, shape = dict(kernel.pointers)[argument.name], argument.node.shape
        if argument.role == "weight":
            pack, weight = made_for.packs[argument.number], arrays(rng, *shape)
            index, valid = pack.index(np.arange(pack.elements))
            value = np.where(valid, weight[tuple(np.where(valid, at, 0) for at in index)], 0)
            weights[argument.number] = weight.reshape(gates, width, -1)
        elif argument.role == "operand":
            value = arrays(rng, rows, *shape)
            total += np.einsum("mk,gnk->mgn", value, weights[argument.number])
            value = np.pad(value, ((0, 0), (0, stride)))
        elif argument.role == "read":
            value = arrays(rng, *shape)
            total += value
        else:
            value = np.full((rows, width + stride), POISON)
            written.append(argument.name)
        given[argument.name] = encoded(value, dtype)
    there, scalars = np.arange(rows), {"rows": rows, "given": 1}
    if listed is not None:
        live, starts, first, steps = listed
        given |= {"live": live, "starts": starts}
        scalars |= {"first": first, "steps": steps}
        there = live[starts[first] : starts[first + steps]] - first * (rows // steps)
    run(kernel, given, scalars, blocks)
    for gate, name in enumerate(written):
        expected = total[there, gate]
        found = decoded(given[name], dict(kernel.pointers)[name])[:, :width]
        np.testing.assert_allclose(found[there], expected, rtol=0, atol=2**-8 * np.abs(total).max())
        assert np.isnan(np.delete(found, there, axis=0)).all()


def list_of(lengths: np.ndarray, first: int, steps: int) -> Listed:
    total, batch = lengths.max(initial=first + steps), len(lengths)
    live = [t * batch + b for t in range(total) for b in range(batch) if lengths[b] > t]
    starts = [np.clip(lengths, 0, t).sum() for t in range(total + 1)]
    return np.array([*live, 0], np.int32), np.array(starts, np.int32), first, steps
