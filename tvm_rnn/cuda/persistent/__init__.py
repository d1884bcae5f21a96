"""Persistent kernels: all steps of a layer in one launch, weights kept on the chip.

In: a geometry. Out: one kernel (`kernel.py`). In the order of a step: `geometry.py` says who has what,
`shared_memory_map.py` where; `initial_operands.py`, `layer_input_rows.py`, `hoisted_value_prefetch.py` bring inputs;
product/ multiplies; `cell_reads.py` and `cell_epilogue.py` compute cells, `unit_reduction.py` sums over units;
`exchange*.py` hand values to the other blocks; `tape_stores.py` leaves what training reads; `lengths_and_resets.py`
masks rows.
"""
