"""Code for CPUs: loops of TIR around tiles that tensor expressions describe and schedules tile.

In: graphs after the passes. Out: an IRModule for LLVM. Order of data: `lower_network.py` loops over layers and time,
`lower_layer.py` one layer, `lower_group.py` a group of work and its panels of weights, `register_tile.py` and
`register_tile_reductions.py` the tile that a template schedules; `int8_products.py` and `dropout_masks.py` are loops of
their own, as are recurrences over all of a tile's steps: `walk_through_time.py`, `recurrence.py` of vectors,
`matrix_recurrence.py`, for which `matrix_update.py` says what a step does, `matrix_part.py` what a thread works on,
`matrix_chunk.py` and `matrix_rows.py` how. `weight_packing.py`, `weight_storage.py` and `workspace.py` say where data
lies; `tir_pipeline.py` runs last; `c_compiler.py` compiles C (c/: the thread pool).
"""
