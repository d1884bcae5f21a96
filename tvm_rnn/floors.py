"""How near a time is to what the device does at best: the time that moving bytes and arithmetic take at least.

In: a record of a benchmark and the device's measured ceilings (`gpu_timing.py`, `cpu_peaks.py`). Out: shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
