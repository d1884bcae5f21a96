"""Training on CPUs: the functions `forward_train` and `backward` beside `sequence`.

In: graphs with their backward graphs. Out: functions of the same IRModule. `add_entry_points.py` adds them,
`tape_layout.py` says what forward leaves, `lower_forward.py` and `lower_backward.py` loop over layers and time,
`lower_layer_*.py` do one layer, `weight_gradient_sums.py` and `parameter_gradients.py` make gradients of sums.
"""
