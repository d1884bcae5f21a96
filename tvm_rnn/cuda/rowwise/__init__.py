"""Kernels without large products: one row, or one unit, at a time.

In: groups of pointwise work and reductions. Out: kernels. `step_memory.py` says what launches of a step work on;
`chained_groups.py` runs several groups in one launch, `scan_over_time.py` all steps of cells without products,
`state_moves.py` copies states in and out, `dropout_masks.py` and `weight_drop.py` make masks.
"""
