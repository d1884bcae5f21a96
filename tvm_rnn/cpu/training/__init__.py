"""Training on CPUs: the functions `forward_train` and `backward` beside `sequence`.

In: graphs with their backward graphs. Out: functions of the same IRModule. `add_entry_points.py` adds them,
`tape_layout.py` says what forward leaves, `lower_network.py` is what `lower_forward.py` and `lower_backward.py` share,
`lower_layer_backward.py` does one layer of the latter, `weight_gradient_sums.py`, `kernel_gradient_sums.py` of
convolutions and `parameter_gradients.py` make gradients of sums.
"""
