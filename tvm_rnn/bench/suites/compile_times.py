"""What compiling is timed of: every cell of the zoo, and cells from papers that are larger.

In: nothing. Out: networks by name, in a size whose compilation takes no longer than a small one's: code grows with
equations, not with sizes.
"""

from __future__ import annotations

from tvm_rnn import cells
from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.language.cell import Cell
from tvm_rnn.network.rnn import RNN

from . import large_cells
from .gpu import Facts

WIDTH = 64
OWN = {"P": 32, "depth": 3, "Y": 16, "A": 8, "S": 12, "O": 32}  # of axes that a cell has beside input and hidden ones
LAYERS = {"rwkv7": 2}  # whose first layer hands values on to the next
SUITE = "compile"
BARS = (3.0, 10.0)  # seconds of CPU time that inference may take, and with training


def networks(only: str = "") -> dict[str, RNN]:
    """Networks without weights by the names of their cells. only: names, comma-separated. Raises ConfigError."""
    every = {**cells.ZOO, **large_cells.CELLS}
    names = [word.strip() for word in only.split(",") if word.strip()] or sorted(every)
    for name in names:
        if name not in every:
            raise ConfigError(message("--only: no such cell in this suite", **unknown("cell", name, every)))
    return {name: _network(name, every[name]) for name in names}


def _network(name: str, cell: Cell) -> RNN:
    own: Facts = large_cells.SIZES.get(name) or {axis: OWN[axis] for axis in cell.size_names if axis in OWN}
    return RNN(cell, WIDTH, WIDTH, LAYERS.get(name, 1), **own)
