"""Training on GPUs: the programs `forward_train` and `backward`.

In: graphs with their backward graphs. Out: two host programs more. `add_entry_points.py` plans both; `tape_layout.py`
says what forward leaves; `plan_forward.py` and `plan_backward.py` order the kernels; `row_product.py` finds sums of
products of two rows, `weight_gradient_*.py` accumulate over all rows; `gradient_kernels.py` stores the other gradients.
"""
