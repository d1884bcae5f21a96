"""Cells made of a description in place of a user's function: arguments with their dims, and equations as a closure.

In: names, dims and a Python function of traced values, from the frontends. Out: a `Cell` like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tvm_rnn.language.cell import Cell, cell

Values = Mapping[str, Any]
Equations = Callable[[Values], tuple[Any, ...]]


def build_cell(
    name: str,
    doc: str,
    inputs: Mapping[str, str],
    states: Mapping[str, str],
    params: Mapping[str, str],
    equations: Equations,
    **options: Any,
) -> Cell:
    """A Cell. inputs, states, params: dims by name. equations: all arguments by name to the new states, in order.

    options: `output`, `initial` and `init` of @cell. Raises CellError as @cell does.
    """

    def step(*values: Any, **given: Any) -> Any:
        named = dict(zip([*inputs, *states], values, strict=True)) | given
        return equations(named)

    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    arguments = [inspect.Parameter(n, positional, annotation=dims) for n, dims in {**inputs, **states}.items()]
    arguments += [inspect.Parameter(n, keyword, annotation=dims) for n, dims in params.items()]
    vars(step)["__signature__"] = inspect.Signature(arguments)  # what @cell reads
    step.__name__, step.__doc__ = name, doc
    return cell(states=tuple(states), name=name, **options)(step)
