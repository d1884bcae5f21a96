"""Plain C99 of a network, for whatever has a C compiler: floats, or fixed point with scales from the user's own data.

In: an `RNN` with weights. Out: a folder with a header, a source, weights and an example. In order: what of a layer gets
memory (`layer_values.py`), where an element lies (`places.py`), numbers (`arithmetic.py`: `floating.py`, or
`fixed_point.py` with operations from `fixed_rows.py` and scales from `calibrate.py`), loops (`nests.py`), texts
(`source.py`), the folder (`folder.py`).
"""

from .folder import Written, check_c, write_c

__all__ = ["Written", "check_c", "write_c"]
