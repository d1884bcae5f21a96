"""wave_kernel: one kernel for all layers, in which blocks take their layer's pointers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from compiled_kernels import text_of
from persistent_layers import geometry_of, layout_of

from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent.kernel import pointers
from tvm_rnn.cuda.persistent.wave_kernel import Member, wave_kernel

GRID: dict[str, Any] = {"ctas": 2, "rows": 8, "register_words": 64}


def member(inputs: int, **geometry: Any) -> Member:
    layout = layout_of("lstm", 32, inputs=inputs)
    return Member(geometry_of(step_of(layout), "bfloat16", **{**GRID, **geometry}), layout)


def products(kernel: Kernel) -> int:
    return text_of(kernel).split('extern "C"')[-1].count("mma_sync")


def test_every_layer_has_its_pointers() -> None:
    first, second = member(16), member(32)
    kernel = wave_kernel("k", [first, second], [0, 1, 1])
    own = [name for n, m in enumerate((first, second, second)) for name, _ in pointers(m.geometry, m.layout)]
    assert [name.rpartition("_of_")[0] for name, _ in kernel.pointers] == own
    assert kernel.resident and kernel.shares and "follows" not in dict(kernel.scalars)
    assert kernel.shared_bytes == max(m.geometry.shared_bytes for m in (first, second))


@pytest.mark.broad
def test_layers_of_one_graph_share_code() -> None:
    one = wave_kernel("k", [member(32)], [0, 0])
    assert products(one) == products(wave_kernel("k", [member(32)], [0] * 5)) > 0
    assert products(wave_kernel("k", [member(16), member(32)], [0, 1, 1])) > products(one)


@pytest.mark.broad
def test_a_cluster_is_of_one_layer_and_launched_whole() -> None:
    kernel = wave_kernel("k", [member(32, exchange="cluster")], [0, 0, 0], {})
    assert kernel.cluster == 2 and kernel.resident
    text = text_of(kernel).split('extern "C"')[-1]
    assert re.search(r"clusterid_x\(\) % 3", text) or "% 3" in text
    assert {"has_lengths", "has_reset"} <= dict(kernel.scalars).keys()
