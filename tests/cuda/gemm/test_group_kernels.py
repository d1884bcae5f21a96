"""gemm(): the pointers that kernels take, the variants of a precision, and on a GPU the numbers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated import decoded, encoded
from emulated import run as run_emulated
from emulator import arrays
from gemm_groups import hoisted, lstm_step, made, of_members

from tvm_rnn.cuda.gemm import group_kernels
from tvm_rnn.cuda.gemm.group_kernels import Gemm
from tvm_rnn.target import resolve


def test_pointers_come_in_order_of_their_roles() -> None:
    found = made(lstm_step(16, 16), "float32")
    assert [(a.role, a.node.name or a.node.op, a.number) for a in found.arguments] == [
        ("weight", "R", 0),
        ("operand", "h", 0),
        *(("read", name, 0) for name in ("g0", "g1", "g2", "g3", "c")),
        ("write", "add", 0),
        ("write", "mul", 0),
    ]
    for variant in found.variants:
        assert [p for p, _ in variant.kernel.pointers] == [a.name for a in found.arguments]
        assert variant.kernel.scalars == (("rows", "int64"),)


@pytest.mark.parametrize(
    ("precision", "names"),
    [
        ("bfloat16", ["share1", "few", "slim", "mid", "wide", "many"]),
        ("tf32", ["share1", "few", "slim", "mid", "wide", "many"]),
        ("float32", ["skinny", "few", "many"]),
        ("float64", ["skinny", "few", "many"]),
    ],
)
def test_steps_have_a_kernel_for_few_rows(precision: str, names: list[str]) -> None:
    found = made(lstm_step(32, 32), precision, batches=(8,)).variants
    assert [v.kernel.name for v in found] == [f"kernel_{n}" for n in names]
    few = [variant for variant in found if variant.kernel.name[7:] in ("skinny", "few")]
    assert all(v.condition.startswith("rows <= ") for v in few) and found[-1].condition == "true"


def test_without_wgmma_fewer_rows_have_tiles_of_their_own() -> None:
    several = made(lstm_step(32, 32), "bfloat16", batches=(8, 64, 100), target="nvidia-a100").variants
    assert {v.kernel.name[7:]: v.condition for v in several} == {
        **{"least": "rows <= 16", "fewer": "rows <= 64", "few": "rows <= 128"},
        "many": "true",
    }
    one = made(lstm_step(32, 32), "bfloat16", batches=(8,), target="nvidia-a100").variants
    assert [v.kernel.name[7:] for v in one] == ["few", "many"]


def test_kernels_whose_rows_others_take_are_left_out() -> None:
    """A read-out of many units: up to 32 rows stream weights, up to 64 share K, more are many."""
    found = made(hoisted(1, 32000, [64], "step"), "float32", batches=(1, 256)).variants
    assert [v.kernel.name for v in found] == [f"kernel_{n}" for n in ("share", "skinny", "many")]
    large = made(hoisted(1, 32000, [512], "step"), "float32", batches=(1, 256)).variants
    names = {v.kernel.name: v.condition for v in large}
    assert [*names] == [f"kernel_{n}" for n in ("share", "skinny_half", "skinny", "many")]
    assert (names["kernel_skinny_half"], names["kernel_skinny"]) == ("rows <= 8", "rows <= 32")


def test_lists_have_an_end_of_their_own() -> None:
    found = made(hoisted(3, 1044, [1044], "step"), "tf32", listed=True).variants
    most = {v.kernel.name: (v.listed, v.most) for v in found if "tall" in v.kernel.name}
    listed, plain = most["kernel_tall_listed"], most["kernel_tall"]
    assert listed[0] and not plain[0] and listed[1] > plain[1]


def test_large_hoisted_products_have_kernels_for_hopper() -> None:
    names = [v.kernel.name for v in made(hoisted(4, 512, [256])).variants]
    assert names == ["kernel_share1", "kernel_mid", "kernel_wide", "kernel_many"]
    assert [v.kernel.name for v in made(hoisted(4, 512), target="nvidia-a100").variants] == ["kernel_many"]


def test_packs_are_those_of_the_weights() -> None:
    found = made(hoisted(4, 24, [40, 8]), "tf32")
    assert [p.node.name for p in found.packs] == ["W0", "W1"]
    assert all(p.dtype == "float32" and p.tf32 for p in found.packs)


def blocks_of(knobs: dict[str, int], kind: str, sizes: tuple[int, int, int, tuple[int, ...]], rows: int) -> int:
    """Of the whole grid."""
    members, gates, width, _ = sizes
    own = kind.rstrip("1")
    if own in ("wide", "mid", "slim"):
        return knobs["wide_blocks"]
    if own == "skinny_half":
        return blocks_of({**knobs, "skinny_rows": knobs["skinny_rows"] // 2}, "skinny", sizes, rows)
    high = 64 if own == "share" else knobs[f"{own}_rows"]
    lanes = "many_across" in knobs
    units = knobs[f"{own}_across"] * knobs["units"] if lanes else knobs[f"{own}_columns"] // gates
    return max(members, 1) * -(-rows // high) * -(-width // units) * knobs.get(f"{own}_cluster", 1)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("precision", "kind", "sizes", "rows"),
    [
        ("bfloat16", "many", (3, 3, 20, (24,)), 37),
        ("float32", "many", (2, 1, 19, (13, 9)), 70),
        ("float16", "wide", (3, 2, 32, (64, 40)), 300),
        ("bfloat16", "mid", (3, 4, 64, (72,)), 200),
        ("bfloat16", "share1", (5, 4, 24, (136,)), 33),
        ("bfloat16", "mid", (1, 3, 67, (40,)), 150),
        ("tf32", "wide", (1, 2, 73, (34,)), 290),
        ("tf32", "wide", (2, 1, 72, (34,)), 290),
        ("bfloat16", "wide", (1, 1, 36, (40,)), 150),
        ("tf32", "many", (2, 3, 70, (34,)), 37),
        ("float32", "many", (1, 1, 70, (9,)), 37),
        ("float64", "many", (3, 2, 9, (11,)), 20),
        ("bfloat16", "many", (4, 1, 30, (13,)), 150),
        ("float32", "skinny", (2, 4, 9, (40, 13)), 21),
        ("float64", "skinny", (2, 3, 33, (33,)), 5),
        ("float32", "skinny_half", (1, 1, 300, (70,)), 9),
    ],
)
def test_each_member_has_a_product_of_its_own(
    precision: str, kind: str, sizes: tuple[int, int, int, tuple[int, ...]], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = group_kernels.best

    def fewer(unit: Any, target: Any, record: Any = None) -> Any:
        template, knobs, _ = best(unit, target)
        changed = {"wide_blocks": 2, "mid": 600 * sizes[0] * (kind == "mid")}
        changed |= {"skinny_half": 8 * (kind == "skinny_half")}
        return template, {**knobs, **changed}, "forced"

    monkeypatch.setattr(group_kernels, "best", fewer)
    of_each_member(precision, kind, sizes, rows)


@pytest.mark.broad
@pytest.mark.parametrize(("kind", "rows"), [("least", 9), ("fewer", 33), ("few", 100)])
def test_tiles_without_wgmma(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for most rows are as broad as of wide layers."""
    best, broad = group_kernels.best, {"widest": 64, "few_columns": 64, "few_along": 2, "few_warps": 4}
    monkeypatch.setattr(
        group_kernels, "best", lambda *given: (found := best(*given))._replace(knobs={**found.knobs, **broad})
    )
    of_each_member("bfloat16", kind, (1, 4, 20, (72,)), rows, target="nvidia-a100", batches=(9, 33, 100))


@pytest.mark.parametrize(
    ("kind", "sizes", "rows"),
    [("few", (1, 20, (40,)), 9), ("share1", (4, 24, (78,)), 33), ("many", (1, 30, (13,)), 50)],
)
def test_rows_of_tf32_are_rounded_to_nearest(
    kind: str, sizes: tuple[int, int, tuple[int, ...]], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor cores drop 13 bits: of numbers just below the next one of tf32 that is 0.1 %, always towards 0."""

    def just_below(_: Any, *shape: int) -> np.ndarray:
        return np.full(shape, 1 + 0.95 * 2**-10)

    of_each_member("tf32", kind, (1, *sizes), rows, x=just_below, limit=2e-4)


def of_each_member(
    precision: str,
    kind: str,
    sizes: tuple[int, int, int, tuple[int, ...]],
    rows: int,
    *,
    x: Callable[..., np.ndarray] = arrays,
    limit: float = 2**-7,
    **options: Any,
) -> None:
    """What a kernel of members, gates, units and depths writes is x W + b of each member. limit: of the error beside
    the largest result, where products are not in float32."""
    members, gates, width, depths = sizes
    region = "step" if kind in ("least", "fewer", "few", "skinny", "skinny_half") else "before"
    found, rng = made(of_members(members, gates, width, depths, region), precision, **options), np.random.default_rng(0)
    variant = next(v for v in found.variants if v.kernel.name.endswith(f"_{kind}"))
    dtypes, kernel = dict(variant.kernel.pointers), variant.kernel
    given: dict[str, np.ndarray] = {}
    weights: list[np.ndarray] = []
    total, written = np.zeros((rows, members, gates, width)), []
    for argument in found.arguments:
        shape = argument.node.shape
        if argument.role == "weight":
            pack, weight = found.packs[argument.number], arrays(rng, *shape)
            weight = nearest_tf32(weight) if pack.tf32 else weight
            index, valid = pack.index(np.arange(pack.elements))
            value = np.where(valid, weight[tuple(np.where(valid, at, 0) for at in index)], 0)
            weights.append(weight.reshape(members, gates, width, -1))
        elif argument.role == "operand":
            value, own = x(rng, rows, *shape), weights[argument.number]
            vectors = value.reshape(rows, members, -1)[..., -own.shape[-1] :]
            total += np.einsum("mnk,ngwk->mngw", vectors, own)
        elif argument.role == "read":
            value = arrays(rng, *shape)
            total += value
        else:
            value = np.full((rows, members, width), np.nan)
            written.append(argument.name)
        given[argument.name] = encoded(value, dtypes[argument.name])
    run_emulated(kernel, given, {"rows": rows}, blocks_of(found.knobs, kind, sizes, rows))
    for gate, name in enumerate(written):
        expected = total[:, :, gate]
        most = {"float32": 1e-5, "float64": 1e-12}.get(precision, limit) * np.abs(expected).max()
        np.testing.assert_allclose(decoded(given[name], dtypes[name]), expected, rtol=0, atol=most)


def nearest_tf32(values: np.ndarray) -> np.ndarray:
    """As packing rounds weights."""
    words = values.astype(np.float32).view(np.uint32) + np.uint32(1 << 12)
    return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


TOLERANCE = {"bfloat16": 5e-3, "float16": 1e-3, "tf32": 1.5e-3, "float32": 1e-6, "float64": 1e-13}
DTYPES = {"tf32": "float32"}


def run(torch: Any, found: Gemm, precision: str, rows: int, offset: int) -> float:
    """The largest error of all variants, relative to the result's norm, on fresh random numbers."""
    import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": resolve("cuda").arch})
    root = found.arguments[0].node
    dtype = getattr(torch, DTYPES.get(precision, precision))
    (gates, width, depth), options = root.shape, {"dtype": torch.float64, "device": "cuda"}
    weight = (torch.randn(gates, width, depth, **options) / math.sqrt(depth)).to(dtype)
    at, valid = found.packs[0].index(np.arange(found.packs[0].elements))
    at = tuple(torch.as_tensor(np.where(valid, a, 0), device="cuda") for a in at)
    packed = torch.where(torch.as_tensor(valid, device="cuda"), weight[at], torch.zeros((), **options).to(dtype))
    x = torch.randn(offset + rows * depth, **options).to(dtype)[offset:]
    wide = torch.float64 if precision == "float64" else torch.float32
    bias = torch.randn(gates, width, **options).to(wide)
    expected = torch.einsum("mk,gnk->gmn", x.view(rows, depth).double(), weight.double()) + bias.double()[:, None]
    worst = 0.0
    for variant in found.variants:
        if offset and "uintptr_t" in variant.condition:
            continue  # nobody calls it so
        with target:
            module = tvm.IRModule({variant.kernel.name: variant.kernel.func})
            kernel = tvm.compile(module, target=target, tir_pipeline="tirx")[variant.kernel.name]
        for _ in range(20 if rows < 1000 else 2):
            outs = torch.full((gates, rows * width), math.nan, dtype=dtype, device="cuda")
            kernel(*(ctypes.c_void_p(own.data_ptr()) for own in (packed, x, bias, *outs)), rows)
            got = outs.view(gates, rows, width).double()
            worst = max(worst, float((got - expected).norm() / expected.norm()), key=lambda e: (e != e, e))
    return worst


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", list(TOLERANCE))
@pytest.mark.parametrize(
    ("gates", "width", "depth", "rows", "offset"),
    [(4, 40, 24, 300, 0), (3, 50, 33, 37, 0), (2, 96, 200, 129, 1), (4, 128, 136, 2000, 0)],
)
def test_products_on_a_gpu(precision: str, gates: int, width: int, depth: int, rows: int, offset: int) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    for region in ("before", "step"):
        found = made(hoisted(gates, width, [depth], region), precision, target="cuda", batches=(min(rows, 128),))
        assert run(torch, found, precision, rows, offset) < TOLERANCE[precision]
