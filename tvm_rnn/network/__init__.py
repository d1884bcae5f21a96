"""Networks: cells over time, with sizes and weights.

In: a cell, sizes, weights. Out: `RNN` (`rnn.py`, of `layer.py`), or a `Model` of several (`model.py`) with what is
around them (`program.py`). `closed_loop.py` makes of a network one that feeds itself, `regularise.py` adds dropout and
zoneout to equations, `origin.py` remembers the framework, `tensor_files.py` reads weights.
"""
