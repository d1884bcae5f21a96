"""A linear recurrence of matrices, as kernels see it: what a step reads, and where it lies.

In: sizes, places in memory. Out: `Recurrence`: heads of states S [keys, values], for which every step computes

    S = decay * S                                      decay: a number of a head, or of each key of it
    u = value_scale * value + erase.scale * sum over keys of (erase.vector * S)       the sum if there is `erase`
    S = S + key * u + sum over `others` of column * (value, or sum over keys of (vector * S before the step))
    output = sum over keys of (read.vector * S)        for each of `reads`

`Read.of` and `Erase.of` say which S they multiply: that BEFORE the step, DECAYED but not yet written to, or AFTER it.
Delta rules erase along the key: vector None. Source: Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from dataclasses import dataclass

BEFORE, DECAYED, AFTER = "before", "decayed", "after"


@dataclass(frozen=True)
class Rows:
    """A vector, or a number, of every step, batch row and head: element i of head n, of step t and row b of B, lies at
    (t B + b) * stride + offset + n // group * width + i, where `group` heads of the recurrence share a vector."""

    width: int
    stride: int
    dtype: str
    offset: int = 0
    group: int = 1


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
    numbers; vector: of `keys` numbers, where that is a product with the states before the step."""

    column: Rows
    value: Rows | None = None
    vector: Rows | None = None


@dataclass(frozen=True)
class Recurrence:
    """The recurrence above. precision: of vectors, as products take them; numbers are float32.

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
        erase_scale = self.erase.scale if self.erase is not None else None
        decay = None if self.decays_by_key else self.decay
        every = {"decay": decay, "value_scale": self.value_scale, "erase_scale": erase_scale}
        return {name: rows for name, rows in every.items() if rows is not None}

    @property
    def decays_by_key(self) -> bool:
        """Whether every key decays by itself."""
        return self.decay is not None and self.decay.width > 1

    @property
    def why_no_chunks(self) -> str:
        """Why no chunk kernel takes it, whatever its sizes are; "" where one may."""
        if self.decays_by_key and self.erase is not None and self.erase.vector is None:
            return "each key decays by itself, and erases by itself too"
        if self.others:
            return "what is taken away, or written, does not lie along one key"
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


def erase_name(erase: Erase) -> str:
    """The pointer of the vector that erases."""
    return "key" if erase.vector is None else "erase"


def sum_name(of: str) -> str:
    """Of the sums of log decays before and after a step's own: that which the states of this kind have."""
    return "before" if of == BEFORE else "after"
