"""Persistent kernels, run on the CPU: every kind of exchange, phases, shares of a block, and both directions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.oracle.tolerance import tolerance


def cluster(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    return {"exchange": "cluster", "ctas": ctas, "rows": rows, "shared_words": 1 << 20, **knobs}


def grid(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    return {"exchange": "grid", "ctas": ctas, "rows": rows, **knobs}


def check(name: str, hidden: int, batch: int, precision: str, geometry: dict[str, Any], **how: Any) -> None:
    seed = how.pop("seed", 0)
    modes = how.pop("modes", [(False, False, False)])
    for reverse, lengths, reset in modes:
        case = Case(name, hidden, batch, how.get("steps", 4), precision)
        found = persistent_error(case, geometry, reverse, lengths, reset, seed)
        assert found < tolerance(precision, 4), (found, reverse, lengths, reset)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("geometry", [cluster(2, 8), grid(2, 8, warps_k=2)], ids=["cluster", "grid"])
def test_a_step_after_the_other(geometry: dict[str, Any]) -> None:
    check("lstm", 32, 9, "bfloat16", geometry, modes=[(False, False, False), (True, False, False)])


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    check("gru_reset_before", 20, 3, "bfloat16", cluster(2, 8, warps_k=2), seed=seed)
    check("gru_reset_before", 20, 3, "bfloat16", grid(2, 8, warps_k=2), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision", "geometry"),
    [
        ("gru_reset_before", 33, 20, "tf32", cluster(4, 16, warps_u=2, warps_k=2)),
        ("lstm_projection", 32, 9, "float16", grid(4, 16, warps_k=2)),
        ("slstm", 20, 9, "bfloat16", grid(3, 8, warps_k=2)),
        ("gru", 24, 10, "bfloat16", grid(2, 16, warps_n=2, warps_k=2)),
        ("lstm_fgr", 20, 9, "bfloat16", cluster(2, 8, warps_k=2)),
        ("lstm", 32, 20, "bfloat16", cluster(2, 16, warps_u=2, warps_k=4)),
        ("lem", 24, 9, "bfloat16", cluster(2, 8)),
        ("multiplicative_lstm", 24, 9, "float16", cluster(1, 8)),
    ],
)
def test_cells_and_geometries(name: str, hidden: int, batch: int, precision: str, geometry: dict[str, Any]) -> None:
    check(name, hidden, batch, precision, geometry)


def test_ptxas_may_use_all_registers() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **cluster(4, 8))
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", 64)))
    assert f"__launch_bounds__({geometry.threads}, 1)" in text


def test_pointers_and_scalars() -> None:
    layout, geometry = layout_of("lstm", 64), geometry_of(step("lstm", 64), "bfloat16", **grid(4, 8))
    plain, masked = persistent.kernel("k", geometry, layout), persistent.kernel("k", geometry, layout, {})
    assert masked.pointers == (*plain.pointers, *MASK_POINTERS) and masked.scalars == (*plain.scalars, *MASK_SCALARS)
    assert plain.resident and plain.cluster == 1
    assert [name for name, _ in plain.pointers][-3:] == ["exchange", "counter", "below"]
    clustered = persistent.kernel("k", geometry_of(step("lstm", 64), "bfloat16", **cluster(4, 8)), layout)
    assert clustered.cluster == 4 and not clustered.resident and clustered.shared_bytes < 227 * 1024


@pytest.mark.parametrize(
    ("geometry", "align"),
    [(cluster(4, 8), 128), (grid(4, 8, warps_k=2), 128), (grid(4, 8, warps_u=2, warps_k=4, ring=2), 1024)],
)
def test_a_kernel_allocates_what_its_team_needs(geometry: dict[str, Any], align: int) -> None:
    geometry, layout = geometry_of(step("lstm", 64), "bfloat16", **geometry), layout_of("lstm", 64)
    kernel = persistent.kernel("k", geometry, layout)
    assert kernel.shared_bytes == geometry.shared_bytes
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", text_of(kernel)) == [str(align)]


@pytest.mark.parametrize(
    ("geometry", "why"),
    [
        (geometry_of(step("lstm_layer_norm", 64), "bfloat16", **grid(4, 8, polled=1)), "products alone"),
        (geometry_of(step("lstm", 64), "bfloat16", **grid(4, 8, ring=2)), "a pipeline has two stages"),
    ],
)
def test_geometries_without_a_kernel_are_refused(geometry: Geometry, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        persistent.kernel("k", geometry, layout_of("lstm", 64))


@pytest.mark.parametrize(
    ("name", "precision", "geometry"),
    [
        ("lstm", "float16", cluster(2, 8)),
        pytest.param("gru_reset_before", "bfloat16", cluster(2, 8, warps_k=2), marks=pytest.mark.broad),
        pytest.param("lstm", "bfloat16", cluster(1, 8, warps_k=2), marks=pytest.mark.slow),
    ],
)
def test_states_in_the_dtype_of_the_network(name: str, precision: str, geometry: dict[str, Any]) -> None:
    case = Case(name, 20, 9, 4, precision)
    for masked in (False, True):
        error = persistent_error(case, geometry, lengths=masked, reset=masked, users=True)
        assert error < tolerance(precision, 4), masked


def test_who_needs_to_say_what_dtype_states_have() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **cluster(4, 8))
    assert persistent.USERS in persistent.kernel("k", geometry, layout_of("lstm", 64)).scalars
    geometry = geometry_of(step("lstm", 64), "bfloat16", **grid(4, 8))
    assert persistent.USERS not in persistent.kernel("k", geometry, layout_of("lstm", 64)).scalars
    geometry = geometry_of(step("lstm", 64, "tf32"), "tf32", **cluster(4, 8))
    assert persistent.USERS not in persistent.kernel("k", geometry, layout_of("lstm", 64, "tf32")).scalars
