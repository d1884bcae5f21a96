"""How long the product of a cluster that shares K takes: for `persistent_step_time.py`, which adds exchanges and cells.

In: a `Pooled` team and a phase. Out: microseconds. Copies and products go on side by side, and each hides the other in
part; what does not stay in L2 from step to step comes from memory.

Measured on an H200 (driver 580, CUDA 13.0), without the hoisted product, us per step, and as this predicts; MB that all
blocks read per step:

    LSTM 2560 bf16   B = 64 11.4 (54 MB; 10.0 with half of the products, 9.5 with next to no bytes), B = 16 8.25 (40 MB)
    GRU 2816 bf16    B = 32 7.1 (30 MB)
    LSTM 2048        bf16 B = 128 10.4 (43 MB), B = 64 5.8 (17 MB); tf32 B = 64 12.5 (70 MB)
    GRU 2048 bf16    B = 128 9.0 (34 MB)
    LSTM 3072 bf16   B = 64 17.6 (79 MB, 53 of them weights); 15.8 (72, 47) where sums take the ring's place
    GRU 2560 bf16    B = 64 10.4

In CUDA graphs at T = 128, after loads of what cells read had moved behind the product: LSTM 2048 bf16 B = 64 6.5, LSTM
1024 tf32 B = 64 4.4, B = 128 6.4, LSTM 2560 bf16 B = 64 12.0, GRU 2816 bf16 B = 32 7.4.
"""

from __future__ import annotations

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import Pooled, chunks, sum_bytes

CHUNK_US = 0.04  # from a chunk to the next
# Cycles of a product of 64 gates: of 8 rows, where its weights are in registers; where they are in shared memory.
REGISTER_CYCLES, SHARED_CYCLES, SHARED_LEAST = 4.0, 4.8, 16.0
MULTIPROCESSORS = 132
L2_BYTES, MEMORY_BYTES = 7.7e6, 4.2e6  # that all multiprocessors together read in a microsecond
L2_HELD = 32e6  # weights that stay in L2
SHOWN = 0.3  # of the shorter of copies and products
MEET_US = 0.5  # of a cluster's blocks, before sums take the ring's place
SUM_BYTES = 50.0  # per cycle, given and taken
LATE_US = 0.8  # what cells read, waited for


def pooled_product(team: Pooled, phase: Phase, clock_mhz: float) -> float:
    """Microseconds of one phase's product, at that clock."""
    cycles = copied = weights = 0.0
    blocks = team.ctas * max(1, MULTIPROCESSORS // team.ctas)  # other teams read at the same time
    for share in team.shares[phase]:
        instructions = 2 * team.warpgroups * team.group_tiles(phase)
        near = REGISTER_CYCLES * team.rows / 8
        far = SHARED_LEAST + SHARED_CYCLES * team.rows / 8
        cycles += instructions * (near * share.registers + far * (share.kblocks - share.registers))
        copied += blocks * share.kblocks * team.operand_bytes
        weights += blocks * share.streamed * team.far_bytes(phase)
    copies = (copied + weights) / L2_BYTES + max(0.0, weights - L2_HELD) * (1 / MEMORY_BYTES - 1 / L2_BYTES)
    products = cycles / clock_mhz
    us = max(copies, products) + SHOWN * min(copies, products)
    us += 0.0 if team.apart else MEET_US
    us += LATE_US
    return us + CHUNK_US * len(chunks(team)[phase]) + sum_bytes(team, phase) / SUM_BYTES / clock_mhz
