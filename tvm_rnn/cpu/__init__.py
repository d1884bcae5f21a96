"""Code for CPUs: loops of TIR around tiles that tensor expressions describe and schedules tile.

In: graphs after the passes. Out: an IRModule for LLVM. Order of data: `lower_network.py` loops over layers and time,
`lower_layer.py` one layer, `lower_group.py` a group of work and its panels of weights, `register_tile.py` and
`register_tile_reductions.py` the tile that a template schedules; `lower_generation.py` feeds outputs back;
`int8_products.py` and `dropout_masks.py` are loops of their own, as are `convolution.py` with `zero_padding.py`, and
recurrences over all of a tile's steps: `walk_through_time.py`, `recurrence.py` of vectors, `matrix_recurrence.py`.
`weight_packing.py`, `weight_storage.py` and `workspace.py` say where data lies; `tir_pipeline.py` runs last;
`c_compiler.py` compiles C (c/: the thread pool).
"""
