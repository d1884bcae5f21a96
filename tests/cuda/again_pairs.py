"""Matrices and gradients to be made again, and a float64 loop over all steps, for tests of the kernels that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from emulated import POISON, decoded, encoded, run

from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.cuda.linear.pair import BOTH, EVERY, GRADIENT, STATE, Made, Pair, Read
from tvm_rnn.cuda.linear.recurrence import Rows

HEADS, BATCH = 2, 2
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
Arrays = dict[str, np.ndarray]


def pair(
    keys: int = 9,
    values: int = 40,
    precision: str = "float32",
    *,
    decay: str = "number",
    writes: tuple[int, int] = (1, 2),
    reads: str = "sgb",
    keys_last: bool = False,
    group: int = 1,
    chained: bool = False,
    summed: bool | None = None,
    late: tuple[bool, bool] = (False, False),
    scale: float = 1.0,
    signs: tuple[float, float] = (1.0, 1.0),
) -> Pair:
    """decay: "number" of a head, "key", or ""; writes: of the matrix and its gradient, -1: there is none; reads: of the
    matrix, its gradient, or both; chained: as gradients are, what is read of one is read by what is written to the
    other, and both decay as one; summed: their product is summed over keys too (None: as chained);
    late: of the matrix and its gradient: what is written decays too; scale: of columns; signs: of the first row that is
    written to the matrix, and to its gradient, and of what is read by these."""

    def rows(width: int, dtype: str = precision, group: int = 1, scale: float = 1.0) -> Rows:
        return Rows(width, width * HEADS // group + 8, dtype, 4, group, scale)

    def made(count: int, late: bool, sign: float) -> Made | None:
        decays = {"number": rows(1, "float32"), "key": rows(keys, "float32")}.get(decay)
        of = [rows(values, scale=1.0 if i else sign) for i in range(count)]
        pairs = tuple((rows(keys, group=group, scale=scale), row) for row in of)
        return None if count < 0 else Made(decays, pairs, late)

    kinds, rest = {"s": STATE, "g": GRADIENT, "b": BOTH}, {"s": writes[1], "g": writes[0], "b": 0}
    widths = {"b": 1 if (chained if summed is None else summed) else keys}
    first = {"s": signs[1], "g": signs[0]}
    of = [first[k] if k in first and k not in reads[:i] else 1.0 for i, k in enumerate(reads)]
    vectors = [None if k == "b" else rows(values, scale=sign) for k, sign in zip(reads, of, strict=True)]
    found = [Read(kinds[k], rows(widths.get(k, keys)), own) for k, own in zip(reads, vectors, strict=True)]
    same = [("gradient_decay", "state_decay")] if chained and decay and min(writes) >= 0 else []
    for i, kind in enumerate(reads):
        if chained and kind != "b" and reads[:i].count(kind) < rest[kind]:
            same.append((f"vector_{i}", f"{kinds[{'s': 'g', 'g': 's'}[kind]]}_row_{reads[:i].count(kind)}"))
    state, gradient = (made(*given) for given in zip(writes, late, signs, strict=True))
    own = Pair(HEADS, keys, values, precision, state, gradient, tuple(found), keys_last)
    return replace(own, same=tuple(same))


@dataclass
class Case:
    own: Pair
    steps: int
    lengths: np.ndarray | None = None
    reset: np.ndarray | None = None

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.steps)
        self.real: Arrays = {}
        for name, rows in self.own.operands.items():
            shape = (self.steps, BATCH, HEADS // rows.group, rows.width)
            given = rng.random(shape) if name.endswith("decay") else rng.standard_normal(shape)
            self.real[name] = decoded(encoded(given, rows.dtype), rows.dtype)
        self.real |= {name: self.real[other] for name, other in self.own.same}
        shape = (BATCH, HEADS, self.own.keys, self.own.values)
        self.ends = {name: rng.standard_normal(shape).astype("f4").astype("f8") for name in self.own.made}
        self.wanted, self.marks = self._loop()

    def at(self, name: str, t: int, b: int) -> np.ndarray:
        rows = self.own.operands[name]
        return np.repeat(self.real[name][t, b] * rows.scale, rows.group, axis=0)

    def made(self, name: str, t: int, b: int, matrix: np.ndarray) -> np.ndarray:
        made = self.own.made[name]
        decay = np.ones(()) if made.decay is None else self.at(f"{name}_decay", t, b)[:, :, None]
        if not made.late:
            matrix = matrix * decay
        for i in range(len(made.writes)):
            column, row = self.at(f"{name}_column_{i}", t, b), self.at(f"{name}_row_{i}", t, b)
            matrix = matrix + column[:, :, None] * row[:, None, :]
        return matrix * decay if made.late else matrix

    def _loop(self) -> tuple[Arrays, Arrays]:
        own, T = self.own, self.steps
        ends = np.full(BATCH, T) if self.lengths is None else self.lengths
        reset = np.zeros((T, BATCH)) if self.reset is None else self.reset
        widths = [read.output.width for read in own.reads]
        wanted = {f"output_{i}": np.zeros((T, BATCH, HEADS, width)) for i, width in enumerate(widths)}
        parts = -(-T // EVERY)
        marks = {name: np.zeros((parts, *self.ends[name].shape)) for name in own.made}
        for b in range(BATCH):
            before: dict[int, np.ndarray] = {}
            if STATE in own.made:
                s = self.ends[STATE][b]
                for t in range(T):
                    if t % EVERY == 0:
                        marks[STATE][t // EVERY, b] = s
                    if t < ends[b]:
                        s = np.zeros_like(s) if reset[t, b] else s
                        before[t] = s
                        s = self.made(STATE, t, b, s)
            g = self.ends[GRADIENT][b] if GRADIENT in own.made else np.zeros(())
            for t in range(T)[::-1]:
                if t + 1 < ends[b] and t + 1 < T and reset[t + 1, b]:
                    g = np.zeros_like(g)
                if GRADIENT in own.made and ((t + 1) % EVERY == 0 or t + 1 == T):
                    marks[GRADIENT][t // EVERY, b] = g
                if t >= ends[b]:
                    continue
                for i, read in enumerate(own.reads):
                    if read.of == BOTH:
                        found = np.sum(before[t] * g, -1)
                        found = np.sum(found, -1, keepdims=True) if read.output.width == 1 else found
                    else:
                        source = before[t] if read.of == STATE else g
                        found = np.einsum("nkv,nv->nk", source, self.at(f"vector_{i}", t, b))
                    wanted[f"output_{i}"][t, b] = found
                g = self.made(GRADIENT, t, b, g) if GRADIENT in own.made else g
        return wanted, marks

    def error(self, kind: Callable[[str, Pair], Any]) -> float:
        """Of the kernel's results, relative to the largest. kind: of kernels. NaN where poison is left."""
        own, steps = self.own, kind("k", self.own)
        arrays: Arrays = {name: self._rows(rows, self.real[name]) for name, rows in own.operands.items()}
        arrays |= {f"output_{i}": self._rows(read.output, None) for i, read in enumerate(own.reads)}
        for name in own.made:
            turned = self.marks[name].swapaxes(-1, -2) if own.keys_last else self.marks[name]
            arrays[f"{name}_marks"] = encoded(np.ascontiguousarray(turned), marks_dtype(own.precision))
        masked = self.lengths is not None or self.reset is not None
        lengths = np.zeros(BATCH) if self.lengths is None else self.lengths
        reset = np.zeros((self.steps, BATCH)) if self.reset is None else self.reset
        arrays |= {"lengths": lengths.astype("i8"), "reset": reset.astype("u1")}
        has = {"has_lengths": int(self.lengths is not None), "has_reset": int(self.reset is not None)}
        scalars = {"steps": self.steps, "batch": BATCH, "start": 0, "total": self.steps, **has}
        run(steps.kernels[masked], arrays, scalars, steps.blocks(BATCH, self.steps))
        worst = []
        for name, right in self.wanted.items():
            rows = own.reads[int(name.split("_")[1])].output
            inside = decoded(arrays[name], rows.dtype)[:, :, rows.offset : rows.offset + HEADS * rows.width]
            found = inside.reshape(right.shape)
            worst.append(np.abs(found - right).max() / max(1.0, np.abs(right).max()))
        return float("nan") if np.isnan(worst).any() else float(max(worst)) / TOLERANCE[own.precision]

    def _rows(self, rows: Rows, values: np.ndarray | None) -> np.ndarray:
        memory = np.full((self.steps, BATCH, rows.stride), POISON)
        if values is not None:
            memory[:, :, rows.offset : rows.offset + values[0, 0].size] = values.reshape(self.steps, BATCH, -1)
        return encoded(memory, rows.dtype)


def flagged(of: Pair, kind: str) -> Case:
    """A case of more than one part with "lengths", "resets" or "both"."""
    steps = EVERY + 20
    lengths = np.array([EVERY + 3, 21]) if kind != "resets" else None
    reset = np.random.default_rng(1).random((steps, BATCH)) < 0.1 if kind != "lengths" else None
    if reset is not None:
        reset[[0, EVERY], 0] = True
    return Case(of, steps, lengths, reset)
