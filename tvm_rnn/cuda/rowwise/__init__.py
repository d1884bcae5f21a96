"""Kernels without large products: one row, or one unit, at a time.

In: groups of pointwise work and reductions. Out: kernels. `chained_groups.py` runs several groups in one launch,
by parts of rows that read nothing of one another (`parts_of_rows.py`), in registers where a warp holds a part
(`warp_rows.py`), which moves elements that lie `side_by_side.py` as words; `scan_over_time.py` all steps of cells
without products. `state_moves.py` says what launches of a step work on, and copies states in and out; `row_copies.py`
copies rows to where tensor cores can take them; `set_words.py` clears and marks memory before a persistent kernel;
`live_rows.py` lists the rows that have not ended, which products work on alone;
`dropout_masks.py` makes masks of rows and of weights.
"""
