"""Code for CPUs: loops of TIR around tiles of registers.

In: graphs after the passes. Out: an IRModule for LLVM. Order of data: `lower_network.py` loops over layers and time,
`lower_layer.py` one layer, `lower_group.py` a group of work and its panels of weights, `head_loops.py` groups that
share a loop over heads, `reduction_tiles.py` products of heads and matrices, with loops of `row_loops.py`;
`register_tile.py` and `register_tile_reductions.py` the tile, of arrays that are loops or a template's schedule in
`register_tile_stages.py`; `shared_groups.py` finds groups that are alike; `lower_generation.py` feeds outputs back,
`lower_direct.py` is one row's step. Loops of their own: `int8_products.py` with the instructions of `dot_product.py`
(`pair_product.py`: of 16 bits, `saturating_pairs.py`: of two bytes in 16 bits), `dropout_masks.py`, `convolution.py`
with `zero_padding.py`; `second_thread.py` says how many threads are worth it. Recurrences over all of a tile's steps:
`walk_through_time.py`, `recurrence.py` of vectors, `matrix_recurrence.py` (`matrix_update.py` a step, `matrix_part.py`
what a thread works on, `matrix_chunk.py`, `matrix_rows.py` how; `matrix_again.py` in backward). What has a row for each
step is shared in `row_stages.py`, with vectors of `numbers_of_rows.py`. `weight_packing.py`, `workspace.py` and
`weight_storage.py`: where data lies. `tir_pipeline.py` runs last, and in it `cut_functions.py` and
`argument_checks.py`; `c_compiler.py` compiles C (c/: thread pool).
"""
