"""Shared memory: a kernel asks for what its geometry says, whoever uses it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from persistent_layers import layout_of, step, text_of

from tests.cuda.persistent.product.test_wgmma_split_k_pipeline import pooled
from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Team
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled
from tvm_rnn.cuda.persistent.shared_memory_map import check


@pytest.mark.parametrize(
    ("geometry", "align"),
    [(cluster(4, 8), 128), (grid(4, 8, warps_k=2), 128), (grid(4, 8, warps_u=2, warps_k=4, ring=2), 1024)],
)
def test_a_kernel_allocates_what_its_team_needs(geometry: dict[str, Any], align: int) -> None:
    team, layout = Team(step("lstm", 64), "bfloat16", **geometry), layout_of("lstm", 64)
    kernel = persistent.kernel("k", team, layout)
    assert kernel.shared_bytes == team.shared_bytes
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", text_of(kernel)) == [str(align)]


@pytest.mark.parametrize("apart", [0, 1])
def test_a_cluster_that_shares_k_allocates_what_it_needs(apart: int) -> None:
    team = Pooled(step("lstm", 64), "bfloat16", **pooled(8, 32, apart=apart))
    code = text_of(persistent.kernel("k", team, layout_of("lstm", 64)))
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", code) == ["1024"]


@pytest.mark.parametrize(
    ("team", "why"),
    [
        (Team(step("lstm_layer_norm", 64), "bfloat16", **grid(4, 8, polled=1)), "polled team"),
        (Team(step("lstm", 64), "bfloat16", **grid(4, 8, ring=2)), "a ring has two stages"),
        (Pooled(step("lstm", 64), "bfloat16", **pooled(9, 32)), "clusters share K"),
    ],
)
def test_teams_without_a_kernel_are_refused(team: Team, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check(team)
