"""Warnings of layers, with the user's own line as their place.

In: a text, anywhere below a call of a layer. Out: a UserWarning at the nearest caller that is neither in torch, whose
modules and transforms call layers through frames of their own, nor in this package.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

INSIDE = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, str(Path(__file__).parent)))


def warn(text: str) -> None:
    """Warn the user of a layer."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
