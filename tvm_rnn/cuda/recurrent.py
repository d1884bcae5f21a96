"""Which regimes can run a layer's steps, the best first.

In: a layer's layout, a target, a precision, batch sizes to expect. Out: regimes, none where the layer can only run step
by step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..target import Target
from .layout import Layout
from .regime import Regime


def choose(layout: Layout, target: Target, precision: str, batches: Sequence[int]) -> list[Regime]:
    """The regimes of one layer, in the order in which they are to be tried."""
    return []
