"""How long a persistent kernel takes before its first step, and for how many steps it is worth that.

In: a geometry, a GPU, a batch size, the time of a step both ways. Out: microseconds; the fewest steps of a call for
which one launch that keeps weights on the chip is quicker than one launch per group and step, which reads them anew in
every step and needs no start.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.persistent.geometry import Geometry

from .persistent_step_time import StepTime

# Measured on an H200 as what a launch of one step takes beyond a step: LSTM 2048 bf16 14 us (254 KB a block), LSTM 1312
# tf32 14 (208), LSTM 502 bf16 7.6 (126), GRU 1024 fp16 3 (47), LSTM 128 bf16 2.9.
START_US = 2.5
CLEAR_US = 1.5  # a launch before it that clears counters, where blocks exchange through memory
KB_PER_US = 23.0  # of weights that a block brings on its multiprocessor
MOST = 32  # steps: where the model says that neither way is much quicker, the persistent kernel runs from here on


def weight_kb(geometry: Geometry) -> float:
    """Of weights that a block keeps, in registers and shared memory."""
    size = 1 if geometry.stored else ITEM_BYTES[geometry.storage]
    return sum(geometry.weight_elements(*own) for own in geometry.weights) * size / geometry.ctas / 1024


def start_us(time: StepTime, batch: int) -> float:
    """Microseconds before the first step of B = batch rows: in every round weights are brought on the chip."""
    rounds = ceil(batch / max(1, time.at_once))
    clear = CLEAR_US if time.geometry.exchange.in_memory else 0.0
    return clear + rounds * (START_US + weight_kb(time.geometry) / KB_PER_US)


def least_steps(
    time: StepTime, batch: int, steps: Callable[[int], float], hidden: float = 0.0, copies: float = 0.0
) -> int:
    """The smallest T for which the persistent kernel is quicker. steps: microseconds of a step of so many rows, as one
    launch per group; hidden: of the first one, by what runs beside it; copies: of states, which steps alone need."""
    gain, lead = steps(batch) - time.us(batch), start_us(time, batch) + hidden - copies
    return MOST if gain * MOST <= lead else max(1, ceil(lead / gain))
