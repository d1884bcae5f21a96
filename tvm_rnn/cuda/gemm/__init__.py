"""Products with parameters over many rows: one kernel per group of work, the pointwise work fused in.

In: a gemm group and a configuration. Out: kernels. `group_kernels.py` chooses; `problem.py` and `operands.py` say what
is multiplied; `cp_async_pipeline.py` brings operands to shared memory; `mma_product.py` and `wgmma_product.py` multiply
a stage; `mma_sync.py`, `wgmma.py`, `wgmma_split_k.py`, `ffma.py` and `ffma_split_k.py` are the kernels; `epilogue.py`
works on the accumulators.
"""
