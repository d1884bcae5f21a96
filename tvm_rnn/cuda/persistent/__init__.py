"""Persistent kernels: all steps of a layer, or of all layers, in one launch, weights kept on the chip.

In: a geometry. Out: one kernel (`kernel.py`), or one of all layers (`wave_kernel.py`). In the order of a step:
`geometry.py` says what a kind of kernel answers (`rates.py`: how fast a multiprocessor is); `layer_input_rows.py`
brings inputs; product/ multiplies; `cell_reads.py` and `cell_epilogue.py` compute cells (`lane_cells.py`: which thread
has which) and leave what training reads, `tape_lines.py` in whole lines; `unit_reduction.py` sums over units;
`exchange.py`, `exchange_by_polling.py` and, of few batch rows, `exchange_of_rows.py` publish values to the other
blocks, `exchange_in_block.py` to the warps of one; `copy_warps.py` copies hoisted values and y meanwhile, and rows of
inputs (`input_row_copies.py`), whose products it has made a step ahead; `lengths_and_resets.py` masks rows.
`phase_clocks.py` counts the cycles of each part of a step, where `explain` asks for it.
"""
