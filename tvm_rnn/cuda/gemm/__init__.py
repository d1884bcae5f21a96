"""Products with parameters over many rows: one kernel per group of work, the pointwise work fused in.

In: a gemm group, of one product or of one for each member, and a configuration. Out: kernels. `group_kernels.py`
chooses; `problem.py` and `operands.py` (`around.py`: of convolutions) say what is multiplied, and work on the
accumulators, whose results `later_stores.py` keeps until the next product is under way; `cp_async_pipeline.py` brings
operands to shared memory; `mma_sync.py`, `wgmma.py`, `wgmma_split_k.py` and `ffma.py` multiply.
"""
