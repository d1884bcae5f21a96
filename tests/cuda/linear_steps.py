"""Linear recurrences of matrices for tests, on the emulator, beside a loop over steps in float64.

In: a recurrence, sizes. Out: random operands in memory, and how far a kernel's results are from the loop's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from emulated import POISON, decoded, encoded, run

from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.cuda.linear.chunk_marks import MarkedChunkScan
from tvm_rnn.cuda.linear.chunk_scan import ChunkScan
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED, Erase, Outer, Read, Recurrence, Rows

Arrays = dict[str, np.ndarray]
SPARE = 8  # elements between the rows of neighbours
SMALL = ChunkTile(chunk=32, warps=1)
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3}


def recurrence(
    heads: int = 2,
    keys: int = 16,
    values: int = 16,
    precision: str = "bfloat16",
    *,
    decay: int = 1,
    log_decay: bool = False,
    value_scale: bool = False,
    erase: str = "",
    scaled: bool = True,
    own: bool = False,
    reads: tuple[str, ...] = (AFTER,),
    group: int = 1,
    spare: int = SPARE,
    keys_last: bool = False,
    others: tuple[str, ...] = (),
    same: tuple[tuple[str, str], ...] = (),
    scale: float = 1.0,
) -> Recurrence:
    """A recurrence whose operands lie in rows of their own. decay: numbers of a head, 0 for none; erase: of which
    states, "" for none; own: by a vector of its own; others: "value", "vector" or "scaled" (a vector) of each; same:
    vectors that lie where others do; scale: of key, erasing vector and read-outs, each another."""

    def rows(width: int, dtype: str, group: int = 1, scale: float = 1.0) -> Rows:
        heads_of = heads // group
        more = spare if width > 1 else 0
        return Rows(width, width * heads_of + more, dtype, more // 2, group, scale)

    def number() -> Rows:
        return rows(1, "float32")

    def another(kind: str) -> Outer:
        if kind == "value":
            return Outer(rows(keys, precision), rows(values, precision))
        if kind == "vector":
            return Outer(rows(keys, precision), None, rows(keys, precision))
        return Outer(rows(keys, precision, scale=scale), None, rows(keys, precision, scale=1 / scale**2), number())

    vectors = rows(keys, precision, group, scale)

    def read(i: int, of: str) -> Read:
        return Read(Rows(keys, vectors.stride + 8 * i + 8, precision, 0, group, scale**2), rows(values, precision), of)

    erasing = rows(keys, precision, scale=scale**0.5) if own else None
    return Recurrence(
        heads,
        keys,
        values,
        precision,
        vectors,
        rows(values, precision),
        tuple(read(i, of) for i, of in enumerate(reads)),
        number() if value_scale else None,
        Erase(erasing, number() if scaled else None, erase) if erase else None,
        rows(decay, "float32") if decay else None,
        log_decay,
        keys_last,
        tuple(another(kind) for kind in others),
        same,
    )


@dataclass
class Steps:
    """Random operands. decays: what a decay is drawn from; repeat: keys that come again; reverse: steps go backwards;
    every: kernels leave the states before the parts of so many steps, 0: they do not."""

    own: Recurrence
    steps: int
    batch: int = 2
    seed: int = 0
    decays: tuple[float, ...] = (0.9, 0.99, 1.0, 0.5)
    repeat: bool = False
    zero: bool = False
    lengths: np.ndarray | None = None
    reset: np.ndarray | None = None
    reverse: bool = False
    every: int = 0

    def __post_init__(self) -> None:
        rng, own = np.random.default_rng(self.seed), self.own
        every = {**own.vectors, **own.written, **own.numbers}
        if own.decay is not None:
            every["decay"] = own.decay
        self.rows = every
        self.real: Arrays = {}
        for name, rows in every.items():
            shape = (self.steps, self.batch, own.heads // rows.group, rows.width)
            found = rng.standard_normal(shape)
            if name in ("key", "erase") or name.startswith(("column", "vector")):
                if self.repeat:
                    found[:] = found[:1]
                found /= np.linalg.norm(found, axis=-1, keepdims=True)
            elif name == "decay":
                found = rng.choice(self.decays, shape) * (1 - 0.01 * rng.random(shape))
                if own.log_decay:
                    with np.errstate(divide="ignore"):
                        found = np.log(found)
            elif name == "erase_scale":
                found = -rng.random(shape)
            elif name == "value_scale":
                found = rng.random(shape)
            if self.zero and name in ("key", "value"):
                found[self.steps // 2 :] = 0
            self.real[name] = decoded(encoded(found, rows.dtype), rows.dtype)
        for name, other in own.same:
            self.real[name] = self.real[other]
        shape = (self.batch, own.heads, own.keys, own.values)
        self.before = rng.standard_normal(shape).astype("f4").astype("f8")

    def arrays(self) -> Arrays:
        """As kernels take them; results, and all that no kernel may read, are poisoned."""
        own = self.own
        found = dict[str, np.ndarray]()
        for name, rows in self.rows.items():
            found[name] = self._rows(rows, self.real[name])
        for i, read in enumerate(own.reads):
            found[f"output_{i}"] = self._rows(read.output, None)
        turned = self.before.swapaxes(2, 3) if own.keys_last else self.before
        found["state_in"] = np.ascontiguousarray(turned, "f4")
        found["state_out"] = np.full_like(found["state_in"], POISON)
        if self.every:
            shape = -(-self.steps // self.every), *found["state_in"].shape
            found["marks"] = encoded(np.full(shape, POISON), marks_dtype(self.own.precision))
        lengths = np.zeros(self.batch) if self.lengths is None else self.lengths
        reset = np.zeros((self.steps, self.batch)) if self.reset is None else self.reset
        return found | {"lengths": lengths.astype("i8"), "reset": reset.astype("u1")}

    def _rows(self, rows: Rows, values: np.ndarray | None) -> np.ndarray:
        memory = np.full((self.steps, self.batch, rows.stride), POISON)
        if values is not None:
            memory[:, :, rows.offset : rows.offset + values[0, 0].size] = values.reshape(self.steps, self.batch, -1)
        return encoded(memory, rows.dtype)

    def results(self, arrays: Arrays) -> list[np.ndarray]:
        """Outputs and the states after, in float64."""
        found = []
        for i, read in enumerate(self.own.reads):
            rows = read.output
            memory = decoded(arrays[f"output_{i}"], rows.dtype)
            size = self.own.heads * rows.width
            inside = memory[:, :, rows.offset : rows.offset + size].copy()
            found.append(inside.reshape(self.steps, self.batch, self.own.heads, -1))
            memory[:, :, rows.offset : rows.offset + size] = np.nan
            assert np.isnan(memory).all(), "written beside the rows"
        states = [arrays["state_out"].astype("f8")]
        states += [decoded(arrays["marks"], marks_dtype(self.own.precision))] if self.every else []
        return [*found, *(state.swapaxes(-1, -2) if self.own.keys_last else state for state in states)]

    def expected(self) -> list[np.ndarray]:
        """The same by the loop."""
        own, state = self.own, self.before.copy()
        marks = [np.zeros((-(-self.steps // self.every), *state.shape))] if self.every else []
        outputs = [np.zeros((self.steps, self.batch, own.heads, own.values)) for _ in own.reads]

        def at(name: str, t: int, b: int) -> np.ndarray:
            return np.repeat(self.real[name][t, b] * self.rows[name].scale, self.rows[name].group, axis=0)

        ends = np.full(self.batch, self.steps) if self.lengths is None else self.lengths
        for t in range(self.steps)[:: -1 if self.reverse else 1]:
            for b in range(self.batch):
                flag = t + self.reverse
                again = self.reset is not None and flag < min(self.steps, ends[b]) and self.reset[flag, b]
                if again and t < ends[b]:
                    state[b] = 0
                if self.every and (flag % self.every == 0 or (self.reverse and flag == self.steps)):
                    marks[0][t // self.every, b] = state[b]
                if t >= ends[b]:
                    continue
                s = state[b]
                seen = {BEFORE: s}
                if own.decay is not None:
                    d = at("decay", t, b)
                    s = s * (np.exp(d) if own.log_decay else d)[:, :, None]
                seen[DECAYED] = s
                u = at("value", t, b)
                if own.value_scale is not None:
                    u = u * at("value_scale", t, b)
                if own.erase is not None:
                    z = np.einsum(
                        "nk,nkv->nv", at("key" if own.erase.vector is None else "erase", t, b), seen[own.erase.of]
                    )
                    u = u + z * (at("erase_scale", t, b) if own.erase.scale is not None else 1)
                s = s + at("key", t, b)[:, :, None] * u[:, None, :]
                for i, other in enumerate(own.others):
                    if other.value is not None:
                        u = at(f"value_{i}", t, b)
                    else:
                        u = np.einsum("nk,nkv->nv", at(f"vector_{i}", t, b), seen[BEFORE])
                        u = u * at("erase_scale", t, b) if other.scale is not None else u
                    s = s + at(f"column_{i}", t, b)[:, :, None] * u[:, None, :]
                seen[AFTER] = s
                for i, read in enumerate(own.reads):
                    outputs[i][t, b] = np.einsum("nk,nkv->nv", at(f"read_{i}", t, b), seen[read.of])
                state[b] = s
        return [*outputs, state, *marks]

    def error(self, arrays: Arrays) -> float:
        """The largest error of any result, relative to the largest that there is. NaN where poison is left."""
        worst = []
        for found, right in zip(self.results(arrays), self.expected(), strict=True):
            worst.append(np.abs(found - right).max() / max(1.0, np.abs(right).max()))
        return float("nan") if np.isnan(worst).any() else float(max(worst))

    @property
    def masks(self) -> dict[str, int]:
        """Scalars of kernels that know lengths and resets."""
        has = {"has_lengths": int(self.lengths is not None), "has_reset": int(self.reset is not None)}
        return {"start": 0, "total": self.steps, **has}

    @property
    def masked(self) -> bool:
        return self.lengths is not None or self.reset is not None


@functools.cache
def scan(
    own: Recurrence, tile: ChunkTile, reverse: bool = False, marked: bool = False, dtype: str = "float32"
) -> ChunkScan:
    """Of one recurrence and tile, once."""
    return (MarkedChunkScan if marked else ChunkScan)("k", own, tile, reverse, dtype)


def chunk_error(case: Steps, tile: ChunkTile = SMALL) -> float:
    """Of a chunk scan in one segment, against what its precision allows: below 1 it is right."""
    found, arrays = scan(case.own, tile, case.reverse, bool(case.every)), case.arrays()
    padded = case.steps + -case.steps % tile.chunk
    scalars = {"steps": case.steps, "batch": case.batch, "span": padded, **case.masks}
    if case.reverse:
        scalars |= {"steps": padded, "padded": padded, "real": case.steps}
    run(found.kernels[case.masked], arrays, scalars, found.blocks(case.batch))
    return case.error(arrays) / TOLERANCE[case.own.precision]
