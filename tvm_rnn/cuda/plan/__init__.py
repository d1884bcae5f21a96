"""The whole network on a GPU: which kernels run in which order.

In: layers after the passes. Out: a host program. `network.py` loops over layers, directions and tiles of time,
`layer.py` runs one layer (`launches.py`: one launch of it; `passing_rows.py`: memory with two uses), `wave.py` runs all
layers at once, one step behind each other. `generation.py` runs the loop of a network that feeds itself; `images.py`
turns images to rows of pixels and back.
"""
