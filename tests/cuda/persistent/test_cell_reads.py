"""What cells read from memory: which values, how early, and never outside of the arrays."""

from __future__ import annotations

import re

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of
from training_plans import trained

from tests.cuda.persistent.test_kernel import cluster
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.cell_reads import hoisted, params, place_of
from tvm_rnn.oracle.tolerance import tolerance


def test_every_value_has_one_pointer() -> None:
    layout, team = layout_of("lstm_peephole", 64), geometry_of(step("lstm_peephole", 64), "bfloat16", **cluster(4, 8))
    assert len(params(team)) == len(set(params(team))) >= 1
    assert all(place_of(layout, node).row_stride >= node.shape[-1] for node in hoisted(team))
    names = [name for name, _ in persistent.kernel("k", team, layout).pointers]
    assert [n for n in names if n.startswith("read_")] == [f"read_{i}" for i in range(len(hoisted(team)))]


def test_values_are_asked_for_before_the_loop() -> None:
    layout, team = layout_of("lstm", 64), geometry_of(step("lstm", 64), "bfloat16", **cluster(4, 8))
    text = text_of(persistent.kernel("k", team, layout))
    assert "if (0 < steps)" in text and "if (1 < steps)" in text
    assert text.index("if (1 < steps)") < text.index("for (int v_9" if "for (int v_9" in text else "mma_sync")


@pytest.mark.broad
def test_units_and_rows_past_the_end() -> None:
    """13 units over 2 blocks of 8, 3 rows of 8: arrays end where the layer does, and their padding is poison."""
    case = Case("lstm_peephole", 13, 3, 3, "tf32")
    assert persistent_error(case, cluster(2, 8, warps_k=2)) < tolerance("tf32", 3)


def test_a_pipeline_asks_for_a_steps_own_values_between_products() -> None:
    geometry = {"exchange": "grid", "ctas": 4, "rows": 8, "warps_u": 2, "warps_k": 4, "ring": 2}
    text = text_of(persistent.kernel("k", geometry_of(step("lstm", 64), "bfloat16", **geometry), layout_of("lstm", 64)))
    body = text[text.index("for (int") :]
    assert "if (0 < steps)" not in text and "prefetch_global_L2" in body
    assert body.index("wgmma") < body.index("prefetch_global_L2")


def test_the_values_of_a_later_step_are_asked_for_as_soon_as_a_phase_has_read_its_own() -> None:
    """Not at the step's end: what is loaded then, the next step would wait for as it begins."""
    (back,) = trained("lstm", 64, "bfloat16")[1].backward.backs
    text = text_of(back.layer.regimes[0].kernels[0])
    asked = [text.index(f"* 2) + {ahead}) < steps") for ahead in (2, 3)]
    products = [m.start() for m in re.finditer("mma_sync", text[text.index("st_async") :])]
    products = [at + text.index("st_async") for at in products]
    middle = text.index("* 2) + 1) < steps")
    assert asked[0] < min(products) < middle < asked[1] < max(products)
