"""Kernels of states that are matrices with a nonlinearity around them: all steps in one launch, a block for each head.

In: a layer's layout, forward or backward. Out: `OnChip` (`on_chip.py`), a Regime. `element_index.py` has indices of a
lane's elements, `matrix_axes.py` says which axis of each value runs along the rows of the states and which along their
columns, `phases.py` in which order a step computes what, `matrix_tile.py` which elements a lane has, `lane_values.py`
computes values at these, `matrix_step.py` is what a step reads and leaves, `products.py` has its products, `block.py`
what lies where on the chip, `whole_matrices.py` what a tape has of every step, `parameter_gradients.py` and
`gradient_warps.py` what is accumulated beside the steps, `streams.py` is the warp that loads and
stores, `kernel.py` puts all into a kernel.
"""
