"""What is around recurrent networks on a GPU: kernels for the loops of a graph, and the function that launches them.

`device_function.py` is the way in: a graph of calls becomes statements over arrays (`statements.py`), in which moves
are taken into what reads them (`inline.py`); each statement is a kernel: one thread an element (`element_kernel.py`),
one warp a sum (`warp_sum.py`), or tiles of a product of matrices or a convolution (`product_tile.py`).
`nest_kernel.py` has what they share, `narrow.py` their indices in 32 bits; `size_text.py` writes sizes as C++.
"""
