"""A matrix and its gradient, which backward makes again between the states that were kept.

In: sizes, places in memory. Out: `Pair`: heads of matrices [keys, values], for which every step computes

    S = decay * S + sum over writes of column * row           forward
    output = sum over values of (vector * S before the step)  or of G after it
    G = decay * G + sum over writes of column * row           backward

where a matrix may decay behind what is written to it: decay * (S + sum over writes of column * row). Before each part
of the time the tape has the matrix, and behind it the backward recurrence left the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.graph.recurrences import KEPT_EVERY_ON_GPUS

from .recurrence import Rows

EVERY = KEPT_EVERY_ON_GPUS  # steps of a part of the time
STATE, GRADIENT, BOTH = "state", "gradient", "both"


@dataclass(frozen=True)
class Made:
    """What a step makes of a matrix. decay: a number of a head, or of each key of it; None: 1. writes: a column, of the
    keys, and a row, of the values, of each outer product. late: what is written decays with the matrix."""

    decay: Rows | None
    writes: tuple[tuple[Rows, Rows], ...]
    late: bool = False

    def operands(self, name: str) -> dict[str, Rows]:
        """By their names as pointers; name: of the matrix."""
        found = {} if self.decay is None else {f"{name}_decay": self.decay}
        for i, (column, row) in enumerate(self.writes):
            found |= {f"{name}_column_{i}": column, f"{name}_row_{i}": row}
        return found


@dataclass(frozen=True)
class Read:
    """A result of every step, of `keys` numbers. of: STATE, before the step; GRADIENT, after it; or BOTH: the product
    of the two, summed over values. vector: of `values` numbers; None of BOTH."""

    of: str
    output: Rows
    vector: Rows | None = None


@dataclass(frozen=True)
class Pair:
    """A matrix and its gradient, of heads [keys, values], in memory [values, keys] if `keys_last`. state, gradient:
    None where nothing is read of it. same: pairs of names of vectors that are one."""

    heads: int
    keys: int
    values: int
    precision: str
    state: Made | None
    gradient: Made | None
    reads: tuple[Read, ...]
    keys_last: bool = False
    same: tuple[tuple[str, str], ...] = ()

    @property
    def made(self) -> dict[str, Made]:
        """Those that are read, by name."""
        both = {STATE: self.state, GRADIENT: self.gradient}
        return {name: made for name, made in both.items() if made is not None}

    @property
    def scale(self) -> float:
        """The constant of all columns; they have the same."""
        (scale,) = {column.scale for made in self.made.values() for column, _ in made.writes} or {1.0}
        return scale

    @property
    def operands(self) -> dict[str, Rows]:
        """What steps read, by the names of pointers."""
        found = {name: rows for own, made in self.made.items() for name, rows in made.operands(own).items()}
        return found | {f"vector_{i}": r.vector for i, r in enumerate(self.reads) if r.vector is not None}

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        """Operands, outputs, and of each matrix that before, or behind, the parts of the time."""
        outputs = [(f"output_{i}", read.output.dtype) for i, read in enumerate(self.reads)]
        operands = [(name, rows.dtype) for name, rows in self.operands.items()]
        return (*operands, *outputs, *((marks_name(name), marks_dtype(self.precision)) for name in self.made))


def marks_name(name: str) -> str:
    """The pointer of a matrix at the borders of parts: [parts, B, heads, ...]."""
    return f"{name}_marks"
