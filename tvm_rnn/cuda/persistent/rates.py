"""Speeds of one multiprocessor, and what was fitted for a kind of exchange or product: numbers of the model of time.

In: nothing. Out: constants and `Rates`. What only one kind of product needs stands in that kind's own files. Measured
on an H200 (driver 580, CUDA 13.0): floors of exchanges and barriers, and kernels of this package.
"""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_MHZ = 1900.0
SHARED_BYTES_PER_CYCLE = 128.0


@dataclass(frozen=True)
class Rates:
    """exchange: of a phase, us; per_cta: more for each block of a cluster. latency: of one MMA after the other, cycles.
    shared: part of shared memory's traffic that MMA does not hide. cell: of a product's phase, us; each: for 10 values
    of a lane."""

    exchange: float
    per_cta: float
    latency: float
    shared: float
    cell: float
    each: float
