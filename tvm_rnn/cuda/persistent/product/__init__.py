"""Kinds of products in persistent kernels: for each its geometry and layout, how it multiplies, and its pipeline.

In: operands in shared memory or L2, packed weights. Out: gates in registers. `mma_sync.py`: fragments that lanes load,
of weights in 8 bits by `coded_weights.py`, of few batch rows by `few_rows.py`, of one without tensor cores by
`row_by_lanes.py`; `ffma.py`: strict float32; by wgmma (`wgmma_tiles.py`): `wgmma_staged.py`, operands staged once for
all warps (`operands_staged.py`); `wgmma_pipelined.py`, a pipeline of bulk copies (`bulk_copy_pipeline.py`);
`wgmma_split_k.py`, blocks of a cluster share K. A kind of your own is a file in a folder of TVM_RNN_SCHEDULES.
"""
