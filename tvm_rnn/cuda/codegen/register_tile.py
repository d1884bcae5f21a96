"""Registers of a thread as an array of fragments: what an instruction takes or leaves together is one index.

In: a shape, while a kernel is being written. Out: `RegisterTile`, whose `tile[m, n]` are the registers of fragment
(m, n), as PTX instructions name them. Registers have no addresses: every index is a Python integer.

Source: ThunderKittens' register tiles, "rt" (Spector et al., 2024).
"""

from __future__ import annotations

from math import prod

from tvm.script.ir_builder import tirx as I

from tvm_rnn.tir.expr import Expr, TirExpr


class RegisterTile:
    """Registers in row-major order; the last axis of the shape is a fragment.

    shape: fragments along each axis, then registers of a fragment. dtype: of a register.

    >>> acc = RegisterTile(high, broad, 4)  # of mma.sync: four sums in each tile of 16 x 8
    >>> w.do(I.ptx[MMA](*acc[m, n], *a[m], *b[n], *acc[m, n]))
    """

    def __init__(self, *shape: int, dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype
        self.buffer = I.alloc_local((prod(shape),), dtype)
        self.flat: tuple[TirExpr, ...] = tuple(self.buffer[i] for i in range(prod(shape)))

    def __getitem__(self, fragment: int | tuple[int, ...]) -> tuple[TirExpr, ...]:
        """The registers of a fragment. Raises IndexError where there is none."""
        each = self.shape[-1]
        first = self.number(*(fragment if isinstance(fragment, tuple) else (fragment,)), 0)
        return self.flat[first : first + each]

    def number(self, *index: int) -> int:
        """Which register, counted through the tile, has this index: of the fragment, then within it."""
        if len(index) != len(self.shape) or not all(0 <= i < size for i, size in zip(index, self.shape, strict=True)):
            raise IndexError(f"register {index} of a tile of {self.shape}")
        at = 0
        for i, size in zip(index, self.shape, strict=True):
            at = at * size + i
        return at

    def store(self, value: Expr, *index: int) -> None:
        I.buffer_store(self.buffer, value, [self.number(*index)])

    def fill(self, value: Expr) -> None:
        for i in range(len(self.flat)):
            I.buffer_store(self.buffer, value, [i])

    def scale(self, by: float) -> None:
        """All of them times a constant."""
        for i, own in enumerate(self.flat if by != 1.0 else ()):
            I.buffer_store(self.buffer, own * by, [i])
