"""How a CPU stores the matrices of products: in the network's dtype, or in fewer bits that are widened when read.

In: the name of a dtype. Out: a `Storage`: expressions that encode a value and decode it again. Arithmetic stays in
float32, but for int8_dynamic: at B = 1 a step takes as long as reading its weights does, so half the bytes are half the
time.

int8 is symmetric: each row of a matrix (a unit of a gate) has a float32 scale, its largest magnitude / 127, by which
the row's sum is multiplied at its end. A NaN in a row makes its scale NaN, an infinity its sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from tvm_rnn.errors import ConfigError
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar import let, where
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr, TirExpr

from .dot_product import PAIRS, DotProduct, dot_product
from .saturating_pairs import are_few

LARGEST = 127.0  # of int8, on both sides
MOST_DEPTH = 1 << 16  # of a product of integers: its sums are below 2**31 then


@dataclass(frozen=True)
class Storage:
    """dtype: of elements in packed memory. scaled: whether rows have scales. dot: the instruction where products are of
    integers (`int8_products.py`), whose words are the elements then: operands are quantised too, as they come,
    unless there are no scales: then the equations made both bytes."""

    name: str
    dtype: str
    scaled: bool = False
    dot: DotProduct | None = None

    @property
    def ratio(self) -> int:
        """Elements in the room of one float32."""
        return 4 // np.dtype(self.dtype).itemsize

    @property
    def view(self) -> str:
        """The name of the packed memory as elements of it."""
        return "words" if self.dot else "stored"

    def encode(self, value: TirExpr, scale: TirExpr | None = None) -> TirExpr:
        """A float32 value as it is stored: nearest, ties to even. scale: of its row."""
        if self.name == "float16":
            return tirx.Cast("float16", value)
        if self.dot is not None and not self.scaled:
            return tirx.Cast("int32", value)
        if self.scaled:
            assert scale is not None
            return let(value / scale, lambda v: tirx.Cast("int8", tirx.Cast("int32", nearest(v, 0.0))))
        bits = tirx.reinterpret("uint32", value)
        # Adding to a NaN's bits could make it infinite; its top half with the quiet bit is a NaN still.
        return let(
            bits, lambda b: tirx.Cast("uint16", where(tirx.isnan(value), b | _u(0x400000), _to_even(b)) >> _u(16))
        )

    def decode(self, stored: TirExpr) -> TirExpr:
        """The float32 value, of int8 without its scale."""
        if self.name != "bfloat16":
            return tirx.Cast("float32", stored)
        return tirx.reinterpret("float32", tirx.Cast("uint32", stored) << _u(16))


def nearest(value: TirExpr, of_nan: Expr | float) -> TirExpr:
    return where(tirx.isnan(value), of_nan, tirx.nearbyint(value))


def _u(value: int) -> TirExpr:
    return tirx.const(value, "uint32")


def _to_even(bits: TirExpr) -> TirExpr:
    return bits + _u(0x7FFF) + ((bits >> _u(16)) & _u(1))


def larger(value: TirExpr, so_far: TirExpr) -> TirExpr:
    """The larger of both; a NaN stays."""
    return let(value, lambda v: where(tirx.Or(v > so_far, tirx.isnan(v)), v, so_far))


@dataclass(frozen=True)
class Storages:
    """How the matrices of each product are stored. network: of all, unless both factors are bytes (`to_int8(W) @
    to_uint8(x)`) and `whole` is there: None where the CPU has no products of bytes, or others read the weights too."""

    network: Storage | None = None
    whole: Storage | None = None

    def of(self, product: Node | None) -> Storage | None:
        """Of a gemm; None: in the network's dtype."""
        if self.whole is None or product is None or product.op != "gemm":
            return self.network
        pairs = zip(product.args[::2], product.args[1::2], strict=True)
        whole = all(made_by(w, "to_int8") and made_by(x, "to_uint8") and x.shape[0] <= MOST_DEPTH for w, x in pairs)
        return self.whole if whole else self.network


def made_by(node: Node, op: str) -> bool:
    """Whether all elements are results of an operation, moved or joined at most."""
    moved = node.op in ("concat", "reshape", "transpose", "slice", "index", "flip")
    return node.op == op or (moved and all(made_by(own, op) for own in node.args))


NETWORKS = Storages()  # all in the network's dtype
STORAGES = {
    "bfloat16": Storage("bfloat16", "uint16"),
    "float16": Storage("float16", "float16"),
    "int8": Storage("int8", "int8", True),
}


def storage_on(machine: Target, name: str) -> Storage | None:
    """How matrices are stored on a CPU; None for "": in the network's dtype.

    Raises ConfigError where the CPU has no instruction for products of integers.
    """
    if name != "int8_dynamic":
        return STORAGES[name] if name else None
    dot = dot_product(machine)
    return Storage(name, dot.weights_dtype, True, dot)


def bytes_on(machine: Target, weights: Iterable[np.ndarray] = ()) -> Storage | None:
    """How matrices are stored whose products are of bytes; None where the CPU has none of 8 bits. weights: those that
    the network has now, of which a CPU's best instruction may depend."""
    try:
        dot = dot_product(machine)
    except ConfigError:
        return None
    if dot.terms == 2 and are_few(weights):
        dot = PAIRS
    return Storage("bytes", dot.weights_dtype, False, dot) if dot.largest == LARGEST else None
