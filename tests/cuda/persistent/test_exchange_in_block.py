"""exchange_in_block: which geometries have it, what it keeps in shared memory, and where its barriers are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from persistent_layers import geometry_of, layout_of, step, unit_of

from tvm_rnn.cuda.model.choose_geometry import geometry_of as chosen
from tvm_rnn.cuda.model.persistent_step_time import exchange_us
from tvm_rnn.cuda.persistent.exchange import CLUSTER, CLUSTER_ALONE
from tvm_rnn.cuda.persistent.exchange_in_block import BLOCK
from tvm_rnn.cuda.persistent.kernel import kernel
from tvm_rnn.schedule.schedule_template import templates

SHAPE = {"rows": 8, "warps_u": 2, "register_words": 160}


def kernel_text(cell: str, **knobs: int) -> str:
    geometry = geometry_of(step(cell, 32), "bfloat16", "block", **SHAPE, **knobs)
    return kernel("k", geometry, layout_of(cell, 32)).func.script()


def test_one_block_alone_exchanges_values_without_messages() -> None:
    unit, knobs = unit_of("lstm", 32, "bfloat16", 8), {"ctas": 1, "warps_n": 1, "warps_k": 1, **SHAPE}
    of = templates()["persistent_cluster_cuda"]
    assert chosen(of, unit, knobs).exchange is BLOCK
    assert chosen(of, unit, {**knobs, "ctas": 2}).exchange is CLUSTER_ALONE
    assert chosen(of, replace(unit, layers=2), knobs).exchange is CLUSTER  # a wave's rows come through memory


def test_it_stages_nothing_and_waits_less() -> None:
    own, other = (geometry_of(step("lstm", 32), "bfloat16", how, **SHAPE) for how in ("block", "cluster"))
    assert own.stage_words == 0 < other.stage_words
    assert exchange_us(own) < exchange_us(other)


@pytest.mark.parametrize(("cell", "each"), [("lstm", 1), ("gru_reset_before", 2)])
def test_a_barrier_for_each_value_that_products_wait_for(cell: str, each: int) -> None:
    """Of two steps, and two before them: behind zeros, and behind the first state. At the first of each step, and once
    before all, the warps that copy are there too."""
    text, of_block = kernel_text(cell), 1 + 2
    assert text.count("ptx.bar(") == 2 * each + 2 + 1 - of_block
    assert text.count("cta_sync") == of_block + 2  # of the warps that copy: before all, and in the loop


def test_a_warp_alone_needs_no_barrier_of_the_block() -> None:
    geometry = geometry_of(step("lstm", 8), "bfloat16", "block", rows=8, register_words=160)
    text = kernel("k", geometry, layout_of("lstm", 8)).func.script()
    assert geometry.warps == geometry.copy_warps == 1 and "warp_sync" in text
    assert "ptx.bar(" not in text  # all meet where the warp that copies does, no more


@pytest.mark.parametrize(("units", "dearer"), [(128, True), (64, False)])
def test_what_training_keeps_costs_a_block_of_many_cells(units: int, dearer: bool) -> None:
    plain = step("gru", units)
    phase = plain.phases[-1]
    kept = replace(plain.graph, emitted=tuple(node for node in phase.nodes if node.shape == (units,))[:2])
    alone, trained = (
        geometry_of(own, "bfloat16", "block", rows=8, warps_u=8, register_words=160)
        for own in (plain, replace(plain, graph=kept))
    )
    own, more = (geometry.exchange.phase_us(geometry, phase, 4) for geometry in (alone, trained))
    assert (more > own) == dearer and more >= own > 0
