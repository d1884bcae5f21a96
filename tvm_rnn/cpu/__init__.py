"""Code for CPUs: loops of TIR around tiles that tensor expressions describe and schedules tile.

In: graphs after the passes. Out: an IRModule for LLVM. Order of data: `lower_network.py` loops over layers and time,
`lower_layer.py` one layer, `lower_group.py` a group of work, `panel_loops.py` panels of weights, `register_tile.py` the
tile that a template schedules. `weight_packing.py`, `weight_storage.py`, `workspace.py` say where data lies;
`tir_pipeline.py` and `verify_time_order.py` run last, `c_compiler.py` links. c/: the thread pool, in C.
"""
