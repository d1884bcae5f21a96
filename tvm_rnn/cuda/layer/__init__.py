"""One layer's facts, which all of its kernels share.

In: a graph and a precision. Out: where values, weights and states lie, and a step as phases. `value_layout.py` and
`pointers.py` say where, `user_states.py` where in a call of one step, `row_kernels.py` loads or computes values inside
a kernel and works row by row, `weight_packing.py`, `packed_layout.py` and `fp8_weights.py` pack weights,
`pipeline_barriers.py` has the barriers of stages, `phases.py` divides a step, `regime.py` is what runs all steps,
`time_segments.py` runs a part of them, `matrix_operands.py` has what recurrences of matrices read, `made_again.py` what
backward makes of few kept states, `one_head.py` makes of a layer of heads the layer of one, `one_vector.py`, where
heads read one another, one of vectors.
"""
