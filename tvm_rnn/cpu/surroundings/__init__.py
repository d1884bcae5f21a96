"""What is around a model's networks, as functions of their own in the module's file.

In: a `Graph` of calls (`tvm_rnn/surroundings/`). Out: for each graph two functions: one says how large its results and
its memory are, the other computes; of a large graph more: `shared_calls.py` makes one of all calls that are alike.
`schedule.py` says how loops run (`columns.py` says which way vectors run, `sum_tiles.py`, `panel_sum.py` and
`lane_sums.py` make sums into tiles, `pair_sum.py` those of whole numbers, which `whole_numbers.py` finds,
`pointwise.py` does the rest, `shared_loops.py` gives threads their pieces, `elementary.py` writes exponentials out,
`levels.py` gives models that round to 8 bits the last bits of ONNX Runtime), `constants.py` where constants lie,
`places.py` where values do, and `host_function.py` puts all calls of a graph, one after the other, into one function.
"""
