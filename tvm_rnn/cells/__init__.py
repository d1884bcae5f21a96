"""The zoo: one file per family of cells, discovered. `tvm_rnn.cells.lstm` is the Cell, not the file.

In: every module of this folder. Out: each `Cell` found in them as an attribute of this package; `names()` lists them.
"""

from __future__ import annotations

import importlib
import pkgutil

from tvm_rnn.language.cell import Cell

from ..errors import ConfigError, message, unknown

ZOO: dict[str, Cell] = {}

for _file in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    _module = importlib.import_module(f"{__name__}.{_file}")
    for _value in list(vars(_module).values()):
        if isinstance(_value, Cell) and _value.function.__module__ == _module.__name__:
            if _value.name in ZOO:
                raise ConfigError(message("two cells have one name", where=_value.where, got=ZOO[_value.name].where))
            ZOO[_value.name] = _value

globals().update(ZOO)  # after the imports: a cell named like its file replaces the submodule as an attribute


def names() -> list[str]:
    """The names of all cells, sorted."""
    return sorted(ZOO)


def get(name: str) -> Cell:
    """The cell of that name. Raises ConfigError listing the known ones and the nearest."""
    if name not in ZOO:
        raise ConfigError(message("no such cell", **unknown("cell", name, ZOO)))
    return ZOO[name]


def __getattr__(name: str) -> Cell:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(message(f"tvm_rnn.cells has no cell {name!r}", **unknown("cell", name, ZOO)))
