"""What a cell is written with.

In: a Python function with dims in its annotations. Out: a `Cell` (`cell.py`), and of its function, traced once, a
graph. `dims.py` reads annotations, `trace.py` records operations, `axes.py` carries the names of axes, `functions.py`
has NumPy's names. Cells are made of cells: `ensemble.py` has many members in one, `tangents.py` has directions beside
values.
"""

from . import functions as functions  # now: advice in the errors of a traced value names them
