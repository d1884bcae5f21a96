"""charts: Vega-Lite specifications, and the SVG that they become."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tvm_rnn.explain.html import charts
from tvm_rnn.vega_lite import svg

KERNELS = [{"name": "R @ h", "flops": 1e6, "bytes": 1e5}, {"name": "W @ x", "flops": 1e9, "bytes": 1e6}]


@pytest.mark.parametrize(
    ("order", "last"),
    [("wave", 3 + 4 - 2), ("time-major", 3 * 4 - 1), ("layer-major", 3 * 4 - 1)],
)
def test_turns(order: str, last: int) -> None:
    found = charts.turns(3, 4, order)
    assert len(found) == 12 and found[-1]["turn"] == last
    at = {(row["layer"], row["tile"]): row["turn"] for row in found}
    for layer, tile in at:  # a tile begins when the layer below has it, and after the tile before
        assert layer == 0 or at[layer, tile] > at[layer - 1, tile]
        assert tile == 0 or at[layer, tile] > at[layer, tile - 1]


def test_no_kernel_is_above_the_roof() -> None:
    spec = charts.roofline([*KERNELS, KERNELS[0]], {"memory_tb_s": 2.0, "tflops": 100.0}, 5.0)
    points = {p["name"]: p for p in spec["layer"][1]["data"]["values"]}
    assert points["R @ h"]["tflops"] == pytest.approx(20.0) and points["W @ x"]["tflops"] == 100.0
    assert points["all of it"]["tflops"] == 5.0 and len(points) == 3


@pytest.mark.parametrize(
    "spec",
    [
        charts.roofline(KERNELS, {"memory_tb_s": 2.0, "tflops": 100.0}, 5.0),
        charts.wavefront(charts.turns(2, 3, "wave"), "step"),
        charts.ablation([{"without": "nothing", "us": 1.0}, {"without": "hoist_gemms", "us": 2.0}]),
    ],
)
def test_charts_become_svg(spec: dict[str, object]) -> None:
    pytest.importorskip("vl_convert")
    found = ElementTree.fromstring(svg(spec, "a title"))
    assert found.attrib["role"] == "img" and len(list(found.iter("{http://www.w3.org/2000/svg}path"))) > 3
