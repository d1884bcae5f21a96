"""A linear recurrence of matrices, as kernels see it: what a step reads, and where it lies.

In: sizes, places in memory. Out: `Recurrence`: heads of states S [keys, values], for which every step computes

    S = decay * S                                      decay: a number of a head, or of each key of it
    u = value_scale * value + erase.scale * sum over keys of (erase.vector * S)       the sum if there is `erase`
    S = S + key * u + sum over `others` of column * (value, or scale * sum over keys of (vector * S before the step))
    output = sum over keys of (read.vector * S)        for each of `reads`

`Read.of` and `Erase.of` say which S they multiply: that BEFORE the step, DECAYED but not yet written to, or AFTER it.
Delta rules erase along the key: vector None. Source: Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BEFORE, DECAYED, AFTER = "before", "decayed", "after"


@dataclass(frozen=True)
class Rows:
    """A vector, or a number, of every step, batch row and head: element i of head n, of step t and row b of B, lies at
    (t B + b) * stride + offset + n // group * width + i, where `group` heads of the recurrence share a vector. scale: a
    positive number that it is multiplied with before it is used."""

    width: int
    stride: int
    dtype: str
    offset: int = 0
    group: int = 1
    scale: float = 1.0


@dataclass(frozen=True)
class Read:
    """A result of every step. vector: of `keys` numbers; of: which states; output: of `values` numbers."""

    vector: Rows
    output: Rows
    of: str = AFTER


@dataclass(frozen=True)
class Erase:
    """What a step writes that depends on the states. vector: None where it is the key; scale: a number, 1 if None."""

    vector: Rows | None = None
    scale: Rows | None = None
    of: str = DECAYED


@dataclass(frozen=True)
class Outer:
    """Another outer product that a step adds. column: of `keys` numbers; value: what it is multiplied with, of `values`
    numbers; vector: of `keys` numbers, where that is a product with the states before the step; scale: of this product
    a number, 1 if None."""

    column: Rows
    value: Rows | None = None
    vector: Rows | None = None
    scale: Rows | None = None


@dataclass(frozen=True)
class Recurrence:
    """The recurrence above. precision: of vectors, as products take them; numbers are float32. same: pairs of names of
    vectors that are one, the other of which no `reads` has.

    States are float32, [B, heads, keys, values], or [B, heads, values, keys] if `keys_last`. log_decay: `decay` holds
    natural logarithms. A decay is never negative.
    """

    heads: int
    keys: int
    values: int
    precision: str
    key: Rows
    value: Rows
    reads: tuple[Read, ...]
    value_scale: Rows | None = None
    erase: Erase | None = None
    decay: Rows | None = None
    log_decay: bool = False
    keys_last: bool = False
    others: tuple[Outer, ...] = ()
    same: tuple[tuple[str, str], ...] = ()

    @property
    def held(self) -> dict[str, Rows]:
        """Of `vectors` those that chunks have in shared memory: one of those that are the same, but where decays of
        each key are multiplied with them there."""
        twice = set() if self.decays_by_key else {name for name, _ in self.same}
        return {name: rows for name, rows in self.vectors.items() if name not in twice}

    def solved(self, read: int) -> bool:
        """Whether a result is what chunks solve."""
        own = self.erase is None and bool(self.others) and self.others[0].scale is None
        return own and self.reads[read].of == BEFORE and (f"read_{read}", "vector_0") in self.same

    @property
    def erased(self) -> int | None:
        """The read-out that is what is erased, before it is scaled; None: there is none that chunks can solve for."""
        scaled = self.erase is not None or any(other.scale is not None for other in self.others)
        if not scaled or self.erasing is None or self.erasing.of != BEFORE or self.decays_by_key:
            return None
        first = dict(self.same)
        vector = first.get(self.erasing_vector, self.erasing_vector)
        reads = ((i, f"read_{i}") for i, read in enumerate(self.reads) if read.of == BEFORE)
        return next((i for i, name in reads if first.get(name, name) == vector), None)

    @property
    def vectors(self) -> dict[str, Rows]:
        """Of every step, by their names as pointers: those of `keys` numbers."""
        found = {"key": self.key}
        if self.erase is not None and self.erase.vector is not None:
            found["erase"] = self.erase.vector
        found |= {f"read_{i}": read.vector for i, read in enumerate(self.reads)}
        found |= {f"column_{i}": other.column for i, other in enumerate(self.others)}
        return found | {f"vector_{i}": other.vector for i, other in enumerate(self.others) if other.vector is not None}

    @property
    def written(self) -> dict[str, Rows]:
        """Of every step, by their names as pointers: those of `values` numbers."""
        others = {f"value_{i}": other.value for i, other in enumerate(self.others) if other.value is not None}
        return {"value": self.value, **others}

    @property
    def numbers(self) -> dict[str, Rows]:
        """Of every step and head, by their names as pointers."""
        scales = [other.scale for other in self.others] if self.erase is None else [self.erase.scale]
        erase_scale = next((scale for scale in scales if scale is not None), None)
        decay = None if self.decays_by_key else self.decay
        every = {"decay": decay, "value_scale": self.value_scale, "erase_scale": erase_scale}
        return {name: rows for name, rows in every.items() if rows is not None}

    @property
    def erasing(self) -> Erase | None:
        """What chunks solve: that which erases, or the one other product with the states, which has its own column."""
        if self.erase is not None or not self.others:
            return self.erase
        return Erase(self.others[0].vector, self.others[0].scale, BEFORE)

    @property
    def erased_scale(self) -> float:
        """What scales what is erased beside a number of each step: of its vector, and of the key that it is written
        along."""
        vectors, column = self.vectors, "column_0" if self.erase is None else "key"
        return 1.0 if self.erasing is None else vectors[column].scale * vectors[self.erasing_vector].scale

    @property
    def erasing_vector(self) -> str:
        """The pointer of its vector."""
        if self.erase is None:
            return "vector_0"
        return "key" if self.erase.vector is None else "erase"

    @property
    def columns(self) -> tuple[str, ...]:
        """Pointers of what chunks write along: values, and in the last one what is solved."""
        return ("key", "column_0") if self.others else ("key",)

    @property
    def scores(self) -> tuple[tuple[str, str, str], ...]:
        """What chunks know of each two steps: the vector that reads, of which states, and the column that was written.
        Those of what is solved come first, if anything is."""
        reads = [(f"read_{i}", read.of) for i, read in enumerate(self.reads) if not self.solved(i)]
        own = [] if self.erasing is None else [(self.erasing_vector, self.erasing.of)]
        return tuple((*read, column) for read in own + reads for column in self.columns[::-1])

    @property
    def decays_by_key(self) -> bool:
        """Whether every key decays by itself."""
        return self.decay is not None and self.decay.width > 1

    @property
    def why_no_chunks(self) -> str:
        """Why no chunk kernel takes it, whatever its sizes are; "" where one may."""
        if self.decays_by_key and self.erase is not None and self.erase.vector is None:
            return "each key decays by itself, and erases by itself too"
        if self.others and (self.erase is not None or [o.vector is None for o in self.others] != [False]):
            return "what is taken away, or written, does not lie along one key, or two of which one takes away"
        if self.precision not in ("bfloat16", "float16"):
            return f"products of chunks take bfloat16 or float16, not {self.precision}"
        return ""

    @property
    def operands(self) -> tuple[tuple[str, str], ...]:
        """Pointers of what steps read, with their dtypes."""
        every = {**self.vectors, **self.written, **self.numbers}
        if self.decay is not None:
            every["decay"] = self.decay
        return tuple((name, rows.dtype) for name, rows in every.items())

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        """Of a kernel that runs steps: operands, outputs, and the states before and after."""
        outputs = tuple((f"output_{i}", read.output.dtype) for i, read in enumerate(self.reads))
        return (*self.operands, *outputs, ("state_in", "float32"), ("state_out", "float32"))


def sum_name(of: str) -> str:
    """Of the sums of log decays before and after a step's own: that which the states of this kind have."""
    return "before" if of == BEFORE else "after"


def same_places(places: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Vectors that lie where others do, and these: no other is a read-out's where one is not. places: by name."""
    first, found = dict[object, str](), list[tuple[str, str]]()
    for name in sorted(places, key=lambda name: name.startswith("read_")):
        other = first.setdefault(places[name], name)
        found += [(name, other)] if other != name else []
    return tuple(found)
