"""Networks: cells over time, with sizes and weights.

In: a cell, sizes, weights. Out: `RNN` (`rnn.py`, of `layer.py`), or a `Model` of several (`model.py`) with what is
around them (`program.py`). `regularise.py` adds dropout and zoneout to equations, `widen.py` makes a network of 16 bits
one of float32, `origin.py` remembers the framework, `tensor_files.py` reads weights, `equations_digest.py` names
equations.
"""
