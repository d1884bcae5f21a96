"""How near a time is to what the device does at best: the time that moving bytes and arithmetic take at least.

In: a record of a benchmark and the device's measured ceilings (`gpu_graphs.py`, `cpu_peaks.py`). Out: shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _sheet(memory: float, half: float, tf32: float, single: float, double: float) -> Mapping[str, float]:
    rates = {"bfloat16": half, "float16": half, "tf32": tf32, "float32": single, "float64": double}
    return {"memory_tb_s": memory, **{f"{name}_tflops": rate for name, rate in rates.items()}}


def floor_us(facts: Mapping[str, Any], found: Mapping[str, float]) -> dict[str, float]:
    """Microseconds that a whole sequence takes at least, by the measured ceilings, for each of two reasons.

    facts: flops (of the sequence), bytes (inputs, outputs and weights, each moved once), precision.
    """
    rate = found.get(f"{facts['precision']}_tflops", 0.0)
    floors = {"memory": facts["bytes"] / found["memory_tb_s"] * 1e-6}
    if rate and facts.get("flops"):
        floors["arithmetic"] = facts["flops"] / rate * 1e-6
    return floors


def shares(facts: Mapping[str, Any], found: Mapping[str, float]) -> dict[str, float]:
    """How near a time is to what the device does at best: byte_share, flop_share, and share, the larger of the two.

    facts: as for floor_us, and us (of the sequence). Nothing where there is no time, or no ceilings to compare with.
    """
    if not facts.get("us") or "memory_tb_s" not in found:
        return {}
    names = {"memory": "byte_share", "arithmetic": "flop_share"}
    parts = {names[kind]: floor / facts["us"] for kind, floor in floor_us(facts, found).items()}
    return {**parts, "share": max(parts.values())}


# What NVIDIA's data sheets say of a GPU at best: memory in TB/s; TFLOP/s of dense products, on tensor cores but for
# float32 and float64, which are FMA's. GeForce: 16 bits with float32 sums; a published 838 of the RTX 5090 is four
# times as much, with sparsity and sums in 16 bits. B200: as part of HGX, at 1000 W. The rows of cards that were not at
# hand were compared with public pages, not measured. A measured ceiling, as a benchmark's records have them, is nearer
# to the truth.
DATA_SHEETS: Mapping[str, Mapping[str, float]] = {
    "nvidia-h200": _sheet(4.8, 989.4, 494.7, 66.9, 33.5),
    "nvidia-h100": _sheet(3.35, 989.4, 494.7, 66.9, 33.5),
    "nvidia-h100-pcie": _sheet(2.0, 756.0, 378.0, 51.2, 25.6),
    "nvidia-a100": _sheet(2.04, 312.0, 156.0, 19.5, 9.7),
    "nvidia-l40s": _sheet(0.864, 362.0, 183.0, 91.6, 1.4),
    "nvidia-l4": _sheet(0.3, 121.0, 60.0, 30.3, 0.47),
    "nvidia-rtx-3090": _sheet(0.936, 71.0, 35.6, 35.6, 0.56),
    "nvidia-rtx-4090": _sheet(1.008, 165.2, 82.6, 82.6, 1.3),
    "nvidia-rtx-5090": _sheet(1.792, 209.5, 104.8, 104.8, 1.6),
    "nvidia-b200": _sheet(8.0, 2250.0, 1125.0, 75.0, 37.0),
}
