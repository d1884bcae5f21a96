"""Shared memory: a kernel asks for what its geometry says, whoever uses it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from persistent_layers import layout_of, step, text_of
from test_persistent import cluster, grid

from tvm_rnn.cuda import persistent
from tvm_rnn.cuda.team import Team


@pytest.mark.parametrize(
    ("geometry", "align"),
    [(cluster(4, 8), 128), (grid(4, 8, warps_k=2), 128), (grid(4, 8, warps_u=2, warps_k=4, ring=2), 1024)],
)
def test_a_kernel_allocates_what_its_team_needs(geometry: dict[str, Any], align: int) -> None:
    team, layout = Team(step("lstm", 64), "bfloat16", **geometry), layout_of("lstm", 64)
    kernel = persistent.kernel("k", team, layout)
    assert kernel.shared_bytes == team.shared_bytes
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", text_of(kernel)) == [str(align)]
