"""Kinds of products in persistent kernels: for each how it multiplies, its layout, and its pipeline.

In: operands in shared memory or L2, packed weights. Out: gates in registers. `mma_sync*.py`: fragments that lanes load;
`wgmma_staged*.py`: operands staged once for all warps; `wgmma_pipelined*.py`: a pipeline of bulk copies;
`wgmma_split_k*.py`: blocks of a cluster share K; `ffma*.py`: strict float32.
"""
