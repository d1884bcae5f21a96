"""GEMM groups for tests: a hoisted product with bias, and the step of an LSTM, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm_rnn.cuda.gemm.group_kernels import Gemm, Variant, gemm
from tvm_rnn.cuda.layer.pointers import Place, arithmetic, storage
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.target import resolve


def hoisted(gates: int, width: int, depths: Sequence[int] = (40,), region: str = "before") -> Group:
    """z[g] + b[g], each stored."""
    shape = (gates, width) if gates > 1 else (width,)
    pairs = []
    for i, depth in enumerate(depths):
        pairs += [Node("param", shape=(*shape, depth), name=f"W{i}"), Node("input", shape=(depth,), name=f"x{i}")]
    root, b = make("gemm", *pairs), Node("param", shape=(gates, width), name="b")
    parts = [make("index", root, axis=-2, at=g) if gates > 1 else root for g in range(gates)]
    sums = [make("add", part, make("index", b, axis=-2, at=g)) for g, part in enumerate(parts)]
    return Group("gemm", region, int(region == "step"), root, (root, *sums), tuple(sums))


def of_members(members: int, gates: int, width: int, depths: Sequence[int], region: str = "before") -> Group:
    """z[g] + b[g] of each member, each stored; the first operand's vectors lie side by side, others' at distances."""
    shape = (members, gates, width) if gates > 1 else (members, width)
    pairs = []
    for i, depth in enumerate(depths):
        apart = depth + 8 * i
        x = Node("input", shape=(members * apart,), name=f"x{i}")
        view = make("slice", make("reshape", x, rank=1, to=(members, apart)), axis=-1, start=apart - depth, stop=apart)
        pairs += [Node("param", shape=(*shape, depth), name=f"W{i}"), view]
    root, b = make("batched_gemm", *pairs), Node("param", shape=(members, gates, width), name="b")
    parts = [make("index", root, axis=-2, at=g) if gates > 1 else root for g in range(gates)]
    sums = [make("add", part, make("index", b, axis=-2, at=g)) for g, part in enumerate(parts)]
    return Group("gemm", region, int(region == "step"), root, (root, *sums), tuple(sums))


def lstm_step(width: int, depth: int) -> Group:
    """c' and h' from R h and four hoisted values."""
    r, h = Node("param", shape=(4, width, depth), name="R"), Node("state", shape=(depth,), name="h")
    c, early = Node("state", shape=(width,), name="c"), [Node("input", shape=(width,), name=f"g{i}") for i in range(4)]
    root = make("gemm", r, h)
    a = [make("add", early[g], make("index", root, axis=-2, at=g)) for g in range(4)]
    i, f, o, z = (make("sigmoid", a[0]), make("sigmoid", a[1]), make("sigmoid", a[3]), make("tanh", a[2]))
    kept, added = make("mul", f, c), make("mul", i, z)
    c_new = make("add", kept, added)
    squashed = make("tanh", c_new)
    h_new = make("mul", o, squashed)
    return Group("gemm", "step", 1, root, (root, *a, i, f, o, z, kept, added, c_new, squashed, h_new), (c_new, h_new))


def made(
    group: Group, precision: str = "bfloat16", stride: int = 0, align: int = 16, spare: bool = False, **options: Any
) -> Gemm:
    """Kernels for a group whose values all lie in rows of their own size + stride; spare: which results may take."""
    stored, wide = storage(precision), arithmetic(precision)

    def place(node: Node) -> Place | None:
        if node.op == "param":
            return Place(wide, 0) if node.name == "b" else None
        dtype = wide if node.op == "state" and node.name == "c" else stored
        return Place(dtype, prod(node.shape) + stride, align) if node.leaf else None

    def writes(node: Node) -> list[Place]:
        return [Place(stored, prod(node.shape) + stride, align, spare=spare)]

    target = resolve(options.pop("target", "nvidia-h200"))
    given = {"operands": place, "reads": place, "writes": writes, **options}
    return gemm("kernel", group, precision=precision, target=target, **given)


def variant_of(found: Gemm, size: str) -> Variant:
    """The kernel of that name."""
    (variant,) = (v for v in found.variants if v.kernel.name.endswith(f"_{size}"))
    return variant
